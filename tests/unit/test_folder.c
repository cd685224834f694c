/* SPDX-License-Identifier: Apache-2.0 */
/* The text files of a folder, and checkpoint_open_text for every kind of path: what is found where,
 * which file takes precedence, and each file's refusals.
 */
#include "model_files.h"

static struct temp_folder folder;

#define TOKENIZER "{\"model\":{\"type\":\"BPE\"}}"

static void write_text(const char *name, const char *text) {
    temp_write(&folder, name, text, strlen(text));
}

static void remove_file(const char *name) {
    (void)unlink(temp_file(&folder, name));
}

static int make_folder(void **state) {
    (void)state;
    temp_folder_make(&folder);
    write_text("tokenizer.json", TOKENIZER);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

static struct checkpoint *open_text(const char *path) {
    struct checkpoint *c;
    kvasir_error err = {0};
    if (checkpoint_open_text(path, &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return c;
}

static void refused(const char *path, kvasir_status status, const char *words) {
    struct checkpoint *c;
    kvasir_error err = {0};
    kvasir_status found = checkpoint_open_text(path, &c, &err);
    if (found == KVASIR_OK)
        fail_msg("opened, should say: %s", words);
    assert_null(c);
    if (found != status || !strstr(err.text, words))
        fail_msg("status %d, text: %s; wanted %d: %s", found, err.text, status, words);
    assert_clear_error(&err, status, folder.path);
}

static void assert_ends(const struct checkpoint *c, const int32_t *ends, size_t n) {
    const struct tokenizer_spec *t = checkpoint_tokenizer(c);
    assert_int_equal(t->n_ends, n);
    if (n)
        assert_memory_equal(t->ends, ends, n * sizeof *ends);
}

/* ---- what it must read ----------------------------------------------------------------------- */

static void test_tokenizer_alone(void **state) {
    (void)state;
    struct checkpoint *c = open_text(folder.path);
    const struct tokenizer_spec *t = checkpoint_tokenizer(c);
    assert_non_null(t);
    assert_int_equal(t->json.len, strlen(TOKENIZER));
    assert_memory_equal(t->json.data, TOKENIZER, t->json.len);
    assert_null(t->config.data);
    assert_int_equal(t->bos, -1);
    assert_ends(c, NULL, 0);
    assert_null(checkpoint_chat_template(c));
    assert_string_equal(checkpoint_format(c), "tokenizer.json");
    checkpoint_close(c);
}

static void test_sampling(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double temp, top_p, top_k; /* -9: not given */
    } CASES[] = {
        {"{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"do_sample\":true}", 0.6, 0.95, 20},
        {"{\"temperature\":0.6,\"do_sample\":false,\"top_k\":null}", 0, -9, -9},
        {"{\"do_sample\":true}", 1, -9, -9},
        {"{\"top_k\":-1,\"max_new_tokens\":9}", -9, -9, -1},
        {"{}", -9, -9, -9},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_text("generation_config.json", CASES[i].text);
        struct checkpoint *c = open_text(folder.path);
        const struct sampling_hints *h = checkpoint_sampling(c);
        const double found[] = {h->given[HINT_TEMP] ? h->value[HINT_TEMP] : -9,
                                h->given[HINT_TOP_P] ? h->value[HINT_TOP_P] : -9,
                                h->given[HINT_TOP_K] ? h->value[HINT_TOP_K] : -9};
        if (found[0] != CASES[i].temp || found[1] != CASES[i].top_p || found[2] != CASES[i].top_k)
            fail_msg("%s: %g %g %g", CASES[i].text, found[0], found[1], found[2]);
        assert_false(h->given[HINT_MIN_P] || h->given[HINT_REPETITION]);
        checkpoint_close(c);
    }
}

static void test_neighbours(void **state) {
    (void)state;
    static const int32_t ends[] = {7, 9, 11};
    write_text("tokenizer_config.json", "{\"bos_token\":\"<s>\"}");
    write_text("generation_config.json", "{\"eos_token_id\":[7,9,7]}");
    write_text("config.json", "{\"eos_token_id\":11}");
    const char *const paths[] = {folder.path, temp_file(&folder, "tokenizer.json")};
    for (size_t i = 0; i < 2; i++) {
        struct checkpoint *c = open_text(paths[i]);
        const struct tokenizer_spec *t = checkpoint_tokenizer(c);
        assert_int_equal(t->config.len, 19);
        assert_memory_equal(t->config.data, "{\"bos_token\":\"<s>\"}", 19);
        assert_ends(c, ends, 3);
        checkpoint_close(c);
    }
    /* A tokenizer file by another name does not use the files next to it. */
    write_text("other.json", " \n" TOKENIZER);
    struct checkpoint *c = open_text(folder.file);
    assert_null(checkpoint_tokenizer(c)->config.data);
    assert_ends(c, NULL, 0);
    checkpoint_close(c);
    write_text("generation_config.json", "{\"eos_token_id\":null}");
    write_text("config.json", "{}");
    c = open_text(folder.path);
    assert_ends(c, NULL, 0);
    checkpoint_close(c);
}

static void test_in_this_folder(void **state) {
    (void)state;
    char before[512];
    assert_non_null(getcwd(before, sizeof before));
    write_text("config.json", "{\"eos_token_id\":3}");
    assert_int_equal(chdir(folder.path), 0);
    struct checkpoint *c = open_text("tokenizer.json");
    assert_int_equal(chdir(before), 0);
    assert_ends(c, (const int32_t[]){3}, 1);
    checkpoint_close(c);
}

/* Each step writes a file; later files take precedence over earlier ones. */
static void test_templates(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *found;
    } steps[] = {
        {"tokenizer_config.json", "{\"chat_template\":null}", NULL},
        {"tokenizer_config.json", "{\"chat_template\":\"one\"}", "one"},
        {"tokenizer_config.json",
         "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"},"
         "{\"name\":\"default\",\"template\":\"two\"}]}",
         "two"},
        {"tokenizer_config.json", "{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"}]}",
         NULL},
        {"tokenizer_config.json", "{\"chat_template\":\"one\"}", "one"},
        {"chat_template.json", "{}", "one"},
        {"chat_template.json", "{\"chat_template\":\"three\"}", "three"},
        {"chat_template.jinja", "four\n", "four\n"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        write_text(steps[i].file, steps[i].text);
        struct checkpoint *c = open_text(folder.path);
        if (steps[i].found)
            assert_string_equal(checkpoint_chat_template(c), steps[i].found);
        else
            assert_null(checkpoint_chat_template(c));
        checkpoint_close(c);
    }
}

