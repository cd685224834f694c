/* SPDX-License-Identifier: Apache-2.0 */
/* I2, every cell: {K format} x {V format} x {cache shape} x {how a sequence begins} x {alone,
 * in a batch} x {prefill, decode}, run on tiny models, and compared with the same tokens run alone
 * and cold. Prints the table, which must be the content of docs/matrix.md.
 *
 *     sim_matrix           fails if a cell refuses or differs, or if docs/matrix.md differs
 *     sim_matrix --write   writes docs/matrix.md
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

#include "model_files.h"
#include "tensors.h"

#define PAGE SOURCE_DIR "/docs/matrix.md"

enum {
    VOCAB = 512,
    BASE = 136,   /* tokens that a sequence begins with: enough to drop a page */
    PROMPT = 150, /* prefill: from BASE to here */
    DECODE = 3,   /* then decoded one by one */
    LENGTH = PROMPT + DECODE,
    ASIDE = 10, /* other tokens, which are trimmed again */
    BESIDE = 2, /* other sequences in the batch */
};

static const char *const FORMATS[] = {"f32", "f16", "bf16", "8", "6", "5", "4", "3", "2"};
enum { N_FORMATS = sizeof FORMATS / sizeof *FORMATS, FIRST_CODES = 3 };

/* What stands before the bits of both: formats that are encoded when a page is full have "r" or
 * "t", and codes alone. */
static const char *const KINDS[] = {"", "r", "t"};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

/* Of the rows of such tables every other one has an exact tail of so many tokens. */
enum { TAIL = 64 };
static uint32_t tail_of(int kind, int k) {
    return kind && k % 2 == 0 ? TAIL : 0;
}

static const struct shape {
    const char *name, *model;
    uint32_t max_kv_size, kv_keep;
} SHAPES[] = {
    {"plain", "llama", 0, 0},
    {"rotating, 4 sinks", "llama", 60, 4},
    {"rotating, no sinks", "llama", 60, 0},
    {"sliding windows", "gemma2", 0, 0},
    {"hybrid (recurrent layers)", "qwen3_next", 0, 0},
};
enum { N_SHAPES = sizeof SHAPES / sizeof *SHAPES };

enum start { COLD, PREFIX_HIT, FORKED, TRIMMED, FROM_FILE, N_STARTS };

static int32_t text[2][LENGTH];
static struct temp_folder folder;
static unsigned long cells, refused, differing;

/* One pair of formats on one shape. */
struct world {
    const struct shape *shape;
    const char *kind, *k, *v;
    uint32_t tail; /* tokens of the exact tail */
    kvasir_model *model;
    kvasir_context *ctx;
    struct prefix_tree *tree;
    kvasir_seq *base;           /* BASE tokens */
    kvasir_seq *beside[BESIDE]; /* of other lengths */
    bool file_holds;            /* mlx-lm has a class for such a cache */
    float cold[LENGTH][VOCAB];
};

static void must(const struct world *w, kvasir_status status, const kvasir_error *err) {
    if (status == KVASIR_OK)
        return;
    printf("%s, K %s%s, V %s: %s\n", w->shape->name, w->kind, w->k, w->v, err->text);
    exit(1);
}

/* Hits end where a page does if pages are encoded when they are full. */
static uint32_t hit_length(const struct world *w) {
    return w->kind[0] ? BASE / TILE_TOKENS * TILE_TOKENS : BASE;
}

/* ---- beginnings ------------------------------------------------------------------------------ */

static kvasir_status begin_hit(struct world *w, kvasir_seq **out, kvasir_error *err) {
    struct tree_cursor at;
    struct tree_hit hit;
    TRY(kvasir_seq_create(w->ctx, out, err));
    TRY(tree_resume(w->tree, "", 0, text[0], LENGTH, (*out)->seq, &at, &hit, err));
    tree_close(w->tree, &at);
    if (hit.length != hit_length(w))
        return (fail)(err, KVASIR_ERR_ARGUMENT, "a hit of %u tokens", hit.length);
    return KVASIR_OK;
}

