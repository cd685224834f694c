/* SPDX-License-Identifier: Apache-2.0 */
/* pushdown.c: reads text along a set of stacks (pushdown.h). The block of a state, in words of 32
 * bits:
 *
 *     held   the bytes of an unfinished character, the first one lowest; 0: none; HELD_ANY + n: n
 *            more bytes make one, and it does not matter which
 *     for each stack, in the order of their bytes:
 *         depth, elements [depth], and if the topmost is embedded: bytes, its state, zeros
 *
 * All stacks have read the same bytes, so they share `held`; a stack whose topmost element is a
 * character stays as it is until the character is complete. A stack is only kept if it can be
 * completed: every alternative that is entered has a text that fits above the stack, and characters
 * are looked at byte by byte.
 */
#define _GNU_SOURCE /* qsort_r */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "grammar/pushdown.h"

enum { WORD = sizeof(uint32_t), HELD_ANY = 0xf8 /* begins no character */ };

/* ---- tables ---------------------------------------------------------------------------------- */

/* The first range of the class that ends at c or later; NULL: none. */
static const struct code_range *range_from(const struct pushdown *p, uint32_t class, uint32_t c) {
    const struct pushdown_class k = p->classes[class];
    uint32_t low = k.first, high = k.first + k.n;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (p->ranges[middle].to < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < k.first + k.n ? &p->ranges[low] : NULL;
}

static bool takes_char(const struct pushdown *p, struct pushdown_element e, uint32_t from,
                       uint32_t to) {
    if (e.kind == PUSHDOWN_CHAR)
        return e.value >= from && e.value <= to;
    if (e.kind != PUSHDOWN_CLASS)
        return false;
    const struct code_range *range = range_from(p, e.value, from);
    return range && range->from <= to;
}

static bool takes_all(const struct pushdown *p, struct pushdown_element e, uint32_t from,
                      uint32_t to) {
    if (e.kind != PUSHDOWN_CLASS)
        return false;
    const struct code_range *range = range_from(p, e.value, from);
    return range && range->from <= from && range->to >= to;
}

void pushdown_destroy(struct pushdown *p) {
    for (uint32_t i = 0; i < p->n_embeds; i++)
        p->embeds[i]->ops->destroy(p->embeds[i]);
    mem_free(p->elements);
    mem_free(p->alternatives);
    mem_free(p->rules);
    mem_free(p->classes);
    mem_free(p->ranges);
    mem_free(p->embeds);
    mem_free(p->embed_nullable);
    mem_free(p);
}

/* ---- a set of stacks ------------------------------------------------------------------------- */

/* A stack as a block has it, at a place in memory. */
struct stack {
    uint32_t depth;
    const char *elements;   /* [depth] words, perhaps not aligned */
    struct text_span inner; /* the state of an embedded recognizer */
    size_t bytes;           /* of the whole */
};

/* Stacks that were found, each once, in the order in which they were. */
struct found {
    uint32_t at;
    uint32_t hash;
};
struct work {
    const struct pushdown *p;
    struct text_buf stacks;
    struct found *found; /* [n] */
    uint32_t n, cap;
    uint32_t *table; /* [table_size] of numbers + 1 */
    uint32_t table_size;
    enum recognizer_step failed; /* STEP_MEMORY, STEP_LIMIT */
};

static uint32_t word_at(const char *data) {
    uint32_t word;
    memcpy(&word, data, WORD);
    return word;
}

static struct pushdown_element top_of(const struct pushdown *p, const struct stack *s) {
    const uint32_t at = word_at(s->elements + (size_t)(s->depth - 1) * WORD);
    ASSERT(at < p->n_elements);
    return p->elements[at];
}

static struct stack stack_at(const struct pushdown *p, const char *data) {
    struct stack s = {.depth = word_at(data), .elements = data + WORD};
    s.bytes = (size_t)(s.depth + 1) * WORD;
    if (s.depth && top_of(p, &s).kind == PUSHDOWN_EMBED) {
        s.inner = (struct text_span){data + s.bytes + WORD, word_at(data + s.bytes)};
        s.bytes += WORD + round_up(s.inner.len, WORD);
    }
    return s;
}

static void work_free(struct work *w) {
    text_free(&w->stacks);
    mem_free(w->found);
    mem_free(w->table);
}

static bool grow_table(struct work *w) {
    const uint32_t size = w->table_size ? 2 * w->table_size : 64;
    uint32_t *table = mem_calloc(size, sizeof *table);
    if (!table)
        return false;
    for (uint32_t n = 0; n < w->n; n++) {
        uint32_t i = w->found[n].hash & (size - 1);
        while (table[i])
            i = (i + 1) & (size - 1);
        table[i] = n + 1;
    }
    mem_free(w->table);
    w->table = table;
    w->table_size = size;
    return true;
}

/* Keeps the stack that was written at the end of w->stacks, unless it is there already. */
static bool keep_stack(struct work *w, size_t at) {
    const size_t len = w->stacks.len - at;
    const char *data = w->stacks.data + at;
    const uint32_t hash = (uint32_t)XXH3_64bits(data, len);
    if (2 * (w->n + 1) > w->table_size && !grow_table(w))
        return false;
    uint32_t i = hash & (w->table_size - 1);
    for (; w->table[i]; i = (i + 1) & (w->table_size - 1)) {
        const struct found *f = &w->found[w->table[i] - 1];
        if (f->hash == hash && f->at + len <= at && memcmp(w->stacks.data + f->at, data, len) == 0)
            break;
    }
    if (w->table[i]) {
        w->stacks.len = at;
        return true;
    }
    if (w->n == PUSHDOWN_STACKS_MAX || at > PUSHDOWN_WORK_MAX) {
        w->failed = STEP_LIMIT;
        return false;
    }
    if (!ARRAY_GROW(w->found, w->cap, w->n + 1))
        return false;
    w->found[w->n++] = (struct found){(uint32_t)at, hash};
    w->table[i] = w->n;
    return true;
}

/* ---- making stacks --------------------------------------------------------------------------- */

/* Adds the state of an embedded recognizer, whose bytes begin at `from` in w->stacks after a word
 * for their number. */
static bool close_inner(struct work *w, size_t from) {
    const uint32_t len = (uint32_t)(w->stacks.len - from - WORD);
    static const char zeros[WORD];
    memcpy(w->stacks.data + from, &len, WORD);
    return text_append(&w->stacks, zeros, round_up(len, WORD) - len);
}

/* From here on another stack can be written without moving those that are there. */
static bool make_room(struct work *w) {
    return text_reserve(&w->stacks, (PUSHDOWN_DEPTH_MAX + 4) * WORD);
}

/* Adds a stack of `depth` elements and two more, of which an END is left out; if the topmost is
 * embedded, with that one's first state. There is room. */
static bool add_stack(struct work *w, const char *elements, uint32_t depth, const uint32_t *more,
                      uint32_t n_more) {
    const size_t at = w->stacks.len;
    char *out = w->stacks.data + at;
    struct stack s = {.depth = depth, .elements = out + WORD};
    ASSERT(depth + n_more <= PUSHDOWN_DEPTH_MAX + 1);
    if (depth)
        memcpy(out + WORD, elements, (size_t)depth * WORD);
    for (uint32_t i = 0; i < n_more; i++)
        if (w->p->elements[more[i]].kind != PUSHDOWN_END)
            memcpy(out + (size_t)++s.depth * WORD, &more[i], WORD);
    memcpy(out, &s.depth, WORD);
    w->stacks.len = at + ((size_t)s.depth + 1) * WORD;
    if (s.depth && top_of(w->p, &s).kind == PUSHDOWN_EMBED) {
        const struct recognizer *r = w->p->embeds[top_of(w->p, &s).value];
        const size_t inner = w->stacks.len;
        if (!text_append(&w->stacks, &s.depth, WORD) ||
            r->ops->start(r, &w->stacks) != STEP_TAKEN || !close_inner(w, inner))
            return false;
    }
    return keep_stack(w, at);
}

/* The element behind the topmost one. */
static uint32_t next_of(const struct stack *s) {
    return word_at(s->elements + (size_t)(s->depth - 1) * WORD) + 1;
}

/* The stack goes on behind its topmost element. There is room. */
static bool leave_element(struct work *w, const struct stack *s) {
    const uint32_t next = next_of(s);
    return add_stack(w, s->elements, s->depth - 1, &next, 1);
}

/* Replaces the topmost element, which is a call, by the alternatives of the rule. */
static bool enter_rule(struct work *w, uint32_t number, uint32_t rule) {
    const struct pushdown_rule r = w->p->rules[rule];
    for (uint32_t i = 0; i < r.n; i++) {
        const struct pushdown_alternative a = w->p->alternatives[r.first + i];
        if (!make_room(w))
            return false;
        const struct stack s = stack_at(w->p, w->stacks.data + w->found[number].at);
        const uint32_t more[2] = {next_of(&s), a.at};
        const bool tail = w->p->elements[more[0]].kind == PUSHDOWN_END;
        if (a.need == PUSHDOWN_NEVER || s.depth - tail + a.need > PUSHDOWN_DEPTH_MAX)
            continue;
        if (!add_stack(w, s.elements, s.depth - 1, more, 2))
            return false;
    }
    return true;
}

/* Where a stack can go without reading: into a rule; behind an embedded text that may end here. */
static bool expand(struct work *w, uint32_t number) {
    if (!make_room(w))
        return false;
    const struct stack s = stack_at(w->p, w->stacks.data + w->found[number].at);
    if (!s.depth)
        return true;
    const struct pushdown_element top = top_of(w->p, &s);
    if (top.kind == PUSHDOWN_RULE)
        return enter_rule(w, number, top.value);
    if (top.kind != PUSHDOWN_EMBED)
        return true;
    const struct recognizer *r = w->p->embeds[top.value];
    return r->ops->end(r, s.inner) == GRAMMAR_OPEN || leave_element(w, &s);
}

/* ---- states ---------------------------------------------------------------------------------- */

/* It waits for a byte, or the text may end with it. */
static bool is_waiting(const struct pushdown *p, const struct stack *s) {
    if (!s->depth)
        return true;
    const struct pushdown_element top = top_of(p, s);
    if (top.kind != PUSHDOWN_EMBED)
        return top.kind != PUSHDOWN_RULE;
    return p->embeds[top.value]->ops->end(p->embeds[top.value], s->inner) != GRAMMAR_ENDED;
}

static int compare_stacks(const void *a, const void *b, void *user) {
    const struct work *w = user;
    const struct stack x = stack_at(w->p, w->stacks.data + ((const struct found *)a)->at);
    const struct stack y = stack_at(w->p, w->stacks.data + ((const struct found *)b)->at);
    return span_compare((struct text_span){x.elements - WORD, x.bytes},
                        (struct text_span){y.elements - WORD, y.bytes});
}

/* Expands all stacks and writes those that wait. */
static enum recognizer_step finish_state(struct work *w, uint32_t held, struct text_buf *out) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (!expand(w, i))
            return w->failed;
    for (uint32_t i = 0; i < w->n; i++) {
        const struct stack s = stack_at(w->p, w->stacks.data + w->found[i].at);
        if (is_waiting(w->p, &s))
            w->found[n++] = w->found[i];
    }
    if (!n)
        return STEP_REFUSED;
    qsort_r(w->found, n, sizeof *w->found, compare_stacks, w);
    if (!text_append(out, &held, WORD))
        return STEP_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const struct stack s = stack_at(w->p, w->stacks.data + w->found[i].at);
        if (!text_append(out, s.elements - WORD, s.bytes))
            return STEP_MEMORY;
    }
    return STEP_TAKEN;
}

