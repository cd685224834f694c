/* SPDX-License-Identifier: Apache-2.0 */
/* Split GGUF files: the tiny model in three parts, opened through any of them, and every way in
 * which parts can fail to be one model.
 *
 *     part 1   the values, the embedding and the last norm        2 tensors
 *     part 2   layer 0                                            9
 *     part 3   layer 1                                            9
 */
#include "model_files.h"

enum { PARTS = 3, TENSORS = 20 };

static struct temp_folder folder;

static void split_values(struct gguf_writer *w, uint16_t no, uint16_t count, uint32_t n_tensors) {
    gguf_key(w, "split.no", GGUF_U16);
    put(&w->values, &no, sizeof no);
    gguf_key(w, "split.count", GGUF_U16);
    put(&w->values, &count, sizeof count);
    gguf_key(w, "split.tensors.count", GGUF_I32);
    put_u32(&w->values, n_tensors);
}

static void part_tensors(struct gguf_writer *w, unsigned no) {
    if (no > 1) {
        tiny_layer(w, "llama", (int)no - 2);
        return;
    }
    gguf_matrix(w, "token_embd.weight", WEIGHT_Q8_0, 8, 64);
    gguf_vector(w, "output_norm.weight", 64);
}

static const char *part_name(unsigned no, unsigned count) {
    static char name[64];
    snprintf(name, sizeof name, "tiny-%05u-of-%05u.gguf", no, count);
    return name;
}

static const char *part_file(unsigned no) {
    return temp_file(&folder, part_name(no, PARTS));
}

/* Writes part `no` (the number in its values) into the file of part `as` of PARTS. */
static void write_part(unsigned as, unsigned no, unsigned count, uint32_t n_tensors) {
    struct gguf_writer w = {0};
    split_values(&w, (uint16_t)(no - 1), (uint16_t)count, n_tensors);
    if (no == 1)
        tiny_values(&w, "llama");
    part_tensors(&w, no);
    struct text_buf b = gguf_finish(&w, 32);
    temp_write(&folder, part_name(as, PARTS), b.data, b.len);
    text_free(&b);
}

static int make_parts(void **state) {
    (void)state;
    temp_folder_make(&folder);
    for (unsigned no = 1; no <= PARTS; no++)
        write_part(no, no, PARTS, TENSORS);
    return 0;
}

