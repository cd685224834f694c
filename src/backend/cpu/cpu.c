/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend: its life, its memory, and the operations that are a loop over rows.
 *
 * Enqueueing runs the operation at once: work is cut into items (rows, ranges of outputs, splits of
 * a head) that a pool of threads takes one by one, and every item is computed by one kernel call
 * sequence that does not know which thread it is on. So results do not depend on the number of
 * threads (BACKEND-1). Matmuls are in product.c, attention in attention.c, kv_store in
 * kv_store.c, experts in experts.c, recurrent layers in recurrent.c.
 */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/host.h"
#include "util/node_memory.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void scratch_free(struct cpu_backend *b) {
    product_input_deinit(&b->input);
    experts_deinit(b);
    attention_deinit(b);
    mem_free(b->first_pages);
    for (int i = 0; b->scratch && i < b->threads; i++)
        mem_free(b->scratch[i].memory);
}

static void cpu_destroy(struct backend *base) {
    struct cpu_backend *b = cpu_of(base);
    thread_pool_destroy(b->pool);
    centre_deinit(b);
    scratch_free(b);
    mem_free(b->scratch);
    mem_free(b);
}

/* ROWS_GOOD: a new request waits for the current step and its prompts, so steps are small. That
 * costs prompts nothing that can be measured (docs/speed.md, "The server against llama-server").
 * LOGIT_ROWS: with a vocabulary of 150,000 tokens a row takes 600 KB of logits, and more rows at a
 * time make the matmul no faster. */
enum { ROWS_GOOD = 128, LOGIT_ROWS = 64 };

static void cpu_info(const struct backend *base, struct backend_info *out) {
    const struct cpu_backend *b = (const struct cpu_backend *)base;
    *out = (struct backend_info){.kind = "cpu",
                                 .tier = cpu_tier_name(b->kernels.tier),
                                 .workers = (uint32_t)b->threads,
                                 .act_bits = b->act_bits,
                                 .rows_good = ROWS_GOOD,
                                 .rows_max = UINT32_MAX,
                                 .logit_rows = LOGIT_ROWS,
                                 .gives_pages_back = true};
    const int n = snprintf(out->name, sizeof out->name, "CPU, %s, %d thread%s", out->tier,
                           b->threads, b->threads == 1 ? "" : "s");
    int nodes = 0; /* that have threads */
    for (int i = 0; i < b->nodes.n; i++)
        nodes += b->nodes.first[i] < b->nodes.first[i + 1];
    if (nodes > 1)
        snprintf(out->name + n, sizeof out->name - (size_t)n, " on %d memory nodes", nodes);
}

static kvasir_status cpu_check_layout(const struct backend *b, const struct page_layout *l,
                                      kvasir_error *err) {
    (void)b;
    (void)err;
    ASSERT(l->k.head_dim <= HEAD_DIM_MAX);
    return KVASIR_OK;
}

/* The packed rows of a block. */
static void query_lay_out(struct query_rows *q, uint32_t head_dim, uint8_t *base, size_t *used) {
    const size_t values = (size_t)BLOCK_ROWS * head_dim, runs = head_dim / 32 + 1;
    q->dim = head_dim;
    q->f32 = cut(base, used, values * sizeof *q->f32);
    q->codes = cut(base, used, values * sizeof *q->codes);
    q->sum32 = cut(base, used, BLOCK_ROWS * runs * sizeof *q->sum32);
    q->scale = cut(base, used, BLOCK_ROWS * sizeof *q->scale);
}

/* Returns the bytes that it takes. */
static size_t scratch_lay_out(struct worker_scratch *s, const struct backend_limits *limits,
                              uint8_t *base) {
    const size_t out = (size_t)BLOCK_ROWS * limits->head_dim * sizeof(float),
                 stored = (size_t)TILE_TOKENS * limits->head_dim * sizeof(float);
    size_t used = 0;
    for (int i = 0; i < BASIS_COUNT; i++)
        query_lay_out(&s->queries[i], limits->head_dim, base, &used);
    s->scores = cut(base, &used, (size_t)BLOCK_ROWS * SPLIT_TOKENS * sizeof *s->scores);
    s->visited = cut(base, &used, 2 * sizeof *s->visited);
    s->split = cut(base, &used, BLOCK_ROWS * sizeof *s->split);
    s->all = cut(base, &used, BLOCK_ROWS * sizeof *s->all);
    s->split_out = cut(base, &used, out);
    s->all_out = cut(base, &used, out);
    s->turned = cut(base, &used, out);
    s->turned_out = cut(base, &used, out);
    s->stored = cut(base, &used, stored);
    s->stored_plain = cut(base, &used, stored);
    s->panel = cut(base, &used, product_scratch_bytes(max_u32(limits->dim, limits->expert_dim)));
    s->term = cut(base, &used, (size_t)limits->rows * ITEM_OUTPUTS * sizeof *s->term);
    return used;
}

