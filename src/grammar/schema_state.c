/* SPDX-License-Identifier: Apache-2.0 */
/* schema_state.c: reading JSON of a schema byte by byte.
 *
 * What kind of thing comes next (`phase`) is the same however the text is understood. *Threads*
 * are the ways in which it may be: each has the containers that are open, a plan for each, and what
 * it is reading. A thread ends when its plan cannot go on; the text is refused when all have ended.
 *
 *     head, text | thread: head, frame of each open container | thread ...
 *
 * There is no blank before the value or after it, and at most SCHEMA_BLANKS_MAX in a row within.
 * `text`: of a number, or of a key as long as it may become a named one. Threads are sorted, and
 * each is there once, so that equal states are equal blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_state.h"

/* ---- what a container may have next ---------------------------------------------------------- */

static bool counts_met(const struct thread *t) {
    const struct schema_branch *b = &t->plan->branch;
    for (uint32_t k = 0; k < b->n_counted; k++)
        if (t->top.counted[k] < b->counted[k].min)
            return false;
    return true;
}

static const struct schema_choices *item_choices(const struct thread *t) {
    const struct schema_plan *p = t->plan;
    if (t->top.count >= p->max)
        return NULL;
    return t->top.count < p->branch.n_prefix ? &p->prefix[t->top.count] : &p->rest;
}

static bool item_fits(const struct thread *t, const struct schema_choice *choice) {
    return (!t->plan->unique || !is_seen(t, choice->counts)) &&
           choice_fits(t, choice, SCHEMA_UNBOUNDED);
}

static bool class_fits(const struct thread *t, uint32_t i) {
    return fits(t, &t->plan->classes[i], SCHEMA_UNBOUNDED) &&
           language_start(t->plan->branch.classes[i].keys).state != 0;
}

static bool may_add_member(const struct thread *t) {
    uint32_t which;
    if (t->plan->branch.n_named && some_named(t, "", 0, false, &which))
        return true;
    for (uint32_t i = 0; i < t->plan->branch.n_classes; i++)
        if (class_fits(t, i))
            return true;
    return false;
}

static bool may_add_item(const struct thread *t) {
    const struct schema_choices *choices = item_choices(t);
    for (uint32_t i = 0; choices && i < choices->n; i++)
        if (item_fits(t, &choices->all[i]))
            return true;
    return false;
}

static bool may_close(const struct thread *t) {
    const struct schema_branch *b = &t->plan->branch;
    return t->top.count >= b->min && counts_met(t) &&
           (b->type == SCHEMA_ARRAY || missing(t, SCHEMA_UNBOUNDED) == 0);
}

/* ---- beginnings of values -------------------------------------------------------------------- */

static bool begin_plan(struct writing *w, const struct thread *t, uint32_t plan, uint8_t byte) {
    ASSERT(t->head.levels <= SCHEMA_LEVELS_MAX);
    const struct schema_plan *p = &w->schema->plans[plan];
    struct thread made = *t;
    const char text = (char)byte;
    made.head.plan = plan;
    made.head.at = (struct language_at){0};
    switch (p->branch.type) {
    case SCHEMA_OBJECT:
    case SCHEMA_ARRAY:
        return t->head.levels + p->height > SCHEMA_LEVELS_MAX || write_open(w, t, plan);
    case SCHEMA_STRING:
        made.head.leaf = LEAF_STRING;
        made.head.at = language_start(p->branch.strings);
        return write_thread(w, &made);
    case SCHEMA_NUMBER:
        made.head.leaf = LEAF_NUMBER;
        return !numbers_can_begin(p->branch.numbers, (struct text_span){&text, 1}) ||
               write_thread(w, &made);
    default:
        made.head.leaf = LEAF_LITERAL;
        made.head.plan = 0;
        return write_thread(w, &made);
    }
}

static bool begin_goal(struct writing *w, const struct thread *t, uint32_t goal,
                       enum schema_type type, uint8_t byte) {
    const struct schema_range r = w->schema->goals[goal];
    for (uint32_t i = r.first; i < r.first + r.n; i++)
        if (w->schema->plans[i].branch.type == type && !begin_plan(w, t, i, byte))
            return false;
    return true;
}

