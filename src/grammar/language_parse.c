/* SPDX-License-Identifier: Apache-2.0 */
/* language_parse.c: regular expressions of ECMA-262 with the flag u, as JSON Schema's `pattern` has
 * them. What the flag forbids and people write all the same is read as without it: \- is "-".
 *
 *     expression:  alternative | alternative ...
 *     alternative: term term ...
 *     term:        atom, or atom and * + ? {m} {m,} {m,n}, each perhaps with a lazy ?
 *     atom:        . character [class] \escape (group) (?:group) (?<name>group) ^ $ \b \B
 *                  (?=ahead) (?!ahead)
 */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "grammar/language_internal.h"
#include "util/utf8.h"

/* ---- sets of characters ---------------------------------------------------------------------- */

bool char_set_add(struct char_set *s, uint32_t from, uint32_t to) {
    if (!ARRAY_GROW(s->ranges, s->cap, s->n + 1))
        return false;
    s->ranges[s->n++] = (struct char_range){from, to};
    return true;
}

static int compare_ranges(const void *x, const void *y) {
    const struct char_range *a = x, *b = y;
    return (a->from > b->from) - (a->from < b->from);
}

void char_set_tidy(struct char_set *s) {
    size_t n = 0;
    if (s->n)
        qsort(s->ranges, s->n, sizeof *s->ranges, compare_ranges);
    for (size_t i = 0; i < s->n; i++) {
        const struct char_range r = s->ranges[i];
        if (n && r.from <= s->ranges[n - 1].to + 1) {
            if (r.to > s->ranges[n - 1].to)
                s->ranges[n - 1].to = r.to;
        } else {
            s->ranges[n++] = r;
        }
    }
    s->n = n;
}

bool char_set_invert(struct char_set *s) {
    struct char_set made = {0};
    uint32_t from = 0;
    bool good = true;
    for (size_t i = 0; i < s->n && good; i++) {
        if (s->ranges[i].from > from)
            good = char_set_add(&made, from, s->ranges[i].from - 1);
        from = s->ranges[i].to + 1;
    }
    good = good && (from > CHAR_MAX_CODE || char_set_add(&made, from, CHAR_MAX_CODE));
    mem_free(s->ranges);
    *s = made;
    return good;
}

/* ---- the parser ------------------------------------------------------------------------------ */

enum { DEPTH_MAX = 200, NODES_MAX = 1 << 20, REPEAT_MAX = 1 << 20 };

struct parser {
    struct grammar_budget *b;
    struct text_span text;
    size_t at;
    uint32_t depth;
    struct expression *e;
    kvasir_error *err;
    kvasir_status status;
};

void expression_free(struct expression *e) {
    for (size_t i = 0; i < e->n_sets; i++)
        mem_free(e->sets[i].ranges);
    mem_free(e->sets);
    mem_free(e->nodes);
    *e = (struct expression){0};
}

static uint32_t stop(struct parser *p, kvasir_status code, const char *what) {
    if (p->status)
        return 0;
    p->status = fail(p->err, code, "pattern, at character %zu: %s", p->at, what);
    return 0;
}

static uint32_t wrong(struct parser *p, const char *what) {
    return stop(p, KVASIR_ERR_ARGUMENT, what);
}

static uint32_t add_node(struct parser *p, struct node node) {
    struct expression *e = p->e;
    if (p->status)
        return 0;
    if (e->n >= NODES_MAX || !budget_take(p->b, 12, sizeof node))
        return stop(p, KVASIR_ERR_UNSUPPORTED, "it costs more to enforce than allowed");
    if (!ARRAY_GROW(e->nodes, e->cap, e->n + 1)) {
        p->status = language_no_memory(p->err);
        return 0;
    }
    e->nodes[e->n] = node;
    return (uint32_t)e->n++;
}

/* Takes the set, tidied. */
static uint32_t add_set(struct parser *p, struct char_set *s) {
    struct expression *e = p->e;
    char_set_tidy(s);
    if (!p->status && !ARRAY_GROW(e->sets, e->sets_cap, e->n_sets + 1))
        p->status = language_no_memory(p->err);
    if (p->status) {
        mem_free(s->ranges);
        return 0;
    }
    e->sets[e->n_sets] = *s;
    return add_node(p, (struct node){.kind = NODE_SET, .a = (uint32_t)e->n_sets++});
}

static void put(struct parser *p, struct char_set *s, uint32_t from, uint32_t to) {
    if (!p->status && !char_set_add(s, from, to))
        p->status = language_no_memory(p->err);
}

static bool more(const struct parser *p) {
    return p->at < p->text.len && !p->status;
}

