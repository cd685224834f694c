/* SPDX-License-Identifier: Apache-2.0 */
/* speed.c: what a run of a model must read and multiply, and sequences of any length without the
 * cost of running their tokens. `kvasir bench` and the programs of bench/ use it.
 *
 *     step of rows R    weights    all but experts and looked-up tables, once; the head if logits
 *                                  are wanted; n (1 - (1 - k/n)^R) of n experts of which a row
 *                                  takes k
 *                       cache      of each sequence what its rows see, once; its state
 *                       multiply   a row with each weight; 2 head_dim for each query head and
 *                                  cached token that it sees
 *
 * So it is a lower bound: activations, K and V that are stored, softmax and the sums of recurrent
 * layers are not in it, nor what is read twice.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lab/simulate.h"

/* ---- figures --------------------------------------------------------------------------------- */

/* The value that `rank` others are below. */
static double at_rank(const double *values, size_t n, size_t rank) {
    for (size_t i = 0; i < n; i++) {
        size_t below = 0, same = 0;
        for (size_t j = 0; j < n; j++) {
            below += values[j] < values[i];
            same += values[j] == values[i];
        }
        if (below <= rank && rank < below + same)
            return values[i];
    }
    return (double)NAN; /* one of them is */
}

double lab_median(const double *values, size_t n) {
    ASSERT(n > 0);
    return (at_rank(values, n, (n - 1) / 2) + at_rank(values, n, n / 2)) / 2;
}

double lab_slope(const double *x, const double *y, size_t n) {
    ASSERT(n > 0);
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        mean_x += x[i] / (double)n;
        mean_y += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    return xx > 0 ? xy / xx : (double)NAN;
}

/* ---- long sequences -------------------------------------------------------------------------- */

/* Page `number` of a view or, if the window has passed it, the oldest that is there: a page of any
 * position serves as a copy. */
static const struct kv_page *page_or_oldest(const struct kv_view *v, uint32_t number) {
    const uint32_t i = kv_view_index(v, number);
    ASSERT(v->n_pages > 0);
    return &v->pages[i != UINT32_MAX ? i : v->kept_pages < v->n_pages ? v->kept_pages : 0];
}

/* Which of a sequence's `pages` serves as a copy for page `number`: one of the exact start if that
 * is, else one after it. */
static uint32_t page_like(uint32_t number, uint32_t start_pages, uint32_t pages) {
    return number < start_pages ? number % min_u32(start_pages, pages)
                                : start_pages + (number - start_pages) % (pages - start_pages);
}

/* The n prepared tokens of seq from `at` on get pages of `from`, which has so many. */
static void copy_pages(const kvasir_seq *seq, const kvasir_seq *from, uint32_t pages, uint32_t at,
                       uint32_t n) {
    const uint32_t start = kv_cache_start_pages(seq->ctx->cache);
    for (uint32_t g = 0; g < seq->ctx->n_groups; g++) {
        struct kv_view to, source;
        seq_view(seq->seq, g, &to);
        seq_view(from->seq, g, &source);
        for (uint32_t p = 0; p * TILE_TOKENS < n; p++) {
            const uint32_t number = at / TILE_TOKENS + p, i = kv_view_index(&to, number),
                           like = page_like(number, start, pages);
            if (number < start && kv_view_index(&source, like) == UINT32_MAX)
                continue; /* a window has left it behind, and will in the copy */
            const struct kv_page *page = page_or_oldest(&source, like);
            ASSERT(i != UINT32_MAX && to.pages[i].layout == page->layout);
            if (to.pages[i].addr != page->addr)
                backend_arena_copy(seq->ctx->backend, to.arena, to.pages[i].addr, page->addr,
                                   to.layouts[page->layout].page_bytes);
        }
    }
}

kvasir_status lab_extend(kvasir_seq *seq, const kvasir_seq *from, uint32_t length,
                         kvasir_error *err) {
    _Static_assert((int)LAB_PAGE_TOKENS == TILE_TOKENS, "as lab.h says");
    const uint32_t first = seq_length(from->seq),
                   most = first < STEP_TOKENS_MAX ? first : STEP_TOKENS_MAX;
    if (first % TILE_TOKENS || seq_length(seq->seq) % TILE_TOKENS || most == 0)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "a sequence can be extended by copies of whole pages only: %u and %u tokens",
                    seq_length(seq->seq), first);
    const uint32_t start = kv_cache_start_pages(seq->ctx->cache);
    if (first / TILE_TOKENS <= start && (length - 1) / TILE_TOKENS >= start)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.quantized_kv_start",
                          "must be at most %u here: longer sequences are made of copies of pages "
                          "after the exact start of one of %u tokens",
                          first - TILE_TOKENS, first);
    int32_t *tokens = mem_alloc(most * sizeof *tokens);
    if (!tokens)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %u tokens", most);
    memcpy(tokens, seq_tokens(from->seq), most * sizeof *tokens);
    kvasir_status status = seq_reserve(seq->seq, length, err);
    while (status == KVASIR_OK && seq_length(seq->seq) < length) {
        const uint32_t at = seq_length(seq->seq), left = length - at, n = left < most ? left : most;
        status = seq_prepare(seq->seq, n, err);
        if (status != KVASIR_OK)
            break;
        copy_pages(seq, from, first / TILE_TOKENS, at, n);
        seq_commit(seq->seq, tokens, n);
    }
    mem_free(tokens);
    return status;
}

