/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of prompt-cache files: which trims are refused, exact starts, and what a file says
 * about how it was computed. golden/prompt_cache.c has the files of mlx-lm and their logits. */
#include "model_files.h"

#include "engine/engine.h"
#include "tensors.h"

#define MLX_FILE                                                                                   \
    SHARED_DIR "/fixtures/mlx/prompt-cache/legacy-0.31.3/tiny-qwen3_next/arrays_70.safetensors"

enum { VOCAB = 512, MOST = 200 };

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

/* ---- the exact start ------------------------------------------------------------------------- */

static kvasir_context_options started(const char *kv_bits, uint32_t start) {
    kvasir_context_options o = options_of(8, "auto");
    o.kv_bits = kv_bits;
    o.quantized_kv_start = start;
    return o;
}

/* Saves the first n tokens of the text, computed in a context of its own, to `name`. */
static void save_started(const kvasir_model *m, const kvasir_context_options *o, uint32_t n,
                         const char *name) {
    kvasir_context *c;
    kvasir_seq *s;
    need(kvasir_context_create(m, o, &c, &err));
    need(kvasir_seq_create(c, &s, &err));
    eval(s, text, n, NULL);
    need(kvasir_seq_save(s, temp_file(&folder, name), false, &err));
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
}

/* Two sequences have the same rows in pages of the same formats: full ones byte for byte. */
static void same_pages(const kvasir_seq *a, const kvasir_seq *b) {
    static uint8_t x[1 << 16], y[1 << 16];
    static float p[MOST * HEAD_DIM_MAX], q[MOST * HEAD_DIM_MAX];
    const struct tile_layout *l[2];
    const uint32_t length = seq_length(a->seq);
    assert_int_equal(seq_length(b->seq), length);
    assert_int_equal(seq_bytes(a->seq), seq_bytes(b->seq));
    const struct page_layout *page = seq_page_layout(a->seq, 0, 0);
    for (uint32_t i = 0; i < page->layers * page->kv_heads * 2; i++) {
        const uint32_t layer = i / 2 / page->kv_heads, head = i / 2 % page->kv_heads;
        need(kvasir_seq_read_kv(a, i % 2, layer, head, 0, length, p, &err));
        need(kvasir_seq_read_kv(b, i % 2, layer, head, 0, length, q, &err));
        assert_memory_equal(p, q, sizeof(float) * length * page->k.head_dim);
        for (uint32_t n = 0; n <= (length - 1) / TILE_TOKENS; n++) {
            bool there[2];
            need(seq_read_tile(a->seq, 0, i % 2, layer, head, n, &there[0], &l[0], x, &err));
            need(seq_read_tile(b->seq, 0, i % 2, layer, head, n, &there[1], &l[1], y, &err));
            assert_true(there[0] && there[1]);
            assert_true(kv_format_equal(l[0]->format, l[1]->format));
            if (n < length / TILE_TOKENS)
                assert_memory_equal(x, y, l[0]->bytes);
        }
    }
}

/* A file's pages, loaded and trimmed, are those of a cold run, and so are the logits after them. */
static void run_start(const char *kv_bits, uint32_t start, uint32_t length) {
    static const uint32_t TRIMS[] = {UINT32_MAX, 129, 64, 63, 1};
    kvasir_model *m = open_model("llama");
    kvasir_context_options o = started(kv_bits, start), like = options_of(8, "auto");
    kvasir_prompt_cache *file;
    kvasir_context *c[2];
    kvasir_seq *cold, *s;
    float want[VOCAB], got[VOCAB];
    save_started(m, &o, length, "started.safetensors");
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    like.like = file;
    like.kv_bits = "f16"; /* replaced, as is what follows from it */
    like.quantized_kv_start = 7;
    need(kvasir_context_create(m, &like, &c[0], &err));
    need(kvasir_context_create(m, &o, &c[1], &err));
    assert_int_equal(c[0]->options.cache.quantized_start,
                     start == UINT32_MAX - 1 ? INT32_MAX - 63 : (start + 63) / 64 * 64);
    for (size_t i = 0; i < 2 * sizeof TRIMS / sizeof *TRIMS; i++) {
        const uint32_t at = TRIMS[i / 2] < length ? TRIMS[i / 2] : length;
        need(kvasir_seq_load(c[i % 2], file, false, &s, &err));
        need(kvasir_seq_trim(s, at, NULL, &err));
        need(kvasir_seq_create(c[i % 2], &cold, &err));
        eval(cold, text, at, NULL);
        same_pages(s, cold);
        eval(s, text + at, MOST - at, got);
        eval(cold, text + at, MOST - at, want);
        assert_memory_equal(got, want, sizeof want);
        same_pages(s, cold);
        kvasir_seq_destroy(s);
        kvasir_seq_destroy(cold);
    }
    kvasir_context_destroy(c[0]);
    kvasir_context_destroy(c[1]);
    kvasir_prompt_cache_close(file);
    kvasir_model_close(m);
}