static bool worker_scratch_init(struct worker_scratch *s, const struct backend_limits *limits) {
    s->memory = mem_alloc_aligned(scratch_lay_out(s, limits, NULL));
    if (!s->memory)
        return false;
    (void)scratch_lay_out(s, limits, s->memory);
    return true;
}

static kvasir_status cpu_reserve(struct backend *base, const struct backend_limits *limits,
                                 kvasir_error *err) {
    struct cpu_backend *b = cpu_of(base);
    b->limits = *limits;
    bool good = product_input_init(&b->input, b->act_bits, limits->rows, limits->dim);
    good = good && (limits->experts == 0 || experts_init(b));
    b->first_pages = mem_alloc(((size_t)limits->rows + 1) * sizeof *b->first_pages);
    good = good && b->first_pages && attention_init(b);
    for (int i = 0; good && i < b->threads; i++)
        good = worker_scratch_init(&b->scratch[i], limits);
    if (!good)
        return fail(err, KVASIR_ERR_MEMORY, "scratch for steps of %u rows: out of memory",
                    limits->rows);
    return KVASIR_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static kvasir_status cpu_weight_put(struct backend *b, const struct weight *w,
                                    const struct backend_weight **out, kvasir_error *err) {
    cpu_weight_place(cpu_of(b), w);
    return host_weight_put(b, w, out, err);
}

/* On several memory nodes pages are interleaved: any thread may read any page (nodes.c). */
static struct backend_arena *cpu_arena_create(struct backend *base, size_t bytes) {
    const struct cpu_backend *b = cpu_of(base);
    struct backend_arena *a = mem_calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->bytes = bytes;
    a->base = mem_reserve(bytes);
    if (!a->base) {
        mem_free(a);
        return NULL;
    }
    if (b->nodes.n > 1)
        node_memory_interleave(a->base, bytes, &b->machine);
    return a;
}

static void cpu_arena_destroy(struct backend *b, struct backend_arena *a) {
    (void)b;
    mem_unreserve(a->base, a->bytes);
    mem_free(a);
}

static void cpu_arena_take(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes,
                           bool fresh) {
    (void)b;
    uint8_t *page = arena_at(a, page_offset(addr), bytes);
    if (fresh)
        mem_touch(page, bytes);
    else
        memset(page, 0, bytes);
}

static void cpu_arena_populate(struct backend *b, struct backend_arena *a, uint32_t addr,
                               size_t bytes) {
    (void)b;
    mem_populate(arena_at(a, page_offset(addr), bytes), bytes);
}

static uint8_t *cpu_arena_host(struct backend *b, struct backend_arena *a, uint32_t addr,
                               size_t bytes) {
    (void)b;
    return arena_at(a, page_offset(addr), bytes);
}

static void cpu_arena_release(struct backend *b, struct backend_arena *a, uint32_t addr,
                              size_t bytes) {
    (void)b;
    mem_release(arena_at(a, page_offset(addr), bytes), bytes);
}

static void cpu_arena_copy(struct backend *b, struct backend_arena *a, uint32_t to, uint32_t from,
                           size_t bytes) {
    (void)b;
    memcpy(arena_at(a, page_offset(to), bytes), arena_at(a, page_offset(from), bytes), bytes);
}

static kvasir_status cpu_arena_read(struct backend *b, const struct backend_arena *a, size_t at,
                                    void *host, size_t bytes, kvasir_error *err) {
    return host_read(b, host, arena_at(a, at, bytes), bytes, err);
}

static void cpu_arena_write(struct backend *b, struct backend_arena *a, size_t at, const void *host,
                            size_t bytes) {
    host_write(b, arena_at(a, at, bytes), host, bytes);
}

static void cpu_arena_zero(struct backend *b, struct backend_arena *a, size_t at, size_t width,
                           size_t pitch, size_t count) {
    (void)b;
    for (size_t i = 0; i < count; i++)
        memset(arena_at(a, at + i * pitch, width), 0, width);
}

struct convert_job {
    const struct page_conversion *c;
    const uint8_t *from;
    uint8_t *to;
};

static void convert_item(void *ctx, size_t item, int worker) {
    const struct convert_job *j = ctx;
    const uint32_t heads = j->c->to->kv_heads;
    (void)worker;
    page_convert_head(j->c, (uint32_t)item / heads, (uint32_t)item % heads, j->from, j->to);
}

static void cpu_page_convert(struct backend *b, struct backend_arena *a,
                             const struct page_conversion *c) {
    struct convert_job j = {c, arena_at(a, page_offset(c->from_addr), c->from->page_bytes),
                            arena_at(a, page_offset(c->to_addr), c->to->page_bytes)};
    thread_pool_run(cpu_of(b)->pool, (size_t)c->to->layers * c->to->kv_heads, convert_item, &j);
}

uint8_t *backend_cpu_arena_bytes(const struct backend_arena *a) {
    return a->base;
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Operations run at once and find all they need in their own arguments. */
static void cpu_step_begin(struct backend *b, const struct batch *batch, uint32_t groups) {
    (void)b;
    (void)groups;
    ASSERT(batch->rows > 0 && batch->n_seqs > 0 && batch->n_seqs <= batch->rows);
}

/* ---- loops over rows ------------------------------------------------------------------------- */

/* A row of these operations takes well under a microsecond. A worker gets this many at a time, or
 * more short ones that have so many values, so that a decode step of a few rows, or of a few rows'
 * heads, wakes no other thread. */
enum { ROWS_PER_ITEM = 8, VALUES_PER_ITEM = 8192 };

struct row_job {
    const struct cpu_backend *b;
    const float *x, *y;
    float *out;
    uint32_t rows, dim;
    uint32_t item_rows; /* 0: ROWS_PER_ITEM */
    union {
        struct {
            const float *gain;
            float eps;
        } norm;
        struct {
            const float *cos_in, *sin_in;
            uint32_t heads, head_dim, n;
            bool adjacent;
        } rope;
        struct {
            const uint32_t *pos;
            const double *inv_freq;
            float *cos_out, *sin_out;
            float scale;
        } table;
        struct {
            const struct backend_weight *w;
            const int32_t *tokens;
        } embed;
        struct {
            size_t n;
            float by; /* a factor, a cap */
            gate_mul_fn *gate_mul;
        } flat;
        struct {
            uint32_t blocks;
            struct block_strides from, to;
        } rearrange;
    };
    void (*row)(const struct row_job *j, uint32_t row);
};

static void rows_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const struct row_job *j = ctx;
    uint32_t first = (uint32_t)item * j->item_rows, end = first + j->item_rows;
    for (uint32_t r = first; r < end && r < j->rows; r++)
        j->row(j, r);
}

static void run_rows(struct cpu_backend *b, struct row_job *j) {
    j->b = b;
    j->item_rows = j->item_rows ? j->item_rows : ROWS_PER_ITEM;
    thread_pool_run(b->pool, (j->rows + j->item_rows - 1) / j->item_rows, rows_item, j);
}

static void embed_row(const struct row_job *j, uint32_t r) {
    const struct weight *w = &j->embed.w->w;
    ASSERT(j->embed.tokens[r] >= 0 && (uint32_t)j->embed.tokens[r] < w->n);
    weight_traits_of(w->type)->decode(w, (uint32_t)j->embed.tokens[r], j->out + (size_t)r * w->k);
}

static void cpu_embed(struct backend *base, const struct backend_weight *w, const int32_t *tokens,
                      uint32_t rows, float *y) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(rows <= b->limits.rows);
    struct row_job j = {.out = y, .rows = rows, .embed = {w, tokens}, .row = embed_row};
    run_rows(b, &j);
}

