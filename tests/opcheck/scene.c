/* SPDX-License-Identifier: Apache-2.0 */
/* scene.c: sequences over pages in an arena, as cache/ would hand them to a step.
 *
 * Pages are in the arena in random order, each at a multiple of PAGE_ADDR_UNIT, with gaps of up
 * to three units between them where the scene is checked:
 *
 *     arena   | seq 2 page 0 | seq 0 page 5 | gap | seq 1 page 3 | ...
 *
 * so a kernel that takes the neighbour in memory for the next page reads another sequence's tokens,
 * and one that reads past a page reads NaN. Checked scenes are made whole in host memory and
 * written to the arenas in one piece.
 *
 * Scenes for benches may be larger than host memory. Some pages with random content (PATTERN_BYTES
 * of them) are uploaded to the first places of the arena and copied to the others on the device.
 */
#include <math.h>
#include <string.h>

#include "opcheck.h"

enum { PATTERN_BYTES = 64 << 20, PATTERNS_MIN = 2, PATTERNS_MAX = 384 };

/* Where a page goes: [order] gives the page at that place. */
struct place {
    uint32_t seq, number; /* page number of that sequence */
    uint32_t layout, addr;
};
static bool is_shadow(const struct place *p) {
    return p->layout >= 2;
}

static void *take(size_t count, size_t size) {
    void *p = mem_calloc(count, size);
    if (!p)
        give_up("no memory for a scene: %zu times %zu bytes", count, size);
    return p;
}

static void random_bytes(uint8_t *p, size_t n) {
    for (; n >= 4; n -= 4, p += 4) {
        uint32_t r = random_bits();
        memcpy(p, &r, 4);
    }
    for (; n > 0; n--)
        *p++ = (uint8_t)random_bits();
}

/* ---- tables ---------------------------------------------------------------------------------- */

static uint32_t pages_for(uint32_t tokens) {
    return tokens / TILE_TOKENS + (tokens % TILE_TOKENS > 0);
}

/* A sequence's table after dropping everything that no row of this step or a later one sees, as in
 * cache/seq.c: kept_pages comes from the settings and may be more than there are pages. */
static void table_of(const struct scene_seq *q, struct kv_view *v) {
    uint32_t total = pages_for(q->length), first = q->length - q->rows;
    uint32_t oldest = first >= q->span ? first - q->span + 1 : 0; /* that the first row sees */
    v->kept_pages = pages_for(q->keep);
    v->base_page = oldest / TILE_TOKENS;
    if (v->base_page < v->kept_pages)
        v->base_page = v->kept_pages;
    v->n_pages = total <= v->kept_pages ? total : v->kept_pages + (total - v->base_page);
    v->keep = q->keep;
    v->span = q->span;
}

static uint32_t layout_of(const struct scene_seq *q, uint32_t number) {
    return number >= q->switch_at;
}

/* The layouts of shadows, and which pages of a sequence have one: those that are encoded when they
 * are full, from the exact tail of the step's first row on. Pages before a switch that have none
 * share their table. */
static void make_shadow_layouts(struct scene *s) {
    const struct kv_format exact = {.bits = 16, .scalar = SCALAR_F16};
    for (uint32_t i = 0; i < 2; i++) {
        struct page_layout *l = &s->layouts[2 + i];
        page_layout_init(l, s->layers, s->kv_heads, s->head_dim, exact, exact);
        l->basis = s->layouts[i].basis;
        l->centred = s->layouts[i].centred;
    }
}

static void shadows_of(const struct scene *s, const struct scene_seq *q, struct kv_view *v) {
    uint32_t first =
        kv_shadow_first(v->kept_pages, v->span, v->tail_pages, (q->length - q->rows) / TILE_TOKENS);
    if (first >= v->kept_pages && first < v->base_page)
        first = v->base_page;
    while (first < pages_for(q->length) && !page_is_whole(&s->layouts[layout_of(q, first)]))
        first++;
    v->shadow_first = first;
    v->n_shadows = 0;
    while (first + v->n_shadows < pages_for(q->length) &&
           page_is_whole(&s->layouts[layout_of(q, first + v->n_shadows)]))
        v->n_shadows++;
}

static uint32_t number_of(const struct kv_view *v, uint32_t i) {
    return i < v->kept_pages ? i : v->base_page + (i - v->kept_pages);
}