static int peek(const struct parser *p, size_t ahead) {
    return p->at + ahead < p->text.len ? (unsigned char)p->text.data[p->at + ahead] : -1;
}

static bool take(struct parser *p, const char *word) {
    const size_t n = strlen(word);
    if (p->text.len - p->at < n || memcmp(p->text.data + p->at, word, n) != 0)
        return false;
    p->at += n;
    return true;
}

/* ---- classes --------------------------------------------------------------------------------- */

static void put_digits(struct parser *p, struct char_set *s) {
    put(p, s, '0', '9');
}

static void put_word(struct parser *p, struct char_set *s) {
    put(p, s, '0', '9');
    put(p, s, 'A', 'Z');
    put(p, s, '_', '_');
    put(p, s, 'a', 'z');
}

static void put_space(struct parser *p, struct char_set *s) {
    static const struct char_range SPACES[] = {
        {0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof SPACES / sizeof *SPACES; i++)
        put(p, s, SPACES[i].from, SPACES[i].to);
}

/* General categories, as utf8proc numbers them. */
static const struct {
    const char *names; /* each after a blank */
    uint32_t mask;
} CATEGORIES[] = {
    {" Lu Uppercase_Letter Lu ", 1u << UTF8PROC_CATEGORY_LU},
    {" Ll Lowercase_Letter ", 1u << UTF8PROC_CATEGORY_LL},
    {" Lt Titlecase_Letter ", 1u << UTF8PROC_CATEGORY_LT},
    {" Lm Modifier_Letter ", 1u << UTF8PROC_CATEGORY_LM},
    {" Lo Other_Letter ", 1u << UTF8PROC_CATEGORY_LO},
    {" LC Cased_Letter ",
     1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT},
    {" L Letter Alphabetic ", 1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL |
                                  1u << UTF8PROC_CATEGORY_LT | 1u << UTF8PROC_CATEGORY_LM |
                                  1u << UTF8PROC_CATEGORY_LO},
    {" Mn Nonspacing_Mark ", 1u << UTF8PROC_CATEGORY_MN},
    {" Mc Spacing_Mark ", 1u << UTF8PROC_CATEGORY_MC},
    {" Me Enclosing_Mark ", 1u << UTF8PROC_CATEGORY_ME},
    {" M Mark Combining_Mark ",
     1u << UTF8PROC_CATEGORY_MN | 1u << UTF8PROC_CATEGORY_MC | 1u << UTF8PROC_CATEGORY_ME},
    {" Nd Decimal_Number digit ", 1u << UTF8PROC_CATEGORY_ND},
    {" Nl Letter_Number ", 1u << UTF8PROC_CATEGORY_NL},
    {" No Other_Number ", 1u << UTF8PROC_CATEGORY_NO},
    {" N Number ",
     1u << UTF8PROC_CATEGORY_ND | 1u << UTF8PROC_CATEGORY_NL | 1u << UTF8PROC_CATEGORY_NO},
    {" Pc Connector_Punctuation ", 1u << UTF8PROC_CATEGORY_PC},
    {" Pd Dash_Punctuation ", 1u << UTF8PROC_CATEGORY_PD},
    {" Ps Open_Punctuation ", 1u << UTF8PROC_CATEGORY_PS},
    {" Pe Close_Punctuation ", 1u << UTF8PROC_CATEGORY_PE},
    {" Pi Initial_Punctuation ", 1u << UTF8PROC_CATEGORY_PI},
    {" Pf Final_Punctuation ", 1u << UTF8PROC_CATEGORY_PF},
    {" Po Other_Punctuation ", 1u << UTF8PROC_CATEGORY_PO},
    {" P Punctuation punct ", 1u << UTF8PROC_CATEGORY_PC | 1u << UTF8PROC_CATEGORY_PD |
                                  1u << UTF8PROC_CATEGORY_PS | 1u << UTF8PROC_CATEGORY_PE |
                                  1u << UTF8PROC_CATEGORY_PI | 1u << UTF8PROC_CATEGORY_PF |
                                  1u << UTF8PROC_CATEGORY_PO},
    {" Sm Math_Symbol ", 1u << UTF8PROC_CATEGORY_SM},
    {" Sc Currency_Symbol ", 1u << UTF8PROC_CATEGORY_SC},
    {" Sk Modifier_Symbol ", 1u << UTF8PROC_CATEGORY_SK},
    {" So Other_Symbol ", 1u << UTF8PROC_CATEGORY_SO},
    {" S Symbol ", 1u << UTF8PROC_CATEGORY_SM | 1u << UTF8PROC_CATEGORY_SC |
                       1u << UTF8PROC_CATEGORY_SK | 1u << UTF8PROC_CATEGORY_SO},
    {" Zs Space_Separator ", 1u << UTF8PROC_CATEGORY_ZS},
    {" Zl Line_Separator ", 1u << UTF8PROC_CATEGORY_ZL},
    {" Zp Paragraph_Separator ", 1u << UTF8PROC_CATEGORY_ZP},
    {" Z Separator ",
     1u << UTF8PROC_CATEGORY_ZS | 1u << UTF8PROC_CATEGORY_ZL | 1u << UTF8PROC_CATEGORY_ZP},
    {" Cc Control cntrl ", 1u << UTF8PROC_CATEGORY_CC},
    {" Cf Format ", 1u << UTF8PROC_CATEGORY_CF},
    {" Co Private_Use ", 1u << UTF8PROC_CATEGORY_CO},
    {" Cn Unassigned ", 1u << UTF8PROC_CATEGORY_CN},
};

static void put_category(struct parser *p, struct char_set *s, uint32_t mask) {
    uint32_t from = 0;
    bool open = false;
    if (!budget_take(p->b, 1 << 20, 0)) {
        stop(p, KVASIR_ERR_UNSUPPORTED, "it costs more to enforce than allowed");
        return;
    }
    for (uint32_t c = 0; c <= CHAR_MAX_CODE + 1; c++) {
        const bool in = c <= CHAR_MAX_CODE && mask >> utf8proc_category((utf8proc_int32_t)c) & 1;
        if (in && !open)
            from = c;
        if (!in && open)
            put(p, s, from, c - 1);
        open = in;
    }
}

/* After \p: {Name}, or {General_Category=Name}. */
static void put_property(struct parser *p, struct char_set *s) {
    char name[64] = " ";
    if (!take(p, "{")) {
        wrong(p, "\\p needs the name of a property in braces");
        return;
    }
    if (!take(p, "General_Category="))
        (void)take(p, "gc=");
    size_t n = 1;
    while (more(p) && peek(p, 0) != '}' && n < sizeof name - 2)
        name[n++] = p->text.data[p->at++];
    if (!take(p, "}")) {
        wrong(p, "a property's name needs its '}'");
        return;
    }
    if (strcmp(name, " Any") == 0) {
        put(p, s, 0, CHAR_MAX_CODE);
        return;
    }
    if (strcmp(name, " ASCII") == 0) {
        put(p, s, 0, 0x7f);
        return;
    }
    name[n++] = ' ';
    for (size_t i = 0; i < sizeof CATEGORIES / sizeof *CATEGORIES; i++)
        if (strstr(CATEGORIES[i].names, name)) {
            put_category(p, s, CATEGORIES[i].mask);
            return;
        }
    stop(p, KVASIR_ERR_UNSUPPORTED, "only general categories, Any and ASCII are known to \\p");
}

static uint32_t read_hex(struct parser *p, int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++) {
        const int digit = more(p) ? hex_digit((char)peek(p, 0)) : -1;
        if (digit < 0)
            return wrong(p, "a hexadecimal digit is expected");
        value = value * 16 + (uint32_t)digit;
        p->at++;
    }
    return value;
}