static int remove_parts(void **state) {
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

/* Whichever part is opened, the error names the bad one. */
static void refused(unsigned bad, kvasir_status status, const char *words) {
    char expected[256];
    snprintf(expected, sizeof expected, "%s", part_file(bad));
    for (unsigned no = 1; no <= PARTS; no++) {
        struct checkpoint *c;
        kvasir_error err = {0};
        kvasir_status found = checkpoint_open(part_file(no), &c, &err);
        if (found == KVASIR_OK)
            fail_msg("opened, should say: %s", words);
        if (found != status || !strstr(err.text, words) || !strstr(err.text, expected))
            fail_msg("status %d, text: %s; wanted %d: %s: %s", found, err.text, status, expected,
                     words);
        assert_clear_error(&err, status, folder.path);
    }
}

static void test_any_part_opens(void **state) {
    (void)state;
    for (unsigned no = 1; no <= PARTS; no++) {
        struct model *m;
        kvasir_error err = {0};
        if (model_open(part_file(no), &m, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        const struct checkpoint *c = model_checkpoint(m);
        assert_int_equal(checkpoint_tensor_count(c), TENSORS);
        assert_int_equal(checkpoint_config(c)->n_layers, 2);
        assert_true(checkpoint_config(c)->tied_embedding);
        assert_non_null(checkpoint_tokenizer(c));
        const uint8_t *last = checkpoint_find(c, "model.layers.1.mlp.down_proj.weight")->data;
        assert_int_equal(*last, 1);
        model_close(m);
        struct checkpoint *text;
        assert_int_equal(checkpoint_open_text(part_file(no), &text, &err), KVASIR_OK);
        assert_int_equal(checkpoint_tokenizer(text)->n_tokens, 8);
        assert_int_equal(checkpoint_tensor_count(text), 0);
        checkpoint_close(text);
    }
}

/* gguf-split --no-tensor-first-split. */
static void test_first_without_tensors(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    split_values(&w, 0, PARTS, TENSORS - 2);
    tiny_values(&w, "llama");
    struct text_buf b = gguf_finish(&w, 1);
    temp_write(&folder, part_name(1, PARTS), b.data, b.len);
    text_free(&b);
    write_part(2, 2, PARTS, TENSORS - 2);
    write_part(3, 3, PARTS, TENSORS - 2);
    struct checkpoint *c;
    kvasir_error err = {0};
    if (checkpoint_open(part_file(2), &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(checkpoint_tensor_count(c), TENSORS - 2);
    checkpoint_close(c);
}

/* A name that is not that of one of several parts: the file is opened by itself. */
static void test_one_part(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("llama");
    static const char *const names[] = {"x-00001-of-00001.gguf", "x-00004-of-00003.gguf",
                                        "x-00000-of-00003.gguf", "x-0001-of-0003.gguf",
                                        "-00001-of-0000x.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct checkpoint *c;
        kvasir_error err = {0};
        temp_write(&folder, names[i], b.data, b.len);
        if (checkpoint_open(folder.file, &c, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        checkpoint_close(c);
    }
    text_free(&b);
}

static void test_missing(void **state) {
    (void)state;
    for (unsigned no = PARTS; no >= 1; no--) {
        char words[64];
        assert_int_equal(unlink(part_file(no)), 0);
        snprintf(words, sizeof words, "the file is missing: part %u of 3", no);
        refused(no, KVASIR_ERR_IO, words);
    }
}

static void test_wrong_numbers(void **state) {
    (void)state;
    write_part(2, 3, PARTS, TENSORS);
    refused(2, KVASIR_ERR_FORMAT, "split.no is 2 and split.count 3, the name says part 2 of 3");
    write_part(2, 2, 4, TENSORS);
    refused(2, KVASIR_ERR_FORMAT, "split.no is 1 and split.count 4, the name says part 2 of 3");
    write_part(2, 2, PARTS, TENSORS);
    write_part(1, 2, PARTS, TENSORS);
    refused(1, KVASIR_ERR_FORMAT, "split.no is 1 and split.count 3, the name says part 1 of 3");
    struct text_buf b = tiny_gguf("llama"); /* a whole model under a part's name */
    temp_write(&folder, part_name(1, PARTS), b.data, b.len);
    text_free(&b);
    refused(1, KVASIR_ERR_FORMAT, "metadata split.count is missing");
}

static void test_other_model(void **state) {
    (void)state;
    write_part(3, 3, PARTS, TENSORS + 1); /* from a model with a different number of tensors */
    refused(3, KVASIR_ERR_FORMAT, "split.tensors.count is 21, part 1 says 20: not of one model");
    struct gguf_writer w = {0}; /* from a model with as many tensors, split elsewhere */
    split_values(&w, 2, PARTS, TENSORS);
    tiny_layer(&w, "llama", 0);
    struct text_buf b = gguf_finish(&w, 32);
    temp_write(&folder, part_name(3, PARTS), b.data, b.len);
    text_free(&b);
    for (unsigned no = 1; no <= PARTS; no++)
        assert_refused(part_file(no), KVASIR_ERR_FORMAT,
                       "duplicate tensor model.layers.0.input_layernorm.weight");
    write_part(1, 1, PARTS, TENSORS + 1);
    write_part(2, 2, PARTS, TENSORS + 1);
    write_part(3, 3, PARTS, TENSORS + 1);
    for (unsigned no = 1; no <= PARTS; no++)
        assert_refused(part_file(no), KVASIR_ERR_FORMAT,
                       "split.tensors.count is 21, the parts hold 20 tensors");
}

static void test_truncated(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(stat(part_file(2), &st), 0);
    assert_int_equal(truncate(part_file(2), st.st_size - 1), 0);
    refused(2, KVASIR_ERR_FORMAT, "pass the file's end");
    assert_int_equal(truncate(part_file(2), 100), 0);
    refused(2, KVASIR_ERR_FORMAT, "the file ends inside");
    assert_int_equal(truncate(part_file(2), 0), 0);
    refused(2, KVASIR_ERR_FORMAT, "the file is empty");
}

int main(void) {
#define IN_PARTS(test) cmocka_unit_test_setup_teardown(test, make_parts, remove_parts)
    const struct CMUnitTest tests[] = {
        IN_PARTS(test_any_part_opens), IN_PARTS(test_first_without_tensors),
        IN_PARTS(test_one_part),       IN_PARTS(test_missing),
        IN_PARTS(test_wrong_numbers),  IN_PARTS(test_other_model),
        IN_PARTS(test_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