static struct place *make_places(const struct scene *s, uint32_t *count) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        n += s->views[i].n_pages + s->views[i].n_shadows;
    struct place *places = take(n, sizeof *places);
    *count = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct kv_view *v = &s->views[i];
        for (uint32_t j = 0; j < v->n_pages + v->n_shadows; j++) {
            const bool shadow = j >= v->n_pages;
            uint32_t number = shadow ? v->shadow_first + j - v->n_pages : number_of(v, j),
                     layout = layout_of(&s->seqs[i], number), at = random_below(++*count);
            places[*count - 1] = places[at];
            places[at] = (struct place){i, number, shadow ? 2 + layout : layout, 0};
        }
    }
    ASSERT(*count == n);
    return places;
}

/* PAGE_ADDR_UNITs of a unit of 2 MiB, in which memory is mapped. */
enum { UNIT_PAGES = (2 << 20) / PAGE_ADDR_UNIT };

/* Hands out addresses and fills the page tables. */
static void lay_out(struct scene *s, struct place *places, uint32_t count, bool gaps) {
    uint32_t unit = gaps ? random_below(4) : 0;
    for (uint32_t i = 0; i < count; i++) {
        struct place *p = &places[i];
        const struct kv_view *v = &s->views[p->seq];
        /* A page is inside one unit of memory if it fits: memcheck reports accesses over two units,
         * mapped side by side, as errors. (Pages of steps are larger than a unit.) */
        uint32_t units = (uint32_t)(s->layouts[p->layout].page_bytes / PAGE_ADDR_UNIT);
        if (units <= UNIT_PAGES && unit % UNIT_PAGES + units > UNIT_PAGES)
            unit = (uint32_t)round_up(unit, UNIT_PAGES);
        p->addr = unit;
        unit += (uint32_t)(s->layouts[p->layout].page_bytes / PAGE_ADDR_UNIT);
        unit += gaps ? random_below(4) : 0;
        struct kv_page *table = is_shadow(p) ? s->shadows : s->pages;
        table[(size_t)p->seq * s->max_pages +
              (is_shadow(p) ? p->number - v->shadow_first : kv_view_index(v, p->number))] =
            (struct kv_page){.addr = p->addr, .layout = (uint16_t)p->layout};
    }
    s->arena_bytes = (size_t)(unit + 1) * PAGE_ADDR_UNIT;
}

static void make_batch(struct scene *s) {
    uint32_t rows = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        rows += s->seqs[i].rows;
    int32_t *tokens = take(rows, sizeof *tokens);
    uint32_t *pos = take(rows, sizeof *pos);
    struct batch_seq *seqs = take(s->n_seqs, sizeof *seqs);
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct scene_seq *q = &s->seqs[i];
        seqs[i] = (struct batch_seq){row, q->rows, q->length - q->rows};
        for (uint32_t j = 0; j < q->rows; j++)
            pos[row++] = seqs[i].pos + j;
    }
    s->batch = (struct batch){.rows = rows,
                              .tokens = tokens,
                              .pos = pos,
                              .n_seqs = s->n_seqs,
                              .seqs = seqs,
                              .views = s->views};
}

/* ---- content of checked scenes --------------------------------------------------------------- */

static float garbage_value(void) {
    static const float VALUES[] = {NAN, -NAN, INFINITY, -INFINITY, 6e4f, -6e4f};
    uint32_t i = random_below(8);
    return i < sizeof VALUES / sizeof *VALUES ? VALUES[i] : random_normal() * 1e3f;
}

/* A slot that no row may see: what a page that was used before can hold, and worse. */
static void garbage_row(const struct tile_layout *l, uint8_t *tile, uint32_t token) {
    float x[HEAD_DIM_MAX], scales[HEAD_DIM_MAX], biases[HEAD_DIM_MAX];
    uint8_t codes[HEAD_DIM_MAX];
    if (kv_format_exact(l->format)) {
        for (uint32_t i = 0; i < l->head_dim; i++)
            x[i] = garbage_value();
        tile_encode_row(l, tile, token, x);
        return;
    }
    for (uint32_t i = 0; i < l->head_dim; i++)
        codes[i] = (uint8_t)(random_bits() & ((1u << l->format.bits) - 1));
    for (uint32_t g = 0; g < l->groups; g++) {
        scales[g] = garbage_value();
        biases[g] = garbage_value();
    }
    tile_put_row(l, tile, token, codes, scales, biases);
}