/* `for (each_stack(p, state, s))`: the stacks of a state. */
static bool next_stack(const struct pushdown *p, struct text_span *rest, struct stack *s) {
    if (!rest->len)
        return false;
    *s = stack_at(p, rest->data);
    ASSERT(s->bytes <= rest->len);
    *rest = (struct text_span){rest->data + s->bytes, rest->len - s->bytes};
    return true;
}

static struct text_span stacks_of(struct text_span state) {
    ASSERT(state.len >= WORD);
    return (struct text_span){state.data + WORD, state.len - WORD};
}

static enum recognizer_step start(const struct recognizer *r, struct text_buf *out) {
    const struct pushdown *p = (const struct pushdown *)r;
    struct work w = {.p = p, .failed = STEP_MEMORY};
    /* as if the root had been called at the end of an alternative */
    const struct pushdown_rule root = p->rules[0];
    bool good = true;
    for (uint32_t i = 0; good && i < root.n; i++)
        if (p->alternatives[root.first + i].need <= PUSHDOWN_DEPTH_MAX)
            good = make_room(&w) && add_stack(&w, NULL, 0, &p->alternatives[root.first + i].at, 1);
    const enum recognizer_step step = good ? finish_state(&w, 0, out) : w.failed;
    work_free(&w);
    return step;
}

