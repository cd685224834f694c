// SPDX-License-Identifier: Apache-2.0
// step.cu: the tables of a step. Host code: the sequences, pages and items of a step are computed
// here, written into pinned memory and copied to the device in one piece, so that kernels find
// their work by index and nothing of it passes through launch parameters.
//
//     tables:  | seqs states | group 0: counts layouts views pages decode prefill plain store | ...
//
// step_begin measures, lays out and writes; what is recorded afterwards is copied with the tables
// (record.cu). Arrays are as long as the step needs. Those of a step that may become a graph are as
// long as its bucket, so that the next step of the bucket has them at the same addresses.
//
// Invariants:
//   STEP-1  A step that does not fit changes nothing: everything is measured and checked before the
//           first byte is written.
//   STEP-2  What kernels see of a row is a function of its position (BACKEND-3): items name
//           super-runs at absolute multiples of 2,048 tokens, whatever else the step holds.
//   STEP-3  Every page that some row of the step sees, or stores into, is in its table, and so is
//           the shadow of every page that is encoded when it is full, and that is stored into or
//           that some row sees so (kv_sees_shadow).
//   STEP-4  Offsets of all arrays are multiples of 16 bytes; table_caps_most bounds every step
//           within the limits, and the scratch of decode is made for it.
//   STEP-5  host_tables are written only when the last copy has read them (tables_read).
//   STEP-6  Which arithmetic a row's attention has, that of the fast kernels or the plain one's,
//           depends on the shape of its layer group and on the formats of the pages that it sees:
//           nothing else, so neither on other rows nor on the chunk (BACKEND-1). A row is plain if
//           the group has heads that the fast kernels do not take, or a soft cap or sinks; or if it
//           sees a page of a layout of which one side is TILE_FORMATS.
//   STEP-7  All tokens of an item see their own pages alike: where pages have shadows, prefill and
//           plain items end where a page does. The bits are the same.
//
// Plain items: a block of tokens, and one super-run of what they see as long as these are at most
// plain_parts_most; if there are more, everything that they see. The bits are the same.
//
// A bucket: counts of items and of sequences rounded up to 2^n or 3 * 2^n, and room for another
// super-run of pages a sequence.
#include <algorithm>
#include <string.h>

#include "backend/cuda/arithmetic.cuh"

enum { SUPER_TOKENS = 2048, SUPER_PAGES = SUPER_TOKENS / TILE_TOKENS };

// ---- sizes -----------------------------------------------------------------------------------