static kvasir_status begin_trimmed(struct world *w, kvasir_seq **out, kvasir_error *err) {
    TRY(kvasir_seq_fork(w->base, out, err));
    TRY(kvasir_seq_eval(*out, text[1], ASIDE, NULL, err));
    return kvasir_seq_trim(*out, BASE, NULL, err);
}

/* If no class of mlx-lm holds such a cache, requantizes to one that does, and back on loading.
 * Pages that are encoded when they are full are written as float16. */
static kvasir_status begin_from_file(struct world *w, kvasir_seq **out, kvasir_error *err) {
    const char *path = temp_file(&folder, "matrix.safetensors");
    kvasir_prompt_cache *file;
    kvasir_seq *saved;
    TRY(kvasir_seq_fork(w->base, &saved, err));
    kvasir_status status =
        w->file_holds || w->kind[0] ? KVASIR_OK : kvasir_seq_requantize(saved, "f32", NULL, err);
    if (status == KVASIR_OK)
        status = kvasir_seq_save(saved, path, false, err);
    kvasir_seq_destroy(saved);
    TRY(status);
    TRY(kvasir_prompt_cache_open(w->model, path, &file, err));
    status = kvasir_seq_load(w->ctx, file, !w->file_holds, out, err);
    kvasir_prompt_cache_close(file);
    return status;
}

static kvasir_status begin(struct world *w, enum start start, kvasir_seq **out, kvasir_error *err) {
    *out = NULL;
    switch (start) {
    case PREFIX_HIT:
        return begin_hit(w, out, err);
    case FORKED:
        return kvasir_seq_fork(w->base, out, err);
    case TRIMMED:
        return begin_trimmed(w, out, err);
    case FROM_FILE:
        return begin_from_file(w, out, err);
    default:
        return kvasir_seq_create(w->ctx, out, err);
    }
}

/* ---- cells ----------------------------------------------------------------------------------- */

static bool keep_rows(void *user, size_t first, size_t rows, const float *logits) {
    float(*to)[VOCAB] = user;
    memcpy(to[first], logits, rows * sizeof *to);
    return true;
}

/* Evaluates tokens up to `end`. rows [*n][VOCAB]: logits of all of them (batched: of the last). */
static kvasir_status alone(kvasir_seq *s, uint32_t end, float (*rows)[VOCAB], uint32_t *n,
                           kvasir_error *err) {
    const uint32_t at = kvasir_seq_length(s);
    *n = end - at;
    return kvasir_seq_eval(s, text[0] + at, end - at,
                           &(kvasir_eval_options){.struct_size = sizeof(kvasir_eval_options),
                                                  .on_logits = keep_rows,
                                                  .user = rows},
                           err);
}

static kvasir_status batched(struct world *w, kvasir_seq *s, uint32_t end, float (*rows)[VOCAB],
                             uint32_t *n, kvasir_error *err) {
    kvasir_seq *seqs[1 + BESIDE] = {w->beside[0], s, w->beside[1]}, *back;
    const uint32_t at = kvasir_seq_length(s), counts[1 + BESIDE] = {3, end - at, 1};
    static float logits[1 + BESIDE][VOCAB];
    int32_t tokens[LENGTH + 4] = {7, 8, 9};
    kvasir_batch *batch;
    memcpy(tokens + 3, text[0] + at, (end - at) * sizeof *tokens);
    tokens[3 + end - at] = 10;
    TRY(kvasir_batch_merge(w->ctx, seqs, 1 + BESIDE, &batch, err));
    kvasir_status status = kvasir_batch_eval(batch, tokens, counts, &logits[0][0], err);
    while (kvasir_batch_size(batch))
        (void)!kvasir_batch_extract(batch, 0, &back, NULL);
    kvasir_batch_destroy(batch);
    memcpy(rows[0], logits[1], sizeof *rows);
    *n = 1;
    return status;
}

