/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of prompt-cache files: which trims are refused, and what a file says about how it was
 * computed. golden/prompt_cache.c has the files of mlx-lm and their logits. */
#include "model_files.h"

#include "engine/engine.h"
#include "tensors.h"

#define MLX_FILE                                                                                   \
    SHARED_DIR "/fixtures/mlx/prompt-cache/legacy-0.31.3/tiny-qwen3_next/arrays_70.safetensors"

enum { VOCAB = 512, MOST = 120 };

static kvasir_error err;
static struct temp_folder folder;
static int32_t text[MOST];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    (void)state;
    for (int i = 0; i < MOST; i++)
        text[i] = i * 37 % VOCAB;
    temp_folder_make(&folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

static kvasir_model *open_model(const char *name) {
    char path[512];
    kvasir_model *m;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    need(kvasir_model_open(path, &m, &err));
    return m;
}

static kvasir_context_options options_of(int act_bits, const char *tier) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "8";
    o.key_centre = "off";
    o.ctx = 256;
    o.threads = 1;
    o.cache_bytes = 16 << 20;
    o.act_bits = act_bits;
    o.cpu_tier = tier;
    return o;
}

static void eval(kvasir_seq *s, const int32_t *tokens, size_t n, float logits[VOCAB]) {
    need(kvasir_seq_eval(
        s, tokens, n,
        &(kvasir_eval_options){.struct_size = sizeof(kvasir_eval_options), .last_logits = logits},
        &err));
}

/* mlx-lm's files do not name their tokens. Recurrent layers would run them again for a trim to less
 * than the file has. */
static void test_trim_of_unknown_tokens(void **state) {
    (void)state;
    if (!path_exists(MLX_FILE))
        skip();
    kvasir_model *m = open_model("qwen3_next");
    kvasir_context_options o = options_of(8, "auto");
    kvasir_prompt_cache *file;
    kvasir_context *c;
    kvasir_seq *s;
    float want[VOCAB], got[VOCAB];
    uint32_t rerun;
    need(kvasir_prompt_cache_open(m, MLX_FILE, &file, &err));
    o.like = file;
    o.kv_bits = "9"; /* the file's formats replace it, but it is read */
    assert_int_equal(kvasir_context_create(m, &o, &c, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "context.kv_bits");
    o.kv_bits = kvasir_context_defaults().kv_bits;
    need(kvasir_context_create(m, &o, &c, &err));
    need(kvasir_seq_load(c, file, false, &s, &err));
    assert_int_equal(kvasir_seq_length(s), 70);
    assert_int_equal(kvasir_seq_tokens(s)[0], -1);
    eval(s, text, 10, NULL);
    eval(s, text + 10, 10, want);
    const uint64_t bytes = kvasir_seq_bytes(s);
    static const uint32_t LENGTHS[] = {69, 64, 1};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        assert_int_equal(kvasir_seq_trim(s, LENGTHS[i], NULL, &err), KVASIR_ERR_ARGUMENT);
        assert_non_null(strstr(err.text, "did not name token 0"));
        assert_int_equal(kvasir_seq_length(s), 90);
        assert_int_equal(kvasir_seq_bytes(s), bytes);
    }
    need(kvasir_seq_trim(s, 80, &rerun, &err));
    assert_int_equal(rerun, 10);
    eval(s, text + 10, 10, got);
    assert_memory_equal(got, want, sizeof want);
    need(kvasir_seq_trim(s, 70, &rerun, &err));
    assert_int_equal(rerun, 0);
    eval(s, text, 20, got);
    assert_memory_equal(got, want, sizeof want);
    /* a copy of the file does not name them either */
    kvasir_prompt_cache *copy;
    kvasir_seq *t;
    need(kvasir_seq_save(s, temp_file(&folder, "unnamed.safetensors"), false, &err));
    need(kvasir_prompt_cache_open(m, folder.file, &copy, &err));
    need(kvasir_seq_load(c, copy, false, &t, &err));
    assert_int_equal(kvasir_seq_length(t), kvasir_seq_length(s));
    assert_int_equal(kvasir_seq_tokens(t)[0], -1);
    kvasir_seq_destroy(t);
    kvasir_prompt_cache_close(copy);
    need(kvasir_seq_trim(s, 0, &rerun, &err));
    assert_int_equal(kvasir_seq_length(s), 0);
    /* now every token is known, whatever lay after them: the file names them */
    eval(s, text, 10, NULL);
    need(kvasir_seq_save(s, temp_file(&folder, "named.safetensors"), false, &err));
    kvasir_seq_destroy(s);
    kvasir_prompt_cache_close(file);
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    need(kvasir_seq_load(c, file, false, &s, &err));
    assert_int_equal(kvasir_seq_length(s), 10);
    assert_memory_equal(kvasir_seq_tokens(s), text, 10 * sizeof *text);
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
    kvasir_prompt_cache_close(file);
    kvasir_model_close(m);
}

/* A bounded cache's file lacks the tokens that its end no longer sees. A trim must not show their
 * slots, which are zeros (PROMPT-2). */
