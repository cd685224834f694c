/* SPDX-License-Identifier: Apache-2.0 */
/* regex.c: patterns: PCRE2 in UTF and UCP mode, and a translation of the part of Oniguruma's
 * dialect that tokenizer.json files use.
 *
 * Most of what pre-tokenizers need means the same in both. The rest is translated or refused:
 *
 *     \s \S        the class White_Space. PCRE2's \s also matches U+180E, which has not been
 *                  White_Space since Unicode 6.3
 *     \p{Han}      \p{sc:Han}. PCRE2's bare script names also match characters of shared scripts
 *     \v           U+000B, not all vertical space
 *     .            [^\n], whatever newlines PCRE2 was built for
 *     $            the end, or before a newline
 *     \w \b \h ^   refused, because their meanings differ; so are classes in classes, &&, and
 *                  all that is not listed here
 *
 * A refused pattern is an error with its place. It never becomes a pattern with another meaning.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

/* The inside of a class; \S is [^ SPACE ]. \p{Z} is Zs, Zl and Zp. */
#define SPACE "\\t-\\r\\x{85}\\p{Z}"

const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                            "\\s+(?!\\S)|\\s+";

static kvasir_status regex_compile(const char *pattern, size_t len, pcre2_code **out,
                                   kvasir_error *err) {
    int code;
    PCRE2_SIZE at;
    *out = pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                         &code, &at, NULL);
    if (!*out) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return fail_at(err, KVASIR_ERR_UNSUPPORTED, (int64_t)at,
                       "pre-tokenizer pattern, character %zu: %s", at, why);
    }
    /* Without JIT (in this build or system) pcre2_match interprets: the same words, slower. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return KVASIR_OK;
}

/* ---- Oniguruma's dialect --------------------------------------------------------------------- */

struct translation {
    struct text_span in;
    size_t at;
    bool in_class;
    struct text_buf out;
    kvasir_error *err;
};

static kvasir_status refuse_pattern(const struct translation *t, size_t at, const char *what) {
    return fail_at(t->err, KVASIR_ERR_UNSUPPORTED, (int64_t)at,
                   "pre-tokenizer pattern, character %zu: %s is not supported", at, what);
}

static kvasir_status put_pattern(struct translation *t, const char *text, size_t len) {
    if (!text_append(&t->out, text, len))
        return fail(t->err, KVASIR_ERR_MEMORY, "not enough memory for a pattern");
    return KVASIR_OK;
}

static kvasir_status put_text(struct translation *t, const char *text) {
    return put_pattern(t, text, strlen(text));
}

static char peek_pattern(const struct translation *t, size_t ahead) {
    return t->at + ahead < t->in.len ? t->in.data[t->at + ahead] : 0;
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* \p{..} and \P{..}; t->at is at the p. General categories of one or two letters, or a script. */
static kvasir_status translate_property(struct translation *t) {
    size_t start = t->at, name = start + 2;
    bool negate = t->in.data[start] == 'P';
    if (peek_pattern(t, 1) != '{')
        return refuse_pattern(t, start, "a property without braces");
    if (name < t->in.len && t->in.data[name] == '^') {
        negate = !negate;
        name++;
    }
    size_t end = name;
    while (end < t->in.len && (is_letter(t->in.data[end]) || t->in.data[end] == '_'))
        end++;
    if (end == t->in.len || t->in.data[end] != '}' || end == name || end - name > 32)
        return refuse_pattern(t, start, "this form of a property");
    TRY(put_text(t, negate ? "\\P{" : "\\p{"));
    if (end - name > 2)
        TRY(put_text(t, "sc:"));
    TRY(put_pattern(t, t->in.data + name, end + 1 - name));
    t->at = end + 1;
    return KVASIR_OK;
}

/* \xHH, \x{H...} and \uHHHH. */
static kvasir_status translate_code_point(struct translation *t) {
    size_t start = t->at++, n = 0;
    bool braces = t->in.data[start] == 'x' && peek_pattern(t, 0) == '{';
    size_t most = braces ? 6 : t->in.data[start] == 'u' ? 4 : 2;
    t->at += braces;
    while (n < most && is_hex(peek_pattern(t, n)))
        n++;
    if (n == 0 || (!braces && n != most) || (braces && peek_pattern(t, n) != '}'))
        return refuse_pattern(t, start, "this form of a code point");
    TRY(put_text(t, "\\x{"));
    TRY(put_pattern(t, t->in.data + t->at, n));
    t->at += n + braces;
    return put_text(t, "}");
}

static kvasir_status translate_escape(struct translation *t) {
    size_t start = t->at++;
    char c = peek_pattern(t, 0);
    switch (c) {
    case 's':
        t->at++;
        return put_text(t, t->in_class ? SPACE : "[" SPACE "]");
    case 'S':
        if (t->in_class)
            return refuse_pattern(t, start, "\\S in a class");
        t->at++;
        return put_text(t, "[^" SPACE "]");
    case 'v':
        t->at++;
        return put_text(t, "\\x{0b}");
    case 'p':
    case 'P':
        return translate_property(t);
    case 'x':
    case 'u':
        return translate_code_point(t);
    case 'd':
    case 'D':
    case 'n':
    case 'r':
    case 't':
    case 'f':
        break;
    default: /* an escaped sign is the sign itself */
        if (c < '!' || c > '~' || is_letter(c) || (c >= '0' && c <= '9'))
            return refuse_pattern(t, start, "this escape");
    }
    t->at++;
    return put_pattern(t, t->in.data + start, 2);
}

/* A parenthesis and what follows it. */
static kvasir_status translate_group(struct translation *t) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"};
    if (peek_pattern(t, 1) != '?') {
        t->at++;
        return put_text(t, "(");
    }
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        size_t len = strlen(known[k]);
        if (t->in.len - t->at >= len && memcmp(t->in.data + t->at, known[k], len) == 0) {
            t->at += len;
            return put_text(t, known[k]);
        }
    }
    return refuse_pattern(t, t->at, "this kind of group");
}