/* Prefill and decode from one beginning: two cells. Returns what they show: '=', '~' or '!'. */
static char run_cells(struct world *w, enum start start, bool in_batch) {
    static float rows[LENGTH][VOCAB];
    const bool exact = start != FROM_FILE || w->file_holds;
    kvasir_error err = {0};
    kvasir_seq *s;
    bool same = true;
    kvasir_status status = begin(w, start, &s, &err);
    for (uint32_t end = PROMPT; end <= LENGTH && status == KVASIR_OK; end++) {
        uint32_t n;
        status = in_batch ? batched(w, s, end, rows, &n, &err) : alone(s, end, rows, &n, &err);
        if (status == KVASIR_OK)
            same &= memcmp(rows, w->cold[end - n], n * sizeof *rows) == 0;
    }
    kvasir_seq_destroy(s);
    cells += 2;
    if (status != KVASIR_OK || (exact && !same)) {
        printf("%s, K %s%s, V %s, tail %u, beginning %d, %s: %s\n", w->shape->name, w->kind, w->k,
               w->v, w->tail, start, in_batch ? "in a batch" : "alone",
               status ? err.text : "other logits");
        refused += status != KVASIR_OK;
        differing += status == KVASIR_OK;
        return '!';
    }
    return exact ? '=' : '~';
}

/* ---- a pair of formats ----------------------------------------------------------------------- */

static bool is_exact(const char *format) {
    return strchr(format, 'f') != NULL;
}

static void open_world(struct world *w) {
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_error err;
    char bits[16];
    uint32_t n;
    snprintf(bits, sizeof bits, "%s%s,%s", w->kind, w->k, w->v);
    o.kv_bits = bits;
    o.kv_exact_tail = w->tail;
    o.key_centre = "off"; /* mlx-lm's files cannot hold centres */
    o.max_kv_size = w->shape->max_kv_size;
    o.kv_keep = w->shape->kv_keep;
    o.ctx = 512;
    o.threads = 1;
    o.prefill_chunk = 64;
    o.cache_bytes = 32 << 20;
    must(w, kvasir_context_create(w->model, &o, &w->ctx, &err), &err);
    must(w, tree_create(w->ctx->cache, 1000, &w->tree, &err), &err);
    kvasir_seq *cold;
    must(w, kvasir_seq_create(w->ctx, &cold, &err), &err);
    must(w, alone(cold, LENGTH, w->cold, &n, &err), &err);
    kvasir_seq_destroy(cold);
    for (int i = 0; i < BESIDE; i++) {
        must(w, kvasir_seq_create(w->ctx, &w->beside[i], &err), &err);
        must(w, kvasir_seq_eval(w->beside[i], text[1], i ? 70 : 5, NULL, &err), &err);
    }
    must(w, kvasir_seq_create(w->ctx, &w->base, &err), &err);
    struct tree_cursor at;
    struct tree_hit hit;
    must(w, tree_resume(w->tree, "", 0, text[0], BASE, w->base->seq, &at, &hit, &err), &err);
    const uint32_t first = hit_length(w);
    must(w, kvasir_seq_eval(w->base, text[0], first, NULL, &err), &err);
    tree_store(w->tree, &at, w->base->seq, true); /* with the state there */
    if (first < BASE)
        must(w, kvasir_seq_eval(w->base, text[0] + first, BASE - first, NULL, &err), &err);
    must(w, kvasir_seq_snapshot(w->base, &err), &err);
    tree_store(w->tree, &at, w->base->seq, true);
    tree_close(w->tree, &at);
    w->file_holds = is_exact(w->k) == is_exact(w->v) && !w->kind[0];
}

static void close_world(struct world *w) {
    kvasir_seq_destroy(w->base);
    for (int i = 0; i < BESIDE; i++)
        kvasir_seq_destroy(w->beside[i]);
    tree_check(w->tree);
    tree_destroy(w->tree);
    kvasir_context_destroy(w->ctx);
}

static void run_pair(struct world *w, FILE *out) {
    open_world(w);
    fputs(" `", out);
    for (enum start start = COLD; start < N_STARTS; start++) {
        const char one = run_cells(w, start, false), many = run_cells(w, start, true);
        fputc(one == many ? one : '!', out);
    }
    fputs("` |", out);
    close_world(w);
}

/* ---- docs/matrix.md -------------------------------------------------------------------------- */