/* ---- characters ------------------------------------------------------------------------------ */

/* The characters that can come after the held bytes and this one. */
struct window {
    uint32_t from, to; /* from > to: none */
    uint32_t held;     /* 0: the character is complete */
    uint32_t left;     /* bytes that are missing */
    bool any;          /* all that is possible is taken, as was known before */
    bool full;         /* each of the missing bytes may be any continuation byte */
};

static struct window read_byte(uint32_t held, uint8_t byte) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const struct window none = {1, 0, 0, 0, false, false};
    uint32_t length = 0;
    if (held > HELD_ANY && held < HELD_ANY + 4) {
        const uint32_t left = held - HELD_ANY - 1;
        return (byte & 0xc0) != 0x80
                   ? none
                   : (struct window){.any = true, .held = left ? HELD_ANY + left : 0};
    }
    while (held >> 8 * length)
        length++;
    const uint8_t lead = held ? (uint8_t)held : byte;
    const uint32_t want = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || (held && (byte & 0xc0) != 0x80))
        return none;
    if (want == 1)
        return (struct window){.from = byte, .to = byte};
    uint32_t value = lead & (0x7fU >> want);
    held |= (uint32_t)byte << 8 * length++;
    for (uint32_t i = 1; i < length; i++)
        value = value << 6 | (held >> 8 * i & 0x3f);
    const uint32_t open = 6 * (want - length);
    struct window w = {.from = max_u32(value << open, least[want]),
                       .to = min_u32(((value + 1) << open) - 1, 0x10ffff),
                       .left = want - length};
    w.held = w.left ? held : 0;
    w.full = w.from == value << open && w.to == ((value + 1) << open) - 1;
    return w.from <= w.to ? w : none;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Adds a stack whose embedded state takes the byte. */
