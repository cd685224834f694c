/* SPDX-License-Identifier: Apache-2.0 */
/* automaton.c: states are blocks, found by hash; the rows of transitions and the kept sets of
 * tokens count towards the machine's limit as the blocks do. */
#include <string.h>

#include <xxhash.h>

#include "grammar/automaton.h"

enum { ROW = 256, CHUNK_ROWS = 64, TABLE_MIN = 64, DENSE = UINT32_MAX };

/* The row of a state that was never left. */
static uint32_t unknown_row[ROW];

/* ---- create and destroy ---------------------------------------------------------------------- */

static bool add_state(struct machine *m, struct machine_state state) {
    if (!ARRAY_GROW(m->states, m->states_cap, m->n + 1) ||
        !ARRAY_GROW(m->rows, m->rows_cap, m->n + 1))
        return false;
    m->states[m->n] = state;
    m->rows[m->n++] = unknown_row;
    m->used += sizeof *m->states + sizeof *m->rows + 2 * sizeof *m->table + state.len;
    return true;
}

static bool begin_machine(struct machine *m) {
    m->table_size = TABLE_MIN;
    m->table = mem_calloc(TABLE_MIN, sizeof *m->table);
    return m->table && add_state(m, (struct machine_state){0}) &&
           add_state(m, (struct machine_state){0});
}

bool machine_init(struct machine *m, const struct recognizer *r, size_t limit) {
    *m = (struct machine){.recognizer = r, .limit = limit, .generation = 1, .failed = STEP_MEMORY};
    if (begin_machine(m))
        return true;
    machine_free(m);
    return false;
}

static void free_contents(struct machine *m) {
    for (uint32_t i = 0; i < m->n; i++)
        mem_free(m->states[i].set);
    for (uint32_t i = 0; i < m->n_keyed; i++)
        mem_free(m->keyed[i].set);
    mem_free(m->states);
    mem_free(m->rows);
    mem_free(m->table);
    mem_free(m->keyed);
    text_free(&m->blocks);
}

void machine_free(struct machine *m) {
    free_contents(m);
    for (uint32_t i = 0; i < m->n_chunks; i++)
        mem_free(m->chunks[i]);
    mem_free(m->chunks);
    text_free(&m->scratch);
    mem_free(m->rest);
    *m = (struct machine){0};
}

size_t machine_bytes(const struct machine *m) {
    const size_t rows = m->n_chunks * CHUNK_ROWS - m->n_rows; /* not in use */
    return m->used + rows * ROW * sizeof **m->rows + m->scratch.cap +
           2 * token_set_words(m->n_ids) * sizeof *m->rest;
}

/* ---- states ---------------------------------------------------------------------------------- */

struct text_span machine_block(const struct machine *m, uint32_t state) {
    DEBUG_ASSERT(state >= STATE_FIRST && state < m->n);
    return (struct text_span){m->blocks.data + m->states[state].at, m->states[state].len};
}

/* The slot of the state with this block, or a free one. */
static uint32_t *find_slot(const struct machine *m, uint64_t hash, struct text_span block) {
    for (uint32_t i = (uint32_t)hash & (m->table_size - 1);; i = (i + 1) & (m->table_size - 1)) {
        const uint32_t state = m->table[i];
        if (state == STATE_UNKNOWN)
            return &m->table[i];
        if (m->states[state].hash == hash && span_compare(machine_block(m, state), block) == 0)
            return &m->table[i];
    }
}

static bool grow_table(struct machine *m) {
    const uint32_t size = 2 * m->table_size;
    uint32_t *table = mem_calloc(size, sizeof *table);
    if (!table)
        return false;
    for (uint32_t s = STATE_FIRST; s < m->n; s++) {
        uint32_t i = (uint32_t)m->states[s].hash & (size - 1);
        while (table[i])
            i = (i + 1) & (size - 1);
        table[i] = s;
    }
    mem_free(m->table);
    m->table = table;
    m->table_size = size;
    return true;
}

