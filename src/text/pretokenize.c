/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers: the patterns that cut text into words before any merge.
 *
 * A pre-tokenizer is a list of stages, a stage is one pattern. Stage 0 cuts the text; every part is
 * then a text of its own for stage 1 (lookahead sees its end as the end of text), and what the last
 * stage cuts are the words:
 *
 *     "in 42 days"   stage 0, \p{N}     [in ] [4] [2] [ days]
 *                    stage 1, gpt-2     [in] [ ] [4] [2] [ days]
 *
 * A match is a part, and so is the text between two matches: nothing is ever lost. A further
 * pre-tokenizer is one row of `known` below.
 *
 * Patterns run in PCRE2 in UTF and UCP mode. White space is written out as a class, because PCRE2's
 * \s also takes U+180E, which has not been White_Space since Unicode 6.3 and is not in the
 * tokenizers that trained the models. The text was checked to be UTF-8 by the caller; PCRE2 is told
 * not to check again, for it would walk the rest of the text at every match.
 *
 * Left out: normalisation (it comes before this), patterns out of a tokenizer.json.
 */
#include <string.h>

#include "text/tokenizer_internal.h"

/* The insides of a class; \S is [^ SPACE ]. \p{Z} is Zs, Zl and Zp. */
#define SPACE "\\t-\\r\\x{85}\\p{Z}"

#define GPT2_WORDS                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE              \
    "]+(?![^" SPACE "])|[" SPACE "]+"

static const struct {
    const char *name;
    const char *patterns[PRETOKENIZER_STAGES_MAX + 1]; /* NULL-terminated */
} known[] = {
    {"gpt-2", {GPT2_WORDS}},
    {"default", {GPT2_WORDS}},
    {"smollm", {"\\p{N}", GPT2_WORDS}},
};
enum { KNOWN = sizeof known / sizeof known[0] };

kvasir_status pretokenizer_init(struct pretokenizer *p, const char *name, kvasir_error *err) {
    struct text_buf names = {0};
    for (size_t i = 0; i < KNOWN; i++) {
        if (strcmp(known[i].name, name) == 0) {
            text_free(&names);
            return pretokenizer_init_patterns(p, known[i].patterns, err);
        }
        if (!text_printf(&names, "%s%s", i ? ", " : "", known[i].name)) {
            text_free(&names);
            return fail(err, KVASIR_ERR_MEMORY, "no memory for the tokenizer");
        }
    }
    kvasir_status status =
        fail(err, KVASIR_ERR_UNSUPPORTED, "pre-tokenizer \"%s\" is not supported (known: %s)",
             quote_bytes(name, strlen(name)).text, names.data);
    text_free(&names);
    return status;
}

kvasir_status pretokenizer_init_patterns(struct pretokenizer *p, const char *const *patterns,
                                         kvasir_error *err) {
    memset(p, 0, sizeof *p);
    p->limits = pcre2_match_context_create(NULL);
    if (!p->limits)
        return fail(err, KVASIR_ERR_MEMORY, "no memory for the pre-tokenizer");
    /* Steps are linear in the length of a word, so a limit on them would only limit words: in
     * patterns like \s*[\r\n]+ PCRE2's default ends at 10 million spaces. */
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    for (; patterns[p->n_stages]; p->n_stages++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code *re =
            pcre2_compile((PCRE2_SPTR)patterns[p->n_stages], PCRE2_ZERO_TERMINATED,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
        if (!re) {
            char why[128];
            pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
            pretokenizer_deinit(p);
            return fail_at(err, KVASIR_ERR_UNSUPPORTED, (int64_t)at,
                           "pre-tokenizer pattern, character %zu: %s", at, why);
        }
        /* Where there is no JIT (a build or a system without it), pcre2_match interprets:
         * slower, the same words. */
        (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE);
        p->stage[p->n_stages] = re;
    }
    return KVASIR_OK;
}

void pretokenizer_deinit(struct pretokenizer *p) {
    for (int i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stage[i]);
    pcre2_match_context_free(p->limits);
    memset(p, 0, sizeof *p);
}

/* Finds the next match at or behind `from`. False: there is none, or *status is an error. */
static bool next_match(const struct pretokenizer *p, int stage, pcre2_match_data *match,
                       const char *text, size_t len, size_t from, kvasir_status *status,
                       kvasir_error *err) {
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = pcre2_match(p->stage[stage], subject, len, from, options, match, p->limits);
    /* JIT code backtracks on a 32 KiB stack; the interpreter keeps its frames on the heap. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(p->stage[stage], subject, len, from, options | PCRE2_NO_JIT, match,
                         p->limits);
    if (rc >= 0)
        return true;
    if (rc == PCRE2_ERROR_NOMATCH) {
        *status = KVASIR_OK;
    } else if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT) {
        *status = fail(err, KVASIR_ERR_MEMORY, "no memory to split a text of %zu bytes", len);
    } else {
        char why[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        *status = fail(err, KVASIR_ERR_TEXT, "cannot split a text of %zu bytes: %s", len, why);
    }
    return false;
}

struct split {
    const struct pretokenizer *p;
    pcre2_match_data *match;
    word_fn *fn;
    void *ctx;
    kvasir_error *err;
};

/* One part of stage - 1. Recurses at most PRETOKENIZER_STAGES_MAX deep; `match` is read before
 * the recursion. */
static kvasir_status split_part(const struct split *s, int stage, const char *text, size_t len) {
    if (len == 0)
        return KVASIR_OK;
    if (stage == s->p->n_stages) {
        if (!s->fn(s->ctx, (const uint8_t *)text, len))
            return fail(s->err, KVASIR_ERR_MEMORY, "no memory to encode a word of %zu bytes", len);
        return KVASIR_OK;
    }
    kvasir_status status = KVASIR_OK;
    size_t at = 0;
    while (at < len && next_match(s->p, stage, s->match, text, len, at, &status, s->err)) {
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
        size_t start = span[0], end = span[1];
        TRY(split_part(s, stage + 1, text + at, start - at));
        TRY(split_part(s, stage + 1, text + start, end - start));
        at = end;
    }
    TRY(status);
    return split_part(s, stage + 1, text + at, len - at);
}

kvasir_status pretokenizer_split(const struct pretokenizer *p, pcre2_match_data *match,
                                 const char *text, size_t len, word_fn *fn, void *ctx,
                                 kvasir_error *err) {
    struct split s = {p, match, fn, ctx, err};
    return split_part(&s, 0, text, len);
}