static enum recognizer_step step_inner(struct work *w, const struct stack *s,
                                       const struct recognizer *r, uint8_t byte) {
    const size_t at = w->stacks.len, head = (size_t)(s->depth + 1) * WORD;
    if (!text_append(&w->stacks, s->elements - WORD, head + WORD))
        return STEP_MEMORY;
    const enum recognizer_step step = r->ops->step(r, s->inner, byte, &w->stacks);
    if (step == STEP_REFUSED)
        w->stacks.len = at;
    if (step != STEP_TAKEN)
        return step;
    return close_inner(w, at + head) && keep_stack(w, at) ? STEP_TAKEN : w->failed;
}

/* Adds what becomes of a stack of a state (not of w->stacks). */
static enum recognizer_step step_stack(struct work *w, const struct stack *s, struct window c,
                                       uint8_t byte) {
    if (!s->depth)
        return STEP_REFUSED;
    const struct pushdown_element top = top_of(w->p, s);
    if (top.kind == PUSHDOWN_EMBED)
        return step_inner(w, s, w->p->embeds[top.value], byte);
    if (top.kind == PUSHDOWN_BYTE ? top.value != byte
                                  : !c.any && !takes_char(w->p, top, c.from, c.to))
        return STEP_REFUSED;
    if (!make_room(w))
        return STEP_MEMORY;
    const bool stays = top.kind != PUSHDOWN_BYTE && c.held;
    const bool good = stays ? add_stack(w, s->elements, s->depth, NULL, 0) : leave_element(w, s);
    return good ? STEP_TAKEN : w->failed;
}

static enum recognizer_step step(const struct recognizer *r, struct text_span state, uint8_t byte,
                                 struct text_buf *out) {
    const struct pushdown *p = (const struct pushdown *)r;
    const struct window c = read_byte(word_at(state.data), byte);
    struct work w = {.p = p, .failed = STEP_MEMORY};
    struct text_span rest = stacks_of(state);
    struct stack s;
    enum recognizer_step result = STEP_REFUSED;
    bool in_char = false, all = c.full;
    while (result <= STEP_REFUSED && next_stack(p, &rest, &s)) {
        const enum recognizer_step one = step_stack(&w, &s, c, byte);
        if (one == STEP_REFUSED)
            continue;
        result = one;
        const struct pushdown_element top = top_of(p, &s);
        if (top.kind == PUSHDOWN_BYTE || top.kind == PUSHDOWN_EMBED)
            continue;
        in_char = true;
        all = all && takes_all(p, top, c.from, c.to);
    }
    if (result == STEP_TAKEN) {
        const uint32_t held = all && c.left ? HELD_ANY + c.left : c.held;
        result = finish_state(&w, in_char ? held : 0, out);
    }
    work_free(&w);
    return result;
}

