/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.c: byte-pair encoding of one word.
 *
 * A word starts as one symbol per byte (GPT-2) or per character (SentencePiece). As long as
 * neighbours form a merge, the pair with the best rank (the leftmost of equals) becomes one symbol.
 * Done literally that is quadratic. Here a word of n symbols takes O(n log n):
 *
 *     symbol  [0] <-> [1] <-> [3] <-> ...      a list in an array: a merge unlinks its right symbol
 *     heap    {rank << 32 | left symbol}       every pair that ever were neighbours, best first
 *
 * Invariants:
 *   1. symbol[i].rank and .result are the merge of symbol i with the next one. Without one, and in
 *      a symbol that was merged away, rank is MERGE_NONE.
 *   2. Every pair of neighbours that is a merge has an entry in the heap.
 *   3. An entry counts only if its rank is still the rank of its symbol when it is taken. Others
 *      are leftovers of earlier neighbours and are dropped. (With equal scores a leftover may have
 *      the rank of the new pair. Then it stands for the new pair's own entry, which has the same
 *      key.)
 *   4. The heap holds fewer than 2n entries: n - 1 at the start, and each merge takes one and adds
 *      at most two.
 * A short word, as nearly all are, is searched for its best pair instead.
 *
 * A byte or character without a piece becomes the tokens of its bytes ("<0xE2>") if the vocabulary
 * has them, else the unknown token. If there is none it is dropped before merging, as by Hugging
 * Face's tokenizers. (SmolLM2 lacks 21 bytes: six control characters, bytes that UTF-8 does not
 * use, and first bytes of planes 4-11.)
 */
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- derived from a vocabulary --------------------------------------------------------------- */

static void find_bytes(struct bpe *b) {
    static const char digits[] = "0123456789ABCDEF";
    for (int byte = 0; byte < 256; byte++) {
        char name[] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
        size_t len = sizeof name;
        if (b->bytes)
            len = utf8_put(name, alphabet_char((uint8_t)byte));
        b->byte_id[byte] = b->bytes || b->byte_fallback ? piece_map_find(b->map, name, len) : -1;
    }
}

static bool is_byte_or_unknown(const struct bpe *b, int32_t id, int32_t low, int32_t high) {
    if (id == b->unk)
        return true;
    for (int byte = 0; byte < 256 && id >= low && id <= high; byte++)
        if (b->byte_id[byte] == id)
            return true;
    return false;
}

/* Whether a merge takes the unknown token or a byte token: these are not written as they read. */
static bool merges_other_text(const struct bpe *b) {
    const struct merge_map *m = &b->merges;
    size_t slots = m->slot ? (size_t)1 << (64 - m->shift) : 0;
    int32_t low = INT32_MAX, high = -1; /* byte tokens are usually adjacent */
    for (int byte = 0; byte < 256; byte++) {
        int32_t id = b->byte_id[byte];
        low = id >= 0 && id < low ? id : low;
        high = id > high ? id : high;
    }
    for (size_t i = 0; i < slots; i++)
        if (m->slot[i].pair != UINT64_MAX &&
            (is_byte_or_unknown(b, (int32_t)(m->slot[i].pair >> 32), low, high) ||
             is_byte_or_unknown(b, (int32_t)m->slot[i].pair, low, high)))
            return true;
    return false;
}

/* Whether a character may be dropped, so that its neighbours become adjacent. */
static bool leaves_out(const struct bpe *b) {
    for (int byte = 0; byte < 256; byte++)
        if (b->byte_id[byte] < 0)
            return b->unk < 0;
    return false;
}

/* A word of SentencePiece is a whole text, but merges stay between one U+2581 and the next: if no
 * piece contains that mark after a certain byte, no token reaches over such a place, and the text
 * can be cut there into words that repeat. This requires that every symbol that merges is written
 * as its piece, that no character is dropped, and that the mark itself is a piece. */
static void find_cuts(struct bpe *b) {
    const struct pieces *p = b->map->pieces;
    b->cut_at_marks = !b->bytes && !b->whole_words && !leaves_out(b) && !merges_other_text(b) &&
                      piece_map_find(b->map, SPACE_MARK, SPACE_MARK_LEN) >= 0;
    for (size_t e = 0; e < p->n_entries && b->cut_at_marks; e++) {
        const char *text = p->text.data + p->entry[e].at, *end = text + p->entry[e].len;
        for (const char *at = text; at + SPACE_MARK_LEN <= end; at++) {
            at = memchr(at, SPACE_MARK[0], (size_t)(end - at));
            if (!at || at + SPACE_MARK_LEN > end)
                break;
            if (at > text && memcmp(at, SPACE_MARK, SPACE_MARK_LEN) == 0)
                b->joins_mark[(uint8_t)at[-1]] = true;
        }
    }
}

void bpe_finish(struct bpe *b, const struct piece_map *map) {
    b->map = map;
    find_bytes(b);
    find_cuts(b);
}