static uint32_t saturate(uint64_t n) {
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

// A sequence of n pages gives a row at most n / 32 + 3 items: its kept pages begin at a super-run,
// the others may begin and end inside one.
void table_caps_most(const cuda_backend *b, table_caps *caps) {
    const backend_limits *l = &b->limits;
    ASSERT(l->pages <= UINT32_MAX && b->prefill_rows > 0);
    uint64_t rows = std::max(1u, std::min(b->prefill_rows - 1, l->rows));
    uint64_t supers = (l->pages + SUPER_PAGES - 1) / SUPER_PAGES;
    caps->pages = (uint32_t)l->pages;
    caps->items[COUNT_DECODE] =
        saturate(rows * supers + 3 * std::min<uint64_t>(l->rows, rows * l->seqs));
    caps->items[COUNT_PREFILL] = l->rows;
    caps->items[COUNT_PLAIN] = std::max(l->rows, plain_parts_most(1));
    caps->items[COUNT_STORE] = saturate(l->rows / TILE_TOKENS + 2 * (uint64_t)l->seqs);
}

// A power of two, so that a bucket of so many is not larger.
uint32_t plain_parts_most(uint32_t kv_heads) {
    uint32_t n = PLAIN_PARTS;
    while (n > 1 && n * kv_heads > PLAIN_PARTS)
        n /= 2;
    return n;
}

template <class T> static void place(const uint8_t *base, size_t *at, size_t n, const T **out) {
    *out = (const T *)(base + *at);
    *at += round_up(n * sizeof(T), 16);
}

// Fills the pointers of groups[]; returns the bytes of all tables.
size_t tables_lay_out(const backend_limits *l, const uint8_t *base, uint32_t n_seqs,
                      const table_caps *caps, step_group *groups) {
    size_t at = 0;
    const batch_seq *seqs;
    uint8_t *const *states;
    place(base, &at, n_seqs, &seqs);
    place(base, &at, n_seqs, &states);
    for (uint32_t i = 0; i < l->groups; i++) {
        step_group *g = &groups[i];
        g->seqs = seqs;
        g->states = states;
        place(base, &at, COUNTS, &g->counts);
        place(base, &at, CUDA_LAYOUTS_MAX, &g->layouts);
        place(base, &at, n_seqs, &g->views);
        place(base, &at, caps[i].pages, &g->pages);
        place(base, &at, caps[i].items[COUNT_DECODE], &g->decode);
        place(base, &at, caps[i].items[COUNT_PREFILL], &g->prefill);
        place(base, &at, caps[i].items[COUNT_PLAIN], &g->plain);
        place(base, &at, caps[i].items[COUNT_STORE], &g->store);
    }
    return at;
}

// The smallest 2^n or 3 * 2^n that is not less.
static uint32_t bucket(uint64_t n) {
    uint64_t size = 1;
    while (size < n)
        size = size & (size - 1) ? size / 3 * 4 : size == 1 ? 2 : size / 2 * 3;
    return n ? saturate(size) : 0;
}

// ---- what rows see ---------------------------------------------------------------------------

// Super-runs of which the row at p sees something: [0, kept) and [first, end).
struct seen_supers {
    uint32_t kept, first, end;
};

// The same of rows at positions [p, last].
static seen_supers supers_seen(const kv_view *v, uint32_t p, uint32_t last) {
    uint32_t end = last / SUPER_TOKENS + 1, kept = v->keep ? (v->keep - 1) / SUPER_TOKENS + 1 : 0;
    kept = std::min(kept, end);
    return {kept, std::max(kept, kv_window_start(v->span, p) / SUPER_TOKENS), end};
}

static seen_supers supers_seen(const kv_view *v, uint32_t p) {
    return supers_seen(v, p, p);
}

static uint32_t supers_count(const seen_supers &s) {
    return s.kept + (s.end - s.first);
}

// fn(super) for each of them, in order.
template <class Fn> static void for_supers(const seen_supers &s, Fn fn) {
    for (uint32_t super = 0; super < s.kept; super++)
        fn(super);
    for (uint32_t super = s.first; super < s.end; super++)
        fn(super);
}

// Pages [first, end) are all in the table. Numbers of dropped ones lie between the kept and the
// others, and indices rise with numbers: the last one's tells whether the table is long enough.
static bool pages_present(const kv_view *v, uint32_t first, uint32_t end) {
    if (std::max(first, v->kept_pages) < std::min(end, v->base_page))
        return false;
    return first >= end || kv_view_index(v, end - 1) != UINT32_MAX;
}

static bool seen_pages_present(const kv_view *v, const batch_seq *s) {
    uint32_t last = s->pos + s->rows - 1, keep = std::min(v->keep, last + 1);
    return v->base_page >= v->kept_pages &&
           pages_present(v, 0, (keep + TILE_TOKENS - 1) / TILE_TOKENS) &&
           pages_present(v, kv_window_start(v->span, s->pos) / TILE_TOKENS, last / TILE_TOKENS + 1);
}

static uint32_t pages_touched(const batch_seq *s) {
    return (s->pos + s->rows - 1) / TILE_TOKENS - s->pos / TILE_TOKENS + 1;
}

// Of as many rows, wherever they begin.
static uint32_t pages_touched_most(uint32_t rows) {
    return (rows + TILE_TOKENS - 2) / TILE_TOKENS + 1;
}

// Pages that are encoded when they are full have shadows, if rows are stored into them or see them
// so. (One that left the window of the first row may be in the table no more.)
static bool shadows_present(const kv_view *v, const batch_seq *s) {
    const uint32_t page = s->pos / TILE_TOKENS, end = page + pages_touched(s);
    for (uint32_t n = kv_shadow_first(v->kept_pages, v->span, v->tail_pages, page); n < end; n++) {
        const uint32_t i = kv_view_index(v, n);
        if (i != UINT32_MAX && page_is_whole(&v->layouts[v->pages[i].layout]) &&
            !kv_view_shadow(v, n))
            return false;
    }
    return true;
}

// Whether page `number` is encoded when it is full.
static bool stores_whole(const kv_view *v, uint32_t number) {
    return page_is_whole(&v->layouts[v->pages[kv_view_index(v, number)].layout]);
}

// The layout of page `number` as position p sees it.
static uint32_t layout_seen(const kv_view *v, uint32_t number, uint32_t p) {
    const uint32_t layout = v->pages[kv_view_index(v, number)].layout;
    const bool shadow =
        page_is_whole(&v->layouts[layout]) && kv_sees_shadow(v, p / TILE_TOKENS, number);
    return shadow ? kv_view_shadow(v, number)->layout : layout;
}

// ---- which rows are plain ---------------------------------------------------------------------

// Rows [first, end) of a sequence, all plain or none.
struct row_run {
    uint32_t first, end;
    bool plain;
};

// plain: one bit for each layout that only the plain kernel reads; all of them if the group is
// plain as a whole.
static bool sees_plain(const kv_view *v, uint32_t plain, uint32_t p) {
    const uint32_t end = p / TILE_TOKENS + 1, start = kv_window_start(v->span, p) / TILE_TOKENS,
                   keep = std::min(v->keep, p), kept = (keep + TILE_TOKENS - 1) / TILE_TOKENS;
    for (uint32_t i = start; i < end; i++)
        if (plain >> layout_seen(v, i, p) & 1)
            return true;
    for (uint32_t i = 0; i < std::min(kept, start); i++)
        if (plain >> layout_seen(v, i, p) & 1)
            return true;
    return false;
}

static row_run row_run_at(const kv_view *v, const batch_seq *s, uint32_t plain, uint32_t first) {
    if (plain == 0 || plain == UINT32_MAX)
        return {first, s->rows, plain != 0};
    row_run run = {first, first + 1, sees_plain(v, plain, s->pos + first)};
    for (; run.end < s->rows; run.end++) {
        const uint32_t p = s->pos + run.end;
        const bool other_pages =
            p % TILE_TOKENS == 0 || kv_window_start(v->span, p) / TILE_TOKENS !=
                                        kv_window_start(v->span, p - 1) / TILE_TOKENS;
        if (other_pages && sees_plain(v, plain, p) != run.plain)
            break;
    }
    return run;
}

// fn(run) for all rows of a sequence, in order. Every page that they see is in the table.
template <class Fn>
static void for_row_runs(const kv_view *v, const batch_seq *s, uint32_t plain, Fn fn) {
    for (uint32_t first = 0; first < s->rows;) {
        const row_run run = row_run_at(v, s, plain, first);
        ASSERT(run.end > first && run.end <= s->rows);
        fn(run);
        first = run.end;
    }
}

// How a run is cut into blocks: of at most so many tokens; at ends of pages, if pages have shadows.
struct block_cut {
    uint32_t most;
    bool at_pages;
};

// fn(first, tokens) for the blocks of a run of a sequence's rows.
template <class Fn>
static void for_blocks(const batch_seq *s, const row_run &run, block_cut cut, Fn fn) {
    for (uint32_t first = run.first, tokens; first < run.end; first += tokens) {
        tokens = std::min(cut.most, run.end - first);
        if (cut.at_pages)
            tokens = std::min(tokens, TILE_TOKENS - (s->pos + first) % TILE_TOKENS);
        fn(first, tokens);
    }
}

static uint32_t plain_tokens(uint32_t gqa) {
    ASSERT(gqa <= PLAIN_COLUMNS);
    return PLAIN_COLUMNS / gqa;
}

// ---- formats ---------------------------------------------------------------------------------

static bool tile_format_of(const tile_layout *l, bool key, uint8_t *out) {
    const kv_format f = l->format;
    if (f.scalar != SCALAR_F16 && f.scalar != SCALAR_BF16)
        return false;
    if (f.kind == KV_TILE) {
        *out = f.bits == 5 ? T5 : f.bits == 4 ? T4 : T3;
        return f.bits == 4 || f.bits == 3 || (f.bits == 5 && key);
    }
    if (f.kind == KV_ROTATED && (f.group != 64 || f.bits == 2))
        return false; // WHOLE_K_FORMATS, WHOLE_V_FORMATS
    if (f.bits == 16) {
        *out = f.scalar == SCALAR_F16 ? F16 : BF16;
        return true;
    }
    if ((f.group != 32 && f.group != 64) || (f.bits == 2 && key))
        return false;
    bool g32 = f.group == 32;
    switch (f.bits) {
    case 8:
        *out = g32 ? Q8G32 : Q8G64;
        return true;
    case 4:
        *out = g32 ? Q4G32 : Q4G64;
        return true;
    case 2:
        *out = g32 ? Q2G32 : Q2G64;
        return true;
    }
    return false;
}

kvasir_status check_head_dim(uint32_t dims, kvasir_error *err) {
    if (dims > 0 && dims % 4 == 0 && dims <= HEAD_DIM_MAX)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "CUDA: heads of %u dims are not supported: a multiple of 4 up to %d", dims,
                HEAD_DIM_MAX);
}

