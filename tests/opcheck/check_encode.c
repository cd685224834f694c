/* SPDX-License-Identifier: Apache-2.0 */
/* check_encode.c: kv_store against tile_encode_row, byte for byte, over a host copy of the
 * whole arena: the rows' own bits, those of other tokens in the same bytes, other heads and layers,
 * gaps.
 *
 * A case is an arena of random bytes and a few sequences whose pages lie there in random order, of
 * two layouts in turn. The first step stores ragged rows of all sequences, the second one row each,
 * the third a few more, each into every layer:
 *
 *     seq 0    | page 5        | page 6        |            rows of the steps: 111..1 2 333
 *     seq 1    | page 0 |  (dropped)  | page 7 | page 8 |
 *
 * A batch, its views and tables are made here and not by scene.c, because this test must not take
 * for granted what scene.c does (whole tokens, pages without holes).
 */
#include <math.h>
#include <string.h>

#include "opcheck.h"

enum {
    SEQS = 6,
    STEPS = 3,
    TABLE_MAX = 8, /* pages of a sequence */
    LAYERS = 2,
    KV_HEADS = 2,
    ROWS_MAX = 512, /* of a step */
    ARENA_BYTES = 64 << 20,
};

struct encode_seq {
    uint32_t pos;         /* of the next step's first row */
    uint32_t rows[STEPS]; /* in turn */
    uint32_t kept_pages, base_page, n_pages;
    struct kv_page pages[TABLE_MAX];
};

static struct encode_case {
    struct page_layout layouts[2];
    uint32_t head_dim;
    struct encode_seq seqs[SEQS];
    uint32_t units;              /* of PAGE_ADDR_UNIT that pages take */
    struct backend_arena *arena; /* of the device */
    uint8_t *want;               /* host: what it should hold */
} c;

/* ---- where pages lie ------------------------------------------------------------------------- */

static uint32_t seq_rows(const struct encode_seq *s) {
    uint32_t n = 0;
    for (int i = 0; i < STEPS; i++)
        n += s->rows[i];
    return n;
}

/* The table of a sequence whose first row is at s->pos: some pages before that are dropped. */
static void make_table(struct encode_seq *s) {
    uint32_t first = s->pos / TILE_TOKENS, end = (s->pos + seq_rows(s) - 1) / TILE_TOKENS + 1;
    if (first > 2 || random_below(3) == 0) {
        s->kept_pages = random_below(first < 2 ? first + 1 : 3);
        s->base_page = first;
        if (s->base_page > s->kept_pages)
            s->base_page -= random_below(2);
    } else {
        s->kept_pages = s->base_page = 0;
    }
    s->n_pages = s->kept_pages + end - s->base_page;
    if (s->n_pages > TABLE_MAX)
        give_up("check_encode: a sequence takes %u pages", s->n_pages);
}

/* Pages of all sequences in random order, with gaps. */
static void lay_out(void) {
    struct kv_page *all[SEQS * TABLE_MAX];
    uint32_t count = 0, unit = random_below(3);
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t j = 0; j < c.seqs[i].n_pages; j++) {
            uint32_t at = random_below(++count);
            all[count - 1] = all[at];
            all[at] = &c.seqs[i].pages[j];
        }
    for (uint32_t i = 0; i < count; i++) {
        uint16_t layout = (uint16_t)random_below(2);
        *all[i] = (struct kv_page){.addr = unit, .layout = layout};
        unit += (uint32_t)(c.layouts[layout].page_bytes / PAGE_ADDR_UNIT) + random_below(2);
    }
    c.units = unit + 1;
    if ((size_t)c.units * PAGE_ADDR_UNIT > ARENA_BYTES)
        give_up("check_encode: %u units of arena", c.units);
}