static void norm_row(const struct row_job *j, uint32_t r) {
    size_t at = (size_t)r * j->dim;
    j->b->kernels.rms_norm(j->x + at, j->norm.gain, j->dim, j->norm.eps, j->out + at);
}

static void cpu_rms_norm(struct backend *base, const float *x, const float *gain, uint32_t rows,
                         uint32_t dim, float eps, float *y) {
    struct cpu_backend *b = cpu_of(base);
    struct row_job j = {.x = x,
                        .out = y,
                        .rows = rows,
                        .dim = dim,
                        .item_rows = max_u32(ROWS_PER_ITEM, VALUES_PER_ITEM / dim),
                        .norm = {gain, eps},
                        .row = norm_row};
    run_rows(b, &j);
}

static void rope_table_row(const struct row_job *j, uint32_t r) {
    for (uint32_t i = 0; i < j->dim; i++) {
        double s, c;
        m_sincos((double)j->table.pos[r] * j->table.inv_freq[i], &s, &c);
        j->table.sin_out[(size_t)r * j->dim + i] = (float)s * j->table.scale;
        j->table.cos_out[(size_t)r * j->dim + i] = (float)c * j->table.scale;
    }
}

static void cpu_rope_table(struct backend *base, const uint32_t *pos, uint32_t rows,
                           const double *inv_freq, uint32_t n, float scale, float *cos_out,
                           float *sin_out) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(rows <= b->limits.rows && 2 * n <= HEAD_DIM_MAX);
    struct row_job j = {.rows = rows,
                        .dim = n,
                        .table = {pos, inv_freq, cos_out, sin_out, scale},
                        .row = rope_table_row};
    run_rows(b, &j);
}