kvasir_status cuda_check_layout(const struct backend *b, const struct page_layout *l,
                                kvasir_error *err) {
    (void)b;
    return check_head_dim(l->k.head_dim, err);
}

// What kernels branch on. A side that only the plain ones know is TILE_FORMATS. centres: the fast
// ones take the group's.
static kvasir_status layout_convert(const backend_limits *l, uint32_t group, bool centres,
                                    const page_layout *from, dev_layout *to, kvasir_error *err) {
    const auto &shape = l->group[group];
    if (from->kv_heads != shape.kv_heads || from->k.head_dim != shape.head_dim ||
        from->v.head_dim != shape.head_dim)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "CUDA: pages of %u KV heads of %u dims in layer group %u, which was reserved "
                    "for %u of %u",
                    from->kv_heads, from->k.head_dim, group, shape.kv_heads, shape.head_dim);
    const bool fast = head_dim_fast(shape.head_dim);
    if (!fast || (from->centred && !centres) || !tile_format_of(&from->k, true, &to->k))
        to->k = TILE_FORMATS;
    if (!fast || !tile_format_of(&from->v, false, &to->v))
        to->v = TILE_FORMATS;
    to->k_bf16 = from->k.format.scalar == SCALAR_BF16;
    to->v_bf16 = from->v.format.scalar == SCALAR_BF16;
    to->k_bytes = from->k.bytes;
    to->head_bytes = from->head_bytes;
    to->layer_bytes = from->layer_bytes;
    to->k_stored = from->k.format;
    to->v_stored = from->v.format;
    to->centred = from->centred;
    to->basis = from->basis;
    to->whole = page_is_whole(from);
    ASSERT(!to->whole || to->basis != BASIS_PLAIN);
    return KVASIR_OK;
}