static void make_case(struct kv_format k, struct kv_format v, struct kv_format k2,
                      struct kv_format v2, uint32_t way) {
    static const uint32_t ROWS[] = {1, 63, 64, 65, 130, 2, 31, 17, 7};
    static const uint32_t OFFSETS[] = {0, 1, 31, 63, 32, 5, 62, 48};
    page_layout_init(&c.layouts[0], LAYERS, KV_HEADS, c.head_dim, k, v);
    page_layout_init(&c.layouts[1], LAYERS, KV_HEADS, c.head_dim, k2, v2);
    uint32_t rows_of = random_below(9), offset_of = random_below(8);
    for (uint32_t i = 0; i < SEQS; i++) {
        struct encode_seq *s = &c.seqs[i];
        uint32_t first_page = random_below(2) ? 0 : random_below(7);
        s->pos = first_page * TILE_TOKENS + OFFSETS[(offset_of + i + way) % 8];
        s->rows[0] = ROWS[(rows_of + i * 2 + way) % 9];
        s->rows[1] = 1;
        s->rows[2] = 1 + random_below(9);
        make_table(s);
    }
    lay_out();
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Beyond the fills: ties, overflow of f16 and of float32, not finite, random patterns. */
static void fill_edges(float *x, uint32_t n) {
    uint32_t kind = random_below(6);
    fill(x, n, kind == 0 ? FILL_SIGNS : FILL_NORMAL);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = random_bits();
        if (kind == 1)
            memcpy(&x[i], &bits, sizeof bits);
        else if (kind == 2) /* halves: many quotients are ties */
            x[i] = (float)((int)random_below(64) - 32) * 0.5f;
        else if (kind == 3 && random_below(24) == 0)
            x[i] = EDGE_VALUE[random_below(EDGE_VALUES)];
        else if (kind == 4) /* nothing but NaN, of any payload and sign, in some groups */
            bits |= 0x7f800001u, memcpy(&x[i], &bits, sizeof bits);
        else if (kind == 5 && i / 32 % 2 == 0)
            x[i] = EDGE_VALUE[random_below(3)];
    }
}

static float *make_rows(uint32_t rows) {
    float *x = plain((size_t)rows * KV_HEADS * c.head_dim * sizeof *x);
    for (uint32_t i = 0; i < rows * KV_HEADS; i++)
        if (random_below(4) == 0)
            fill_edges(x + (size_t)i * c.head_dim, c.head_dim);
        else
            fill(x + (size_t)i * c.head_dim, c.head_dim, (enum fill_kind)random_below(FILL_KINDS));
    return x;
}

/* ---- a step ---------------------------------------------------------------------------------- */

struct encode_step {
    struct batch batch;
    struct batch_seq seqs[SEQS];
    struct kv_view views[SEQS];
    uint32_t pos[ROWS_MAX];
    int32_t tokens[ROWS_MAX];
};

static void make_step(struct encode_step *s, int number) {
    memset(s, 0, sizeof *s);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        const struct encode_seq *q = &c.seqs[i];
        s->seqs[i] = (struct batch_seq){.row = rows, .rows = q->rows[number], .pos = q->pos};
        if (rows + q->rows[number] > ROWS_MAX)
            give_up("check_encode: a step takes more than %d rows", (int)ROWS_MAX);
        for (uint32_t j = 0; j < q->rows[number]; j++)
            s->pos[rows++] = q->pos + j;
        /* what was dropped is not seen */
        uint32_t unseen = q->base_page > q->kept_pages ? q->base_page * TILE_TOKENS : 0;
        s->views[i] = (struct kv_view){.arena = c.arena,
                                       .layouts = c.layouts,
                                       .pages = q->pages,
                                       .n_pages = q->n_pages,
                                       .kept_pages = q->kept_pages,
                                       .base_page = q->base_page,
                                       .keep = unseen ? q->kept_pages * TILE_TOKENS : 0,
                                       .span = unseen ? q->pos + 1 - unseen : UINT32_MAX};
    }
    s->batch = (struct batch){.rows = rows,
                              .tokens = s->tokens,
                              .pos = s->pos,
                              .n_seqs = SEQS,
                              .seqs = s->seqs,
                              .views = s->views};
}

