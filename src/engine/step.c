/* SPDX-License-Identifier: Apache-2.0 */
/* step.c: one step of a model over any sequences of a context, as one batch. Every evaluation comes
 * through here: kvasir_seq_eval with one sequence, kvasir_batch_eval and the scheduler with many.
 * Nothing is padded: a step's rows are the sequences' rows one after the other, and so are the
 * logits. Only the list of sequences is reordered, by cost. Allocates nothing.
 */
#include <string.h>

#include "engine/engine.h"

/* Results that are made at a time: logits of some rows, or states of more. */
static size_t result_floats(const struct kvasir_context *c) {
    const struct model_config *m = model_config(c->model->model);
    return max_size((size_t)c->options.logit_rows * m->vocab, m->dim);
}

kvasir_status step_init(struct kvasir_context *c, kvasir_error *err) {
    const size_t rows = c->options.prefill_chunk;
    struct step_buffers *s = &c->step;
    s->tokens = mem_calloc(rows, sizeof *s->tokens);
    s->pos = mem_calloc(rows, sizeof *s->pos);
    s->logit_rows = mem_calloc(rows, sizeof *s->logit_rows);
    s->hidden = mem_calloc(rows, sizeof *s->hidden);
    s->order = mem_calloc(rows, sizeof *s->order);
    s->order_scratch = mem_calloc(rows, sizeof *s->order_scratch);
    s->first_row = mem_calloc(rows, sizeof *s->first_row);
    s->seqs = mem_calloc(rows, sizeof *s->seqs);
    s->views = mem_calloc(rows * c->n_groups, sizeof *s->views);
    s->states = mem_calloc(rows, sizeof *s->states);
    if (!s->tokens || !s->pos || !s->logit_rows || !s->hidden || !s->order || !s->order_scratch ||
        !s->first_row || !s->seqs || !s->views || !s->states)
        return fail(err, KVASIR_ERR_MEMORY, "context: out of memory");
    return KVASIR_OK;
}

void step_deinit(struct kvasir_context *c) {
    struct step_buffers *s = &c->step;
    mem_free(s->tokens);
    mem_free(s->pos);
    mem_free(s->logit_rows);
    mem_free(s->hidden);
    mem_free(s->order);
    mem_free(s->order_scratch);
    mem_free(s->first_row);
    mem_free(s->seqs);
    mem_free(s->views);
    mem_free(s->states);
}

uint64_t step_bytes(const struct kvasir_context *c) {
    const struct step_buffers *s = &c->step;
    const size_t rows = c->options.prefill_chunk;
    return rows * (sizeof *s->tokens + sizeof *s->pos + sizeof *s->logit_rows + sizeof *s->hidden +
                   sizeof *s->order + sizeof *s->order_scratch + sizeof *s->first_row +
                   sizeof *s->seqs + c->n_groups * sizeof *s->views + sizeof *s->states);
}

/* Positions that a part's rows attend to, together. */
static uint64_t cost_of(const struct step_part *p) {
    return (uint64_t)p->rows * (seq_length(p->seq) + p->rows);
}

/* Adds the rows of part i from `row` on. */
static void add_part(struct step_buffers *s, const struct step_part *p, uint32_t i, uint32_t row) {
    const uint32_t first = seq_length(p->seq);
    for (uint32_t r = 0; r < p->rows; r++) {
        s->tokens[row + r] = p->tokens[r];
        s->pos[row + r] = first + r;
    }
    s->order[i] = (struct ranked){UINT64_MAX - cost_of(p), i};
    s->first_row[i] = row;
}

/* Part i becomes sequence `at` of the batch's n. */
static void put_seq(const struct kvasir_context *c, const struct step_part *parts, uint32_t i,
                    uint32_t at, uint32_t n) {
    const struct step_buffers *s = &c->step;
    const struct kv_seq *seq = parts[i].seq;
    s->seqs[at] =
        (struct batch_seq){.row = s->first_row[i], .rows = parts[i].rows, .pos = seq_length(seq)};
    seq_state(seq, &s->states[at]);
    for (uint32_t g = 0; g < c->n_groups; g++)
        seq_view(seq, g, &s->views[g * n + at]);
}

/* Each thread starts with a contiguous range of an operation's items (util/threads.c), and items
 * follow the order of the batch's sequences. So sequences are dealt to the ranges by cost, back and
 * forth: in decode the ranges then cost about the same, and the items left for last are short. */
static void deal_seqs(const struct kvasir_context *c, const struct step_part *parts, uint32_t n) {
    const uint32_t threads = c->device.workers;
    uint32_t at = 0;
    for (uint32_t t = 0; t < threads; t++)
        for (uint32_t lap = 0; lap * threads < n; lap++) {
            const uint32_t k = lap * threads + (lap % 2 ? threads - 1 - t : t);
            if (k < n)
                put_seq(c, parts, c->step.order[k].item, at++, n);
        }
}

static uint32_t result_width(const struct kvasir_context *c, bool hidden) {
    const struct model_config *m = model_config(c->model->model);
    return hidden ? m->dim : m->vocab;
}