// ---- measuring a step ------------------------------------------------------------------------

// What one layer group of a step needs.
struct group_need {
    uint64_t pages, items[COUNTS];
    uint64_t store_most; // store items of the same rows at any positions
    uint32_t k_formats[BASIS_COUNT], v_formats[BASIS_COUNT], bases, stores, layers;
    uint32_t plain; // layouts of plain rows, one bit each (row_run_at)
    uint32_t prefill_supers;
    uint32_t centre_pairs; // most of a head; 0: the group has no centre
    bool fills;            // a sequence's first row fills a page that is encoded then
    block_cut prefill_cut, plain_cut;
    bool plain_split;
    dev_layout layouts[CUDA_LAYOUTS_MAX]; // those that no page has are zero
};

static kvasir_status check_batch(const backend_limits *l, const batch *batch, kvasir_error *err) {
    if (batch->rows == 0 || batch->rows > l->rows)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a step of %u rows: reserved for 1 to %u",
                    batch->rows, l->rows);
    if (batch->n_seqs == 0 || batch->n_seqs > l->seqs)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a step of %u sequences: reserved for 1 to %u",
                    batch->n_seqs, l->seqs);
    uint64_t rows = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const batch_seq *seq = &batch->seqs[s];
        rows += seq->rows;
        if (seq->rows == 0 || (uint64_t)seq->row + seq->rows > batch->rows ||
            (uint64_t)seq->pos + seq->rows > UINT32_MAX - SUPER_TOKENS)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "CUDA: sequence %u: rows [%u, +%u) at position %u, in a step of %u rows", s,
                        seq->row, seq->rows, seq->pos, batch->rows);
    }
    if (rows > batch->rows) // table_caps_most counts every row once
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: sequences share rows of the step");
    return KVASIR_OK;
}

static uint32_t layouts_of(const kv_page *pages, uint32_t n) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < n; i++)
        used |= 1u << (pages[i].layout < CUDA_LAYOUTS_MAX ? pages[i].layout : 31);
    return used;
}

// One bit for each layout that some page of the group has; bit 31: one that there is no room for.
static uint32_t layouts_used(const kv_view *views, uint32_t n_seqs) {
    uint32_t used = 0;
    for (uint32_t s = 0; s < n_seqs; s++)
        used |= layouts_of(views[s].pages, views[s].n_pages) |
                layouts_of(views[s].shadows, views[s].n_shadows);
    return used;
}