/* Stores the rows by the definition, into the host copy. */
static void store_expected(const struct encode_step *s, uint32_t layer, const float *k,
                           const float *v) {
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t j = 0; j < s->seqs[i].rows * KV_HEADS; j++) {
            uint32_t row = j / KV_HEADS, head = j % KV_HEADS, p = s->seqs[i].pos + row;
            const struct kv_page *page =
                &s->views[i].pages[kv_view_index(&s->views[i], p / TILE_TOKENS)];
            const struct page_layout *l = &c.layouts[page->layout];
            uint8_t *tiles = c.want + page_offset(page->addr) + page_tile(l, layer, head, TILE_K);
            size_t at = ((size_t)(s->seqs[i].row + row) * KV_HEADS + head) * c.head_dim;
            tile_encode_row(&l->k, tiles, p % TILE_TOKENS, k + at);
            tile_encode_row(&l->v, tiles + l->k.bytes, p % TILE_TOKENS, v + at);
        }
}

/* Names the place of a byte that differs. */
static void report(const uint8_t *got, size_t at, int step) {
    for (uint32_t i = 0; i < SEQS; i++)
        for (uint32_t j = 0; j < c.seqs[i].n_pages; j++) {
            const struct kv_page *page = &c.seqs[i].pages[j];
            const struct page_layout *l = &c.layouts[page->layout];
            size_t start = page_offset(page->addr), used = l->layer_bytes;
            if (at < start || at >= start + used * LAYERS)
                continue;
            size_t in_head = (at - start) % l->layer_bytes % l->head_bytes;
            bool is_v = in_head >= l->k.bytes;
            const struct tile_layout *t = is_v ? &l->v : &l->k;
            check_that(false,
                       "step %d, seq %u, table entry %u, layer %zu, head %zu, %s of %u bits: byte "
                       "%zu of the tile (scales at %u) is %02x, not %02x",
                       step, i, j, (at - start) / l->layer_bytes,
                       (at - start) % l->layer_bytes / l->head_bytes, is_v ? "V" : "K",
                       t->format.bits, in_head - (is_v ? l->k.bytes : 0), t->scale_offset, got[at],
                       c.want[at]);
            return;
        }
    check_that(false, "step %d: byte %zu between pages is %02x, not %02x", step, at, got[at],
               c.want[at]);
}

static void run_step(int number) {
    struct encode_step s;
    kvasir_error err = {0};
    make_step(&s, number);
    backend_step_begin(device, &s.batch, 1);
    for (uint32_t i = 0, turn = random_below(LAYERS); i < LAYERS; i++) {
        uint32_t layer = (i + turn) % LAYERS;
        size_t bytes = (size_t)s.batch.rows * KV_HEADS * c.head_dim * sizeof(float);
        const float *k = make_rows(s.batch.rows), *v = make_rows(s.batch.rows);
        op_kv_store(device, &s.batch, s.batch.views, layer, device_copy(k, bytes),
                    device_copy(v, bytes));
        store_expected(&s, layer, k, v);
    }
    size_t used = (size_t)c.units * PAGE_ADDR_UNIT, at = 0;
    uint8_t *got = plain(used);
    must(backend_arena_read(device, c.arena, 0, got, used, &err), &err, "arena_read");
    while (at < used && got[at] == c.want[at])
        at++;
    check_that(at == used, "bytes of the arena differ");
    if (at < used)
        report(got, at, number);
    for (uint32_t i = 0; i < SEQS; i++)
        c.seqs[i].pos += c.seqs[i].rows[number];
}

