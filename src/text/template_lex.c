/* SPDX-License-Identifier: Apache-2.0 */
/* template_lex.c: source to tokens, with Jinja2's rules for white space.
 *
 *     text {%- set x = 1 -%} text {{ x }} text {# comment #} text {% raw %} text {% endraw %}
 *     DATA BLOCK_BEGIN ... BLOCK_END DATA PRINT_BEGIN ... PRINT_END DATA (nothing) DATA DATA
 *
 *  - `-` inside a tag strips all white space on that side; `+` keeps it.
 *  - trim_blocks: one line end right after a statement, a comment or endraw is dropped.
 *  - lstrip_blocks: white space between the start of a line and a statement, a comment or raw is
 *    dropped.
 *  - Neither applies to {{ }}.
 *  - A closing mark counts only if the brackets inside the tag are balanced.
 *
 * Reads the normalized source (only \n, see template.c). String and number tokens hold their value.
 */
#include "text/template_internal.h"

struct lexer {
    struct tpl *t;
    struct tpl_arena *scratch;
    const char *s;
    size_t len, pos;
    struct tpl_token *tokens;
    size_t n, cap;
    uint8_t *brackets; /* open brackets of the current tag */
    size_t n_brackets, cap_brackets;
};

static const char *const token_names[] = {
    [TOK_END] = "end of template",
    [TOK_DATA] = "text",
    [TOK_BLOCK_BEGIN] = "{%",
    [TOK_BLOCK_END] = "%}",
    [TOK_PRINT_BEGIN] = "{{",
    [TOK_PRINT_END] = "}}",
    [TOK_NAME] = "name",
    [TOK_STRING] = "string",
    [TOK_INT] = "integer",
    [TOK_FLOAT] = "float",
    [TOK_ADD] = "+",
    [TOK_SUB] = "-",
    [TOK_MUL] = "*",
    [TOK_DIV] = "/",
    [TOK_FLOORDIV] = "//",
    [TOK_MOD] = "%",
    [TOK_POW] = "**",
    [TOK_TILDE] = "~",
    [TOK_LBRACKET] = "[",
    [TOK_RBRACKET] = "]",
    [TOK_LPAREN] = "(",
    [TOK_RPAREN] = ")",
    [TOK_LBRACE] = "{",
    [TOK_RBRACE] = "}",
    [TOK_EQ] = "==",
    [TOK_NE] = "!=",
    [TOK_LT] = "<",
    [TOK_LE] = "<=",
    [TOK_GT] = ">",
    [TOK_GE] = ">=",
    [TOK_ASSIGN] = "=",
    [TOK_DOT] = ".",
    [TOK_COLON] = ":",
    [TOK_PIPE] = "|",
    [TOK_COMMA] = ",",
    [TOK_SEMICOLON] = ";",
};

_Static_assert(COUNT(token_names) == TOK_SEMICOLON + 1, "every token has a name");
_Static_assert(TOK_RPAREN == TOK_LPAREN + 1 && TOK_RBRACKET == TOK_LBRACKET + 1 &&
                   TOK_RBRACE == TOK_LBRACE + 1,
               "closing brackets follow their opening ones");

const char *tpl_token_name(enum tpl_token_kind kind) {
    return token_names[kind];
}

static struct tpl_token *push_token(struct lexer *x, enum tpl_token_kind kind, size_t at,
                                    size_t len) {
    ASSERT(at <= x->len && len <= x->len - at);
    TPL_GROW(x->t, x->scratch, x->tokens, x->n, x->cap, 256);
    struct tpl_token *tok = &x->tokens[x->n++];
    *tok = (struct tpl_token){.kind = kind, .at = at, .len = len, .value = tpl_unset()};
    return tok;
}

static bool lexer_at(const struct lexer *x, size_t pos, const char *text) {
    size_t n = strlen(text);
    return x->len - pos >= n && memcmp(x->s + pos, text, n) == 0;
}

/* The end of the white space that begins at pos. */
static size_t lexer_skip_space(const struct lexer *x, size_t pos) {
    while (pos < x->len) {
        size_t next = pos;
        if (!tpl_is_space(utf8_next(x->s, &next)))
            break;
        pos = next;
    }
    return pos;
}

/* The end of [from, to) without trailing white space. */
static size_t strip_end(const struct lexer *x, size_t from, size_t to) {
    while (to > from) {
        size_t start;
        if (!tpl_is_space(utf8_before(x->s, to, &start)))
            break;
        to = start;
    }
    return to;
}

/* Whether a closing mark ("%}", "#}"), with its sign, is at pos. *end is after it and the white
 * space that it strips. */