static void rope_row(const struct row_job *j, uint32_t r) {
    const float *c = j->rope.cos_in + (size_t)r * j->rope.n;
    const float *s = j->rope.sin_in + (size_t)r * j->rope.n;
    float *x = j->out + (size_t)r * j->rope.heads * j->rope.head_dim;
    for (uint32_t h = 0; h < j->rope.heads; h++)
        j->b->kernels.rope(x + (size_t)h * j->rope.head_dim, j->rope.n, c, s, j->rope.adjacent);
}

static void cpu_rope(struct backend *base, float *x, uint32_t rows, uint32_t heads,
                     uint32_t head_dim, const float *cos_in, const float *sin_in, uint32_t n,
                     bool adjacent) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(rows <= b->limits.rows && 2 * n <= head_dim);
    struct row_job j = {.out = x,
                        .rows = rows,
                        .rope = {cos_in, sin_in, heads, head_dim, n, adjacent},
                        .row = rope_row};
    run_rows(b, &j);
}

/* Elementwise operations take a flat range as rows of this many values. */
enum { FLAT_DIM = 1024 };

static uint32_t flat_rows(size_t n) {
    return (uint32_t)((n + FLAT_DIM - 1) / FLAT_DIM);
}

static size_t flat_count(const struct row_job *j, uint32_t r) {
    size_t left = j->flat.n - (size_t)r * FLAT_DIM;
    return left < FLAT_DIM ? left : FLAT_DIM;
}

static void gate_mul_row(const struct row_job *j, uint32_t r) {
    size_t at = (size_t)r * FLAT_DIM;
    j->flat.gate_mul(j->x + at, j->y + at, flat_count(j, r), j->out + at);
}

static void cpu_gate_mul(struct backend *base, enum gate_kind kind, const float *gate,
                         const float *up, size_t n, float *y) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(kind < GATE_KINDS);
    struct row_job j = {.x = gate,
                        .y = up,
                        .out = y,
                        .rows = flat_rows(n),
                        .flat = {.n = n, .gate_mul = b->kernels.gate_mul[kind]},
                        .row = gate_mul_row};
    run_rows(b, &j);
}

static void add_row(const struct row_job *j, uint32_t r) {
    size_t at = (size_t)r * FLAT_DIM;
    j->b->kernels.add(j->out + at, j->y + at, j->flat.by, flat_count(j, r));
}

static void cpu_add(struct backend *base, float *x, const float *y, float scale, size_t n) {
    struct cpu_backend *b = cpu_of(base);
    struct row_job j = {
        .y = y, .out = x, .rows = flat_rows(n), .flat = {.n = n, .by = scale}, .row = add_row};
    run_rows(b, &j);
}

static void scale_row(const struct row_job *j, uint32_t r) {
    j->b->kernels.scale(j->out + (size_t)r * FLAT_DIM, j->flat.by, flat_count(j, r));
}

static void cpu_scale(struct backend *base, float *x, float scale, size_t n) {
    struct cpu_backend *b = cpu_of(base);
    struct row_job j = {
        .out = x, .rows = flat_rows(n), .flat = {.n = n, .by = scale}, .row = scale_row};
    run_rows(b, &j);
}

static void softcap_row(const struct row_job *j, uint32_t r) {
    j->b->kernels.softcap(j->out + (size_t)r * FLAT_DIM, flat_count(j, r), j->flat.by);
}