static void test_trim_of_missing_rows(void **state) {
    (void)state;
    kvasir_model *m = open_model("llama");
    kvasir_context_options o = options_of(8, "auto");
    kvasir_prompt_cache *file;
    kvasir_context *c;
    kvasir_seq *s;
    o.kv_bits = "f16";
    o.max_kv_size = 48;
    need(kvasir_context_create(m, &o, &c, &err));
    need(kvasir_seq_create(c, &s, &err));
    eval(s, text, 100, NULL);
    need(kvasir_seq_save(s, temp_file(&folder, "ring.safetensors"), false, &err));
    kvasir_seq_destroy(s);
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    need(kvasir_seq_load(c, file, false, &s, &err));
    assert_int_equal(kvasir_seq_trim(s, 90, NULL, &err), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "cannot trim to 90 tokens"));
    assert_int_equal(kvasir_seq_length(s), 100);
    eval(s, text, 8, NULL);
    assert_int_equal(kvasir_seq_trim(s, 90, NULL, &err), KVASIR_ERR_ARGUMENT);
    need(kvasir_seq_trim(s, 100, NULL, &err));
    kvasir_seq_destroy(s);
    kvasir_prompt_cache_close(file);
    kvasir_context_destroy(c);
    kvasir_model_close(m);
}

/* Files have mlx-lm's order of value heads, also of a model with another one: what is loaded is
 * what was saved. */
static void test_states_of_cycling_heads(void **state) {
    (void)state;
    kvasir_model *m = open_model("qwen3_next");
    const kvasir_context_options o = options_of(8, "auto");
    kvasir_prompt_cache *file;
    kvasir_context *c;
    kvasir_seq *s;
    ((struct model_config *)model_config(m->model))->delta.keys_cycle = true; /* as in GGUF */
    const size_t bytes = model_state_bytes(m->model);
    uint8_t *saved = malloc(bytes), *loaded = malloc(bytes);
    assert_true(saved && loaded && bytes);
    need(kvasir_context_create(m, &o, &c, &err));
    need(kvasir_seq_create(c, &s, &err));
    eval(s, text, 20, NULL);
    need(seq_read_state(s->seq, saved, &err));
    need(kvasir_seq_save(s, temp_file(&folder, "cycle.safetensors"), false, &err));
    kvasir_seq_destroy(s);
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    need(kvasir_seq_load(c, file, false, &s, &err));
    need(seq_read_state(s->seq, loaded, &err));
    assert_memory_equal(loaded, saved, bytes);
    kvasir_seq_destroy(s);
    kvasir_prompt_cache_close(file);
    kvasir_context_destroy(c);
    kvasir_model_close(m);
    free(saved);
    free(loaded);
}

/* ---- how a file was computed ----------------------------------------------------------------- */

/* Saves a prompt, begun with the file `from` (NULL: with nothing), to `to`. */
static kvasir_prompt_cache_info save(const kvasir_model *m, const kvasir_context_options *o,
                                     const char *from, const char *to, char tier[32]) {
    kvasir_prompt_cache *file = NULL;
    kvasir_prompt_cache_info info;
    kvasir_context *c;
    kvasir_seq *s;
    need(kvasir_context_create(m, o, &c, &err));
    if (from) {
        need(kvasir_prompt_cache_open(m, temp_file(&folder, from), &file, &err));
        need(kvasir_seq_load(c, file, false, &s, &err));
        kvasir_prompt_cache_close(file);
    } else {
        need(kvasir_seq_create(c, &s, &err));
    }
    eval(s, text, 20, NULL);
    need(kvasir_seq_save(s, temp_file(&folder, to), false, &err));
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    kvasir_prompt_cache_get_info(file, &info);
    snprintf(tier, 32, "%s", info.tier ? info.tier : "");
    kvasir_prompt_cache_close(file);
    return info;
}

static void test_files_say_how_they_were_computed(void **state) {
    (void)state;
    kvasir_model *m = open_model("llama");
    const kvasir_context_options o8 = options_of(8, "ref"), o16 = options_of(16, "ref");
    kvasir_prompt_cache_info info;
    kvasir_prompt_cache *file;
    char tier[32];
    info = save(m, &o16, NULL, "16", tier);
    assert_int_equal(info.act_bits, 16);
    info = save(m, &o8, NULL, "8", tier);
    assert_int_equal(info.tokens, 20);
    assert_int_equal(info.act_bits, 8);
    assert_string_equal(tier, "ref");
    assert_false(info.other_arithmetic);
    info = save(m, &o8, "8", "both", tier); /* all its rows were computed alike */
    assert_int_equal(info.tokens, 40);
    assert_int_equal(info.act_bits, 8);
    assert_string_equal(tier, "ref");
    info = save(m, &o16, "8", "mixed", tier); /* they were not */
    assert_int_equal(info.act_bits, 0);
    assert_string_equal(tier, "");
    save(m, &o16, "mixed", "mixed", tier); /* a file without the fields loads */
    assert_string_equal(tier, "");
    kvasir_model_close(m);
    if (!path_exists(MLX_FILE))
        return;
    m = open_model("qwen3_next");
    temp_file(&folder, "8"); /* of another model: the error begins with the file */
    assert_int_not_equal(kvasir_prompt_cache_open(m, folder.file, &file, &err), KVASIR_OK);
    assert_memory_equal(err.text, folder.file, strlen(folder.file));
    need(kvasir_prompt_cache_open(m, MLX_FILE, &file, &err));
    kvasir_prompt_cache_get_info(file, &info);
    assert_int_equal(info.tokens, 70);
    assert_int_equal(info.act_bits, 0);
    assert_null(info.tier);
    assert_false(info.other_arithmetic);
    kvasir_prompt_cache_close(file);
    kvasir_model_close(m);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trim_of_unknown_tokens),
        cmocka_unit_test(test_trim_of_missing_rows),
        cmocka_unit_test(test_states_of_cycling_heads),
        cmocka_unit_test(test_files_say_how_they_were_computed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