static kvasir_status measure_formats(const cuda_backend *b, uint32_t group, const kv_view *views,
                                     uint32_t n_seqs, group_need *need, kvasir_error *err) {
    uint32_t used = layouts_used(views, n_seqs);
    if (used >> 31)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a page's layout is not below %d",
                    CUDA_LAYOUTS_MAX);
    need->centre_pairs = centre_find(b, views[0].centre).pairs_max;
    const uint32_t head_dim = b->limits.group[group].head_dim;
    const bool centres =
        head_dim_fast(head_dim) && prefill_centre_fits(b, head_dim, need->centre_pairs);
    for (uint32_t i = 0; i < CUDA_LAYOUTS_MAX; i++) {
        if (!(used >> i & 1))
            continue;
        TRY(layout_convert(&b->limits, group, centres, &views[0].layouts[i], &need->layouts[i],
                           err));
        const dev_layout *made = &need->layouts[i];
        const bool k_fast = made->k != TILE_FORMATS, v_fast = made->v != TILE_FORMATS;
        if (made->centred && need->centre_pairs == 0)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "CUDA: pages with centred keys in layer group %u, without their centre",
                        group);
        if (made->basis == BASIS_BALANCED && !basis_find(b, views[0].basis).forward)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "CUDA: pages with balanced keys in layer group %u, without their basis",
                        group);
        need->bases |= 1u << made->basis;
        need->layers = std::min(need->layers, views[0].layouts[i].layers);
        if (made->basis != BASIS_PLAIN)
            need->stores |=
                STORE_WHOLE |
                (made->basis == BASIS_BALANCED || (made->centred && !centres) ? STORE_MADE : 0);
        else
            need->stores |=
                (k_fast || v_fast ? STORE_FAST : 0) | (k_fast && v_fast ? 0 : STORE_PLAIN);
        if (k_fast && v_fast) {
            need->k_formats[made->basis] |= made->centred ? CENTRED_KEYS : 0;
            need->k_formats[made->basis] |= 1u << made->k;
            need->v_formats[made->basis] |= 1u << made->v;
        } else
            need->plain |= 1u << i;
    }
    if (!head_dim_fast(b->limits.group[group].head_dim) || b->limits.group[group].softcap_or_sinks)
        need->plain = UINT32_MAX;
    return KVASIR_OK;
}

// The items of one sequence; split: plain ones if each has one super-run.
static void count_items(const batch_seq *seq, const kv_view *v, uint32_t prefill_rows,
                        group_need *need, uint64_t *split) {
    for_row_runs(v, seq, need->plain, [&](const row_run &run) {
        if (run.plain)
            for_blocks(seq, run, need->plain_cut, [&](uint32_t first, uint32_t tokens) {
                const uint32_t p = seq->pos + first;
                need->items[COUNT_PLAIN]++;
                *split += supers_count(supers_seen(v, p, p + tokens - 1));
            });
        else if (seq->rows >= prefill_rows)
            for_blocks(seq, run, need->prefill_cut,
                       [&](uint32_t, uint32_t) { need->items[COUNT_PREFILL]++; });
        else
            for (uint32_t i = run.first; i < run.end; i++)
                need->items[COUNT_DECODE] += supers_count(supers_seen(v, seq->pos + i));
    });
}

static kvasir_status measure_group(const cuda_backend *b, const batch *batch, uint32_t group,
                                   group_need *need, kvasir_error *err) {
    const backend_limits *l = &b->limits;
    const kv_view *views = batch->views + (size_t)group * batch->n_seqs;
    *need = group_need{};
    need->layers = UINT32_MAX;
    TRY(measure_formats(b, group, views, batch->n_seqs, need, err));
    const auto &shape = l->group[group];
    uint32_t gqa = shape.heads / shape.kv_heads;
    uint64_t split = 0;
    const bool at_pages = need->stores & STORE_WHOLE; // some have shadows, or only an exact start
    need->prefill_cut = {std::max(1u, prefill_block_rows(shape.head_dim) / gqa), at_pages};
    need->plain_cut = {plain_tokens(gqa), at_pages};
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const batch_seq *seq = &batch->seqs[s];
        const kv_view *v = &views[s];
        if (v->arena != views[0].arena || v->layouts != views[0].layouts)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "CUDA: sequences %u and 0 do not share the arena and the layouts of layer "
                        "group %u",
                        s, group);
        if (!seen_pages_present(v, seq))
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "CUDA: sequence %u, layer group %u: a page that positions %u to %u see is "
                        "not in the table",
                        s, group, seq->pos, seq->pos + seq->rows - 1);
        if (!shadows_present(v, seq))
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "CUDA: sequence %u, layer group %u: a page that positions %u to %u are "
                        "stored into, or see at 16 bits, has no shadow",
                        s, group, seq->pos, seq->pos + seq->rows - 1);
        need->pages += v->n_pages + v->n_shadows;
        need->items[COUNT_STORE] += pages_touched(seq);
        need->store_most += pages_touched_most(seq->rows);
        count_items(seq, v, b->prefill_rows, need, &split);
        if (seq->rows >= b->prefill_rows)
            need->prefill_supers =
                std::max(need->prefill_supers, (seq->pos + seq->rows - 1) / SUPER_TOKENS + 1);
        if ((seq->pos + 1) % TILE_TOKENS == 0)
            need->fills |= stores_whole(v, seq->pos / TILE_TOKENS);
    }
    need->plain_split = split <= plain_parts_most(shape.kv_heads);
    if (need->plain_split)
        need->items[COUNT_PLAIN] = split;
    return KVASIR_OK;
}

