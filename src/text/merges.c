/* SPDX-License-Identifier: Apache-2.0 */
/* merges.c: merges: which two tokens become one, and which merge goes first.
 *
 *     (left id, right id) -> rank, result      open addressing, at most half full
 *
 * Byte-level vocabularies list their merges, best first: the index in the list is the rank.
 * Vocabularies of SentencePiece have a score for every piece instead: two pieces merge if their
 * concatenation is a piece, and the concatenation with the best score goes first. So the rank
 * belongs to the result, and equal scores share one rank. The pairs are computed here once, so that
 * encoding is the same for both.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- merges by their pair -------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of the pair, or the free slot for it. */
static struct merge *merge_slot(const struct merge_map *m, uint64_t pair) {
    size_t mask = ((size_t)1 << (64 - m->shift)) - 1;
    /* 2^64 / golden ratio, odd: the high bits of the product depend on every bit of both ids. */
    size_t i = (size_t)(pair * 0x9e3779b97f4a7c15u >> m->shift);
    while (m->slot[i].pair != pair && m->slot[i].pair != UINT64_MAX)
        i = (i + 1) & mask;
    return &m->slot[i];
}

const struct merge *merge_map_find(const struct merge_map *m, int32_t left, int32_t right) {
    if (m->n == 0)
        return NULL;
    const struct merge *found = merge_slot(m, pair_of(left, right));
    return found->pair == UINT64_MAX ? NULL : found;
}

static bool merge_map_grow(struct merge_map *m) {
    struct merge_map larger = {.shift = m->slot ? m->shift - 1 : 54, .n = m->n};
    size_t slots = (size_t)1 << (64 - larger.shift);
    ASSERT(larger.shift > 32 && m->n < slots / 2);
    larger.slot = mem_alloc(slots * sizeof *larger.slot);
    if (!larger.slot)
        return false;
    for (size_t i = 0; i < slots; i++)
        larger.slot[i].pair = UINT64_MAX;
    for (size_t i = 0; m->slot && i < slots / 2; i++)
        if (m->slot[i].pair != UINT64_MAX)
            *merge_slot(&larger, m->slot[i].pair) = m->slot[i];
    mem_free(m->slot);
    *m = larger;
    return true;
}

/* Adds a merge. An existing one of the same pair is kept if keep_first, else replaced. False: out
 * of memory. */
static bool merge_map_add(struct merge_map *m, int32_t left, int32_t right, uint32_t rank,
                          int32_t result, bool keep_first) {
    if (!m->slot || m->n >= (size_t)1 << (63 - m->shift))
        if (!merge_map_grow(m))
            return false;
    ASSERT(left >= 0 && right >= 0 && result >= 0 && m->n < (size_t)1 << (63 - m->shift));
    struct merge *slot = merge_slot(m, pair_of(left, right));
    if (slot->pair != UINT64_MAX && keep_first)
        return true;
    m->n += slot->pair == UINT64_MAX;
    *slot = (struct merge){pair_of(left, right), rank, result};
    return true;
}

void merge_map_deinit(struct merge_map *m) {
    mem_free(m->slot);
    memset(m, 0, sizeof *m);
}

/* ---- lists of merges ------------------------------------------------------------------------- */

static kvasir_status no_piece(struct text_span left, struct text_span right, size_t rank,
                              const char *which, kvasir_error *err) {
    return fail(err, KVASIR_ERR_FORMAT, "merge %zu \"%s %s\": %s is not in the vocabulary", rank,
                quote_bytes(left.data, left.len).text, quote_bytes(right.data, right.len).text,
                which);
}

kvasir_status merge_add_named(struct merge_map *m, const struct piece_map *map,
                              struct text_span left, struct text_span right, size_t rank,
                              bool keep_first, kvasir_error *err) {
    if (rank >= MERGES_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "more than %d merges", MERGES_MAX);
    int32_t left_id = piece_map_find(map, left.data, left.len);
    int32_t right_id = piece_map_find(map, right.data, right.len);
    if (left_id < 0 || right_id < 0)
        return no_piece(left, right, rank, left_id < 0 ? "its left half" : "its right half", err);
    char join[256]; /* pieces are short; longer ones are joined on the heap */
    struct text_buf heap = {0};
    const char *joined = join;
    size_t len = left.len + right.len;
    if (len <= sizeof join) {
        memcpy(join, left.data, left.len);
        memcpy(join + left.len, right.data, right.len);
    } else if (!text_append(&heap, left.data, left.len) ||
               !text_append(&heap, right.data, right.len)) {
        text_free(&heap);
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for the merges");
    } else {
        joined = heap.data;
    }
    int32_t result = piece_map_find(map, joined, len);
    text_free(&heap);
    if (result < 0)
        return no_piece(left, right, rank, "its result", err);
    if (!merge_map_add(m, left_id, right_id, (uint32_t)rank, result, keep_first))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for the merges");
    return KVASIR_OK;
}