uint32_t machine_intern(struct machine *m, struct text_span block) {
    if (m->last && span_compare(machine_block(m, m->last), block) == 0)
        return m->last;
    const uint64_t hash = XXH3_64bits(block.data, block.len);
    uint32_t *slot = find_slot(m, hash, block);
    if (*slot != STATE_UNKNOWN)
        return m->last = *slot;
    if (2 * (m->n + 1) > m->table_size) {
        if (!grow_table(m))
            return STATE_UNKNOWN;
        slot = find_slot(m, hash, block);
    }
    const size_t at = m->blocks.len;
    ASSERT(block.len < UINT32_MAX && m->n < UINT32_MAX / 4);
    if (!text_append(&m->blocks, block.data, block.len))
        return STATE_UNKNOWN;
    const struct machine_state state = {
        .hash = hash,
        .at = at,
        .len = (uint32_t)block.len,
        .end = (uint8_t)m->recognizer->ops->end(m->recognizer, block),
    };
    if (!add_state(m, state)) {
        m->blocks.len = at;
        return STATE_UNKNOWN;
    }
    return m->last = *slot = m->n - 1;
}

uint32_t machine_start(struct machine *m) {
    m->scratch.len = 0;
    const enum recognizer_step step = m->recognizer->ops->start(m->recognizer, &m->scratch);
    ASSERT(step == STEP_TAKEN || step == STEP_MEMORY);
    if (step != STEP_TAKEN)
        return STATE_UNKNOWN;
    return machine_intern(m, (struct text_span){m->scratch.data, m->scratch.len});
}

/* ---- transitions ----------------------------------------------------------------------------- */

/* A row of zeros. NULL: out of memory. */
static uint32_t *new_row(struct machine *m) {
    if (m->n_rows == m->n_chunks * CHUNK_ROWS) {
        if (!ARRAY_GROW(m->chunks, m->chunks_cap, m->n_chunks + 1))
            return NULL;
        m->chunks[m->n_chunks] = mem_alloc(CHUNK_ROWS * ROW * sizeof **m->chunks);
        if (!m->chunks[m->n_chunks])
            return NULL;
        m->n_chunks++;
    }
    uint32_t *row = m->chunks[m->n_rows / CHUNK_ROWS] + m->n_rows % CHUNK_ROWS * ROW;
    m->n_rows++;
    return memset(row, 0, ROW * sizeof *row);
}

static bool make_row(struct machine *m, uint32_t state) {
    uint32_t *row = new_row(m);
    if (!row)
        return false;
    if (m->recognizer->ops->narrow) {
        uint64_t bytes[4] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
        m->recognizer->ops->narrow(m->recognizer, machine_block(m, state), bytes);
        _Static_assert(STATE_UNKNOWN == 0 && STATE_REFUSED == 1, "of the bits that are clear");
        for (unsigned b = 0; b < ROW; b++)
            row[b] = ~(bytes[b / 64] >> b % 64) & 1;
    }
    m->rows[state] = row;
    m->used += ROW * sizeof *row;
    return true;
}

void machine_allow_work(struct machine *m, uint64_t work) {
    m->work = work;
    m->failed = STEP_MEMORY;
}

static bool take_work(struct machine *m, size_t block_bytes) {
    const uint64_t work = 1 + block_bytes / 256;
    if (m->work < work) {
        m->failed = STEP_LIMIT;
        return false;
    }
    m->work -= work;
    return true;
}

uint32_t machine_ask(struct machine *m, uint32_t state, uint8_t byte) {
    if (m->rows[state] == unknown_row && !make_row(m, state))
        return STATE_UNKNOWN;
    uint32_t to = m->rows[state][byte];
    if (to != STATE_UNKNOWN)
        return to;
    if (!take_work(m, m->states[state].len))
        return STATE_UNKNOWN;
    m->scratch.len = 0;
    switch (m->recognizer->ops->step(m->recognizer, machine_block(m, state), byte, &m->scratch)) {
    case STEP_TAKEN:
        to = machine_intern(m, (struct text_span){m->scratch.data, m->scratch.len});
        break;
    case STEP_REFUSED:
        to = STATE_REFUSED;
        break;
    case STEP_LIMIT:
        m->failed = STEP_LIMIT;
        return STATE_UNKNOWN;
    case STEP_MEMORY:
        return STATE_UNKNOWN;
    }
    return m->rows[state][byte] = to;
}