static bool closing_mark(const struct lexer *x, size_t pos, const char *mark, bool plus, bool trim,
                         size_t *end) {
    if (lexer_at(x, pos, "-") && lexer_at(x, pos + 1, mark)) {
        *end = lexer_skip_space(x, pos + 3);
        return true;
    }
    bool signed_plus = plus && lexer_at(x, pos, "+") && lexer_at(x, pos + 1, mark);
    if (!signed_plus && !lexer_at(x, pos, mark))
        return false;
    *end = pos + (signed_plus ? 3 : 2);
    if (trim && !signed_plus && *end < x->len && x->s[*end] == '\n')
        ++*end;
    return true;
}

/* Whether "{%[-+]? word %}" (raw or endraw) is at pos; *end is after it. */
static bool raw_tag(const struct lexer *x, size_t pos, const char *word, bool trim, size_t *end) {
    size_t p = pos + 2;
    if (p < x->len && (x->s[p] == '-' || x->s[p] == '+'))
        p++;
    p = lexer_skip_space(x, p);
    if (!lexer_at(x, p, word))
        return false;
    p = lexer_skip_space(x, p + strlen(word));
    return closing_mark(x, p, "%}", trim, trim, end);
}

/* Emits the text [x->pos, tag) before a tag, stripped according to the tag's sign and
 * lstrip_blocks. */
static void push_data(struct lexer *x, size_t tag, bool lstrip) {
    size_t from = x->pos, to = tag;
    char sign = tag + 2 < x->len ? x->s[tag + 2] : 0;
    if (sign == '-') {
        to = strip_end(x, from, to);
    } else if (sign != '+' && lstrip) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n')
            line--;
        bool line_start = line > from || from == 0 || x->s[from - 1] == '\n';
        if (line_start && strip_end(x, line, to) == line)
            to = line;
    }
    if (to > from)
        push_token(x, TOK_DATA, from, to - from);
}

/* ---- inside a tag ---------------------------------------------------------------------------- */

static bool is_decimal(char c) {
    return c >= '0' && c <= '9';
}

static bool is_digit_of(int base, char c) {
    int value = hex_digit(c);
    return value >= 0 && value < base;
}

/* Whether names may hold the character at pos; *next is after it. */
static bool is_name_char(const struct lexer *x, size_t pos, size_t *next) {
    *next = pos;
    uint32_t c = utf8_next(x->s, next);
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_decimal((char)c) || c == '_';
    return !tpl_is_space(c) && is_printable(c);
}

/* The end of the digits at pos, which may be split by single underscores; pos if there are none. */
static size_t scan_digits(const struct lexer *x, size_t pos, int base, bool leading_underscore) {
    size_t end = pos;
    for (;;) {
        size_t p = end;
        if (p < x->len && x->s[p] == '_' && (end > pos || leading_underscore))
            p++;
        if (p >= x->len || !is_digit_of(base, x->s[p]))
            return end;
        end = p + 1;
    }
}

/* The end of the float literal at pos; pos if there is none. A number after a dot is an index
 * (a.0.1), not a fraction. */
static size_t scan_float(const struct lexer *x, size_t pos) {
    if (pos && x->s[pos - 1] == '.')
        return pos;
    size_t whole = scan_digits(x, pos, 10, false), end = whole;
    if (whole < x->len && x->s[whole] == '.') {
        size_t fraction = scan_digits(x, whole + 1, 10, false);
        if (fraction > whole + 1)
            end = fraction;
    }
    if (end < x->len && (x->s[end] | 0x20) == 'e') {
        size_t p = end + 1;
        if (p < x->len && (x->s[p] == '+' || x->s[p] == '-'))
            p++;
        size_t exponent = scan_digits(x, p, 10, false);
        if (exponent > p)
            return exponent;
    }
    return end > whole ? end : pos;
}

static size_t scan_int(const struct lexer *x, size_t pos, int *base) {
    *base = 10;
    if (x->s[pos] != '0')
        return scan_digits(x, pos, 10, false);
    if (pos + 1 < x->len) {
        char c = (char)(x->s[pos + 1] | 0x20);
        int b = c == 'b' ? 2 : c == 'o' ? 8 : c == 'x' ? 16 : 0;
        size_t end = b ? scan_digits(x, pos + 2, b, true) : 0;
        if (b && end > pos + 2) {
            *base = b;
            return end;
        }
    }
    size_t end = pos; /* only zeros may follow a leading zero */
    while (end < x->len && (x->s[end] == '0' || (end > pos && x->s[end] == '_')))
        end++;
    while (x->s[end - 1] == '_')
        end--;
    return end;
}