static kvasir_status fits(const group_need *need, const table_caps *caps, kvasir_error *err) {
    static const char *const names[COUNTS] = {"decode", "prefill", "plain", "store"};
    if (need->pages > caps->pages)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: %llu pages: what was reserved holds %u",
                    (unsigned long long)need->pages, caps->pages);
    for (int i = 0; i < COUNTS; i++)
        if (need->items[i] > caps->items[i])
            return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: %llu %s items: what was reserved holds %u",
                        (unsigned long long)need->items[i], names[i], caps->items[i]);
    return KVASIR_OK;
}

static kvasir_status measure(const cuda_backend *b, const batch *batch, uint32_t groups,
                             group_need *needs, kvasir_error *err) {
    TRY(check_batch(&b->limits, batch, err));
    for (uint32_t g = 0; g < groups; g++) {
        TRY(measure_group(b, batch, g, &needs[g], err));
        TRY(fits(&needs[g], &b->most[g], err));
    }
    return KVASIR_OK;
}

// ---- writing the tables ----------------------------------------------------------------------

// Where the host writes what kernels find at p.
template <class T> static T *host_of(const cuda_backend *b, const T *p) {
    return (T *)(b->host_tables + ((const uint8_t *)p - b->dev_tables));
}

static void write_pages(const cuda_backend *b, const step_plan *step, uint32_t group,
                        const batch *batch, const kv_view *views) {
    const step_group *g = &step->group[group];
    dev_view *out = host_of(b, g->views);
    kv_page *pages = host_of(b, g->pages);
    uint32_t first = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const kv_view *v = &views[s];
        const uint32_t shadows = first + v->n_pages;
        ASSERT(shadows + v->n_shadows <= step->caps[group].pages);
        memcpy(pages + first, v->pages, v->n_pages * sizeof *pages);
        memcpy(pages + shadows, v->shadows, v->n_shadows * sizeof *pages);
        out[s] = {first,   v->n_pages, v->kept_pages, v->base_page,
                  v->keep, v->span,    v->tail_pages, shadows - v->shadow_first};
        first = shadows + v->n_shadows;
    }
}

// dev: what write_pages made of the views; plain: group_need's.
static void write_decode(decode_item *out, const batch *batch, const kv_view *views,
                         const dev_view *dev, uint32_t prefill_rows, uint32_t plain) {
    uint32_t n = 0, slot = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const batch_seq *seq = &batch->seqs[s];
        if (seq->rows >= prefill_rows)
            continue;
        for_row_runs(&views[s], seq, plain, [&](const row_run &run) {
            for (uint32_t i = run.first; !run.plain && i < run.end; i++, slot++) {
                uint32_t p = seq->pos + i, first = n;
                seen_supers seen = supers_seen(&views[s], p);
                uint32_t count = supers_count(seen);
                for_supers(seen, [&](uint32_t super) {
                    out[n++] = {seq->row + i, p, super, slot, first, count, dev[s]};
                });
            }
        });
    }
}

// Blocks of the largest positions come first: they see most, and a long block that begins last
// would keep the device waiting.
static void write_prefill(prefill_item *out, const batch *batch, const kv_view *views,
                          uint32_t prefill_rows, const group_need &need) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        if (batch->seqs[s].rows < prefill_rows)
            continue;
        const batch_seq *seq = &batch->seqs[s];
        for_row_runs(&views[s], seq, need.plain, [&](const row_run &run) {
            if (run.plain)
                return;
            for_blocks(seq, run, need.prefill_cut, [&](uint32_t first, uint32_t tokens) {
                out[n++] = {s, first, tokens};
            });
        });
    }
    std::sort(out, out + n, [batch](const prefill_item &x, const prefill_item &y) {
        uint32_t x_pos = batch->seqs[x.seq].pos + x.first;
        uint32_t y_pos = batch->seqs[y.seq].pos + y.first;
        return x_pos != y_pos ? x_pos > y_pos : x.seq < y.seq;
    });
}

static void write_plain(plain_item *out, const batch *batch, const kv_view *views,
                        const group_need &need) {
    uint32_t n = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const batch_seq *seq = &batch->seqs[s];
        for_row_runs(&views[s], seq, need.plain, [&](const row_run &run) {
            if (!run.plain)
                return;
            for_blocks(seq, run, need.plain_cut, [&](uint32_t first, uint32_t tokens) {
                const uint32_t p = seq->pos + first, part = n;
                const seen_supers seen = supers_seen(&views[s], p, p + tokens - 1);
                if (!need.plain_split) {
                    out[n++] = {s, first, tokens, ALL_SUPERS, part, 1};
                    return;
                }
                for_supers(seen, [&](uint32_t super) {
                    out[n++] = {s, first, tokens, super, part, supers_count(seen)};
                });
            });
        });
    }
}