static void print_head(FILE *out) {
    fprintf(out,
            "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
            "# Every combination works\n"
            "\n"
            "Generated by `sim_matrix --write` (tests/sim/matrix.c), which runs all of it on tiny "
            "models; the test sim.matrix\nfails if it would print another page.\n"
            "\n"
            "One table for each shape of cache. A cell has five marks, one for each way a "
            "sequence can begin: **cold**, from a\n**prefix hit** in the tree, **forked**, "
            "**trimmed**, **restored from a prompt-cache file**. A mark stands for four\nruns: "
            "prefill and decode, alone and in a batch with sequences of other lengths.\n"
            "\n"
            "* `=` the logits are bit for bit those of the same tokens run alone and cold.\n"
            "* `~` it runs, but continues from converted keys and values. Only if a file is "
            "restored and K or V alone is\n  quantized: no class of mlx-lm holds such a cache, so "
            "it is saved as f32 (`kvasir_seq_requantize`) and converted as\n  it is loaded; or if "
            "pages are encoded when they are full (`r`, `t`): their rows are saved as f16.\n"
            "* `!` refused, or other logits. No combination has this mark.\n"
            "\n"
            "Rows with a tail have `--kv-exact-tail %d`.\n",
            TAIL);
}

static void print_table(struct world *w, int kind, FILE *out) {
    const int first = kind ? FIRST_CODES : 0;
    w->kind = KINDS[kind];
    fprintf(out, "\n| K \\ V |");
    for (int v = first; v < N_FORMATS; v++)
        fprintf(out, " %s |", FORMATS[v]);
    fputs("\n|---|", out);
    for (int v = first; v < N_FORMATS; v++)
        fputs("---|", out);
    for (int k = first; k < N_FORMATS; k++) {
        w->tail = tail_of(kind, k);
        fprintf(out, "\n| **%s%s**%s |", w->kind, FORMATS[k], w->tail ? ", tail" : "");
        for (int v = first; v < N_FORMATS; v++) {
            w->k = FORMATS[k];
            w->v = FORMATS[v];
            run_pair(w, out);
        }
    }
    fputc('\n', out);
}

static void print_shape(struct world *w, FILE *out) {
    char path[512];
    kvasir_error err;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, w->shape->model);
    w->kind = w->k = w->v = "-";
    must(w, kvasir_model_open(path, &w->model, &err), &err);
    fprintf(out, "\n## Cache: %s\n", w->shape->name);
    for (int kind = 0; kind < N_KINDS; kind++)
        print_table(w, kind, out);
    kvasir_model_close(w->model);
}

static bool page_is(const char *expected, size_t size) {
    FILE *f = fopen(PAGE, "rb");
    char *text_now = calloc(1, size + 2);
    const size_t n = f ? fread(text_now, 1, size + 1, f) : 0;
    const bool same = n == size && memcmp(text_now, expected, size) == 0;
    if (f)
        fclose(f);
    free(text_now);
    return same;
}

static int finish(bool write, const char *page, size_t size) {
    printf("%s%lu cells, %lu refused, %lu with other logits\n", page, cells, refused, differing);
    if (refused || differing)
        return 1;
    if (write) {
        FILE *f = fopen(PAGE, "wb");
        return !f || fwrite(page, 1, size, f) != size || fclose(f) != 0;
    }
    if (page_is(page, size))
        return 0;
    printf("docs/matrix.md is not what was printed: run sim_matrix --write\n");
    return 1;
}

int main(int argc, char **argv) {
    char *page = NULL;
    size_t size = 0;
    uint32_t r = 3;
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    for (int i = 0; i < LENGTH; i++) {
        r = r * 1664525 + 1013904223;
        text[0][i] = (int32_t)(r >> 16) % VOCAB;
        text[1][i] = (int32_t)(r >> 8) % VOCAB;
    }
    temp_folder_make(&folder);
    FILE *out = open_memstream(&page, &size);
    struct world *w = calloc(1, sizeof *w);
    print_head(out);
    for (int s = 0; s < N_SHAPES; s++) {
        w->shape = &SHAPES[s];
        print_shape(w, out);
    }
    fprintf(out, "\n%lu cells.\n", cells);
    fclose(out);
    const int status = finish(argc > 1 && strcmp(argv[1], "--write") == 0, page, size);
    temp_folder_remove(&folder);
    free(w);
    free(page);
    return status;
}