static void lex_number(struct lexer *x) {
    size_t from = x->pos, end = scan_float(x, from);
    x->t->at = from;
    if (end > from) {
        char text[64]; /* without underscores */
        size_t n = 0;
        for (size_t i = from; i < end; i++) {
            if (x->s[i] == '_')
                continue;
            if (n == sizeof text)
                tpl_fail(x->t, "the number has more than %zu digits", sizeof text);
            text[n++] = x->s[i];
        }
        double value = 0;
        if (!tpl_parse_double(text, n, &value))
            tpl_fail(x->t, "not a number");
        push_token(x, TOK_FLOAT, from, end - from)->value = tpl_float(value);
    } else {
        int base;
        end = scan_int(x, from, &base);
        int64_t value = 0;
        for (size_t i = from + (base == 10 ? 0 : 2); i < end; i++)
            if (x->s[i] != '_' &&
                (__builtin_mul_overflow(value, (int64_t)base, &value) ||
                 __builtin_add_overflow(value, (int64_t)hex_digit(x->s[i]), &value)))
                tpl_fail(x->t, "the integer does not fit in 64 bits");
        push_token(x, TOK_INT, from, end - from)->value = tpl_int(value);
    }
    x->pos = end;
}

/* \x41 \u00e9 \U0001f600 and octal \101. *pos is after the letter, or at the first octal digit. */
static uint32_t escape_code(struct lexer *x, size_t *pos, size_t end, char letter) {
    size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 3;
    int base = digits == 3 ? 8 : 16;
    uint32_t code = 0;
    size_t n = 0;
    while (n < digits && *pos < end && is_digit_of(base, x->s[*pos])) {
        code = code * (uint32_t)base + (uint32_t)hex_digit(x->s[*pos]);
        ++*pos;
        n++;
    }
    if (base == 16 && n < digits)
        tpl_fail(x->t, "truncated \\%c escape in a string", letter);
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        tpl_fail(x->t, "the \\%c escape is not a character", letter);
    return code;
}

static void put_escape(struct lexer *x, struct tpl_out *out, size_t *pos, size_t end) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    _Static_assert(sizeof from == sizeof to, "every letter has a value");
    char c = x->s[(*pos)++];
    const char *simple = c ? strchr(from, c) : NULL;
    if (c == '\n')
        return;
    if (simple) {
        tpl_out_put(x->t, out, &to[simple - from], 1);
        return;
    }
    bool octal = c >= '0' && c <= '7';
    if (!octal && c != 'x' && c != 'u' && c != 'U') {
        if (c == 'N')
            tpl_fail(x->t, "\\N escapes are not supported");
        tpl_out_put(x->t, out, "\\", 1);
        tpl_out_put(x->t, out, &c, 1);
        return;
    }
    if (octal)
        --*pos;
    char bytes[4];
    tpl_out_put(x->t, out, bytes, utf8_put(bytes, escape_code(x, pos, end, c)));
}

static void lex_string(struct lexer *x) {
    char quote = x->s[x->pos];
    size_t from = x->pos + 1, end = from;
    bool escapes = false;
    x->t->at = x->pos;
    while (end < x->len && x->s[end] != quote) {
        escapes |= x->s[end] == '\\';
        end += x->s[end] == '\\' ? 2 : 1;
    }
    if (end >= x->len)
        tpl_fail(x->t, "the string has no closing %c", quote);
    tval value;
    if (!escapes) {
        value = tpl_str_own(x->t, x->s + from, end - from);
    } else {
        struct tpl_out out = {0};
        for (size_t i = from; i < end;) {
            if (x->s[i] != '\\') {
                tpl_out_put(x->t, &out, &x->s[i++], 1);
                continue;
            }
            x->t->at = i++;
            put_escape(x, &out, &i, end);
        }
        value = tpl_str_own(x->t, out.data ? out.data : "", out.len);
    }
    push_token(x, TOK_STRING, x->pos, end + 1 - x->pos)->value = value;
    x->pos = end + 1;
}

static enum tpl_token_kind operator_at(const struct lexer *x) {
    for (enum tpl_token_kind k = TOK_ADD; k <= TOK_SEMICOLON; k++) /* the long ones first */
        if (token_names[k][1] && lexer_at(x, x->pos, token_names[k]))
            return k;
    for (enum tpl_token_kind k = TOK_ADD; k <= TOK_SEMICOLON; k++)
        if (!token_names[k][1] && x->s[x->pos] == token_names[k][0])
            return k;
    return TOK_END;
}

