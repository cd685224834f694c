/* SPDX-License-Identifier: Apache-2.0 */
/* gbnf.c: reads a grammar in llama.cpp's GBNF into the tables of pushdown.h.
 *
 *     grammar      rule...            rule   name ::= alternatives     # comment
 *     alternatives  sequence | ...    item   "text"  [a-z\n]  [^"]  .  name  ( alternatives )
 *     sequence      item...           after an item  *  +  ?  {3}  {3,}  {3,5}
 *
 *     escapes       \n \r \t \\ \" \[ \] \- \^ \xNN \uNNNN \UNNNNNNNN
 *     and           <[123]>           the control token 123
 *                   %json {...}       JSON of that schema
 *                   %regex "..."      a text of that expression; only \" is an escape in it
 *
 * A rule ends with its line; inside parentheses and after ::= and | it may go on in the next one.
 * The text is the rule "root".
 *
 * Groups and repetitions become rules of their own:
 *
 *     x*       r ::= x r | ""            x{2,4}   x x r2    r2 ::= x r1 | ""    r1 ::= x | ""
 */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "grammar/pushdown.h"
#include "util/json.h"

enum {
    NESTED_MAX = 200, /* parentheses in each other */
    NO_RULE = UINT32_MAX,
    UNBOUNDED = UINT32_MAX,
    CHAR_MAX_VALUE = 0x10ffff,
    SURROGATE_FIRST = 0xd800,
    SURROGATE_LAST = 0xdfff,
    CONTROL_ID_BITS = 24,
};

struct reader {
    struct text_span text;
    size_t at;
    struct pushdown *p;
    struct grammar_budget *budget;
    kvasir_error *err;
    struct pushdown_element *pending;  /* [n_pending] of sequences that are being read */
    struct pushdown_alternative *ends; /* [n_ends] of rules that are being read */
    uint32_t n_pending, pending_cap, n_ends, ends_cap;
    uint32_t *names; /* [names_size] of rules by name, + 1 */
    uint32_t names_size, n_named, nested;
    uint32_t rule; /* written, that is being read */
};

/* ---- errors ---------------------------------------------------------------------------------- */

static void place_of(const struct reader *r, size_t at, char out[48]) {
    size_t line = 1, from = 0;
    for (size_t i = 0; i < at && i < r->text.len; i++)
        if (r->text.data[i] == '\n') {
            line++;
            from = i + 1;
        }
    snprintf(out, 48, "line %zu, column %zu", line, at - from + 1);
}

static kvasir_status wrong(const struct reader *r, size_t at, kvasir_status code,
                           const char *what) {
    char place[48];
    place_of(r, at, place);
    return fail(r->err, code, "%s: %s", place, what);
}

static kvasir_status wrong_here(const struct reader *r, const char *what) {
    return wrong(r, r->at, KVASIR_ERR_ARGUMENT, what);
}

static kvasir_status out_of_memory(const struct reader *r) {
    return fail(r->err, KVASIR_ERR_MEMORY, "not enough memory for a grammar");
}

/* `ADD(r, list, n, cap, item)`: appends to a table of the grammar, which counts. */
#define ADD(r, list, n, cap, ...)                                                                  \
    do {                                                                                           \
        if (!budget_take((r)->budget, 10, 2 * sizeof *(list)))                                     \
            return too_large(r);                                                                   \
        if (!ARRAY_GROW(list, cap, (n) + 1))                                                       \
            return out_of_memory(r);                                                               \
        (list)[(n)++] = __VA_ARGS__;                                                               \
    } while (0)