static bool type_of_byte(uint8_t byte, enum schema_type *type) {
    static const struct {
        uint8_t byte;
        enum schema_type type;
    } BYTES[] = {{'{', SCHEMA_OBJECT}, {'[', SCHEMA_ARRAY}, {'"', SCHEMA_STRING},
                 {'-', SCHEMA_NUMBER}, {'n', SCHEMA_NULL},  {'t', SCHEMA_TRUE},
                 {'f', SCHEMA_FALSE}};
    *type = SCHEMA_NUMBER;
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++)
        if (BYTES[i].byte == byte) {
            *type = BYTES[i].type;
            return true;
        }
    return byte >= '0' && byte <= '9';
}

static const struct schema_choices *value_choices(const struct thread *t) {
    return t->head.leaf == LEAF_NAMED   ? &t->plan->named[t->head.plan]
           : t->head.leaf == LEAF_CLASS ? &t->plan->classes[t->head.plan]
                                        : item_choices(t);
}

/* All ways in which the thread's next value may begin with the byte. */
static bool begin_value(struct writing *w, const struct thread *t, enum schema_type type,
                        uint8_t byte) {
    if (!t->head.levels)
        return begin_goal(w, t, w->schema->root, type, byte);
    const struct schema_choices *choices = value_choices(t);
    const bool item = t->head.leaf == LEAF_NONE;
    const uint32_t named = t->head.leaf == LEAF_NAMED ? t->head.plan : SCHEMA_UNBOUNDED;
    for (uint32_t i = 0; choices && i < choices->n; i++) {
        struct thread made = *t;
        const struct schema_choice *choice = &choices->all[i];
        if (item ? !item_fits(t, choice) : !choice_fits(t, choice, named))
            continue;
        made.top.pending = choice->counts;
        made.head.leaf = LEAF_NONE;
        made.head.plan = 0;
        if (!begin_goal(w, &made, choice->goal, type, byte))
            return false;
    }
    return true;
}

