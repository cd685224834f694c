/* SPDX-License-Identifier: Apache-2.0 */
/* Byte-level byte-pair encoding of one word, and GPT-2's alphabet of bytes.
 *
 * A word starts as one symbol per byte. As long as neighbours form a merge, the one of the best
 * rank, leftmost among equals, becomes one symbol. Done literally that is quadratic; here
 *
 *     symbol  [0] <-> [1] <-> [3] <-> ...      a list in an array: a merge unlinks its right symbol
 *     heap    {rank << 32 | left symbol}       every pair that was ever a neighbourhood, best first
 *
 * so that a word of n bytes costs O(n log n). Invariants:
 *   1. Every pair of neighbours that is a merge has an entry in the heap.
 *   2. An entry counts only if its symbol and the next one are, when it is taken, the two ids of
 *      its rank; others are leftovers of earlier neighbours and are dropped. (A repeated entry is
 *      harmless: it names a pair that stands.)
 *   3. The heap holds under 2n entries: n - 1 at the start, and a merge takes one and adds at most
 *      two.
 *
 * A byte that is no piece of the vocabulary is left out before merging, as the Hugging Face
 * tokenizers do without an unknown token (SmolLM2 lacks 21 bytes: six control characters, those
 * that UTF-8 cannot hold, and leads of planes 4-11).
 *
 * Left out: SentencePiece's BPE (ranks are scores, symbols are characters), whole-word lookup
 * before merging.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- the alphabet ---------------------------------------------------------------------------- */

enum {
    LOW_FIRST = 0x100,             /* bytes 0x00-0x20 */
    MIDDLE_FIRST = LOW_FIRST + 33, /* bytes 0x7f-0xa0 */
    SOFT_HYPHEN = MIDDLE_FIRST + 34,
    ALPHABET_END,
};

uint32_t alphabet_char(uint8_t byte) {
    if (byte <= 0x20)
        return (uint32_t)(LOW_FIRST + byte);
    if (byte >= 0x7f && byte <= 0xa0)
        return (uint32_t)(MIDDLE_FIRST + byte - 0x7f);
    return byte == 0xad ? SOFT_HYPHEN : byte;
}

/* The byte a character stands for, -1 if it is not of the alphabet. */
static int alphabet_byte(uint32_t c) {
    if (c >= ALPHABET_END)
        return -1;
    if (c == SOFT_HYPHEN)
        return 0xad;
    if (c >= MIDDLE_FIRST)
        return (int)(c - MIDDLE_FIRST + 0x7f);
    if (c >= LOW_FIRST)
        return (int)(c - LOW_FIRST);
    return alphabet_char((uint8_t)c) == c ? (int)c : -1;
}

ptrdiff_t alphabet_decode(struct text_span piece, uint8_t *out) {
    const uint8_t *s = (const uint8_t *)piece.data;
    ptrdiff_t n = 0;
    for (size_t i = 0; i < piece.len; i++) {
        uint32_t c = s[i];
        if (c >= 0x80) { /* every character of the alphabet has one or two bytes */
            if ((c & 0xe0) != 0xc0 || i + 1 == piece.len || (s[i + 1] & 0xc0) != 0x80)
                return -1;
            c = (c & 0x1f) << 6 | (s[++i] & 0x3f);
        }
        int byte = alphabet_byte(c);
        if (byte < 0)
            return -1;
        out[n++] = (uint8_t)byte;
    }
    return n;
}

static void byte_ids(struct bpe *b, const struct piece_map *map) {
    for (int byte = 0; byte < 256; byte++) {
        uint32_t c = alphabet_char((uint8_t)byte);
        char utf8[2] = {(char)c};
        if (c >= 0x80) {
            utf8[0] = (char)(0xc0 | c >> 6);
            utf8[1] = (char)(0x80 | (c & 0x3f));
        }
        b->byte_id[byte] = piece_map_find(map, utf8, c >= 0x80 ? 2 : 1);
    }
}