/* A GGUF file of an unsupported architecture: its text can be opened all the same. */
static void test_gguf(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    tiny_values(&w, "gemma9");
    gguf_u32(&w, "tokenizer.ggml.eom_token_id", 7);
    gguf_u32(&w, "tokenizer.ggml.eot_token_id", 6);
    struct text_buf b = gguf_finish(&w, 32);
    temp_write(&folder, "words.gguf", b.data, b.len);
    struct checkpoint *c = open_text(folder.file);
    const struct tokenizer_spec *t = checkpoint_tokenizer(c);
    assert_string_equal(t->model, "gpt2");
    assert_null(t->json.data);
    assert_int_equal(t->eot, 6);
    assert_false(t->add_space_prefix);
    assert_null(t->scores);
    assert_ends(c, (const int32_t[]){7}, 1);
    assert_string_equal(checkpoint_chat_template(c), "{{ messages[0].content }}");
    assert_string_equal(checkpoint_format(c), "GGUF v3");
    checkpoint_close(c);
    assert_refused(temp_file(&folder, "words.gguf"), KVASIR_ERR_UNSUPPORTED, "gemma9");
    text_free(&b);
}

/* SentencePiece: scores, and a leading space unless the file says otherwise. */
static struct text_buf llama_words(uint32_t elem, uint64_t n, float last, bool prefix_key) {
    struct gguf_writer w = {0};
    gguf_string(&w, "tokenizer.ggml.model", "llama");
    gguf_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, 2);
    put_text(&w.values, "<unk>");
    put_text(&w.values, "\xe2\x96\x81x");
    gguf_array(&w, "tokenizer.ggml.scores", elem, n);
    for (uint64_t i = 0; i < n; i++)
        put(&w.values, i + 1 < n ? &(float){-1} : &last, 4);
    if (prefix_key)
        gguf_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    return gguf_finish(&w, 32);
}