static void test_exact_start(void **state) {
    (void)state;
    run_start("8,4", 64, 150);
    run_start("4", 100, 192);
    run_start("8,4", 1, 40);
    run_start("8", 192, 180);
    run_start("8", UINT32_MAX - 1, 70);
}

/* A file goes into a context if the file's pages would have the same formats there. */
static void test_other_starts(void **state) {
    (void)state;
    static const struct {
        uint32_t file, length, context;
        bool good;
    } CASES[] = {
        {64, 150, 64, true}, {64, 150, 30, true},    {64, 150, 0, false},    {64, 150, 128, false},
        {0, 150, 64, false}, {64, 64, 128, true},    {64, 65, 128, false},   {128, 60, 64, true},
        {64, 60, 0, false},  {192, 190, 1000, true}, {256, 193, 192, false},
    };
    kvasir_model *m = open_model("llama");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_context_options o = started("8,4", CASES[i].file);
        kvasir_context_info before, after;
        kvasir_prompt_cache *file;
        kvasir_context *c;
        kvasir_seq *s;
        char words[64];
        save_started(m, &o, CASES[i].length, "other.safetensors");
        need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
        o.quantized_kv_start = CASES[i].context;
        need(kvasir_context_create(m, &o, &c, &err));
        kvasir_context_get_info(c, &before);
        if (CASES[i].good) {
            need(kvasir_seq_load(c, file, false, &s, &err));
            kvasir_seq_destroy(s);
        } else {
            assert_int_equal(kvasir_seq_load(c, file, false, &s, &err), KVASIR_ERR_ARGUMENT);
            assert_string_equal(err.field, "context.quantized_kv_start");
            snprintf(words, sizeof words, "must be %u, as in the file", CASES[i].file);
            assert_non_null(strstr(err.text, words));
            assert_null(s);
        }
        kvasir_context_get_info(c, &after);
        assert_int_equal(after.used_bytes, before.used_bytes);
        need(kvasir_seq_load(c, file, true, &s, &err)); /* converted */
        assert_int_equal(kvasir_seq_length(s), CASES[i].length);
        kvasir_seq_destroy(s);
        kvasir_context_destroy(c);
        kvasir_prompt_cache_close(file);
    }
    kvasir_model_close(m);
}

/* Rows of a tile format are f16 in a file, and those of its exact start, which has them in another
 * basis, are what they were but for another rounding to f16. */