bool machine_forget(struct machine *m, uint32_t *states, size_t n) {
    struct machine fresh = {.recognizer = m->recognizer,
                            .limit = m->limit,
                            .generation = m->generation + 1,
                            .failed = m->failed,
                            .work = m->work,
                            .vocab = m->vocab,
                            .n_ids = m->n_ids};
    bool good = begin_machine(&fresh);
    for (size_t i = 0; good && i < n; i++) {
        states[i] = machine_intern(&fresh, machine_block(m, states[i]));
        good = states[i] != STATE_UNKNOWN;
    }
    free_contents(good ? m : &fresh);
    if (!good)
        return false;
    fresh.scratch = m->scratch;
    fresh.chunks = m->chunks;
    fresh.n_chunks = m->n_chunks;
    fresh.chunks_cap = m->chunks_cap;
    fresh.rest = m->rest;
    fresh.more = m->more;
    *m = fresh;
    return true;
}

/* ---- states that take any text --------------------------------------------------------------- */

/* Every byte of first .. last, and `more` continuation bytes after it, lead from `at` to
 * `state`. */
static bool all_lead_to(struct machine *m, uint32_t state, uint32_t at, unsigned first,
                        unsigned last, unsigned more) {
    uint32_t good = more ? STATE_UNKNOWN : state; /* checked */
    for (unsigned b = first; b <= last; b++) {
        const uint32_t to = machine_step(m, at, (uint8_t)b);
        if (to == good && to != STATE_UNKNOWN)
            continue;
        if (to <= STATE_REFUSED || !more || !all_lead_to(m, state, to, 0x80, 0xbf, more - 1))
            return false;
        good = to;
    }
    return true;
}

/* The same for the bytes that follow lead bytes whose next byte is not any continuation byte. */
static bool special_lead_to(struct machine *m, uint32_t state, uint8_t lead, unsigned first,
                            unsigned last, unsigned more) {
    const uint32_t at = machine_step(m, state, lead);
    return at > STATE_REFUSED && all_lead_to(m, state, at, first, last, more);
}

static bool returns_always(struct machine *m, uint32_t s) {
    static const char sample[] = "a ~{";
    for (const char *c = sample; *c; c++)
        if (machine_step(m, s, (uint8_t)*c) != s)
            return false;
    return all_lead_to(m, s, s, 0x20, '"' - 1, 0) && all_lead_to(m, s, s, '"' + 1, '\\' - 1, 0) &&
           all_lead_to(m, s, s, '\\' + 1, 0x7e, 0) && all_lead_to(m, s, s, 0xc2, 0xdf, 1) &&
           special_lead_to(m, s, 0xe0, 0xa0, 0xbf, 1) && all_lead_to(m, s, s, 0xe1, 0xec, 2) &&
           special_lead_to(m, s, 0xed, 0x80, 0x9f, 1) && all_lead_to(m, s, s, 0xee, 0xef, 2) &&
           special_lead_to(m, s, 0xf0, 0x90, 0xbf, 2) && all_lead_to(m, s, s, 0xf1, 0xf3, 3) &&
           special_lead_to(m, s, 0xf4, 0x80, 0x8f, 2);
}

uint32_t machine_after(struct machine *m, uint32_t state, unsigned left) {
    if (left == 0 || m->states[state].after != STATE_UNKNOWN)
        return left ? m->states[state].after : state;
    uint32_t to = machine_step(m, state, 0x80);
    for (unsigned b = 0x81; b <= 0xbf && to > STATE_REFUSED; b++)
        if (machine_step(m, state, (uint8_t)b) != to)
            to = STATE_REFUSED;
    if (to > STATE_REFUSED)
        to = machine_after(m, to, left - 1);
    return m->states[state].after = to > STATE_REFUSED ? to : STATE_REFUSED;
}

static uint64_t recognizer_key(const struct machine *m, uint32_t state) {
    const struct recognizer_ops *ops = m->recognizer->ops;
    return ops->text_key ? ops->text_key(m->recognizer, machine_block(m, state)) : 0;
}

enum text_state machine_text(struct machine *m, uint32_t state) {
    if (m->states[state].text == TEXT_NOT_ASKED) {
        const uint64_t key = recognizer_key(m, state);
        enum text_state text = TEXT_NO;
        const bool any = key && !(key & TEXT_KEY_OWN);
        if (any && (key & TEXT_KEY_STAYS))
            text = TEXT_STAYS;
        else if (any)
            text = text_key_room(key) >= TEXT_KEY_LONG ? TEXT_TAKES : TEXT_NO;
        else if (returns_always(m, state))
            text = TEXT_STAYS;
        m->states[state].text = (uint8_t)text;
    }
    return m->states[state].text;
}