static uint32_t read_unicode(struct parser *p) {
    if (take(p, "{")) {
        uint32_t value = 0;
        while (more(p) && hex_digit((char)peek(p, 0)) >= 0 && value <= CHAR_MAX_CODE)
            value = value * 16 + (uint32_t)hex_digit(p->text.data[p->at++]);
        return take(p, "}") && value <= CHAR_MAX_CODE ? value
                                                      : wrong(p, "no code point is written so");
    }
    const uint32_t high = read_hex(p, 4);
    if (high < 0xd800 || high > 0xdbff || peek(p, 0) != '\\' || peek(p, 1) != 'u')
        return high;
    const size_t before = p->at;
    p->at += 2;
    const uint32_t low = read_hex(p, 4);
    if (low >= 0xdc00 && low <= 0xdfff)
        return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    p->at = before;
    return high;
}

/* \d \w \s \p and their opposites. False: the letter is none of these. */
static bool put_escape_class(struct parser *p, char kind, struct char_set *s) {
    struct char_set inner = {0};
    switch (kind) {
    case 'd':
    case 'D':
        put_digits(p, &inner);
        break;
    case 'w':
    case 'W':
        put_word(p, &inner);
        break;
    case 's':
    case 'S':
        put_space(p, &inner);
        break;
    case 'p':
    case 'P':
        put_property(p, &inner);
        break;
    default:
        return false;
    }
    char_set_tidy(&inner);
    if (kind < 'a' && !char_set_invert(&inner) && !p->status)
        p->status = language_no_memory(p->err);
    for (size_t i = 0; i < inner.n; i++)
        put(p, s, inner.ranges[i].from, inner.ranges[i].to);
    mem_free(inner.ranges);
    return true;
}

