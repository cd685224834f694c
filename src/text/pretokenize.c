/* SPDX-License-Identifier: Apache-2.0 */
/* pretokenize.c: pre-tokenizers: how text is cut into words before any merge.
 *
 * A pre-tokenizer is a list of stages. Stage 0 cuts the text. Each part is then a text of its own
 * for stage 1 (its end is the end of text for lookahead), and so on. What the last stage cuts are
 * the words:
 *
 *     "in 42 days"   stage 0, \p{N}     [in ] [4] [2] [ days]
 *                    stage 1, gpt-2     [in] [ ] [4] [2] [ days]
 *
 * A stage finds matches. The text between two matches is an item, too. The behavior says which
 * neighbours are joined:
 *
 *     items      a   MATCH  MATCH  b        isolated              [a] [M] [M] [b]
 *                                           merged with previous  [aM] [M] [b]
 *                                           merged with next      [a] [M] [Mb]
 *                                           contiguous            [a] [MM] [b]
 *                                           removed               [a] [b]
 *
 * Two kinds of stages do not cut. They rewrite their part in scratch memory: STAGE_PREFIX puts a
 * space in front, STAGE_MARKS writes U+2581 for spaces.
 *
 * The caller has checked that the text is UTF-8. PCRE2 is told not to check it again, because it
 * would walk the rest of the text at every match.
 */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* ---- making one ------------------------------------------------------------------------------ */

/* Limits for patterns from files: PCRE2's own default, and more steps per byte. The steps of our
 * own patterns are linear in the length of a word, and words may be long: in patterns like
 * \s*[\r\n]+ the default alone ends at 10 million spaces. */
enum { MATCH_STEPS = 10 * 1000 * 1000, MATCH_STEPS_A_BYTE = 16 };

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define LETTERS      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SIGNS        " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2        CONTRACTIONS LETTERS "\\p{N}|" SIGNS SPACES
#define LLAMA3       CONTRACTIONS LETTERS "\\p{N}{1,3}|" SIGNS SPACES
/* Words end where a capital follows a small letter. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define TEKKEN                                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER            \
    "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES

/* Names that share a pattern differ in other changes of their makers. */
static const struct known_pre known[] = {
    {.name = "gpt-2", .patterns = {gpt2_pattern}},
    {.name = "default", .patterns = {gpt2_pattern}},
    {.name = "smollm", .patterns = {"\\p{N}", gpt2_pattern}},
    {.name = "starcoder", .patterns = {"\\p{N}", gpt2_pattern}},
    {.name = "qwen2", .patterns = {QWEN2}, .nfc = true},
    {.name = "tekken", .patterns = {TEKKEN}, .ignore_merges = true},
    {.name = "llama-bpe", .patterns = {LLAMA3}, .ignore_merges = true},
    {.name = "llama3", .patterns = {LLAMA3}, .ignore_merges = true},
    {.name = "llama-v3", .patterns = {LLAMA3}, .ignore_merges = true},
};
enum { KNOWN = sizeof known / sizeof known[0] };

kvasir_status known_pre_find(const char *name, const struct known_pre **out, kvasir_error *err) {
    char names[256];
    size_t at = 0;
    for (size_t i = 0; i < KNOWN; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *out = &known[i];
            return KVASIR_OK;
        }
        int n = snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", known[i].name);
        ASSERT(n > 0 && (size_t)n < sizeof names - at);
        at += (size_t)n;
    }
    return fail(err, KVASIR_ERR_UNSUPPORTED, "pre-tokenizer \"%s\" is not supported (known: %s)",
                quote_bytes(name, strlen(name)).text, names);
}

kvasir_status pretokenizer_add(struct pretokenizer *p, const struct pre_stage *stage,
                               kvasir_error *err) {
    if (p->n == PRETOKENIZER_STAGES_MAX) {
        pcre2_code_free(stage->re);
        return fail(err, KVASIR_ERR_UNSUPPORTED, "more than %d pre-tokenizers in a row",
                    PRETOKENIZER_STAGES_MAX);
    }
    p->stage[p->n++] = *stage;
    return KVASIR_OK;
}