static enum grammar_end end(const struct recognizer *r, struct text_span state) {
    const struct pushdown *p = (const struct pushdown *)r;
    struct text_span rest = stacks_of(state);
    struct stack s;
    bool may_end = false, goes_on = false;
    while (next_stack(p, &rest, &s)) {
        may_end |= !s.depth;
        goes_on |= s.depth > 0;
    }
    return !may_end ? GRAMMAR_OPEN : goes_on ? GRAMMAR_MAY_END : GRAMMAR_ENDED;
}

/* ---- what the machine asks for its speed ----------------------------------------------------- */

/* A string of an embedded recognizer, if nothing else can come. */
static uint64_t text_key(const struct recognizer *r, struct text_span state) {
    const struct pushdown *p = (const struct pushdown *)r;
    struct text_span rest = stacks_of(state);
    struct stack s;
    if (!next_stack(p, &rest, &s) || rest.len || !s.depth)
        return 0;
    const struct pushdown_element top = top_of(p, &s);
    if (top.kind != PUSHDOWN_EMBED || !p->embeds[top.value]->ops->text_key)
        return 0;
    const uint64_t key = p->embeds[top.value]->ops->text_key(p->embeds[top.value], s.inner);
    return key & TEXT_KEY_OWN ? mix_bits(key + top.value) | TEXT_KEY_OWN : key;
}

/* Adds the bytes that the element can begin with. */
static void add_first_bytes(const struct pushdown *p, struct pushdown_element e, uint64_t *bytes) {
    if (e.kind == PUSHDOWN_BYTE) {
        bytes[e.value / 64] |= 1ULL << e.value % 64;
        return;
    }
    for (uint32_t c = 0; c < 0x80; c++)
        if (takes_char(p, e, c, c))
            bytes[c / 64] |= 1ULL << c % 64;
    for (uint32_t b = 0xc2; b <= 0xf4; b++) {
        const struct window w = read_byte(0, (uint8_t)b);
        if (takes_char(p, e, w.from, w.to))
            bytes[b / 64] |= 1ULL << b % 64;
    }
}

static void narrow(const struct recognizer *r, struct text_span state, uint64_t bytes[4]) {
    const struct pushdown *p = (const struct pushdown *)r;
    uint64_t all[4] = {0};
    struct text_span rest = stacks_of(state);
    struct stack s;
    if (word_at(state.data))
        return;
    while (next_stack(p, &rest, &s)) {
        uint64_t inner[4] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
        if (!s.depth)
            continue;
        const struct pushdown_element top = top_of(p, &s);
        if (top.kind != PUSHDOWN_EMBED) {
            add_first_bytes(p, top, all);
            continue;
        }
        if (p->embeds[top.value]->ops->narrow)
            p->embeds[top.value]->ops->narrow(p->embeds[top.value], s.inner, inner);
        for (int i = 0; i < 4; i++)
            all[i] |= inner[i];
    }
    memcpy(bytes, all, sizeof all);
}

static void destroy(struct recognizer *r) {
    pushdown_destroy((struct pushdown *)r);
}

static size_t bytes(const struct recognizer *r) {
    const struct pushdown *p = (const struct pushdown *)r;
    size_t sum = sizeof *p + p->elements_cap * sizeof *p->elements +
                 p->alternatives_cap * sizeof *p->alternatives + p->rules_cap * sizeof *p->rules +
                 p->classes_cap * sizeof *p->classes + p->ranges_cap * sizeof *p->ranges +
                 p->embeds_cap * sizeof *p->embeds + p->embed_nullable_cap;
    for (uint32_t i = 0; i < p->n_embeds; i++)
        sum += p->embeds[i]->ops->bytes(p->embeds[i]);
    return sum;
}

struct pushdown *pushdown_create(void) {
    static const struct recognizer_ops ops = {destroy, start, step, end, text_key, narrow, bytes};
    struct pushdown *p = mem_calloc(1, sizeof *p);
    if (p)
        p->base.ops = &ops;
    return p;
}
