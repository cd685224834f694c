/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c: the pieces of a vocabulary (the texts of its tokens), found by id and by their bytes.
 *
 *     text     "!" "\"" "Ġthe" "<s>" ...     all pieces, one after the other
 *     entry    {at, len, id} ...             in the order of the file
 *     by_id    0 1 -1 2 ...                  the entry of every id; -1: no token has this id
 *     kind     1 1  0 3 ...
 *
 *     map      hash of the bytes -> piece, id    open addressing, at most half full
 *
 * Invariants:
 *   1. Every id is below TOKENS_MAX, every piece has at most PIECE_BYTES_MAX bytes and all together
 *      at most VOCAB_BYTES_MAX, so offsets fit in 32 bits.
 *   2. pieces_at of an id is what was last added under it. by_id grows to the largest id, so
 *      readers bound ids by the size of their file.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

_Static_assert((uint64_t)VOCAB_BYTES_MAX + PIECE_BYTES_MAX <= UINT32_MAX, "offsets have 32 bits");

/* ---- by id ----------------------------------------------------------------------------------- */

static bool room_for_id(struct pieces *p, size_t id) {
    if (!ARRAY_GROW(p->by_id, p->by_id_cap, id + 1) || !ARRAY_GROW(p->kind, p->kind_cap, id + 1))
        return false;
    for (; p->n <= id; p->n++) {
        p->by_id[p->n] = -1;
        p->kind[p->n] = 0;
    }
    return true;
}

kvasir_status pieces_add(struct pieces *p, int32_t id, struct text_span piece, enum token_kind kind,
                         kvasir_error *err) {
    if (id < 0 || id >= TOKENS_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "token id %d is out of range (at most %d)", id,
                    TOKENS_MAX - 1);
    if (piece.len > PIECE_BYTES_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "token %d has %zu bytes (at most %d are allowed)", id,
                    piece.len, PIECE_BYTES_MAX);
    if (p->text.len + piece.len > VOCAB_BYTES_MAX || p->n_entries >= 2 * (size_t)TOKENS_MAX)
        return fail(err, KVASIR_ERR_FORMAT,
                    "the vocabulary is too large: more than %d bytes or %d tokens", VOCAB_BYTES_MAX,
                    2 * TOKENS_MAX);
    uint32_t at = (uint32_t)p->text.len;
    if (!ARRAY_GROW(p->entry, p->entries_cap, p->n_entries + 1) || !room_for_id(p, (size_t)id) ||
        !text_append(&p->text, piece.data, piece.len))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a vocabulary of %zu tokens",
                    p->n);
    ASSERT((size_t)id < p->n && p->text.len <= UINT32_MAX);
    p->by_id[id] = (int32_t)p->n_entries;
    p->kind[id] = (uint8_t)kind;
    p->entry[p->n_entries++] = (struct piece_entry){at, (uint32_t)piece.len, id};
    p->longest = max_size(p->longest, piece.len);
    return KVASIR_OK;
}

bool pieces_has(const struct pieces *p, int32_t id) {
    return id >= 0 && (size_t)id < p->n && p->by_id[id] >= 0;
}

struct text_span pieces_at(const struct pieces *p, int32_t id) {
    if (!pieces_has(p, id))
        return (struct text_span){"", 0};
    const struct piece_entry *e = &p->entry[p->by_id[id]];
    DEBUG_ASSERT((size_t)p->by_id[id] < p->n_entries && e->at + e->len <= p->text.len);
    return (struct text_span){p->text.data + e->at, e->len};
}

void pieces_deinit(struct pieces *p) {
    text_free(&p->text);
    mem_free(p->entry);
    mem_free(p->by_id);
    mem_free(p->kind);
    memset(p, 0, sizeof *p);
}

/* ---- by their bytes -------------------------------------------------------------------------- */

/* Eight bytes per step. The factor is 2^64 / golden ratio, odd: every bit of a product depends on
 * all lower bits of its factors. The shift brings the upper half down again. */
static uint64_t hash_bytes(const char *data, size_t len) {
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    uint64_t hash = len * golden, word;
    for (; len >= sizeof word; data += sizeof word, len -= sizeof word) {
        memcpy(&word, data, sizeof word);
        hash = (hash ^ word) * golden;
        hash ^= hash >> 32;
    }
    word = 0;
    for (size_t i = 0; i < len; i++)
        word |= (uint64_t)(uint8_t)data[i] << 8 * i;
    hash = (hash ^ word) * golden;
    hash ^= hash >> 29;
    hash *= golden;
    return hash ^ hash >> 32;
}

/* The slot of the piece with these bytes, or the free slot for it. */
static struct piece_slot *piece_slot(const struct piece_map *map, const char *data, size_t len,
                                     uint32_t *tag) {
    uint64_t hash = hash_bytes(data, len);
    *tag = (uint32_t)(hash >> 32);
    size_t i = (size_t)hash & map->mask;
    for (; map->slot[i].id >= 0; i = (i + 1) & map->mask) {
        const struct piece_slot *slot = &map->slot[i];
        if (slot->tag == *tag && slot->len == len &&
            memcmp(map->pieces->text.data + slot->at, data, len) == 0)
            break;
    }
    return &map->slot[i];
}

int32_t piece_map_find(const struct piece_map *map, const char *data, size_t len) {
    uint32_t tag;
    return len && len <= map->pieces->longest ? piece_slot(map, data, len, &tag)->id : -1;
}

kvasir_status piece_map_init(struct piece_map *map, const struct pieces *pieces,
                             kvasir_error *err) {
    size_t slots = 2;
    while (slots < 2 * pieces->n_entries)
        slots *= 2;
    *map = (struct piece_map){pieces, mem_alloc(slots * sizeof *map->slot), slots - 1};
    if (!map->slot)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a vocabulary of %zu tokens",
                    pieces->n);
    ASSERT(slots >= 2 * pieces->n_entries && (slots & map->mask) == 0);
    for (size_t i = 0; i < slots; i++)
        map->slot[i].id = -1;
    for (size_t i = 0; i < pieces->n_entries; i++) {
        struct piece_entry e = pieces->entry[i];
        if (e.len == 0)
            continue;
        uint32_t tag;
        struct piece_slot *slot = piece_slot(map, pieces->text.data + e.at, e.len, &tag);
        *slot = (struct piece_slot){tag, e.at, e.len, e.id};
    }
    return KVASIR_OK;
}

void piece_map_deinit(struct piece_map *map) {
    mem_free(map->slot);
    memset(map, 0, sizeof *map);
}