/* {n}, {n,} and {n,m}. For Oniguruma {n}? is {0,n} and {n}+ is repeated, so these are refused. */
static kvasir_status translate_interval(struct translation *t) {
    size_t n = 1, commas = 0;
    while ((peek_pattern(t, n) >= '0' && peek_pattern(t, n) <= '9') ||
           (n > 1 && peek_pattern(t, n) == ',' && !commas++))
        n++;
    if (n == 1 || peek_pattern(t, n) != '}' || peek_pattern(t, n + 1) == '+' ||
        peek_pattern(t, n + 1) == '?')
        return refuse_pattern(t, t->at, "this use of a brace");
    TRY(put_pattern(t, t->in.data + t->at, n + 1));
    t->at += n + 1;
    return KVASIR_OK;
}

static kvasir_status translate_class(struct translation *t) {
    size_t n = peek_pattern(t, 1) == '^' ? 2 : 1;
    if (peek_pattern(t, n) == ']')
        return refuse_pattern(t, t->at, "a class that begins with ]");
    TRY(put_pattern(t, t->in.data + t->at, n));
    t->at += n;
    t->in_class = true;
    return KVASIR_OK;
}

static kvasir_status translate_in_class(struct translation *t, char c) {
    if (c == '[')
        return refuse_pattern(t, t->at, "a class in a class");
    if (c == '&' && peek_pattern(t, 1) == '&')
        return refuse_pattern(t, t->at, "&&");
    t->in_class = c != ']';
    return put_pattern(t, &t->in.data[t->at++], 1);
}

static kvasir_status translate(struct translation *t) {
    while (t->at < t->in.len) {
        DEBUG_ASSERT(t->out.len <= 16 * t->at + 16);
        char c = t->in.data[t->at];
        if (c == '\\')
            TRY(translate_escape(t));
        else if (t->in_class)
            TRY(translate_in_class(t, c));
        else if (c == '[')
            TRY(translate_class(t));
        else if (c == '(')
            TRY(translate_group(t));
        else if (c == '{')
            TRY(translate_interval(t));
        else if (c == '^' || c == 0)
            return refuse_pattern(t, t->at, c ? "^" : "a NUL");
        else if (c == '$' || c == '.') {
            t->at++;
            TRY(put_text(t, c == '$' ? "(?![^\\n])" : "[^\\n]"));
        } else {
            TRY(put_pattern(t, &t->in.data[t->at++], 1));
        }
    }
    return t->in_class ? refuse_pattern(t, t->in.len, "an unclosed class") : KVASIR_OK;
}

kvasir_status regex_compile_onig(struct text_span pattern, pcre2_code **out, kvasir_error *err) {
    struct translation t = {.in = pattern, .err = err};
    kvasir_status status = KVASIR_OK;
    if (utf8_check(pattern.data, pattern.len) != pattern.len)
        return fail(err, KVASIR_ERR_FORMAT, "the pattern is not valid UTF-8");
    TRY_GOTO(put_text(&t, ""));
    TRY_GOTO(translate(&t));
    TRY_GOTO(regex_compile(t.out.data, t.out.len, out, err));
done:
    text_free(&t.out);
    return status;
}