kvasir_status pretokenizer_add_patterns(struct pretokenizer *p, const char *const *patterns,
                                        kvasir_error *err) {
    for (; *patterns; patterns++) {
        struct pre_stage stage = {.kind = STAGE_REGEX, .behavior = SPLIT_ISOLATED};
        TRY(regex_compile_onig(span_of(*patterns), &stage.re, err));
        TRY(pretokenizer_add(p, &stage, err));
    }
    return KVASIR_OK;
}

void pretokenizer_deinit(struct pretokenizer *p) {
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->stage[i].re);
    memset(p, 0, sizeof *p);
}

bool pretokenizer_shortens(const struct pretokenizer *p) {
    for (int i = 0; i < p->n; i++)
        if (p->stage[i].behavior == SPLIT_REMOVED || p->stage[i].kind == STAGE_MARKS)
            return true;
    return false;
}

kvasir_status pre_scratch_init(struct pre_scratch *scratch, size_t text_len, kvasir_error *err) {
    memset(scratch, 0, sizeof *scratch);
    scratch->match = pcre2_match_data_create(1, NULL); /* the whole match; no groups */
    scratch->limits = pcre2_match_context_create(NULL);
    if (!scratch->match || !scratch->limits)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory to split a text of %zu bytes",
                    text_len);
    size_t steps = MATCH_STEPS + MATCH_STEPS_A_BYTE * text_len;
    pcre2_set_match_limit(scratch->limits, (uint32_t)min_size(steps, UINT32_MAX));
    return KVASIR_OK;
}

void pre_scratch_deinit(struct pre_scratch *scratch) {
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->limits);
    for (int i = 0; i < PRETOKENIZER_STAGES_MAX; i++)
        text_free(&scratch->text[i]);
    memset(scratch, 0, sizeof *scratch);
}

/* ---- matches --------------------------------------------------------------------------------- */

struct split_part {
    struct text_span text;
    bool at_start; /* of the input */
};
struct splitting {
    const struct pretokenizer *p;
    struct pre_scratch *scratch;
    word_fn *fn;
    void *ctx;
    kvasir_error *err;
};