/* ---- merges by their pair -------------------------------------------------------------------- */

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot that holds the pair, or the free one where it belongs. */
static struct bpe_pair_slot *find_slot(const struct bpe *b, uint64_t pair) {
    size_t mask = ((size_t)1 << (64 - b->shift)) - 1;
    /* 2^64 / golden ratio, odd: the high bits of the product depend on every bit of both ids. */
    size_t i = (size_t)(pair * 0x9e3779b97f4a7c15u >> b->shift);
    while (b->slots[i].pair != pair && b->slots[i].pair != UINT64_MAX)
        i = (i + 1) & mask;
    return &b->slots[i];
}

/* Splits "left right" and finds the three pieces. join: memory reused from merge to merge. */
static kvasir_status read_merge(const struct piece_map *map, struct text_span text, size_t rank,
                                struct text_buf *join, struct bpe_merge *out, kvasir_error *err) {
    const char *space = text.len > 1 ? memchr(text.data + 1, ' ', text.len - 1) : NULL;
    size_t left_len = space ? (size_t)(space - text.data) : 0;
    if (!space || left_len + 1 == text.len)
        return fail(err, KVASIR_ERR_FORMAT,
                    "merge %zu \"%s\" is not two pieces with a space between", rank,
                    quote_bytes(text.data, text.len).text);
    struct text_span left = {text.data, left_len}, right = {space + 1, text.len - left_len - 1};
    join->len = 0;
    if (!text_append(join, left.data, left.len) || !text_append(join, right.data, right.len))
        return fail(err, KVASIR_ERR_MEMORY, "no memory for the merges");
    out->left = piece_map_find(map, left.data, left.len);
    out->right = piece_map_find(map, right.data, right.len);
    out->result = piece_map_find(map, join->data, join->len);
    const char *missing = out->left < 0     ? "its left half"
                          : out->right < 0  ? "its right half"
                          : out->result < 0 ? "its result"
                                            : NULL;
    if (missing)
        return fail(err, KVASIR_ERR_FORMAT, "merge %zu \"%s\": %s is no piece of the vocabulary",
                    rank, quote_bytes(text.data, text.len).text, missing);
    return KVASIR_OK;
}

kvasir_status bpe_init(struct bpe *b, const struct tokenizer_spec *spec,
                       const struct piece_map *map, kvasir_error *err) {
    memset(b, 0, sizeof *b);
    byte_ids(b, map);
    /* At most half full, so that a search ends soon. */
    b->shift = 63;
    while ((size_t)1 << (64 - b->shift) < 2 * spec->n_merges)
        b->shift--;
    size_t slots = (size_t)1 << (64 - b->shift);
    struct text_buf join = {0};
    kvasir_status status = KVASIR_OK;
    b->merges = mem_calloc(spec->n_merges, sizeof *b->merges);
    b->slots = mem_calloc(slots, sizeof *b->slots);
    if (!b->merges || !b->slots) {
        status = fail(err, KVASIR_ERR_MEMORY, "no memory for %zu merges", spec->n_merges);
        goto done;
    }
    for (size_t i = 0; i < slots; i++)
        b->slots[i].pair = UINT64_MAX;
    for (size_t rank = 0; rank < spec->n_merges; rank++) {
        struct bpe_merge *merge = &b->merges[rank];
        TRY_GOTO(read_merge(map, spec->merges[rank], rank, &join, merge, err));
        struct bpe_pair_slot *slot = find_slot(b, pair_of(merge->left, merge->right));
        if (slot->pair == UINT64_MAX) /* of a merge listed twice the better rank counts */
            *slot = (struct bpe_pair_slot){pair_of(merge->left, merge->right), (uint32_t)rank};
    }
done:
    text_free(&join);
    if (status != KVASIR_OK)
        bpe_deinit(b);
    return status;
}

void bpe_deinit(struct bpe *b) {
    mem_free(b->merges);
    mem_free(b->slots);
    memset(b, 0, sizeof *b);
}