kvasir_status merge_add_line(struct merge_map *m, const struct piece_map *map,
                             struct text_span line, size_t rank, bool keep_first,
                             kvasir_error *err) {
    const char *space = line.len > 1 ? memchr(line.data + 1, ' ', line.len - 1) : NULL;
    size_t left_len = space ? (size_t)(space - line.data) : 0;
    if (!space || left_len + 1 == line.len)
        return fail(err, KVASIR_ERR_FORMAT,
                    "merge %zu \"%s\" is not two pieces separated by a space", rank,
                    quote_bytes(line.data, line.len).text);
    struct text_span left = {line.data, left_len}, right = {space + 1, line.len - left_len - 1};
    return merge_add_named(m, map, left, right, rank, keep_first, err);
}

/* ---- merges from scores ---------------------------------------------------------------------- */

/* The work for a piece is quadratic in its length. SentencePiece's own limit is 16 characters by
 * default; Gemma's runs of spaces have 93 bytes. */
enum { SCORED_BYTES_MAX = 512 };

struct scored {
    float score;
    int32_t id;
};

static int better_score(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    return (x->score < y->score) - (x->score > y->score);
}

/* rank[id]: the number of different scores that are better. */
static kvasir_status rank_scores(const float *scores, size_t n, uint32_t *rank, kvasir_error *err) {
    struct scored *order = mem_calloc(n, sizeof *order);
    if (!order)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for %zu scores", n);
    for (size_t i = 0; i < n; i++) {
        if (isnan(scores[i])) {
            mem_free(order);
            return fail(err, KVASIR_ERR_FORMAT, "the score of token %zu is not a number", i);
        }
        order[i] = (struct scored){scores[i], (int32_t)i};
    }
    qsort(order, n, sizeof *order, better_score);
    uint32_t better = 0;
    for (size_t i = 0; i < n; i++) {
        better += i > 0 && order[i].score < order[i - 1].score;
        rank[order[i].id] = better;
    }
    mem_free(order);
    return KVASIR_OK;
}

/* Control tokens come only from their names, byte tokens only from characters without a piece. */
static bool takes_part(const struct pieces *p, int32_t id) {
    return id >= 0 && (p->kind[id] == TOKEN_NORMAL || p->kind[id] == TOKEN_USER_DEFINED ||
                       p->kind[id] == TOKEN_UNUSED);
}

static bool add_splits(struct merge_map *m, const struct piece_map *map, struct text_span text,
                       uint32_t rank, int32_t id) {
    const struct pieces *p = map->pieces;
    for (size_t cut = 1; cut < text.len; cut++) {
        if (((uint8_t)text.data[cut] & 0xc0) == 0x80) /* inside a character */
            continue;
        int32_t left = piece_map_find(map, text.data, cut);
        if (!takes_part(p, left))
            continue;
        int32_t right = piece_map_find(map, text.data + cut, text.len - cut);
        if (takes_part(p, right) && !merge_map_add(m, left, right, rank, id, true))
            return false;
    }
    return true;
}

kvasir_status merges_from_scores(struct merge_map *m, const struct piece_map *map,
                                 const float *scores, kvasir_error *err) {
    const struct pieces *p = map->pieces;
    kvasir_status status = KVASIR_OK;
    uint32_t *rank = mem_calloc(p->n, sizeof *rank);
    if (!rank)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for %zu scores", p->n);
    TRY_GOTO(rank_scores(scores, p->n, rank, err));
    for (int32_t id = 0; (size_t)id < p->n; id++) {
        struct text_span text = pieces_at(p, id);
        /* Of equal pieces, text becomes the one that the map finds. */
        if (!takes_part(p, id) || piece_map_find(map, text.data, text.len) != id)
            continue;
        if (text.len > SCORED_BYTES_MAX) {
            status = fail(err, KVASIR_ERR_FORMAT,
                          "token %d has %zu bytes (at most %d in a vocabulary with scores)", id,
                          text.len, SCORED_BYTES_MAX);
            goto done;
        }
        if (!add_splits(m, map, text, rank[id], id)) {
            status = fail(err, KVASIR_ERR_MEMORY, "not enough memory for the merges");
            goto done;
        }
    }
done:
    mem_free(rank);
    return status;
}