static bool is_blank(uint8_t byte) {
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static bool copy_threads(struct reading *r, struct writing *w) {
    struct thread t;
    while (reading_next(r, &t))
        if (!write_thread(w, &t))
            return false;
    return true;
}

static bool blank(struct reading *r, struct writing *w) {
    if (r->head.blanks >= SCHEMA_BLANKS_MAX)
        return true;
    w->head.blanks++;
    return copy_threads(r, w);
}

static bool close_container(struct reading *r, struct writing *w, enum schema_type type) {
    struct thread t;
    w->head.phase = PHASE_AFTER;
    while (reading_next(r, &t))
        if (t.head.levels && t.plan->branch.type == type && may_close(&t) && !write_closed(w, &t))
            return false;
    return true;
}

static bool step_value(struct reading *r, struct writing *w, uint8_t byte) {
    enum schema_type type;
    struct thread t;
    if (is_blank(byte))
        return blank(r, w);
    if (byte == ']' && r->head.phase == PHASE_FIRST_ITEM)
        return close_container(r, w, SCHEMA_ARRAY);
    if (!type_of_byte(byte, &type))
        return true;
    w->head.phase = type == SCHEMA_OBJECT   ? PHASE_FIRST_KEY
                    : type == SCHEMA_ARRAY  ? PHASE_FIRST_ITEM
                    : type == SCHEMA_STRING ? PHASE_STRING
                    : type == SCHEMA_NUMBER ? PHASE_NUMBER
                                            : PHASE_LITERAL;
    w->head.literal = byte;
    w->head.literal_at = 1;
    if (type != SCHEMA_NULL && type != SCHEMA_TRUE && type != SCHEMA_FALSE)
        w->head.literal = w->head.literal_at = 0;
    if (type == SCHEMA_NUMBER && !writing_text(w, "", 0, (const char *)&byte, 1))
        return false;
    while (reading_next(r, &t))
        if (!begin_value(w, &t, type, byte))
            return false;
    return true;
}

/* ---- keys and what is between things --------------------------------------------------------- */

static bool begin_key(struct reading *r, struct writing *w) {
    struct thread t;
    w->head.phase = PHASE_KEY_TEXT;
    while (reading_next(r, &t)) {
        struct thread made = t;
        uint32_t which;
        made.head.leaf = LEAF_NAMED;
        made.head.plan = 0;
        if (t.plan->branch.n_named && some_named(&t, "", 0, false, &which) &&
            !write_thread(w, &made))
            return false;
        made.head.leaf = LEAF_CLASS;
        for (uint32_t i = 0; i < t.plan->branch.n_classes; i++) {
            made.head.plan = i;
            made.head.at = language_start(t.plan->branch.classes[i].keys);
            const size_t at = w->out->len;
            if (!class_fits(&t, i))
                continue;
            if (!write_thread(w, &made))
                return false;
            if (name_matters(&made))
                write_name(w, &made, at, "", 0);
        }
    }
    return true;
}

static bool step_key(struct reading *r, struct writing *w, uint8_t byte) {
    if (is_blank(byte))
        return blank(r, w);
    if (byte == '}' && r->head.phase == PHASE_FIRST_KEY)
        return close_container(r, w, SCHEMA_OBJECT);
    return byte != '"' || begin_key(r, w);
}

static bool step_colon(struct reading *r, struct writing *w, uint8_t byte) {
    if (is_blank(byte))
        return blank(r, w);
    w->head.phase = PHASE_VALUE;
    return byte != ':' || copy_threads(r, w);
}

static bool comma(struct reading *r, struct writing *w) {
    struct thread t;
    while (reading_next(r, &t)) {
        const bool object = t.head.levels && t.plan->branch.type == SCHEMA_OBJECT;
        w->head.phase = object ? PHASE_KEY : PHASE_VALUE;
        if (t.head.levels && (object ? may_add_member(&t) : may_add_item(&t)) &&
            !write_thread(w, &t))
            return false;
    }
    return true;
}

static bool step_after(struct reading *r, struct writing *w, uint8_t byte) {
    if (is_blank(byte))
        return blank(r, w);
    if (byte == ',')
        return comma(r, w);
    return (byte != '}' && byte != ']') ||
           close_container(r, w, byte == '}' ? SCHEMA_OBJECT : SCHEMA_ARRAY);
}

/* ---- literals and numbers -------------------------------------------------------------------- */

static bool write_all_done(struct reading *r, struct writing *w) {
    struct thread t;
    w->head.phase = PHASE_AFTER;
    while (reading_next(r, &t))
        if (!write_done(w, &t))
            return false;
    return true;
}

static bool step_literal(struct reading *r, struct writing *w, uint8_t byte) {
    const char *text = literal_text(r->head.literal);
    ASSERT(r->head.literal_at < strlen(text));
    if ((uint8_t)text[r->head.literal_at] != byte)
        return true;
    if (text[++w->head.literal_at])
        return copy_threads(r, w);
    w->head.literal = w->head.literal_at = 0;
    return write_all_done(r, w);
}

/* If the digits do not matter to any thread, all are written as 9, so that states are few. */
static void settle_number(struct writing *w, size_t at, size_t len) {
    char *text = w->out->data + at;
    const size_t first = *text == '-';
    const bool zero = len > first && text[first] == '0';
    for (size_t i = first + zero; i < len; i++)
        if (text[i] >= '0' && text[i] <= '9')
            text[i] = '9';
}

static bool all_free(struct reading r, struct text_span text, bool *out) {
    struct text_buf key = {0};
    struct thread t;
    bool good = true;
    *out = true;
    while (good && *out && reading_next(&r, &t)) {
        key.len = 0;
        good = numbers_key(r.schema->plans[t.head.plan].branch.numbers, text, &key);
        *out = good && key.len && (uint8_t)key.data[0] == 0xff;
    }
    text_free(&key);
    return good;
}

static bool number_digit(struct reading *r, struct writing *w, uint8_t byte) {
    const char ch = (char)byte;
    struct thread t;
    bool free_digits;
    if (!writing_text(w, r->text, r->head.text_len, &ch, 1))
        return false;
    const size_t at = w->begin + sizeof w->head, len = r->head.text_len + 1u;
    while (reading_next(r, &t)) {
        const struct text_span text = {w->out->data + at, len};
        if (numbers_can_begin(r->schema->plans[t.head.plan].branch.numbers, text) &&
            !write_thread(w, &t))
            return false;
    }
    struct reading made;
    if (!w->n)
        return true;
    memcpy(w->out->data + w->begin, &w->head, sizeof w->head);
    reading_begin(&made, w->schema,
                  (struct text_span){w->out->data + w->begin, w->out->len - w->begin});
    if (!all_free(made, (struct text_span){made.text, len}, &free_digits))
        return w->failed = true, false;
    if (free_digits)
        settle_number(w, at, len);
    return true;
}

/* The number ends before this byte; what it is then is another step. */
static bool number_end(struct reading *r, struct writing *w, uint8_t byte) {
    struct text_buf block = {0};
    struct writing between = {.schema = w->schema, .out = &block, .head = w->head};
    struct thread t;
    bool good = writing_begin(&between);
    between.head.phase = PHASE_AFTER;
    while (good && reading_next(r, &t)) {
        const struct numbers *n = r->schema->plans[t.head.plan].branch.numbers;
        if (t.head.levels && numbers_contains(n, (struct text_span){r->text, r->head.text_len}))
            good = write_done(&between, &t);
    }
    good = good && writing_end(&between);
    struct reading after;
    if (good && between.n) {
        reading_begin(&after, w->schema, (struct text_span){block.data, block.len});
        w->head = after.head;
        good = step_after(&after, w, byte);
    }
    text_free(&block);
    w->failed |= !good;
    return good;
}

static bool step_number(struct reading *r, struct writing *w, uint8_t byte) {
    const bool goes_on = (byte >= '0' && byte <= '9') || (byte && strchr("+-.eE", byte));
    return goes_on ? number_digit(r, w, byte) : number_end(r, w, byte);
}

/* ---- the recognizer -------------------------------------------------------------------------- */

static enum recognizer_step schema_start(const struct recognizer *r, struct text_buf *out) {
    struct writing w = {.schema = (const struct schema *)r,
                        .out = out,
                        .head = {.phase = PHASE_VALUE, .blanks = SCHEMA_BLANKS_MAX}};
    const struct thread_head head = {.size = sizeof head};
    const bool good = writing_begin(&w) && text_append(out, (const char *)&head, sizeof head);
    w.n = 1;
    return good && writing_end(&w) ? STEP_TAKEN : STEP_MEMORY;
}

static enum recognizer_step schema_step(const struct recognizer *r, struct text_span state,
                                        uint8_t byte, struct text_buf *out) {
    static bool (*const STEPS[])(struct reading *, struct writing *, uint8_t) = {
        [PHASE_VALUE] = step_value,   [PHASE_FIRST_ITEM] = step_value,
        [PHASE_FIRST_KEY] = step_key, [PHASE_KEY] = step_key,
        [PHASE_COLON] = step_colon,   [PHASE_AFTER] = step_after,
        [PHASE_STRING] = step_string, [PHASE_KEY_TEXT] = step_string,
        [PHASE_NUMBER] = step_number, [PHASE_LITERAL] = step_literal,
    };
    enum { THREADS_MAX = 2000 };
    struct reading from;
    reading_begin(&from, (const struct schema *)r, state);
    if (from.head.phase == PHASE_END || byte == 0xff)
        return STEP_REFUSED;
    struct writing w = {.schema = from.schema, .out = out, .head = from.head};
    if (!is_blank(byte))
        w.head.blanks = 0;
    if (!writing_begin(&w) || !STEPS[from.head.phase](&from, &w, byte) || !writing_end(&w))
        return STEP_MEMORY;
    return w.n == 0 ? STEP_REFUSED : w.n > THREADS_MAX ? STEP_LIMIT : STEP_TAKEN;
}

static enum grammar_end schema_end(const struct recognizer *r, struct text_span state) {
    struct reading from;
    struct thread t;
    reading_begin(&from, (const struct schema *)r, state);
    if (from.head.phase == PHASE_END)
        return GRAMMAR_ENDED;
    while (from.head.phase == PHASE_NUMBER && reading_next(&from, &t)) {
        const struct numbers *n = from.schema->plans[t.head.plan].branch.numbers;
        if (!t.head.levels &&
            numbers_contains(n, (struct text_span){from.text, from.head.text_len}))
            return GRAMMAR_MAY_END;
    }
    return GRAMMAR_OPEN;
}

static void schema_destroy(struct recognizer *r) {
    struct schema *s = (struct schema *)r;
    schema_free(&s->c);
    mem_free(s->plans);
    mem_free(s->goals);
    mem_free(s);
}

static size_t schema_bytes(const struct recognizer *r) {
    return sizeof(struct schema) + ((const struct schema *)r)->bytes;
}

const struct recognizer_ops SCHEMA_OPS = {.destroy = schema_destroy,
                                          .start = schema_start,
                                          .step = schema_step,
                                          .end = schema_end,
                                          .text_key = schema_text_key,
                                          .narrow = schema_narrow,
                                          .bytes = schema_bytes};