uint64_t lab_pages_bytes(const kvasir_context *ctx, uint32_t pages) {
    const uint32_t start = min_u32(kv_cache_start_pages(ctx->cache), pages);
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < ctx->n_groups; g++)
        bytes += start * (uint64_t)kv_cache_start_layout(ctx->cache, g)->page_bytes +
                 (pages - start) * (uint64_t)kv_cache_layout(ctx->cache, g, true)->page_bytes;
    return bytes;
}

uint64_t lab_sequence_bytes(const kvasir_model *model, const kvasir_context_options *o,
                            uint32_t tokens) {
    enum { SPARE_PAGES = 4, SHADOWS = 4 }; /* copied ones, and its tables; of a step of 128 rows */
    uint64_t bytes;
    /* Layers that no group size fits stay f16 in a context. */
    if (kvasir_model_kv_bytes(model, o->kv_bits, o->kv_group_size, &bytes, NULL) != KVASIR_OK &&
        kvasir_model_kv_bytes(model, "f16", NULL, &bytes, NULL) != KVASIR_OK)
        bytes = 0; /* a model without attention */
    const uint64_t pages = tokens / TILE_TOKENS + 1 + SPARE_PAGES,
                   tail = min_u32(tokens, o->kv_exact_tail) / TILE_TOKENS + 1;
    struct kv_cache_options formats = {0};
    uint64_t exact = 0, start = 0;
    bool whole = false;
    if (kvasir_model_kv_bytes(model, "f16", NULL, &exact, NULL) != KVASIR_OK)
        exact = 0;
    if (options_parse_live(o->kv_bits, o->kv_floor, NULL, &formats, NULL) == KVASIR_OK) {
        whole = kv_format_whole(formats.k);
        start = min_size(options_start(o->quantized_kv_start, &formats), tokens);
    }
    const uint64_t units = CACHE_GROUPS_MAX * (uint64_t)PAGE_ADDR_UNIT, /* each page rounds up */
        exact_page = TILE_TOKENS * exact + units;
    return pages * (TILE_TOKENS * bytes + units) +
           ((whole ? SHADOWS + tail : 0) + round_up(start, TILE_TOKENS) / TILE_TOKENS) *
               exact_page +
           2 * model_state_bytes(model->model);
}

/* ---- work ------------------------------------------------------------------------------------ */

bool lab_multiplies_floats(const kvasir_model *model) {
    return model_work(model->model).floats;
}

/* Share of the experts that some of `rows` rows take. */
static double experts_met(const struct model_config *c, double rows) {
    return c->moe.n ? 1 - pow(1 - (double)c->moe.top_k / c->moe.n, rows) : 0;
}

struct costs {
    struct model_work model;
    kvasir_context_info info;
    const struct model_config *config;
    uint64_t start; /* tokens that are f16 */
};

/* One step of `rows` rows of each sequence, which holds `at` tokens. heads: rows with logits. */
static void add_step(const struct costs *c, uint32_t seqs, uint32_t at, uint32_t rows,
                     uint32_t heads, lab_work *out) {
    const double all = (double)seqs * rows;
    const struct model_config *m = c->config;
    out->steps++;
    out->weight_bytes += c->model.bytes + (heads ? c->model.head_bytes : 0) +
                         experts_met(m, all) * c->model.expert_bytes;
    out->multiplies += all * c->model.multiplies + heads * c->model.head_multiplies;
    if (m->moe.n)
        out->multiplies += all * c->model.expert_multiplies * m->moe.top_k / m->moe.n;
    out->cache_bytes += (double)seqs * (double)c->info.state_bytes;
    for (uint32_t g = 0; g < c->info.n_groups; g++) {
        const uint32_t end = at + rows, window = c->info.groups[g].window,
                       span = window ? window : UINT32_MAX;
        const uint64_t most = (uint64_t)span + rows - 1, seen = most < end ? most : end,
                       first = end - seen,
                       exact = c->start > first ? min_size(c->start, end) - first : 0;
        out->cache_bytes +=
            (double)seqs * ((double)exact * (double)c->info.groups[g].bytes_per_token16 +
                            (double)(seen - exact) * (double)c->info.groups[g].bytes_per_token);
        out->multiplies += seqs * sim_pairs_seen(at, end, span) * c->model.attention[g];
    }
}

lab_work lab_run_work(const kvasir_context *ctx, const lab_run *run) {
    struct costs c = {.model = model_work(ctx->model->model),
                      .config = model_config(ctx->model->model),
                      .start = (uint64_t)kv_cache_start_pages(ctx->cache) * TILE_TOKENS};
    lab_work out = {0};
    kvasir_context_get_info(ctx, &c.info);
    const uint32_t most = run->decode ? 1 : ctx->options.prefill_chunk;
    ASSERT(most > 0 && run->tokens <= UINT32_MAX - run->position);
    for (uint32_t done = 0; done < run->tokens;) {
        const uint32_t left = run->tokens - done, rows = left < most ? left : most;
        const bool logits = run->decode || rows == left;
        add_step(&c, run->seqs, run->position + done, rows, logits ? run->seqs : 0, &out);
        done += rows;
    }
    return out;
}

double lab_roofline(const lab_work *work, double read, double multiply, bool *memory) {
    const double reading = (work->weight_bytes + work->cache_bytes) / read,
                 multiplying = multiply > 0 ? work->multiplies / multiply : 0;
    *memory = reading >= multiplying;
    return *memory ? reading : multiplying;
}