static void test_scores(void **state) {
    (void)state;
    static const struct {
        uint32_t elem;
        uint64_t n;
        float last;
        const char *words;
    } bad[] = {{GGUF_I32, 2, -2, "scores must be an array of f32, one for each of 2 tokens"},
               {GGUF_F32, 3, -2, "scores must be an array of f32, one for each of 2 tokens"},
               {GGUF_F32, 2, -1.0f / 0.0f, "token 1 has score -inf"}};
    for (int with_key = 0; with_key < 2; with_key++) {
        struct text_buf b = llama_words(GGUF_F32, 2, -2.5f, with_key);
        temp_write(&folder, "words.gguf", b.data, b.len);
        text_free(&b);
        struct checkpoint *c = open_text(folder.file);
        const struct tokenizer_spec *t = checkpoint_tokenizer(c);
        assert_true(t->scores[0] == -1 && t->scores[1] == -2.5f);
        assert_int_equal(t->add_space_prefix, !with_key);
        assert_true(t->add_bos);
        checkpoint_close(c);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct text_buf b = llama_words(bad[i].elem, bad[i].n, bad[i].last, false);
        temp_write(&folder, "words.gguf", b.data, b.len);
        text_free(&b);
        refused(folder.file, KVASIR_ERR_FORMAT, bad[i].words);
    }
}

/* ---- what it must refuse --------------------------------------------------------------------- */

static void test_broken(void **state) {
    (void)state;
    static const struct {
        const char *file, *text, *words;
    } cases[] = {
        {"generation_config.json", "{\"temperature\":\"hot\"}",
         "field temperature must be a number"},
        {"generation_config.json", "{\"top_p\":1.5}", "field top_p must be a number from 0 to 1"},
        {"generation_config.json", "{\"eos_token_id\":-2}", "field eos_token_id must be"},
        {"generation_config.json", "{\"eos_token_id\":[1,\"x\"]}", "found a string"},
        {"generation_config.json", "{\"eos_token_id\":99999999999}", "field eos_token_id must be"},
        {"generation_config.json", "[1]", "the file's document must be an object, found an array"},
        {"generation_config.json", "{\"a\":", "generation_config.json: JSON does not parse"},
        {"config.json", "{\"eos_token_id\":true}", "field eos_token_id must be"},
        {"tokenizer_config.json", "{\"chat_template\":7}", "field chat_template must be a string"},
        {"tokenizer_config.json", "{\"chat_template\":\"a\\u0000\"}", "JSON does not parse"},
        {"chat_template.json", "{", "JSON does not parse"},
        {"generation_config.json", "", "the file is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(cases[i].file, cases[i].text);
        refused(folder.path, KVASIR_ERR_FORMAT, cases[i].words);
        remove_file(cases[i].file);
    }
    temp_write(&folder, "chat_template.jinja", "a\0b", 3);
    refused(folder.path, KVASIR_ERR_FORMAT, "the file holds a zero byte");
    remove_file("chat_template.jinja");
    struct text_buf list = {0}; /* an absurd number of end tokens */
    put(&list, "{\"eos_token_id\":[0", 18);
    for (int i = 1; i < 1000; i++)
        assert_true(text_printf(&list, ",%d", i));
    put(&list, "]}", 2);
    temp_write(&folder, "config.json", list.data, list.len);
    text_free(&list);
    refused(folder.path, KVASIR_ERR_FORMAT, "has more than 64 tokens");
    remove_file("config.json");
    checkpoint_close(open_text(folder.path));
}

static void test_nothing_there(void **state) {
    (void)state;
    remove_file("tokenizer.json");
    refused(folder.path, KVASIR_ERR_IO, "the folder holds no tokenizer.json");
    refused(temp_file(&folder, "tokenizer.json"), KVASIR_ERR_IO, "tokenizer.json: No such file");
    write_text("x.gguf", "GGUFx");
    refused(folder.path, KVASIR_ERR_IO, "for GGUF give the file");
    refused(temp_file(&folder, "x.gguf"), KVASIR_ERR_FORMAT, "the file ends inside the header");
    write_text("tokenizer.json", "ELF");
    refused(folder.file, KVASIR_ERR_FORMAT, "neither a GGUF file nor a tokenizer.json");
    temp_write(&folder, "tokenizer.json", "\0\0{}", 4);
    refused(folder.file, KVASIR_ERR_FORMAT, "neither a GGUF file nor a tokenizer.json");
    struct gguf_writer w = {0};
    gguf_string(&w, "general.architecture", "clip");
    struct text_buf b = gguf_finish(&w, 32);
    temp_write(&folder, "y.gguf", b.data, b.len);
    text_free(&b);
    refused(folder.file, KVASIR_ERR_FORMAT, "metadata tokenizer.ggml.model is missing");
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_tokenizer_alone), IN_FOLDER(test_neighbours), IN_FOLDER(test_sampling),
        IN_FOLDER(test_in_this_folder),  IN_FOLDER(test_templates),  IN_FOLDER(test_gguf),
        IN_FOLDER(test_scores),          IN_FOLDER(test_broken),     IN_FOLDER(test_nothing_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