static void write_store(store_item *out, const batch *batch) {
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const batch_seq *seq = &batch->seqs[s];
        for (uint32_t i = 0; i < pages_touched(seq); i++)
            *out++ = {s, seq->pos / TILE_TOKENS + i};
    }
}

// Sequences that the bucket has and the batch has not are of 0 rows.
static void write_seqs(const cuda_backend *b, const step_plan *step, const batch *batch) {
    batch_seq *seqs = host_of(b, step->group[0].seqs);
    uint8_t **states = host_of(b, step->group[0].states);
    for (uint32_t s = 0; s < step->n_seqs; s++) {
        const state_view *state = batch->states && s < batch->n_seqs ? &batch->states[s] : nullptr;
        seqs[s] = s < batch->n_seqs ? batch->seqs[s] : batch_seq{};
        states[s] = state ? arena_base(state->arena) + page_offset(state->addr) : nullptr;
    }
}

static void write_step(const cuda_backend *b, const step_plan *step, const batch *batch,
                       const group_need *needs) {
    uint32_t prefill_rows = b->prefill_rows;
    write_seqs(b, step, batch);
    for (uint32_t i = 0; i < step->groups; i++) {
        const step_group *g = &step->group[i];
        const kv_view *views = batch->views + (size_t)i * batch->n_seqs;
        for (int c = 0; c < COUNTS; c++)
            host_of(b, g->counts)[c] = (uint32_t)needs[i].items[c];
        memcpy(host_of(b, g->layouts), needs[i].layouts, sizeof needs[i].layouts);
        write_pages(b, step, i, batch, views);
        write_decode(host_of(b, g->decode), batch, views, host_of(b, g->views), prefill_rows,
                     needs[i].plain);
        write_prefill(host_of(b, g->prefill), batch, views, prefill_rows, needs[i]);
        write_plain(host_of(b, g->plain), batch, views, needs[i]);
        write_store(host_of(b, g->store), batch);
    }
}

// ---- beginning a step ------------------------------------------------------------------------

// Stores: the same rows may lie across more pages the next time. Pages: every sequence may grow by
// a super-run before a wider bucket is due anyway.
static table_caps caps_of_bucket(const group_need *need, const table_caps *most, uint32_t n_seqs) {
    table_caps caps;
    caps.pages = std::min(most->pages, bucket(need->pages + (uint64_t)SUPER_PAGES * n_seqs));
    for (int i = 0; i < COUNTS; i++)
        caps.items[i] =
            std::min(most->items[i], bucket(i == COUNT_STORE ? need->store_most : need->items[i]));
    return caps;
}

static table_caps caps_of_step(const group_need *need) {
    table_caps caps;
    caps.pages = (uint32_t)need->pages;
    for (int i = 0; i < COUNTS; i++)
        caps.items[i] = (uint32_t)need->items[i];
    return caps;
}

static void plan_step(const cuda_backend *b, const batch *batch, uint32_t groups,
                      const group_need *needs, step_plan *step) {
    // of so few rows that it may come again (record.cu, which compares all bytes of plans)
    const bool in_bucket = !b->recorder.off && batch->rows <= GRAPH_ROWS;
    memset(step, 0, sizeof *step);
    step->groups = groups;
    step->has_states = batch->states != nullptr;
    step->lone = std::all_of(batch->seqs, batch->seqs + batch->n_seqs,
                             [](const batch_seq &s) { return s.rows <= 1; });
    step->rows = batch->rows;
    step->n_seqs = in_bucket ? std::min(b->limits.seqs, bucket(batch->n_seqs)) : batch->n_seqs;
    for (uint32_t g = 0; g < groups; g++) {
        const group_need *need = &needs[g];
        group_plan *plan = &step->plan[g];
        step->caps[g] =
            in_bucket ? caps_of_bucket(need, &b->most[g], batch->n_seqs) : caps_of_step(need);
        for (int i = 0; i < COUNTS; i++)
            plan->blocks[i] = step->caps[g].items[i];
        memcpy(plan->k_formats, need->k_formats, sizeof plan->k_formats);
        memcpy(plan->v_formats, need->v_formats, sizeof plan->v_formats);
        plan->bases = need->bases;
        plan->stores = need->stores;
        if (step->lone && need->fills && !(need->stores & (STORE_PLAIN | STORE_MADE)))
            plan->stores |= STORE_FULL; // else whoever stores the rows encodes the page, too
        plan->plain_split = need->plain_split;
        plan->prefill_tokens = need->prefill_cut.most;
        plan->prefill_supers = need->prefill_supers;
        plan->layers = need->layers;
        step->group[g].arena = arena_base(batch->views[(size_t)g * batch->n_seqs].arena);
    }
    step->bytes = tables_lay_out(&b->limits, b->dev_tables, step->n_seqs, step->caps, step->group);
}