uint64_t machine_text_key(struct machine *m, uint32_t state) {
    return machine_text(m, state) == TEXT_NO ? recognizer_key(m, state)
                                             : TEXT_KEY_ANY + TEXT_KEY_UNBOUNDED;
}

/* ---- kept sets ------------------------------------------------------------------------------- */

/* How many bits are set; DENSE if they take more memory as ids. */
static uint32_t count_ids(const uint64_t *bits, size_t words) {
    size_t n = 0;
    for (size_t i = 0; i < words && n < 2 * words; i++)
        if (bits[i])
            n += (size_t)__builtin_popcountll(bits[i]);
    return n < 2 * words ? (uint32_t)n : DENSE;
}

static size_t set_bytes(const struct kept_set *s, uint32_t n_ids) {
    const size_t words = s->n_ids == DENSE ? token_set_words(n_ids) : (s->n_ids + 1) / 2;
    return sizeof *s + words * sizeof *s->data;
}

static struct kept_set *make_set(struct machine *m, const uint64_t *bits) {
    const size_t words = token_set_words(m->n_ids);
    const struct kept_set head = {count_ids(bits, words)};
    struct kept_set *s = mem_alloc(set_bytes(&head, m->n_ids));
    if (!s)
        return NULL;
    *s = head;
    m->used += set_bytes(s, m->n_ids);
    if (s->n_ids == DENSE) {
        memcpy(s->data, bits, words * sizeof *bits);
        return s;
    }
    uint32_t *ids = (uint32_t *)s->data;
    for (size_t i = 0; i < words; i++)
        for (uint64_t word = bits[i]; word; word &= word - 1)
            *ids++ = (uint32_t)(64 * i) + (uint32_t)__builtin_ctzll(word);
    return s;
}

void kept_set_add(const struct kept_set *s, uint64_t *bits, uint32_t n_ids) {
    if (s->n_ids == DENSE) {
        for (size_t i = 0, words = token_set_words(n_ids); i < words; i++)
            bits[i] |= s->data[i];
        return;
    }
    const uint32_t *ids = (const uint32_t *)s->data;
    for (uint32_t i = 0; i < s->n_ids; i++)
        bits[ids[i] / 64] |= 1ULL << ids[i] % 64;
}

static void drop_set(struct machine *m, struct kept_set *set) {
    if (set)
        m->used -= set_bytes(set, m->n_ids);
    mem_free(set);
}

bool machine_use_vocab(struct machine *m, uint64_t vocab, uint32_t n_ids) {
    if (m->vocab == vocab)
        return true;
    uint64_t *rest = mem_calloc(2 * token_set_words(n_ids) + 1, sizeof *rest);
    if (!rest)
        return false;
    for (uint32_t i = 0; i < m->n; i++) {
        drop_set(m, m->states[i].set);
        m->states[i].set = NULL;
    }
    for (uint32_t i = 0; i < m->n_keyed; i++)
        drop_set(m, m->keyed[i].set);
    mem_free(m->rest);
    m->rest = rest;
    m->more = rest + token_set_words(n_ids);
    m->n_keyed = 0;
    m->vocab = vocab;
    m->n_ids = n_ids;
    return true;
}

struct kept_set *machine_keyed_set(const struct machine *m, uint64_t key) {
    for (uint32_t i = 0; i < m->n_keyed; i++)
        if (m->keyed[i].key == key)
            return m->keyed[i].set;
    return NULL;
}

void machine_keep_set(struct machine *m, uint32_t state, const uint64_t *bits) {
    ASSERT(state >= STATE_FIRST && state < m->n && !m->states[state].set);
    m->states[state].set = make_set(m, bits);
}

void machine_keep_keyed_set(struct machine *m, uint64_t key, const uint64_t *bits) {
    if (!ARRAY_GROW(m->keyed, m->keyed_cap, m->n_keyed + 1))
        return;
    struct kept_set *set = make_set(m, bits);
    if (!set)
        return;
    m->keyed[m->n_keyed++] = (struct keyed_set){key, set};
    m->used += sizeof *m->keyed;
}