static kvasir_status too_large(const struct reader *r) {
    char place[48];
    place_of(r, r->at, place);
    return grammar_too_large(r->err, place);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static kvasir_status add_pending(struct reader *r, enum pushdown_kind kind, uint32_t value) {
    ASSERT(value < PUSHDOWN_VALUE_MAX);
    ADD(r, r->pending, r->n_pending, r->pending_cap,
        (struct pushdown_element){(unsigned)kind & 7, value & (PUSHDOWN_VALUE_MAX - 1)});
    return KVASIR_OK;
}

static kvasir_status new_rule(struct reader *r, struct text_span name, uint32_t *out) {
    struct pushdown *p = r->p;
    *out = p->n_rules;
    ADD(r, p->rules, p->n_rules, p->rules_cap, (struct pushdown_rule){.name = name});
    return KVASIR_OK;
}

/* Moves the pending elements from `from` on to the end of the tables. *at: where they begin. */
static kvasir_status close_sequence(struct reader *r, uint32_t from, uint32_t *at) {
    struct pushdown *p = r->p;
    *at = p->n_elements;
    for (uint32_t i = from; i < r->n_pending; i++)
        ADD(r, p->elements, p->n_elements, p->elements_cap, r->pending[i]);
    ADD(r, p->elements, p->n_elements, p->elements_cap, (struct pushdown_element){PUSHDOWN_END, 0});
    r->n_pending = from;
    return KVASIR_OK;
}

static kvasir_status add_end(struct reader *r, uint32_t at) {
    ADD(r, r->ends, r->n_ends, r->ends_cap, (struct pushdown_alternative){at, 0});
    return KVASIR_OK;
}

/* The rule's alternatives are the ends from `from` on. */
static kvasir_status close_rule(struct reader *r, uint32_t rule, uint32_t from) {
    struct pushdown *p = r->p;
    p->rules[rule].first = p->n_alternatives;
    p->rules[rule].n = r->n_ends - from;
    p->rules[rule].defined = true;
    for (uint32_t i = from; i < r->n_ends; i++)
        ADD(r, p->alternatives, p->n_alternatives, p->alternatives_cap, r->ends[i]);
    r->n_ends = from;
    return KVASIR_OK;
}

/* rule ::= item next | "" ; next NO_RULE: rule ::= item | "" */
static kvasir_status optional_rule(struct reader *r, struct pushdown_element item, uint32_t rule,
                                   uint32_t next) {
    const uint32_t from = r->n_ends, pending = r->n_pending;
    uint32_t at;
    TRY(add_pending(r, item.kind, item.value));
    if (next != NO_RULE)
        TRY(add_pending(r, PUSHDOWN_RULE, next));
    TRY(close_sequence(r, pending, &at));
    TRY(add_end(r, at));
    TRY(close_sequence(r, pending, &at));
    TRY(add_end(r, at));
    return close_rule(r, rule, from);
}

/* ---- names ----------------------------------------------------------------------------------- */

static kvasir_status grow_names(struct reader *r) {
    const uint32_t size = r->names_size ? 2 * r->names_size : 64;
    uint32_t *names = mem_calloc(size, sizeof *names);
    if (!names)
        return out_of_memory(r);
    for (uint32_t i = 0; i < r->names_size; i++) {
        if (!r->names[i])
            continue;
        const struct text_span name = r->p->rules[r->names[i] - 1].name;
        uint32_t k = (uint32_t)XXH3_64bits(name.data, name.len) & (size - 1);
        while (names[k])
            k = (k + 1) & (size - 1);
        names[k] = r->names[i];
    }
    mem_free(r->names);
    r->names = names;
    r->names_size = size;
    return KVASIR_OK;
}

/* The rule of this name, made if there is none. */
static kvasir_status find_rule(struct reader *r, struct text_span name, uint32_t *rule) {
    if (2 * (r->n_named + 1) > r->names_size)
        TRY(grow_names(r));
    uint32_t k = (uint32_t)XXH3_64bits(name.data, name.len) & (r->names_size - 1);
    for (; r->names[k]; k = (k + 1) & (r->names_size - 1)) {
        *rule = r->names[k] - 1;
        if (span_compare(r->p->rules[*rule].name, name) == 0)
            return KVASIR_OK;
    }
    TRY(new_rule(r, name, rule));
    r->names[k] = *rule + 1;
    r->n_named++;
    return KVASIR_OK;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

/* ---- characters ------------------------------------------------------------------------------ */

/* NUL at the end. */
static char peek(const struct reader *r) {
    return r->at < r->text.len ? r->text.data[r->at] : 0;
}

static bool take(struct reader *r, const char *word) {
    const size_t n = strlen(word);
    if (r->text.len - r->at < n || memcmp(r->text.data + r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

static void skip_blanks(struct reader *r, bool lines) {
    for (; r->at < r->text.len; r->at++) {
        const char c = r->text.data[r->at];
        if (c == '#')
            while (r->at + 1 < r->text.len && !strchr("\r\n", r->text.data[r->at + 1]))
                r->at++;
        else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            return;
    }
}

static kvasir_status read_hex(struct reader *r, size_t digits, uint32_t *value) {
    *value = 0;
    for (size_t i = 0; i < digits; i++, r->at++) {
        const int digit = hex_digit(peek(r));
        if (digit < 0)
            return wrong_here(r, "a hexadecimal digit is missing");
        *value = *value << 4 | (uint32_t)digit;
    }
    return KVASIR_OK;
}

static kvasir_status read_escape(struct reader *r, uint32_t *c) {
    static const char written[] = "nrt\\\"[]-^", meant[] = "\n\r\t\\\"[]-^";
    const size_t at = r->at - 1;
    const char kind = peek(r);
    const char *simple = kind ? strchr(written, kind) : NULL;
    if (simple) {
        r->at++;
        *c = (uint8_t)meant[simple - written];
        return KVASIR_OK;
    }
    if (kind != 'x' && kind != 'u' && kind != 'U')
        return wrong(r, at, KVASIR_ERR_ARGUMENT, "an unknown escape");
    r->at++;
    TRY(read_hex(r, kind == 'x' ? 2 : kind == 'u' ? 4 : 8, c));
    if (*c > CHAR_MAX_VALUE || (*c >= SURROGATE_FIRST && *c <= SURROGATE_LAST))
        return wrong(r, at, KVASIR_ERR_ARGUMENT, "no character has this number");
    return KVASIR_OK;
}

/* A character of a text or a class. */
static kvasir_status read_char(struct reader *r, uint32_t *c) {
    if (r->at >= r->text.len)
        return wrong_here(r, "the grammar ends inside a text or a class");
    if (take(r, "\\"))
        return read_escape(r, c);
    *c = utf8_next(r->text.data, &r->at);
    return KVASIR_OK;
}

static kvasir_status read_literal(struct reader *r) {
    while (!take(r, "\"")) {
        uint32_t c;
        TRY(read_char(r, &c));
        TRY(add_pending(r, PUSHDOWN_CHAR, c));
    }
    return KVASIR_OK;
}

/* ---- classes --------------------------------------------------------------------------------- */

static int compare_ranges(const void *a, const void *b) {
    const struct code_range *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

/* Sorts the ranges from `first` on and joins those that touch. */
static void join_ranges(struct pushdown *p, uint32_t first) {
    uint32_t n = first;
    if (p->n_ranges == first)
        return;
    qsort(p->ranges + first, p->n_ranges - first, sizeof *p->ranges, compare_ranges);
    for (uint32_t i = first; i < p->n_ranges; i++) {
        const struct code_range range = p->ranges[i];
        if (n > first && range.from <= p->ranges[n - 1].to + 1)
            p->ranges[n - 1].to = max_u32(p->ranges[n - 1].to, range.to);
        else
            p->ranges[n++] = range;
    }
    p->n_ranges = n;
}

static kvasir_status add_range(struct reader *r, uint32_t from, uint32_t to) {
    struct pushdown *p = r->p;
    ADD(r, p->ranges, p->n_ranges, p->ranges_cap, (struct code_range){from, to});
    return KVASIR_OK;
}

/* What lies between the ranges `first` .. `end`, which are joined, goes behind them and then takes
 * their place. */
static kvasir_status invert_ranges(struct reader *r, uint32_t first) {
    struct pushdown *p = r->p;
    const uint32_t end = p->n_ranges;
    uint32_t next = 0;
    for (uint32_t i = first; i < end; i++) {
        const struct code_range range = p->ranges[i];
        if (range.from > next)
            TRY(add_range(r, next, range.from - 1));
        next = range.to + 1;
    }
    if (next <= CHAR_MAX_VALUE)
        TRY(add_range(r, next, CHAR_MAX_VALUE));
    memmove(p->ranges + first, p->ranges + end, (p->n_ranges - end) * sizeof *p->ranges);
    p->n_ranges -= end - first;
    return KVASIR_OK;
}

/* Surrogates are no characters. No class names one, so one range has all of them, or none has. */
static kvasir_status drop_surrogates(struct reader *r, uint32_t first) {
    struct pushdown *p = r->p;
    for (uint32_t i = first; i < p->n_ranges; i++) {
        const struct code_range range = p->ranges[i];
        if (range.to < SURROGATE_FIRST || range.from > SURROGATE_LAST)
            continue;
        ASSERT(range.from <= SURROGATE_FIRST && range.to >= SURROGATE_LAST);
        p->ranges[i] = p->ranges[--p->n_ranges];
        if (range.from < SURROGATE_FIRST)
            TRY(add_range(r, range.from, SURROGATE_FIRST - 1));
        if (range.to > SURROGATE_LAST)
            TRY(add_range(r, SURROGATE_LAST + 1, range.to));
        break;
    }
    join_ranges(p, first);
    return KVASIR_OK;
}

static kvasir_status close_class(struct reader *r, uint32_t first, bool negated) {
    struct pushdown *p = r->p;
    join_ranges(p, first);
    if (negated)
        TRY(invert_ranges(r, first));
    TRY(drop_surrogates(r, first));
    ADD(r, p->classes, p->n_classes, p->classes_cap,
        (struct pushdown_class){first, p->n_ranges - first});
    return add_pending(r, PUSHDOWN_CLASS, p->n_classes - 1);
}

static kvasir_status read_class(struct reader *r) {
    const uint32_t first = r->p->n_ranges;
    const bool negated = take(r, "^");
    while (!take(r, "]")) {
        uint32_t from, to;
        TRY(read_char(r, &from));
        to = from;
        const bool range =
            peek(r) == '-' && r->at + 1 < r->text.len && r->text.data[r->at + 1] != ']';
        if (range) {
            r->at++;
            TRY(read_char(r, &to));
        }
        if (to < from)
            return wrong_here(r, "a range of characters ends before it begins");
        TRY(add_range(r, from, to));
    }
    return close_class(r, first, negated);
}

/* ---- control tokens -------------------------------------------------------------------------- */

static kvasir_status read_number(struct reader *r, uint32_t max, uint32_t *value) {
    const size_t at = r->at;
    uint64_t sum = 0;
    for (; peek(r) >= '0' && peek(r) <= '9' && sum <= max; r->at++)
        sum = 10 * sum + (uint64_t)(peek(r) - '0');
    if (r->at == at)
        return wrong_here(r, "a number is missing");
    if (sum > max)
        return wrong(r, at, KVASIR_ERR_UNSUPPORTED, "the number is too large");
    *value = (uint32_t)sum;
    return KVASIR_OK;
}

static kvasir_status read_token(struct reader *r) {
    uint32_t id;
    if (!take(r, "["))
        return wrong_here(r, "tokens are written as numbers: <[123]>");
    TRY(read_number(r, (1 << CONTROL_ID_BITS) - 1, &id));
    if (!take(r, "]>"))
        return wrong_here(r, "]> is missing");
    TRY(add_pending(r, PUSHDOWN_BYTE, 0xff));
    TRY(add_pending(r, PUSHDOWN_BYTE, id >> 16));
    TRY(add_pending(r, PUSHDOWN_BYTE, id >> 8 & 0xff));
    return add_pending(r, PUSHDOWN_BYTE, id & 0xff);
}

/* ---- other recognizers ----------------------------------------------------------------------- */

/* Takes over `one`. */
static kvasir_status add_embed(struct reader *r, struct recognizer *one) {
    struct pushdown *p = r->p;
    struct text_buf state = {0};
    const bool room = ARRAY_GROW(p->embeds, p->embeds_cap, p->n_embeds + 1) &&
                      ARRAY_GROW(p->embed_nullable, p->embed_nullable_cap, p->n_embeds + 1);
    if (!room || one->ops->start(one, &state) != STEP_TAKEN) {
        one->ops->destroy(one);
        text_free(&state);
        return out_of_memory(r);
    }
    p->embeds[p->n_embeds] = one;
    p->embed_nullable[p->n_embeds] =
        one->ops->end(one, (struct text_span){state.data, state.len}) != GRAMMAR_OPEN;
    text_free(&state);
    return add_pending(r, PUSHDOWN_EMBED, p->n_embeds++);
}

/* Errors have the place in the schema, or the expression, and what is wrong there. */
static kvasir_status read_schema(struct reader *r) {
    struct recognizer *one;
    json_t *value;
    size_t used;
    skip_blanks(r, true);
    struct text_span schema = {r->text.data + r->at, 4};
    if (!take(r, "true")) {
        if (json_load_first(schema.data, r->text.len - r->at, JSON_ALLOW_NUL, &used, &value, NULL))
            return wrong_here(r, "this is no JSON schema");
        json_decref(value);
        schema.len = used;
        r->at += used;
    }
    TRY(schema_compile(schema, r->budget, &one, r->err));
    return add_embed(r, one);
}

static kvasir_status read_regex(struct reader *r) {
    struct text_buf text = {0};
    struct recognizer *one;
    bool good = true;
    skip_blanks(r, true);
    if (!take(r, "\""))
        return wrong_here(r, "an expression in quotes is missing");
    while (good && r->at < r->text.len && !take(r, "\"")) {
        (void)(peek(r) == '\\' && r->at + 1 < r->text.len && r->text.data[r->at + 1] == '"' &&
               r->at++);
        good = text_append(&text, r->text.data + r->at++, 1);
    }
    kvasir_status status = KVASIR_OK;
    if (!good)
        status = out_of_memory(r);
    else if (r->text.data[r->at - 1] != '"')
        status = wrong_here(r, "the grammar ends inside an expression");
    else
        status = regex_compile((struct text_span){text.data ? text.data : "", text.len}, r->budget,
                               &one, r->err);
    text_free(&text);
    return status ? status : add_embed(r, one);
}

/* ---- items ----------------------------------------------------------------------------------- */

static kvasir_status read_alternatives(struct reader *r, uint32_t rule, bool lines);

static kvasir_status read_group(struct reader *r) {
    uint32_t rule;
    if (++r->nested > NESTED_MAX)
        return wrong(r, r->at, KVASIR_ERR_UNSUPPORTED, "too many parentheses in each other");
    TRY(new_rule(r, r->p->rules[r->rule].name, &rule));
    skip_blanks(r, true);
    TRY(read_alternatives(r, rule, true));
    if (!take(r, ")"))
        return wrong_here(r, "a closing parenthesis is missing");
    r->nested--;
    return add_pending(r, PUSHDOWN_RULE, rule);
}

static kvasir_status read_name(struct reader *r) {
    const size_t at = r->at;
    uint32_t rule;
    while (is_name(peek(r)))
        r->at++;
    TRY(find_rule(r, (struct text_span){r->text.data + at, r->at - at}, &rule));
    struct pushdown_rule *called = &r->p->rules[rule];
    if (!called->defined && !called->first)
        called->first = (uint32_t)at; /* until it is defined: where it was called */
    return add_pending(r, PUSHDOWN_RULE, rule);
}

static kvasir_status read_any(struct reader *r) {
    const uint32_t first = r->p->n_ranges;
    return close_class(r, first, true);
}

/* *found: there was an item, now pending. */
static kvasir_status read_item(struct reader *r, bool *found) {
    *found = true;
    if (take(r, "\""))
        return read_literal(r);
    if (take(r, "["))
        return read_class(r);
    if (take(r, "."))
        return read_any(r);
    if (take(r, "("))
        return read_group(r);
    if (take(r, "<"))
        return read_token(r);
    if (take(r, "%json"))
        return read_schema(r);
    if (take(r, "%regex"))
        return read_regex(r);
    if (peek(r) == '!' && r->at + 1 < r->text.len && r->text.data[r->at + 1] == '<')
        return wrong(r, r->at, KVASIR_ERR_UNSUPPORTED, "any token but one cannot be asked for");
    if (is_name(peek(r)))
        return read_name(r);
    *found = false;
    return KVASIR_OK;
}

/* ---- repetitions ----------------------------------------------------------------------------- */

/* The pending elements from `from` on as one. */
static kvasir_status one_element(struct reader *r, uint32_t from, struct pushdown_element *out) {
    uint32_t rule, at;
    const uint32_t ends = r->n_ends;
    if (r->n_pending == from + 1) {
        *out = r->pending[--r->n_pending];
        return KVASIR_OK;
    }
    TRY(new_rule(r, r->p->rules[r->rule].name, &rule));
    TRY(close_sequence(r, from, &at));
    TRY(add_end(r, at));
    TRY(close_rule(r, rule, ends));
    *out = (struct pushdown_element){PUSHDOWN_RULE, rule & (PUSHDOWN_VALUE_MAX - 1)};
    return KVASIR_OK;
}

/* `item` between least and most times, pending. */
static kvasir_status repeat(struct reader *r, struct pushdown_element item, uint32_t least,
                            uint32_t most) {
    const struct text_span name = r->p->rules[r->rule].name;
    uint32_t rule = NO_RULE, next = NO_RULE;
    if (most == UNBOUNDED) {
        TRY(new_rule(r, name, &rule));
        TRY(optional_rule(r, item, rule, rule));
    } else {
        for (uint32_t i = least; i < most; i++, next = rule) {
            TRY(new_rule(r, name, &rule));
            TRY(optional_rule(r, item, rule, next));
        }
    }
    for (uint32_t i = 0; i < least; i++)
        TRY(add_pending(r, item.kind, item.value));
    return rule != NO_RULE ? add_pending(r, PUSHDOWN_RULE, rule) : KVASIR_OK;
}

static kvasir_status read_bounds(struct reader *r, uint32_t *least, uint32_t *most) {
    skip_blanks(r, true);
    TRY(read_number(r, UNBOUNDED - 1, least));
    *most = *least;
    skip_blanks(r, true);
    if (take(r, ",")) {
        skip_blanks(r, true);
        *most = UNBOUNDED;
        if (peek(r) != '}')
            TRY(read_number(r, UNBOUNDED - 1, most));
        skip_blanks(r, true);
    }
    if (!take(r, "}"))
        return wrong_here(r, "a closing brace is missing");
    if (*most < *least)
        return wrong_here(r, "a repetition has more at least than at most");
    return KVASIR_OK;
}

/* *found: there was one. */
static kvasir_status read_repetition(struct reader *r, uint32_t *least, uint32_t *most,
                                     bool *found) {
    *found = true;
    *least = 0;
    *most = UNBOUNDED;
    if (take(r, "{"))
        return read_bounds(r, least, most);
    if (take(r, "+"))
        *least = 1;
    else if (take(r, "?"))
        *most = 1;
    else
        *found = take(r, "*");
    return KVASIR_OK;
}

/* A repetition of such a one by such a one is one, too: it can leave out what either can, and has
 * no end if either has none. */
static bool is_simple(uint32_t least, uint32_t most) {
    return least <= 1 && (most == 1 || most == UNBOUNDED);
}

/* All repetitions after an item, whose pending elements begin at `from`. Simple ones in a row are
 * made as one: `x++` could be read in many ways at once, `x+` in one. */
static kvasir_status read_repetitions(struct reader *r, uint32_t from, bool lines) {
    uint32_t least, most, next_least, next_most;
    bool found;
    TRY(read_repetition(r, &least, &most, &found));
    while (found) {
        struct pushdown_element item;
        skip_blanks(r, lines);
        TRY(read_repetition(r, &next_least, &next_most, &found));
        if (found && is_simple(least, most) && is_simple(next_least, next_most)) {
            least = min_u32(least, next_least);
            most = max_u32(most, next_most);
            continue;
        }
        if (r->n_pending > from) { /* else of nothing */
            TRY(one_element(r, from, &item));
            TRY(repeat(r, item, least, most));
        }
        least = next_least;
        most = next_most;
    }
    return KVASIR_OK;
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* No rule begins with '|', so it may stand in a line of its own. */
static void skip_to_bar(struct reader *r) {
    const size_t at = r->at;
    skip_blanks(r, true);
    if (peek(r) != '|')
        r->at = at;
}

static kvasir_status read_alternatives(struct reader *r, uint32_t rule, bool lines) {
    const uint32_t ends = r->n_ends, pending = r->n_pending;
    do {
        uint32_t at;
        bool found = true;
        skip_blanks(r, true);
        while (found) {
            const uint32_t from = r->n_pending;
            TRY(read_item(r, &found));
            skip_blanks(r, lines);
            if (found)
                TRY(read_repetitions(r, from, lines));
        }
        skip_to_bar(r);
        TRY(close_sequence(r, pending, &at));
        TRY(add_end(r, at));
    } while (take(r, "|"));
    return close_rule(r, rule, ends);
}

static kvasir_status read_rule(struct reader *r) {
    const size_t at = r->at;
    while (is_name(peek(r)))
        r->at++;
    const struct text_span name = {r->text.data + at, r->at - at};
    if (!name.len)
        return wrong_here(r, "the name of a rule is missing");
    TRY(find_rule(r, name, &r->rule));
    if (r->p->rules[r->rule].defined)
        return wrong(r, at, KVASIR_ERR_ARGUMENT, "this rule is there already");
    skip_blanks(r, false);
    if (!take(r, "::="))
        return wrong_here(r, "::= is missing");
    skip_blanks(r, true);
    TRY(read_alternatives(r, r->rule, false));
    if (r->at < r->text.len && peek(r) != '\n' && peek(r) != '\r')
        return wrong_here(r, "this begins nothing that a rule can have");
    return KVASIR_OK;
}

/* That the first state can be made. */
static kvasir_status check_start(struct reader *r) {
    struct text_buf state = {0};
    const enum recognizer_step step = r->p->base.ops->start(&r->p->base, &state);
    text_free(&state);
    if (step == STEP_LIMIT)
        return grammar_too_large(r->err, "the grammar");
    ASSERT(step != STEP_REFUSED);
    return step == STEP_TAKEN ? KVASIR_OK : out_of_memory(r);
}

static kvasir_status read_grammar(struct reader *r) {
    const struct text_span root = {"root", 4};
    uint32_t rule;
    TRY(find_rule(r, root, &rule));
    for (skip_blanks(r, true); r->at < r->text.len; skip_blanks(r, true))
        TRY(read_rule(r));
    for (rule = 0; rule < r->p->n_rules; rule++) {
        const struct pushdown_rule *q = &r->p->rules[rule];
        char what[100];
        if (q->defined)
            continue;
        snprintf(what, sizeof what, "there is no rule %.*s", (int)min_size(q->name.len, 60),
                 q->name.data);
        return wrong(r, q->first, KVASIR_ERR_ARGUMENT, what);
    }
    TRY(pushdown_check(r->p, r->budget, r->err));
    return check_start(r);
}

kvasir_status gbnf_compile(struct text_span text, struct grammar_budget *b, struct recognizer **out,
                           kvasir_error *err) {
    struct reader r = {.text = text, .budget = b, .err = err, .p = pushdown_create()};
    if (!r.p)
        return out_of_memory(&r);
    const kvasir_status status = read_grammar(&r);
    mem_free(r.pending);
    mem_free(r.ends);
    mem_free(r.names);
    if (status == KVASIR_OK)
        *out = &r.p->base;
    else
        pushdown_destroy(r.p);
    return status;
}