/* \n and the like. */
static bool control_of(char kind, bool in_class, uint32_t *c) {
    static const char LETTERS[] = "nrtfv0b", CONTROLS[] = "\n\r\t\f\v\0\b";
    const char *at = memchr(LETTERS, kind, sizeof LETTERS - 1);
    if (!at || (kind == 'b' && !in_class))
        return false;
    *c = (uint32_t)CONTROLS[at - LETTERS];
    return true;
}

/* After a backslash. A character, or false: a class was added to the set. */
static bool read_escape(struct parser *p, bool in_class, struct char_set *s, uint32_t *c) {
    if (!more(p))
        return wrong(p, "the pattern ends with a backslash") != 0;
    const char kind = p->text.data[p->at++];
    if (put_escape_class(p, kind, s))
        return false;
    if (control_of(kind, in_class, c))
        return true;
    if ((kind >= '1' && kind <= '9') || kind == 'k')
        return stop(p, KVASIR_ERR_UNSUPPORTED, "back references are not supported") != 0;
    if (kind == 'x') {
        *c = read_hex(p, 2);
    } else if (kind == 'u') {
        *c = read_unicode(p);
    } else if (kind == 'c') {
        *c = more(p) ? (uint32_t)(p->text.data[p->at++] & 31) : 0;
    } else {
        p->at--;
        *c = utf8_next(p->text.data, &p->at);
    }
    return true;
}

/* One end of a range in a class; false: it was a class itself. */
static bool read_member(struct parser *p, struct char_set *s, uint32_t *c) {
    if (take(p, "\\"))
        return read_escape(p, true, s, c);
    *c = utf8_next(p->text.data, &p->at);
    return true;
}

/* After "[". */
static uint32_t read_class(struct parser *p) {
    struct char_set s = {0};
    const bool inverted = take(p, "^");
    while (more(p) && peek(p, 0) != ']') {
        uint32_t from = 0, to = 0;
        if (!read_member(p, &s, &from))
            continue;
        to = from;
        if (peek(p, 0) == '-' && peek(p, 1) != ']' && peek(p, 1) >= 0) {
            p->at++;
            if (!read_member(p, &s, &to)) { /* [a-\d]: all three */
                put(p, &s, '-', '-');
                to = from;
            }
        }
        if (to < from)
            wrong(p, "a range of characters ends before it begins");
        put(p, &s, from, to);
    }
    if (!take(p, "]"))
        wrong(p, "a class needs its ']'");
    char_set_tidy(&s);
    if (inverted && !char_set_invert(&s) && !p->status)
        p->status = language_no_memory(p->err);
    return add_set(p, &s);
}

/* ---- atoms and terms ------------------------------------------------------------------------- */

static uint32_t read_alternatives(struct parser *p);

static uint32_t one_char(struct parser *p, uint32_t c) {
    struct char_set s = {0};
    put(p, &s, c, c);
    return add_set(p, &s);
}

static uint32_t any_char(struct parser *p) {
    struct char_set s = {0};
    put(p, &s, '\n', '\n');
    put(p, &s, '\r', '\r');
    put(p, &s, 0x2028, 0x2029);
    char_set_tidy(&s);
    if (!p->status && !char_set_invert(&s))
        p->status = language_no_memory(p->err);
    return add_set(p, &s);
}

static uint32_t read_group(struct parser *p) {
    const bool ahead = take(p, "?="), negative = !ahead && take(p, "?!");
    if (!ahead && !negative && !take(p, "?:") && take(p, "?")) {
        if (peek(p, 0) == '<' && peek(p, 1) != '=' && peek(p, 1) != '!') {
            while (more(p) && peek(p, 0) != '>')
                p->at++;
            if (!take(p, ">"))
                return wrong(p, "a group's name needs its '>'");
        } else if (peek(p, 0) == '<') {
            return stop(p, KVASIR_ERR_UNSUPPORTED, "looking behind is not supported");
        } else {
            return wrong(p, "no group begins so");
        }
    }
    if (++p->depth > DEPTH_MAX)
        return stop(p, KVASIR_ERR_UNSUPPORTED, "groups are nested too deeply");
    uint32_t inner = read_alternatives(p);
    p->depth--;
    if (!take(p, ")"))
        return wrong(p, "a group needs its ')'");
    if (!ahead && !negative)
        return inner;
    ASSERT(p->status || inner < p->e->n);
    return add_node(p, (struct node){.kind = NODE_AHEAD, .a = inner, .negative = negative});
}