static void random_row(const struct tile_layout *l, uint8_t *tile, uint32_t token) {
    float x[HEAD_DIM_MAX];
    for (uint32_t i = 0; i < l->head_dim; i++)
        x[i] = random_normal() * (random_below(200) == 0 ? 6.0f : 0.5f);
    tile_encode_row(l, tile, token, x);
}

/* All 64 tokens of one. */
static void random_tile(const struct tile_layout *l, uint8_t *tile) {
    static float rows[TILE_TOKENS * HEAD_DIM_MAX];
    for (uint32_t i = 0; i < TILE_TOKENS * l->head_dim; i++)
        rows[i] =
            scalar_round(SCALAR_F16, random_normal() * (random_below(200) == 0 ? 3.0f : 0.5f));
    tile_encode(l, tile, rows);
}

/* used: slots of this page that hold tokens. A page that is encoded when it is full holds what it
 * did before until then. */
static void fill_page(const struct page_layout *l, uint8_t *page, uint32_t used) {
    for (uint32_t i = 0; page_is_whole(l) && i < l->layers * l->kv_heads; i++) {
        if (used < TILE_TOKENS)
            return;
        random_tile(&l->k, page + (size_t)i * l->head_bytes);
        random_tile(&l->v, page + (size_t)i * l->head_bytes + l->k.bytes);
    }
    if (page_is_whole(l))
        return;
    for (uint32_t i = 0; i < l->layers * l->kv_heads; i++) {
        uint8_t *k = page + (size_t)i * l->head_bytes, *v = k + l->k.bytes;
        for (uint32_t t = 0; t < TILE_TOKENS; t++) {
            (t < used ? random_row : garbage_row)(&l->k, k, t);
            (t < used ? random_row : garbage_row)(&l->v, v, t);
        }
    }
}

static void make_image(struct scene *s) {
    s->image = take(s->arena_bytes, 1);
    /* gaps and ends of pages; the bits of NaN are among these, and often */
    random_bytes(s->image, s->arena_bytes);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        const struct place *p = &s->places[i];
        uint32_t begin = p->number * TILE_TOKENS, length = s->seqs[p->seq].length;
        uint32_t used = length - begin < TILE_TOKENS ? length - begin : TILE_TOKENS;
        fill_page(&s->layouts[p->layout], s->image + page_offset(p->addr), used);
    }
}

/* ---- content of scenes for benches ----------------------------------------------------------- */

static uint16_t random_16(enum scalar_type t) { /* +-2^-7 .. 1 */
    uint32_t r = random_bits(), sign = r & 0x8000, exponent = r >> 16 & 7;
    exponent -= exponent == 7;
    return (uint16_t)(t == SCALAR_F16 ? sign | (8 + exponent) << 10 | (r & 0x3ff)
                                      : sign | (120 + exponent) << 7 | (r & 0x7f));
}

static void pattern_tile(const struct tile_layout *l, uint8_t *tile) {
    enum scalar_type t = l->format.scalar;
    if (kv_format_exact(l->format)) {
        uint16_t *x = (uint16_t *)(void *)tile;
        for (uint32_t i = 0; i < l->bytes / 2; i++)
            x[i] = random_16(t);
        return;
    }
    random_bytes(tile, l->scale_offset);
    float step = 2.0f / (float)((1u << l->format.bits) - 1);
    const uint32_t scales = (l->bias_offset - l->scale_offset) / 2;
    for (uint32_t i = 0; i < scales; i++) {
        float wide = 0.75f + (float)random_below(1 << 16) * 0x1p-17f;
        scalar_store(t, tile + l->scale_offset, i, step * wide);
        scalar_store(t, tile + l->bias_offset, i, -wide);
    }
}

static void pattern_page(const struct page_layout *l, uint8_t *page) {
    for (uint32_t i = 0; i < l->layers * l->kv_heads; i++) {
        pattern_tile(&l->k, page + (size_t)i * l->head_bytes);
        pattern_tile(&l->v, page + (size_t)i * l->head_bytes + l->k.bytes);
    }
}

/* The first pages of a layout in the arena are patterns, the others copies of a random one. */
static void fill_arena(const struct scene *s, uint32_t layout) {
    const struct page_layout *l = &s->layouts[layout];
    uint32_t max = (uint32_t)(PATTERN_BYTES / l->page_bytes), made = 0, at[PATTERNS_MAX];
    max = max < PATTERNS_MIN ? PATTERNS_MIN : max > PATTERNS_MAX ? PATTERNS_MAX : max;
    uint8_t *page = take(l->page_bytes, 1);
    for (uint32_t i = 0; i < s->n_pages; i++) {
        uint32_t to = s->places[i].addr;
        if (s->places[i].layout != layout)
            continue;
        if (made < max) {
            pattern_page(l, page);
            backend_arena_write(device, s->arena, page_offset(to), page, l->page_bytes);
            at[made++] = to;
        } else
            backend_arena_copy(device, s->arena, to, at[random_below(made)], l->page_bytes);
    }
    mem_free(page);
}