static kvasir_status match_failed(int rc, size_t len, kvasir_error *err) {
    if (rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory to split a text of %zu bytes", len);
    char why[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
    return fail(err, KVASIR_ERR_TEXT, "cannot split a text of %zu bytes: %s", len, why);
}

/* Finds the next match at or after `from`. Without one, both ends are text.len. */
static kvasir_status next_match(const struct splitting *s, const struct pre_stage *stage,
                                struct text_span text, size_t from, size_t *start, size_t *end) {
    *start = *end = text.len;
    if (stage->kind == STAGE_LITERAL) {
        *start = find_text(text, from, stage->text, stage->text_len);
        *end = *start == text.len ? text.len : *start + stage->text_len;
        return KVASIR_OK;
    }
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    PCRE2_SPTR subject = (PCRE2_SPTR)text.data;
    struct pre_scratch *scratch = s->scratch;
    int rc =
        pcre2_match(stage->re, subject, text.len, from, options, scratch->match, scratch->limits);
    /* JIT code backtracks on a 32 KiB stack; the interpreter has its frames on the heap. */
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(stage->re, subject, text.len, from, options | PCRE2_NO_JIT, scratch->match,
                         scratch->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return KVASIR_OK;
    if (rc < 0)
        return match_failed(rc, text.len, s->err);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(scratch->match);
    ASSERT(span[0] >= from && span[0] < span[1] && span[1] <= text.len);
    *start = span[0];
    *end = span[1];
    return KVASIR_OK;
}

/* ---- stages ---------------------------------------------------------------------------------- */

static kvasir_status run_stage(const struct splitting *s, int stage, struct split_part part);

/* Items that are joined and wait for the next one. */
struct joined {
    size_t start, end;
    bool match; /* whether the last of them is a match */
};

static bool belongs_to_last(enum split_behavior behavior, bool last, bool match) {
    switch (behavior) {
    case SPLIT_MERGED_WITH_PREVIOUS:
        return match && !last;
    case SPLIT_MERGED_WITH_NEXT:
        return last && !match;
    case SPLIT_CONTIGUOUS:
        return last == match;
    default:
        return false;
    }
}

static kvasir_status emit_items(const struct splitting *s, int stage, const struct split_part *part,
                                const struct joined *j) {
    bool removed = s->p->stage[stage].behavior == SPLIT_REMOVED && j->match;
    if (j->start == j->end || removed)
        return KVASIR_OK;
    struct split_part next = {{part->text.data + j->start, j->end - j->start},
                              part->at_start && j->start == 0};
    return run_stage(s, stage + 1, next);
}

static kvasir_status take_item(const struct splitting *s, int stage, const struct split_part *part,
                               struct joined *j, size_t start, size_t end, bool match) {
    const struct pre_stage *g = &s->p->stage[stage];
    match = match != g->invert;
    if (start == end)
        return KVASIR_OK;
    if (j->start == j->end || !belongs_to_last(g->behavior, j->match, match)) {
        TRY(emit_items(s, stage, part, j));
        j->start = start;
    }
    j->end = end;
    j->match = match;
    return KVASIR_OK;
}

static kvasir_status cut_part(const struct splitting *s, int stage, struct split_part part) {
    struct joined j = {0};
    size_t at = 0;
    while (at < part.text.len) {
        size_t start, end;
        TRY(next_match(s, &s->p->stage[stage], part.text, at, &start, &end));
        TRY(take_item(s, stage, &part, &j, at, start, false));
        TRY(take_item(s, stage, &part, &j, start, end, true));
        at = end;
    }
    return emit_items(s, stage, &part, &j);
}

/* Rewrites the part and passes it on. */
static kvasir_status rewrite_part(const struct splitting *s, int stage, struct split_part part) {
    const struct pre_stage *g = &s->p->stage[stage];
    struct text_buf *out = &s->scratch->text[stage];
    struct text_span text = part.text;
    bool changed = false, good;
    out->len = 0;
    if (g->kind == STAGE_MARKS) {
        good = replace_text(text, " ", 1, SPACE_MARK, SPACE_MARK_LEN, SIZE_MAX, out, &changed);
    } else {
        bool has = text.len >= g->text_len && memcmp(text.data, g->text, g->text_len) == 0;
        changed = !has && (part.at_start || !g->first_only);
        good = !changed ||
               (text_append(out, g->text, g->text_len) && text_append(out, text.data, text.len));
    }
    if (!good)
        return fail(s->err, KVASIR_ERR_MEMORY, "not enough memory to split a text of %zu bytes",
                    text.len);
    if (changed)
        part.text = (struct text_span){out->data, out->len};
    return run_stage(s, stage + 1, part);
}

/* Recurses at most PRETOKENIZER_STAGES_MAX deep. `match` is read before the recursion. */
static kvasir_status run_stage(const struct splitting *s, int stage, struct split_part part) {
    ASSERT(stage <= s->p->n && s->p->n <= PRETOKENIZER_STAGES_MAX);
    if (stage == s->p->n) {
        if (!s->fn(s->ctx, part.text.data, part.text.len))
            return fail(s->err, KVASIR_ERR_MEMORY,
                        "not enough memory to encode a word of %zu bytes", part.text.len);
        return KVASIR_OK;
    }
    enum pre_stage_kind kind = s->p->stage[stage].kind;
    return kind == STAGE_PREFIX || kind == STAGE_MARKS ? rewrite_part(s, stage, part)
                                                       : cut_part(s, stage, part);
}

kvasir_status pretokenizer_split(const struct pretokenizer *p, struct pre_scratch *scratch,
                                 struct text_span text, bool at_start, word_fn *fn, void *ctx,
                                 kvasir_error *err) {
    if (text.len == 0)
        return KVASIR_OK;
    struct splitting s = {p, scratch, fn, ctx, err};
    return run_stage(&s, 0, (struct split_part){text, at_start});
}