static void test_start_of_tiles(void **state) {
    (void)state;
    kvasir_model *m = open_model("llama");
    const kvasir_context_options o = started("t4", 64);
    kvasir_prompt_cache *file;
    kvasir_context *c;
    kvasir_seq *s, *cold;
    static float a[64 * 256], b[64 * 256];
    save_started(m, &o, 150, "tiles.safetensors");
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    need(kvasir_context_create(m, &o, &c, &err));
    assert_int_equal(kvasir_seq_load(c, file, false, &s, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "load.convert");
    need(kvasir_seq_load(c, file, true, &s, &err));
    need(kvasir_seq_create(c, &cold, &err));
    eval(cold, text, 150, NULL);
    assert_int_equal(kvasir_seq_bytes(s), kvasir_seq_bytes(cold));
    for (int part = 0; part < 2; part++) {
        need(kvasir_seq_read_kv(s, part, 0, 0, 0, 64, a, &err));
        need(kvasir_seq_read_kv(cold, part, 0, 0, 0, 64, b, &err));
        const uint32_t dim = model_config(m->model)->layers[0].head_dim;
        for (uint32_t row = 0; row < 64; row++) {
            const float *x = a + (size_t)row * dim, *y = b + (size_t)row * dim;
            double error = 0, all = 0;
            for (uint32_t i = 0; i < dim; i++) {
                error += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
                all += (double)y[i] * (double)y[i];
            }
            assert_true(error <= 0x1p-20 * all);
        }
    }
    kvasir_seq_destroy(s);
    kvasir_seq_destroy(cold);
    kvasir_context_destroy(c);
    kvasir_prompt_cache_close(file);
    kvasir_model_close(m);
}

/* Writes a file whose metadata are f's, with another checksum or the old one. */
static void write_lie(struct prompt_file *f, bool sum_again, const char *name) {
    char text_of_sum[17];
    uint64_t sum;
    for (uint32_t i = 0; i < f->n_metadata && sum_again; i++)
        if (strcmp(f->metadata[i].key, "kvasir_checksum") == 0) {
            need(prompt_cache_checksum(f, &sum, &err));
            fingerprint_text(sum, text_of_sum);
            f->metadata[i].value = text_of_sum;
        }
    need(prompt_file_write(temp_file(&folder, name), f, &err));
}

/* Files whose numbers fit their tensors, but not each other or their checksum. */
static void test_starts_that_lie(void **state) {
    (void)state;
    kvasir_model *m = open_model("llama");
    kvasir_context_options o = started("8,4", 128);
    struct prompt_file a, b;
    kvasir_prompt_cache *file;
    save_started(m, &o, 100, "a.safetensors");
    need(prompt_file_open(folder.file, &a, &err));
    o.quantized_kv_start = 64;
    save_started(m, &o, 100, "b.safetensors");
    need(prompt_file_open(folder.file, &b, &err));
    for (uint32_t i = 0; i < a.n_entries; i++)
        a.entries[i].kv.start = 192;
    write_lie(&a, false, "sum.safetensors");
    assert_int_equal(kvasir_prompt_cache_open(m, folder.file, &file, &err), KVASIR_ERR_FORMAT);
    assert_non_null(strstr(err.text, "its checksum is"));
    write_lie(&a, true, "sum.safetensors");
    need(kvasir_prompt_cache_open(m, folder.file, &file, &err));
    kvasir_prompt_cache_close(file);
    const struct prompt_entry own = a.entries[1];
    a.entries[1] = b.entries[1];
    write_lie(&a, true, "mixed.safetensors");
    assert_int_equal(kvasir_prompt_cache_open(m, folder.file, &file, &err), KVASIR_ERR_FORMAT);
    assert_non_null(
        strstr(err.text, "layer 1 has an exact start of 64 tokens, another layer of 192"));
    a.entries[1] = own;
    prompt_file_close(&a);
    prompt_file_close(&b);
    kvasir_model_close(m);
}

/* A cache with an exact start has one in all layer groups, as f16: not in one that is bf16. */
static void test_start_beside_bf16(void **state) {
    (void)state;
    kvasir_model *m = open_model("gemma3");
    kvasir_context_options o = started("8,4", 64), like = options_of(8, "auto");
    struct prompt_file a, b;
    struct prompt_entry own[8];
    kvasir_prompt_cache *file;
    kvasir_context *c;
    kvasir_seq *s;
    save_started(m, &o, 100, "a.safetensors");
    need(prompt_file_open(folder.file, &a, &err));
    o = started("bf16", 0);
    save_started(m, &o, 100, "b.safetensors");
    need(prompt_file_open(folder.file, &b, &err));
    assert_true(a.n_entries <= 8);
    memcpy(own, a.entries, a.n_entries * sizeof *own);
    for (uint32_t i = 0; i < a.n_entries; i++)
        if (b.entries[i].class == PROMPT_KV)
            a.entries[i] = b.entries[i];
    write_lie(&a, true, "beside.safetensors");
    memcpy(a.entries, own, a.n_entries * sizeof *own);
    prompt_file_close(&a);
    prompt_file_close(&b);
    need(kvasir_prompt_cache_open(m, temp_file(&folder, "beside.safetensors"), &file, &err));
    like.like = file;
    need(kvasir_context_create(m, &like, &c, &err));
    assert_int_equal(kvasir_seq_load(c, file, false, &s, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "load.convert");
    need(kvasir_seq_load(c, file, true, &s, &err));
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
    kvasir_prompt_cache_close(file);
    kvasir_model_close(m);
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
        cmocka_unit_test(test_exact_start),
        cmocka_unit_test(test_other_starts),
        cmocka_unit_test(test_start_of_tiles),
        cmocka_unit_test(test_starts_that_lie),
        cmocka_unit_test(test_start_beside_bf16),
        cmocka_unit_test(test_files_say_how_they_were_computed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