// Turns of all tiles that the step's rows see.
static kvasir_status cover_centres(cuda_backend *b, const batch *batch, uint32_t groups,
                                   const group_need *needs, kvasir_error *err) {
    uint32_t end = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++)
        end = std::max(end, batch->seqs[s].pos + batch->seqs[s].rows);
    for (uint32_t g = 0; g < groups; g++)
        if (needs[g].centre_pairs > 0)
            TRY(centre_cover(b, batch->views[(size_t)g * batch->n_seqs].centre,
                             blocks_of(end, TILE_TOKENS), err));
    return KVASIR_OK;
}

static kvasir_status kernels_fit(const cuda_backend *b, uint32_t groups, const group_need *needs,
                                 kvasir_error *err) {
    for (uint32_t g = 0; g < groups; g++) {
        const group_need *need = &needs[g];
        const auto &shape = b->limits.group[g];
        const uint32_t gqa = shape.heads / shape.kv_heads;
        for (uint32_t basis = 0; basis < BASIS_COUNT; basis++) {
            const uint32_t k = need->k_formats[basis], v = need->v_formats[basis];
            if ((k && need->items[COUNT_DECODE] && !decode_fits(b, k, v, shape.head_dim, gqa)) ||
                (k && need->items[COUNT_PREFILL] &&
                 !prefill_fits(b, k, v, need->bases == 1u << BASIS_PLAIN, shape.head_dim,
                               k & CENTRED_KEYS ? need->centre_pairs : 0)))
                return fail(err, KVASIR_ERR_UNSUPPORTED,
                            "CUDA: %s: %u bytes of shared memory are too few for heads of %u "
                            "dims, %u to a KV head",
                            b->name, b->shared_per_block, shape.head_dim, gqa);
        }
    }
    return KVASIR_OK;
}

// Of bases that no step had before; it stays for the next ones.
static kvasir_status scratch_fits(cuda_backend *b, uint32_t groups, const group_need *needs,
                                  kvasir_error *err) {
    uint32_t bases = 0;
    for (uint32_t g = 0; g < groups; g++)
        if (needs[g].bases != 1u << BASIS_PLAIN)
            bases |= needs[g].bases;
    if (turned_open(b, bases))
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_MEMORY,
                "CUDA: buffers for attention over rotated and tile formats, steps of %u rows: out "
                "of memory",
                b->limits.rows);
}

static kvasir_status begin(cuda_backend *b, const batch *batch, uint32_t groups,
                           kvasir_error *err) {
    ASSERT(b->reserved && !b->capturing);
    if (groups != 0 && groups != b->limits.groups)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a step of %u layer groups: reserved for %u",
                    groups, b->limits.groups);
    group_need needs[BACKEND_GROUPS_MAX];
    TRY(measure(b, batch, groups, needs, err));
    TRY(kernels_fit(b, groups, needs, err));
    TRY(scratch_fits(b, groups, needs, err));
    TRY(cover_centres(b, batch, groups, needs, err));
    plan_step(b, batch, groups, needs, &b->step);
    memcpy(b->group, b->step.group, sizeof b->group);
    memcpy(b->plan, b->step.plan, sizeof b->plan);
    if (!cuda_ok(b, cudaEventSynchronize(b->tables_read)))
        return cuda_status(b, err);
    write_step(b, &b->step, batch, needs);
    step_record(b);
    return cuda_status(b, err);
}

void cuda_step_begin(struct backend *base, const struct batch *batch, uint32_t groups) {
    cuda_backend *b = cuda_of(base);
    kvasir_error err;
    step_submit(b); // the last one
    if (cuda_works(b) && begin(b, batch, groups, &err) != KVASIR_OK)
        cuda_stick(b, &err);
}

bool operation_begins(const cuda_backend *b, const batch *batch, const kv_view *views,
                      uint32_t layer, uint32_t *group) {
    if (!cuda_works(b))
        return false;
    ASSERT(views >= batch->views && batch->n_seqs > 0);
    const size_t at = (size_t)(views - batch->views) / batch->n_seqs;
    ASSERT(at < b->limits.groups && layer < b->plan[at].layers);
    *group = (uint32_t)at;
    return true;
}