static void run_case(void) {
    uint32_t rows = 0, pages = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        rows += c.seqs[i].rows[0] > c.seqs[i].rows[2] ? c.seqs[i].rows[0] : c.seqs[i].rows[2];
        pages += c.seqs[i].n_pages;
    }
    const struct backend_limits limits = {.rows = rows,
                                          .seqs = SEQS,
                                          .dim = 64,
                                          .head_dim = c.head_dim,
                                          .pages = pages,
                                          .groups = 1,
                                          .group = {{KV_HEADS, KV_HEADS, c.head_dim, false}}};
    device_begin(&limits, 8);
    size_t used = (size_t)c.units * PAGE_ADDR_UNIT;
    c.want = plain(used);
    for (size_t i = 0; i < used; i += sizeof(uint32_t)) {
        uint32_t bits = random_bits();
        memcpy(c.want + i, &bits, sizeof bits);
    }
    c.arena = backend_arena_create(device, used);
    if (!c.arena)
        give_up("no arena of %zu bytes", used);
    backend_arena_take(device, c.arena, 0, used, true);
    backend_arena_write(device, c.arena, 0, c.want, used);
    for (int step = 0; step < STEPS; step++)
        run_step(step);
    backend_arena_destroy(device, c.arena);
}

/* ---- formats --------------------------------------------------------------------------------- */

/* Exact formats, then affine ones: of each width all groups and scalar types. */
enum {
    EXACT = 3,
    GROUPS = 3,
    SCALARS = 2,
    WIDTHS = 6,
    FORMATS = EXACT + WIDTHS * GROUPS * SCALARS
};

static struct kv_format nth_format(uint32_t i) {
    static const uint8_t BITS[WIDTHS] = {8, 4, 2, 6, 5, 3};
    static const uint8_t GROUP[GROUPS] = {64, 32, 128};
    if (i < EXACT)
        return (struct kv_format){.bits = i == 2 ? 32 : 16, .scalar = (uint8_t)i};
    i -= EXACT;
    return (struct kv_format){.bits = BITS[i / (GROUPS * SCALARS)],
                              .scalar = i % SCALARS ? SCALAR_BF16 : SCALAR_F16,
                              .group = GROUP[i / SCALARS % GROUPS]};
}

static bool fits(struct kv_format f, uint32_t head_dim) {
    return kv_format_exact(f) || head_dim % f.group == 0;
}

static struct kv_format random_format(uint32_t head_dim) {
    for (;;) {
        const struct kv_format f = nth_format(random_below(FORMATS));
        if (fits(f, head_dim))
            return f;
    }
}

/* Pages of the two formats and pages of two others among them, with as many head sizes as fit. */
static void check_pair(uint32_t ki, uint32_t vi) {
    static const uint32_t DIMS[] = {64, 128, 256, 96, 80, 192, 512};
    char k_name[24], v_name[24];
    const struct kv_format k = nth_format(ki), v = nth_format(vi);
    if (!family_begin("kv_store", "%s, %s", kv_format_name(k, k_name), kv_format_name(v, v_name)))
        return;
    /* kcheck has all sizes for the CPU's kernels, so here one size per pair is enough */
    const uint32_t dims = sizeof DIMS / sizeof *DIMS;
    const uint32_t most = !choice->cuda ? 1 : quick ? 2 : dims;
    const uint32_t ways = quick || !choice->cuda ? 1 : 2;
    for (uint32_t d = 0, done = 0; d < dims && done < most; d++) {
        c.head_dim = DIMS[(d + (most < dims ? ki + vi : 0)) % dims];
        if (!fits(k, c.head_dim) || !fits(v, c.head_dim))
            continue;
        done++;
        for (uint32_t way = 0; way < ways; way++) {
            case_begin("head_dim %u, way %u", c.head_dim, way);
            make_case(k, v, random_format(c.head_dim), random_format(c.head_dim), way);
            run_case();
        }
    }
    family_end();
}

void check_encode(void) {
    for (uint32_t i = 0; i < FORMATS; i++) {
        check_pair(i, i);
        check_pair(i, (i * 7 + 3) % FORMATS);
    }
}