static void balance_brackets(struct lexer *x, enum tpl_token_kind kind) {
    if (kind == TOK_LPAREN || kind == TOK_LBRACKET || kind == TOK_LBRACE) {
        TPL_GROW(x->t, x->scratch, x->brackets, x->n_brackets, x->cap_brackets, 64);
        x->brackets[x->n_brackets++] = (uint8_t)(kind + 1); /* the closing one */
    } else if (kind == TOK_RPAREN || kind == TOK_RBRACKET || kind == TOK_RBRACE) {
        if (!x->n_brackets)
            tpl_fail(x->t, "unexpected '%s'", token_names[kind]);
        enum tpl_token_kind want = x->brackets[--x->n_brackets];
        if (want != kind)
            tpl_fail(x->t, "unexpected '%s', expected '%s'", token_names[kind], token_names[want]);
    }
}

/* The tokens of a tag including its closing mark, or up to the end of the source. */
static void lex_tag(struct lexer *x, bool block) {
    x->n_brackets = 0;
    while (x->pos < x->len) {
        size_t end, next;
        if (!x->n_brackets && closing_mark(x, x->pos, block ? "%}" : "}}", block, block, &end)) {
            push_token(x, block ? TOK_BLOCK_END : TOK_PRINT_END, x->pos, end - x->pos);
            x->pos = end;
            return;
        }
        size_t blank = lexer_skip_space(x, x->pos);
        char c = x->s[x->pos];
        if (blank > x->pos) {
            x->pos = blank;
        } else if (is_decimal(c)) {
            lex_number(x);
        } else if (is_name_char(x, x->pos, &next)) {
            size_t from = x->pos;
            while (x->pos < x->len && is_name_char(x, x->pos, &next))
                x->pos = next;
            push_token(x, TOK_NAME, from, x->pos - from);
        } else if (c == '\'' || c == '"') {
            lex_string(x);
        } else {
            enum tpl_token_kind kind = operator_at(x);
            x->t->at = x->pos;
            if (kind == TOK_END)
                tpl_fail(x->t, "unexpected character '%.*s'", (int)(next - x->pos), x->s + x->pos);
            balance_brackets(x, kind);
            push_token(x, kind, x->pos, strlen(token_names[kind]));
            x->pos += strlen(token_names[kind]);
        }
    }
}

/* ---- between tags ---------------------------------------------------------------------------- */

static void lex_comment(struct lexer *x, size_t tag) {
    size_t p = tag + 2, end = 0;
    if (p < x->len && (x->s[p] == '-' || x->s[p] == '+'))
        p++;
    while (p < x->len && !closing_mark(x, p, "#}", true, true, &end))
        p++;
    x->t->at = tag;
    if (p >= x->len)
        tpl_fail(x->t, "the comment has no closing #}");
    x->pos = end;
}

static void lex_raw(struct lexer *x, size_t tag, size_t body) {
    size_t p = body, end = 0;
    while (p < x->len && !(lexer_at(x, p, "{%") && raw_tag(x, p, "endraw", true, &end)))
        p++;
    x->t->at = tag;
    if (p >= x->len)
        tpl_fail(x->t, "{%% raw %%} has no {%% endraw %%}");
    x->pos = body;
    push_data(x, p, true);
    x->pos = end;
}

static size_t find_tag(const struct lexer *x) {
    for (size_t p = x->pos; p + 1 < x->len; p++)
        if (x->s[p] == '{' && (x->s[p + 1] == '%' || x->s[p + 1] == '{' || x->s[p + 1] == '#'))
            return p;
    return x->len;
}

const struct tpl_token *tpl_lex(struct tpl *t, struct tpl_arena *scratch) {
    struct lexer x = {.t = t, .scratch = scratch, .s = t->source, .len = t->source_len};
    while (x.pos < x.len) {
        size_t tag = find_tag(&x), body;
        if (tag == x.len) {
            push_token(&x, TOK_DATA, x.pos, x.len - x.pos);
            break;
        }
        char mark = x.s[tag + 1];
        push_data(&x, tag, mark != '{');
        if (mark == '#') {
            lex_comment(&x, tag);
        } else if (mark == '%' && raw_tag(&x, tag, "raw", false, &body)) {
            lex_raw(&x, tag, body);
        } else {
            push_token(&x, mark == '%' ? TOK_BLOCK_BEGIN : TOK_PRINT_BEGIN, tag, 2);
            x.pos = tag + 2;
            if (x.pos < x.len && (x.s[x.pos] == '-' || x.s[x.pos] == '+'))
                x.pos++;
            lex_tag(&x, mark == '%');
        }
    }
    push_token(&x, TOK_END, x.len, 0);
    return x.tokens;
}