static void cpu_softcap(struct backend *base, float *x, float cap, size_t n) {
    struct cpu_backend *b = cpu_of(base);
    struct row_job j = {
        .out = x, .rows = flat_rows(n), .flat = {.n = n, .by = cap}, .row = softcap_row};
    run_rows(b, &j);
}

static void gate_rows_row(const struct row_job *j, uint32_t r) {
    j->b->kernels.scale(j->out + (size_t)r * j->dim, (float)m_sigmoid((double)j->x[r]), j->dim);
}

static void cpu_gate_rows(struct backend *base, float *x, const float *gate, uint32_t rows,
                          uint32_t dim) {
    struct cpu_backend *b = cpu_of(base);
    struct row_job j = {.x = gate, .out = x, .rows = rows, .dim = dim, .row = gate_rows_row};
    run_rows(b, &j);
}

static void rearrange_row(const struct row_job *j, uint32_t r) {
    const float *from = j->x + (size_t)r * j->rearrange.from.row;
    float *to = j->out + (size_t)r * j->rearrange.to.row;
    for (uint32_t i = 0; i < j->rearrange.blocks; i++)
        memcpy(to + (size_t)i * j->rearrange.to.block, from + (size_t)i * j->rearrange.from.block,
               j->dim * sizeof *to);
}

static void cpu_rearrange(struct backend *base, uint32_t rows, uint32_t blocks, uint32_t n,
                          const float *from, struct block_strides from_strides, float *to,
                          struct block_strides to_strides) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(from_strides.row >= n && to_strides.row >= n);
    struct row_job j = {.x = from,
                        .out = to,
                        .rows = rows,
                        .dim = n,
                        .rearrange = {blocks, from_strides, to_strides},
                        .row = rearrange_row};
    run_rows(b, &j);
}

static void cpu_gather_rows(struct backend *base, const float *x, const uint32_t *index, uint32_t n,
                            uint32_t dim, float *y) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(n <= b->limits.rows);
    for (uint32_t i = 0; i < n; i++) {
        ASSERT(index[i] < b->limits.rows);
        memcpy(y + (size_t)i * dim, x + (size_t)index[i] * dim, dim * sizeof *y);
    }
}

static void cpu_host_run(struct backend *b, size_t items, thread_fn *fn, void *ctx) {
    thread_pool_run(cpu_of(b)->pool, items, fn, ctx);
}

/* ---- the table ------------------------------------------------------------------------------- */

#define MEMBER(name) .name = cpu_##name,
static const struct backend_ops CPU_OPS = {HOST_MEMBERS,
                                           .read = host_read,
                                           .write = host_write,
                                           .weight_put = cpu_weight_put,
                                           .arena_populate = cpu_arena_populate,
                                           .arena_host = cpu_arena_host,
                                           .host_run = cpu_host_run,
                                           BACKEND_MEMBERS(MEMBER) BACKEND_OPERATIONS(MEMBER)};
#undef MEMBER

kvasir_status backend_cpu_create(struct backend **out, const struct backend_cpu_options *opt,
                                 kvasir_error *err) {
    if (opt->act_bits != 8 && opt->act_bits != 16)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.act_bits", "%d is neither 8 nor 16",
                          opt->act_bits);
    if (opt->threads < 0 || opt->threads > 1024)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.threads",
                          "%d is not between 0 (auto) and 1024", opt->threads);
    struct cpu_backend *b = mem_calloc(1, sizeof *b);
    if (!b)
        return fail(err, KVASIR_ERR_MEMORY, "backend: out of memory");
    b->base.ops = &CPU_OPS;
    if (opt->machine)
        b->machine = *opt->machine;
    else
        topology_read(&b->machine);
    b->threads = opt->threads ? opt->threads : topology_threads(&b->machine);
    topology_deal(&b->machine, b->threads, &b->nodes);
    b->act_bits = opt->act_bits;
    kernels_select(&b->kernels, opt->tier);
    kvasir_status status = thread_pool_create_on(&b->pool, b->threads, &b->machine, err);
    if (status == KVASIR_OK) {
        b->scratch = mem_calloc((size_t)b->threads, sizeof *b->scratch);
        if (!b->scratch)
            status = fail(err, KVASIR_ERR_MEMORY, "backend: out of memory");
    }
    if (status != KVASIR_OK) {
        cpu_destroy(&b->base);
        return status;
    }
    *out = &b->base;
    return KVASIR_OK;
}