void bpe_deinit(struct bpe *b) {
    merge_map_deinit(&b->merges);
    memset(b, 0, sizeof *b);
}

size_t bpe_cut(const struct bpe *b, const char *text, size_t len, size_t from) {
    if (!b->cut_at_marks)
        return len;
    for (size_t at = from + 1; at < len; at++) {
        const char *mark = memchr(text + at, SPACE_MARK[0], len - at);
        if (!mark)
            break;
        at = (size_t)(mark - text);
        if (len - at >= SPACE_MARK_LEN && memcmp(mark, SPACE_MARK, SPACE_MARK_LEN) == 0 &&
            !b->joins_mark[(uint8_t)text[at - 1]])
            return at;
    }
    return len;
}

/* ---- the heap -------------------------------------------------------------------------------- */

/* Four children per node: a step down reads one or two cache lines, and there are half as many
 * steps. */

static void heap_push(uint64_t *heap, size_t *n, uint64_t key) {
    size_t i = (*n)++;
    while (i > 0 && heap[(i - 1) / 4] > key) {
        heap[i] = heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    DEBUG_ASSERT(*n > 0);
    uint64_t top = heap[0], key = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 4 * i + 1;
        if (child >= *n)
            break;
        size_t end = min_size(child + 4, *n), best = child;
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

/* ---- symbols --------------------------------------------------------------------------------- */

struct bpe_symbol {
    int32_t id;
    uint32_t prev, next; /* NONE at the ends */
    uint32_t rank;       /* of the merge with the next symbol, MERGE_NONE: none */
    int32_t result;
};
#define NONE UINT32_MAX

void bpe_scratch_deinit(struct bpe_scratch *s) {
    mem_free(s->heap);
    mem_free(s->symbol);
    text_free(&s->spelled);
    memset(s, 0, sizeof *s);
}

/* The symbols of a word in order, and an unknown token that waits for the end of its run. */
struct spelling {
    const struct bpe *b;
    struct bpe_symbol *symbol; /* [room] */
    size_t room;
    uint32_t n;
    bool unknown;
};

static void spell_id(struct spelling *s, int32_t id) {
    ASSERT(s->n < s->room);
    s->symbol[s->n] = (struct bpe_symbol){id, s->n - 1, s->n + 1, MERGE_NONE, -1};
    s->n++;
}

static void spell_known(struct spelling *s, int32_t id) {
    if (s->unknown)
        spell_id(s, s->b->unk);
    s->unknown = false;
    spell_id(s, id);
}

static void spell_unknown(struct spelling *s) {
    if (s->b->unk < 0)
        return;
    if (s->unknown && !s->b->fuse_unk)
        spell_id(s, s->b->unk);
    s->unknown = true;
}

static void spell_bytes(struct spelling *s, const uint8_t *word, size_t len) {
    for (size_t i = 0; i < len; i++) {
        int32_t id = s->b->byte_id[word[i]];
        if (id >= 0)
            spell_known(s, id);
        else
            spell_unknown(s);
    }
}

static void spell_character(struct spelling *s, const char *c, size_t len) {
    const struct bpe *b = s->b;
    int32_t id = piece_map_find(b->map, c, len);
    if (id >= 0) {
        spell_known(s, id);
        return;
    }
    for (size_t i = 0; i < len; i++)
        if (b->byte_id[(uint8_t)c[i]] < 0) {
            spell_unknown(s);
            return;
        }
    /* A waiting unknown token keeps waiting: this is Hugging Face's order. */
    for (size_t i = 0; i < len; i++)
        spell_id(s, b->byte_id[(uint8_t)c[i]]);
}

static uint32_t spell(const struct bpe *b, struct bpe_symbol *symbol, const char *word,
                      size_t len) {
    struct spelling s = {.b = b, .symbol = symbol, .room = len};
    if (b->bytes) {
        spell_bytes(&s, (const uint8_t *)word, len);
    } else {
        for (size_t at = 0, next; at < len; at = next) {
            next = at;
            (void)utf8_next(word, &next);
            spell_character(&s, word + at, next - at);
        }
    }
    if (s.unknown)
        spell_id(&s, b->unk);
    if (s.n) {
        symbol[0].prev = NONE;
        symbol[s.n - 1].next = NONE;
    }
    return s.n;
}

/* At least so many symbols are one character; unknown ones may be dropped or become one. */
static size_t least_symbols(const struct bpe *b, const char *c, size_t len) {
    if (b->bytes) {
        size_t n = 0;
        for (size_t i = 0; i < len; i++)
            n += b->byte_id[(uint8_t)c[i]] >= 0 || (b->unk >= 0 && !b->fuse_unk);
        return n;
    }
    return piece_map_find(b->map, c, len) >= 0 || (b->unk >= 0 && !b->fuse_unk);
}

bool bpe_exceeds(const struct bpe *b, const char *text, size_t len, size_t most) {
    const size_t longest = max_size(b->map->pieces->longest, 1);
    size_t symbols = 0, room;
    if (!mul_size(most, longest, &room) || len <= room)
        return false; /* a token has at most as many symbols as its piece has bytes */
    for (size_t at = 0, next; at < len && symbols <= room; at = next) {
        next = at;
        (void)utf8_next(text, &next);
        symbols += least_symbols(b, text + at, next - at);
    }
    return symbols > room;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Finds the merge of a symbol with the next one. */
static void look_up_merge(const struct bpe *b, struct bpe_symbol *symbol, uint32_t left) {
    uint32_t right = symbol[left].next;
    const struct merge *m =
        right == NONE ? NULL : merge_map_find(&b->merges, symbol[left].id, symbol[right].id);
    symbol[left].rank = m ? m->rank : MERGE_NONE;
    symbol[left].result = m ? m->result : -1;
}

/* Makes two symbols one and looks up the merges with its new neighbours. */
static void merge_at(const struct bpe *b, struct bpe_symbol *symbol, uint32_t left) {
    DEBUG_ASSERT(symbol[left].rank != MERGE_NONE && symbol[left].next != NONE);
    uint32_t right = symbol[left].next, after = symbol[right].next;
    symbol[left].id = symbol[left].result;
    symbol[left].next = after;
    symbol[right].rank = MERGE_NONE;
    if (after != NONE)
        symbol[after].prev = left;
    look_up_merge(b, symbol, left);
    if (symbol[left].prev != NONE)
        look_up_merge(b, symbol, symbol[left].prev);
}

static void merge_few(const struct bpe *b, struct bpe_symbol *symbol) {
    for (;;) {
        uint32_t best = NONE, rank = MERGE_NONE;
        for (uint32_t i = 0; i != NONE; i = symbol[i].next)
            if (symbol[i].rank < rank) {
                rank = symbol[i].rank;
                best = i;
            }
        if (best == NONE)
            return;
        merge_at(b, symbol, best);
    }
}

static void push_pair(struct bpe_scratch *s, size_t *n_heap, uint32_t left) {
    DEBUG_ASSERT(left < s->symbol_cap && *n_heap < s->heap_cap);
    if (s->symbol[left].rank != MERGE_NONE)
        heap_push(s->heap, n_heap, (uint64_t)s->symbol[left].rank << 32 | left);
}

/* False: it was stopped. */
static bool merge_many(const struct bpe *b, struct bpe_scratch *s, uint32_t n) {
    size_t n_heap = 0;
    for (uint32_t i = 0; i + 1 < n; i++)
        push_pair(s, &n_heap, i);
    while (n_heap > 0) {
        if (guard_stops(&s->guard, 1))
            return false;
        uint64_t entry = heap_pop(s->heap, &n_heap);
        uint32_t left = (uint32_t)entry;
        if (s->symbol[left].rank != entry >> 32)
            continue;
        merge_at(b, s->symbol, left);
        push_pair(s, &n_heap, left);
        if (s->symbol[left].prev != NONE)
            push_pair(s, &n_heap, s->symbol[left].prev);
    }
    return true;
}

/* Sets *id to the piece that is this word; -1 if there is none that text may become. */
static bool whole_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len,
                       int32_t *id) {
    *id = -1;
    const struct pieces *p = b->map->pieces;
    if (len > p->longest)
        return true;
    if (b->bytes) {
        s->spelled.len = 0;
        for (size_t i = 0; i < len; i++) {
            char c[4];
            if (!text_append(&s->spelled, c, alphabet_encode((const uint8_t *)word + i, 1, c)))
                return false;
        }
        word = s->spelled.data;
        len = s->spelled.len;
    }
    int32_t found = piece_map_find(b->map, word, len);
    if (found >= 0 && (s->control || !is_control_kind(p->kind[found])))
        *id = found;
    return true;
}

/* For so few symbols a scan is faster than a heap. War and Peace with 24 (with a heap only): GPT-2
 * 23.8 MB/s (17.6), Gemma 3 16.6 (12.1). 48 is no better. */
enum { FEW = 24 };

bool bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t len,
                int32_t *ids, size_t *n) {
    if (b->whole_words) {
        int32_t id;
        if (!whole_word(b, s, word, len, &id))
            return false;
        if (id >= 0) {
            ids[(*n)++] = id;
            return true;
        }
    }
    if (len > INT32_MAX || !ARRAY_GROW(s->symbol, s->symbol_cap, len) ||
        !ARRAY_GROW(s->heap, s->heap_cap, 2 * len))
        return false;
    uint32_t n_symbols = spell(b, s->symbol, word, len);
    if (n_symbols == 0)
        return true;
    for (uint32_t i = 0; i < n_symbols; i++) {
        if (guard_stops(&s->guard, 1))
            return false;
        look_up_merge(b, s->symbol, i);
    }
    if (n_symbols <= FEW)
        merge_few(b, s->symbol);
    else if (!merge_many(b, s, n_symbols))
        return false;
    for (uint32_t i = 0; i != NONE; i = s->symbol[i].next)
        ids[(*n)++] = s->symbol[i].id;
    return true;
}