/* ---- the heap -------------------------------------------------------------------------------- */

/* Four children a node: a step down reads one or two cache lines, and there are half as many. */

static void heap_push(uint64_t *heap, size_t *n, uint64_t key) {
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 4] > key) {
        heap[i] = heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], key = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 4 * i + 1;
        if (child >= *n)
            break;
        size_t end = child + 4 < *n ? child + 4 : *n, best = child;
        for (size_t c = child + 1; c < end; c++)
            if (heap[c] < heap[best])
                best = c;
        if (heap[best] >= key)
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = key;
    return top;
}

/* ---- encoding -------------------------------------------------------------------------------- */

struct bpe_symbol {
    int32_t id;          /* -1: merged into the symbol on its left */
    uint32_t prev, next; /* NONE at the ends */
};
#define NONE UINT32_MAX

void bpe_scratch_deinit(struct bpe_scratch *s) {
    mem_free(s->heap);
    mem_free(s->symbol);
    memset(s, 0, sizeof *s);
}

static bool scratch_room(struct bpe_scratch *s, size_t n) {
    if (n <= s->cap)
        return true;
    size_t cap = n > 2 * s->cap ? n : 2 * s->cap;
    bpe_scratch_deinit(s); /* nothing in it outlives a word */
    size_t heap_bytes, symbol_bytes;
    if (!mul_size(cap, 2 * sizeof *s->heap, &heap_bytes) ||
        !mul_size(cap, sizeof *s->symbol, &symbol_bytes))
        return false;
    s->heap = mem_alloc(heap_bytes);
    s->symbol = mem_alloc(symbol_bytes);
    if (!s->heap || !s->symbol) {
        bpe_scratch_deinit(s);
        return false;
    }
    s->cap = cap;
    return true;
}

static void push_pair(const struct bpe *b, struct bpe_scratch *s, size_t *n_heap, uint32_t left) {
    uint32_t right = s->symbol[left].next;
    const struct bpe_pair_slot *slot =
        find_slot(b, pair_of(s->symbol[left].id, s->symbol[right].id));
    if (slot->pair != UINT64_MAX)
        heap_push(s->heap, n_heap, (uint64_t)slot->rank << 32 | left);
}

bool bpe_encode(const struct bpe *b, struct bpe_scratch *s, const uint8_t *word, size_t len,
                int32_t *ids, size_t *n) {
    if (!scratch_room(s, len))
        return false;
    struct bpe_symbol *symbol = s->symbol;
    uint32_t n_symbols = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = b->byte_id[word[i]];
        if (id < 0)
            continue;
        symbol[n_symbols] = (struct bpe_symbol){id, n_symbols - 1, n_symbols + 1};
        n_symbols++;
    }
    if (n_symbols == 0)
        return true;
    symbol[0].prev = NONE;
    symbol[n_symbols - 1].next = NONE;

    size_t n_heap = 0;
    for (uint32_t i = 0; i + 1 < n_symbols; i++)
        push_pair(b, s, &n_heap, i);
    while (n_heap > 0) {
        uint64_t entry = heap_pop(s->heap, &n_heap);
        const struct bpe_merge *merge = &b->merges[entry >> 32];
        uint32_t left = (uint32_t)entry, right = symbol[left].next;
        if (symbol[left].id != merge->left || right == NONE || symbol[right].id != merge->right)
            continue;
        symbol[left].id = merge->result;
        symbol[left].next = symbol[right].next;
        symbol[right].id = -1;
        if (symbol[left].next != NONE) {
            symbol[symbol[left].next].prev = left;
            push_pair(b, s, &n_heap, left);
        }
        if (symbol[left].prev != NONE)
            push_pair(b, s, &n_heap, symbol[left].prev);
    }
    for (uint32_t i = 0; i != NONE; i = symbol[i].next)
        ids[(*n)++] = symbol[i].id;
    return true;
}