static uint32_t read_backslash(struct parser *p) {
    struct char_set s = {0};
    uint32_t c = 0;
    if (peek(p, 0) == 'b' || peek(p, 0) == 'B') {
        const bool inside = p->text.data[p->at++] == 'B';
        p->e->has_word = true;
        return add_node(p, (struct node){.kind = inside ? NODE_INSIDE : NODE_WORD});
    }
    if (read_escape(p, false, &s, &c))
        put(p, &s, c, c);
    return add_set(p, &s);
}

static uint32_t read_atom(struct parser *p) {
    switch (peek(p, 0)) {
    case '(':
        p->at++;
        return read_group(p);
    case '[':
        p->at++;
        return read_class(p);
    case '.':
        p->at++;
        return any_char(p);
    case '^':
        p->at++;
        return add_node(p, (struct node){.kind = NODE_BEGIN});
    case '$':
        p->at++;
        return add_node(p, (struct node){.kind = NODE_END});
    case '\\':
        p->at++;
        return read_backslash(p);
    case '*':
    case '+':
    case '?':
        return wrong(p, "there is nothing to repeat");
    default:
        return one_char(p, utf8_next(p->text.data, &p->at));
    }
}

static bool read_count(struct parser *p, uint32_t *count) {
    const size_t before = p->at;
    uint64_t value = 0;
    for (; peek(p, 0) >= '0' && peek(p, 0) <= '9'; p->at++)
        value = value > UINT32_MAX ? value : value * 10 + (uint64_t)(peek(p, 0) - '0');
    *count = value > REPEAT_MAX ? REPEAT_MAX + 1 : (uint32_t)value;
    return p->at > before;
}

/* {m}, {m,}, {m,n}; else the brace is a character. */
static bool read_braces(struct parser *p, uint32_t *min, uint32_t *max) {
    const size_t before = p->at;
    p->at++;
    if (read_count(p, min)) {
        *max = *min;
        if (take(p, ",") && !read_count(p, max))
            *max = LANGUAGE_UNBOUNDED;
        if (take(p, "}"))
            return true;
    }
    p->at = before;
    return false;
}

static uint32_t read_term(struct parser *p) {
    const uint32_t atom = read_atom(p);
    uint32_t min = 0, max = LANGUAGE_UNBOUNDED;
    if (take(p, "+"))
        min = 1;
    else if (take(p, "?"))
        max = 1;
    else if (!take(p, "*") && (peek(p, 0) != '{' || !read_braces(p, &min, &max)))
        return atom;
    (void)take(p, "?"); /* lazy: the same strings */
    if (max < min)
        return wrong(p, "a repetition's most is below its least");
    if (min > REPEAT_MAX || (max > REPEAT_MAX && max != LANGUAGE_UNBOUNDED))
        return stop(p, KVASIR_ERR_UNSUPPORTED, "it costs more to enforce than allowed");
    return add_node(p, (struct node){.kind = NODE_REPEAT, .a = atom, .min = min, .max = max});
}

static uint32_t read_alternative(struct parser *p) {
    uint32_t all = add_node(p, (struct node){.kind = NODE_EMPTY});
    bool first = true;
    while (more(p) && peek(p, 0) != '|' && peek(p, 0) != ')') {
        const uint32_t term = read_term(p);
        all = first ? term : add_node(p, (struct node){.kind = NODE_CAT, .a = all, .b = term});
        first = false;
    }
    return all;
}

static uint32_t read_alternatives(struct parser *p) {
    uint32_t all = read_alternative(p);
    while (take(p, "|")) {
        const uint32_t other = read_alternative(p);
        all = add_node(p, (struct node){.kind = NODE_ALT, .a = all, .b = other});
    }
    return all;
}

kvasir_status expression_parse(struct grammar_budget *b, struct text_span text,
                               struct expression *out, kvasir_error *err) {
    struct parser p = {.b = b, .text = text, .e = out, .err = err};
    *out = (struct expression){0};
    if (utf8_check(text.data, text.len) != text.len)
        return fail(err, KVASIR_ERR_ARGUMENT, "pattern: invalid UTF-8");
    out->root = read_alternatives(&p);
    if (more(&p))
        wrong(&p, "there is no group for this ')'");
    if (p.status)
        expression_free(out);
    return p.status;
}