/* ---- scenes ---------------------------------------------------------------------------------- */

static void make_views(struct scene *s) {
    s->views = take(s->n_seqs, sizeof *s->views);
    s->max_pages = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct scene_seq *q = &s->seqs[i];
        if (q->rows == 0 || q->rows > q->length || q->span == 0)
            give_up("sequence %u of a scene: %u rows of %u, span %u", i, q->rows, q->length,
                    q->span);
        table_of(q, &s->views[i]);
        if (s->max_pages < s->views[i].n_pages)
            s->max_pages = s->views[i].n_pages;
    }
    s->pages = take((size_t)s->n_seqs * s->max_pages, sizeof *s->pages);
    s->shadows = take((size_t)s->n_seqs * s->max_pages, sizeof *s->shadows);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        s->views[i].tail_pages = s->tail_pages;
        shadows_of(s, &s->seqs[i], &s->views[i]);
        s->views[i].layouts = s->layouts;
        s->views[i].basis = s->basis;
        s->views[i].pages = s->pages + (size_t)i * s->max_pages;
        s->views[i].shadows = s->shadows + (size_t)i * s->max_pages;
    }
}

struct backend_limits scene_limits(const struct scene *s) {
    return (struct backend_limits){
        .rows = s->batch.rows,
        .seqs = s->n_seqs,
        .dim = s->heads * s->head_dim,
        .head_dim = s->head_dim,
        .pages = s->n_pages,
        .groups = 1,
        .group = {{s->heads, s->kv_heads, s->head_dim, s->softcap_or_sinks}}};
}

static float *random_matrices(size_t n, uint32_t dim) {
    float *m = plain_floats(n * dim * dim);
    for (size_t i = 0; i < n * dim * dim; i++)
        m[i] /= sqrtf((float)dim);
    return m;
}

static const struct key_basis *random_bases(const struct scene *s) {
    struct key_basis *basis = plain(sizeof *basis);
    const size_t n = (size_t)s->layers * s->kv_heads;
    *basis = (struct key_basis){.layers = s->layers,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim,
                                .inverse = random_matrices(n, s->head_dim),
                                .forward = random_matrices(n, s->head_dim)};
    return basis;
}

void scene_set_bases(struct scene *s, bool balanced) {
    s->basis = balanced ? random_bases(s) : NULL;
    for (int i = 0; i < 2; i++)
        if (page_is_whole(&s->layouts[i]))
            s->layouts[i].basis = balanced && s->layouts[i].k.format.kind == KV_TILE
                                      ? BASIS_BALANCED
                                      : BASIS_HADAMARD;
    if (s->turned_start)
        s->layouts[0].basis = s->layouts[1].basis;
}

void scene_set_centre(struct scene *s, uint32_t pairs, uint32_t per_head) {
    struct key_centre *c = plain(sizeof *c);
    const uint32_t heads = s->layers * s->kv_heads, step = pairs / per_head;
    struct centre_pair *list = plain((size_t)heads * per_head * sizeof *list);
    uint32_t *first = plain((heads + 1) * sizeof *first);
    double *inv_freq = plain(pairs * sizeof *inv_freq);
    kvasir_error err = {0};
    ASSERT(per_head <= pairs && pairs <= s->head_dim / 2);
    for (uint32_t j = 0; j < pairs; j++)
        inv_freq[j] = m_pow(10000, -(double)j / pairs);
    first[0] = 0;
    for (uint32_t i = 0; i < heads; i++) {
        const uint32_t n = i == 0 ? per_head : i == 1 ? 0 : random_below(per_head + 1);
        for (uint32_t j = 0; j < n; j++)
            list[first[i] + j] =
                (struct centre_pair){j * step + step / 6, 2 * random_normal(), 2 * random_normal()};
        first[i + 1] = first[i] + n;
    }
    *c = (struct key_centre){.layers = s->layers,
                             .kv_heads = s->kv_heads,
                             .n = pairs,
                             .pairs_max = per_head,
                             .inv_freq = inv_freq,
                             .first = first,
                             .pairs = list};
    must(backend_reserve_centre(device, c, &err), &err, "reserve_centre");
    must(backend_reserve_centre(reference, c, &err), &err, "reserve_centre");
    for (uint32_t i = 0; i < s->n_seqs; i++)
        s->views[i].centre = s->reference_views[i].centre = c;
}