/* Has the device make the picks from the rows of the slice, which are logits. Returns how many. */
static kvasir_status pick_slice(struct kvasir_context *c, uint32_t *n, kvasir_error *err) {
    struct step_buffers *s = &c->step;
    const struct step_picks *p = s->picks;
    const uint32_t first = s->picked;
    *n = 0;
    while (p && first + *n < p->n && p->list[first + *n].row < s->slice_end)
        p->list[first + (*n)++].row -= s->slice;
    if (!*n)
        return KVASIR_OK;
    s->picked += *n;
    return backend_pick(c->backend, s->computed, p->list + first, *n, p->out + first, err);
}

/* Computes the results of the wanted rows from `first` on, as many of its kind, logits or states,
 * as the head multiplies at a time, or fill as much memory. They are fetched at once unless tokens
 * are picked from them on the device: then hardly any row is looked at. */
static kvasir_status make_slice(struct kvasir_context *c, uint32_t first, kvasir_error *err) {
    struct step_buffers *s = &c->step;
    const bool hidden = s->hidden[first];
    const size_t width = result_width(c, hidden),
                 most = hidden ? result_floats(c) / width : c->options.logit_rows;
    const void *fetched = NULL;
    uint32_t n = 0, picks = 0;
    while (n < most && first + n < s->wanted && s->hidden[first + n] == hidden)
        n++;
    s->computed = (hidden ? model_hidden : model_head)(c->run, s->logit_rows + first, n);
    s->slice = first;
    s->slice_end = first + n;
    kvasir_status status = hidden ? KVASIR_OK : pick_slice(c, &picks, err);
    if (status == KVASIR_OK && !picks)
        status =
            backend_fetch(c->backend, s->computed, n * width * sizeof *s->computed, &fetched, err);
    if (status == KVASIR_OK)
        status = checkpoint_check(model_checkpoint(c->model->model), err);
    s->results = fetched;
    if (status != KVASIR_OK)
        s->slice_end = first;
    return status;
}

/* Ends a step of which no results are wanted. */
static kvasir_status flush(struct kvasir_context *c, kvasir_error *err) {
    TRY(backend_flush(c->backend, err));
    return checkpoint_check(model_checkpoint(c->model->model), err);
}

kvasir_status step_run(struct kvasir_context *c, const struct step_part *parts, uint32_t n,
                       const struct step_picks *picks, kvasir_error *err) {
    struct step_buffers *s = &c->step;
    uint32_t rows = 0;
    s->wanted = s->slice = s->slice_end = s->picked = 0;
    s->picks = picks;
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(rows + parts[i].rows <= c->options.prefill_chunk);
        ASSERT(parts[i].wanted <= parts[i].rows);
        add_part(s, &parts[i], i, rows);
        rows += parts[i].rows;
        for (uint32_t r = parts[i].wanted; r > 0; r--) {
            s->hidden[s->wanted] = parts[i].hidden;
            s->logit_rows[s->wanted++] = rows - r;
        }
    }
    ranked_sort(s->order, s->order_scratch, n);
    deal_seqs(c, parts, n);
    struct batch batch = {.rows = rows,
                          .tokens = s->tokens,
                          .pos = s->pos,
                          .n_seqs = n,
                          .seqs = s->seqs,
                          .views = s->views,
                          .states = c->options.cache.state_bytes ? s->states : NULL};
    model_forward(c->run, &batch);
    const kvasir_status status = s->wanted ? make_slice(c, 0, err) : flush(c, err);
    for (uint32_t i = 0; i < n; i++) /* no rows if the device or a file failed */
        seq_commit(parts[i].seq, parts[i].tokens, status == KVASIR_OK ? parts[i].rows : 0);
    return status;
}

kvasir_status step_reach(struct kvasir_context *c, uint32_t row, kvasir_error *err) {
    const struct step_buffers *s = &c->step;
    ASSERT(row < s->wanted);
    return row >= s->slice && row < s->slice_end ? KVASIR_OK : make_slice(c, row, err);
}

static kvasir_status result_of(struct kvasir_context *c, uint32_t row, bool hidden,
                               const float **out, kvasir_error *err) {
    const struct step_buffers *s = &c->step;
    const void *fetched;
    TRY(step_reach(c, row, err));
    ASSERT(s->hidden[row] == hidden);
    const size_t width = result_width(c, hidden), at = (row - s->slice) * width;
    if (s->results) {
        *out = s->results + at;
        return KVASIR_OK;
    }
    TRY(backend_fetch(c->backend, s->computed + at, width * sizeof *s->computed, &fetched, err));
    *out = fetched;
    return KVASIR_OK;
}

kvasir_status step_logits(struct kvasir_context *c, uint32_t row, const float **logits,
                          kvasir_error *err) {
    return result_of(c, row, false, logits, err);
}

uint32_t step_rows_ready(const struct kvasir_context *c) {
    return c->step.slice_end;
}

kvasir_status step_hidden(struct kvasir_context *c, uint32_t row, const float **state,
                          kvasir_error *err) {
    return result_of(c, row, true, state, err);
}