void scene_plan(struct scene *s, bool checked) {
    if (s->layouts[1].page_bytes == 0)
        s->layouts[1] = s->layouts[0];
    make_shadow_layouts(s);
    make_views(s);
    s->places = make_places(s, &s->n_pages);
    lay_out(s, s->places, s->n_pages, checked);
    s->image = NULL;
    s->arena = s->reference_arena = NULL;
    s->reference_views = take(s->n_seqs, sizeof *s->reference_views);
    if (checked)
        make_image(s);
    make_batch(s);
}

static struct backend_arena *arena_on(struct backend *b, const struct scene *s,
                                      struct kv_view *views) {
    struct backend_arena *a = backend_arena_create(b, s->arena_bytes);
    if (!a)
        give_up("no arena of %zu bytes", s->arena_bytes);
    for (uint32_t i = 0; i < s->n_seqs; i++)
        views[i].arena = a;
    backend_arena_take(b, a, 0, s->arena_bytes, true);
    if (s->image)
        backend_arena_write(b, a, 0, s->image, s->arena_bytes);
    return a;
}

void scene_attach(struct scene *s) {
    kvasir_error err = {0};
    ASSERT(!s->arena);
    if (s->basis && device_has(reserve_basis))
        must(backend_reserve_basis(device, s->basis, &err), &err, "reserve_basis");
    s->arena = arena_on(device, s, s->views);
    memcpy(s->reference_views, s->views, s->n_seqs * sizeof *s->views);
    if (s->image)
        s->reference_arena = arena_on(reference, s, s->reference_views);
    else
        for (uint32_t layout = 0; layout < SCENE_LAYOUTS; layout++)
            fill_arena(s, layout);
}

void scene_reset(const struct scene *s) {
    ASSERT(s->image);
    backend_arena_write(device, s->arena, 0, s->image, s->arena_bytes);
    backend_arena_write(reference, s->reference_arena, 0, s->image, s->arena_bytes);
}

struct batch scene_reference_batch(const struct scene *s) {
    struct batch batch = s->batch;
    batch.views = s->reference_views;
    return batch;
}

void scene_detach(struct scene *s) {
    if (s->arena)
        backend_arena_destroy(device, s->arena);
    if (s->reference_arena)
        backend_arena_destroy(reference, s->reference_arena);
    s->arena = s->reference_arena = NULL;
}

void scene_build(struct scene *s, bool checked) {
    scene_plan(s, checked);
    const struct backend_limits limits = scene_limits(s);
    device_begin(&limits, 8);
    scene_attach(s);
}

void scene_free(struct scene *s) {
    scene_detach(s);
    mem_free(s->image);
    mem_free(s->places);
    mem_free(s->pages);
    mem_free(s->shadows);
    mem_free(s->views);
    mem_free(s->reference_views);
    mem_free((void *)s->batch.tokens);
    mem_free((void *)s->batch.pos);
    mem_free((void *)s->batch.seqs);
    s->image = NULL;
    s->places = NULL;
    s->pages = s->shadows = NULL;
    s->views = s->reference_views = NULL;
    memset(&s->batch, 0, sizeof s->batch);
}

const struct kv_page *scene_page_seen(const struct scene *c, uint32_t s, uint32_t number,
                                      uint32_t p) {
    const struct kv_view *v = &c->views[s];
    const struct kv_page *page = &v->pages[kv_view_index(v, number)],
                         *shadow = kv_view_shadow(v, number);
    return shadow && kv_sees_shadow(v, p / TILE_TOKENS, number) ? shadow : page;
}

struct batch scene_part(const struct scene *c, uint32_t s, uint32_t first, uint32_t rows,
                        struct batch_seq *seq) {
    struct batch b = c->batch;
    *seq = (struct batch_seq){.row = 0, .rows = rows, .pos = c->batch.seqs[s].pos + first};
    b.rows = rows;
    b.n_seqs = 1;
    b.seqs = seq;
    b.views = c->batch.views + s;
    b.tokens = NULL;
    b.pos = NULL;
    return b;
}
