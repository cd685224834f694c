/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_decode.c: from tokens to text: the bytes of one token inside a text (tokenizer_bytes,
 * computed once), and the text of a list of tokens (tokenizer_decode).
 *
 * A decoder is a list of steps over a list of tokens, like Hugging Face's:
 *
 *     "▁Hi" "<0xE2>" "<0x82>" "<0xAC>"      replace "▁" by a space
 *     " Hi" "<0xE2>" "<0x82>" "<0xAC>"      byte fallback
 *     " Hi" "€"                             fuse
 *     " Hi€"                                strip one space in front
 *     "Hi€"
 *
 * A single token takes the steps before the fuse; those after it are for whole texts. In a
 * byte-level vocabulary only ordinary pieces are written in the alphabet. Added tokens and GGUF's
 * other kinds are plain text. (Hugging Face decodes the alphabet there, too, and so turns an added
 * "café" into U+FFFD.)
 *
 * tokenizer_decode always returns valid UTF-8. growth_limit bounds the bytes of one token and of a
 * text: eight steps that write 32 bytes for one could make 2^40.
 */
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_internal.h"

enum { BYTE_PIECE_LEN = 6 }; /* "<0x0A>" */

/* The byte that "<0x0A>" names; -1 if the piece does not have this form. */
static int named_byte(struct text_span piece) {
    if (piece.len != BYTE_PIECE_LEN || memcmp(piece.data, "<0x", 3) != 0 || piece.data[5] != '>')
        return -1;
    int high = hex_digit(piece.data[3]), low = hex_digit(piece.data[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* ---- one token ------------------------------------------------------------------------------- */

static struct text_span strip_token(const struct decoder_step *step, struct text_span text) {
    struct text_span what = {step->from, step->from_len};
    for (uint32_t i = 0; i < step->start && text.len >= what.len; i++) {
        if (memcmp(text.data, what.data, what.len) != 0)
            break;
        text.data += what.len;
        text.len -= what.len;
    }
    for (uint32_t i = 0; i < step->stop && text.len >= what.len; i++) {
        if (memcmp(text.data + text.len - what.len, what.data, what.len) != 0)
            break;
        text.len -= what.len;
    }
    return text;
}

/* A step that depends only on the token. first: the token is the first of its text. Stops soon
 * after out has grown past limit. */
static bool step_token(const struct decoder_step *step, struct text_span token, bool first,
                       size_t limit, struct text_buf *out) {
    bool changed = false;
    if (step->kind == DECODE_STRIP)
        token = strip_token(step, token);
    if (step->kind == DECODE_REPLACE && !replace_text(token, step->from, step->from_len, step->to,
                                                      step->to_len, limit, out, &changed))
        return false;
    if (step->kind == DECODE_MARKS &&
        !replace_text(token, SPACE_MARK, SPACE_MARK_LEN, " ", first && step->strip ? 0 : 1, limit,
                      out, &changed))
        return false;
    return changed || text_append(out, token.data, token.len);
}

static bool byte_level_token(struct text_span piece, uint8_t kind, struct text_buf *out) {
    int byte = kind == TOKEN_BYTE ? named_byte(piece) : -1;
    if (byte >= 0) {
        char one = (char)byte;
        return text_append(out, &one, 1);
    }
    size_t start = out->len;
    if (!text_append(out, piece.data, piece.len))
        return false;
    if (kind != TOKEN_NORMAL)
        return true;
    ptrdiff_t n = alphabet_decode(piece, (uint8_t *)out->data + start);
    if (n >= 0)
        out->len = start + (size_t)n;
    else if (piece.len)
        memcpy(out->data + start, piece.data, piece.len);
    return true;
}

/* False: out of memory, or *piece is longer than limit. */
static bool run_token(const struct decoder *d, size_t limit, struct text_buf work[2],
                      struct text_span *piece) {
    bool good = true;
    for (int i = 0; i < d->n && good && d->step[i].kind != DECODE_FUSE; i++) {
        struct text_buf *to = &work[i % 2];
        int byte = d->step[i].kind == DECODE_BYTE_FALLBACK ? named_byte(*piece) : -1;
        char one = (char)byte;
        to->len = 0;
        good = byte >= 0 ? text_append(to, &one, 1)
                         : step_token(&d->step[i], *piece, false, limit, to);
        *piece = (struct text_span){to->data, to->len};
        good = good && piece->len <= limit;
        if (byte >= 0)
            break;
    }
    return good;
}

kvasir_status decoder_token_bytes(const struct tokenizer *t, int32_t id, struct text_buf *out,
                                  kvasir_error *err) {
    const struct decoder *d = &t->decoder;
    struct text_span piece = pieces_at(&t->pieces, id);
    size_t len = piece.len, limit = growth_limit(len);
    struct text_buf work[2] = {{0}, {0}};
    bool good;
    if (!pieces_has(&t->pieces, id))
        return KVASIR_OK;
    if (d->n && d->step[0].kind == DECODE_BYTE_LEVEL)
        good = byte_level_token(piece, t->pieces.kind[id], out);
    else
        good = run_token(d, limit, work, &piece) && text_append(out, piece.data, piece.len);
    text_free(&work[0]);
    text_free(&work[1]);
    if (piece.len > limit)
        return fail(err, KVASIR_ERR_FORMAT,
                    "the decoder makes token %d too long: more than %zu bytes of %zu", id, limit,
                    len);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "not enough memory for token %d", id);
}

/* ---- a list of tokens ------------------------------------------------------------------------ */

enum { NO_ID = -1 };
struct token_chain {
    struct text_buf text;
    size_t *end; /* [cap] where each of the n tokens ends in text */
    int32_t *id; /* [cap] its id, of several the first; NO_ID after a fuse */
    size_t n, cap;
};

static struct text_span chain_at(const struct token_chain *c, size_t i) {
    size_t start = i ? c->end[i - 1] : 0;
    DEBUG_ASSERT(i < c->n && start <= c->end[i] && c->end[i] <= c->text.len);
    return (struct text_span){c->text.data + start, c->end[i] - start};
}

static void chain_end(struct token_chain *c, int32_t id) {
    ASSERT(c->n < c->cap);
    c->id[c->n] = id;
    c->end[c->n++] = c->text.len;
}

/* A run of bytes as characters; if it is not UTF-8 as a whole, one U+FFFD per byte. */
static bool put_byte_run(struct token_chain *out, const char *bytes, size_t n, int32_t id) {
    bool good = true;
    if (utf8_check(bytes, n) == n)
        good = text_append(&out->text, bytes, n);
    else
        for (size_t i = 0; i < n && good; i++)
            good = text_append(&out->text, "\xef\xbf\xbd", 3);
    chain_end(out, id);
    return good;
}

/* Counts a token. True: it is to stop. */
static bool token_stops(struct text_guard *g) {
    enum { TOKEN = 16 }; /* so that stop is asked once in 4096 tokens */
    return guard_stops(g, TOKEN);
}

static bool fall_back(const struct token_chain *in, struct text_guard *guard,
                      struct token_chain *out) {
    struct text_buf run = {0};
    bool good = true;
    for (size_t i = 0; i <= in->n && good && !token_stops(guard); i++) {
        struct text_span token = i < in->n ? chain_at(in, i) : (struct text_span){"", 0};
        int byte = i < in->n ? named_byte(token) : -1;
        char one = (char)byte;
        if (byte >= 0) {
            good = text_append(&run, &one, 1);
            continue;
        }
        if (run.len)
            good = put_byte_run(out, run.data, run.len, in->id[i - run.len]);
        run.len = 0;
        if (i < in->n) {
            good = good && text_append(&out->text, token.data, token.len);
            chain_end(out, in->id[i]);
        }
    }
    text_free(&run);
    return good && !guard->stopped;
}

/* Stops soon after out->text has grown past limit. */
static bool run_decoder_step(const struct decoder_step *step, size_t limit,
                             const struct token_chain *in, struct text_guard *guard,
                             struct token_chain *out) {
    out->n = out->text.len = 0;
    if (step->kind == DECODE_BYTE_FALLBACK)
        return fall_back(in, guard, out);
    if (step->kind == DECODE_FUSE) {
        bool good = text_append(&out->text, in->text.data, in->text.len);
        chain_end(out, NO_ID);
        return good;
    }
    bool good = true;
    for (size_t i = 0; i < in->n && good && out->text.len <= limit; i++) {
        good = !token_stops(guard) && step_token(step, chain_at(in, i), i == 0, limit, &out->text);
        chain_end(out, in->id[i]);
    }
    return good;
}

static bool is_skipped(const struct tokenizer *t, int32_t id, unsigned flags) {
    return !pieces_has(&t->pieces, id) ||
           ((flags & DETOKENIZE_SKIP_SPECIAL) && tokenizer_is_control(t, id));
}

/* Stopped, or out of memory. */
static kvasir_status decode_ended(const struct text_guard *guard, size_t n, kvasir_error *err) {
    if (guard->stopped)
        return fail(err, KVASIR_ERR_CANCELLED, "cancelled while tokens were decoded");
    return fail(err, KVASIR_ERR_MEMORY, "not enough memory to decode %zu tokens", n);
}

static bool start_chain(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                        struct text_guard *guard, struct token_chain *c) {
    for (size_t i = 0; i < n; i++) {
        if (token_stops(guard))
            return false;
        if (is_skipped(t, ids[i], flags))
            continue;
        struct text_span piece = pieces_at(&t->pieces, ids[i]);
        if ((t->decoder.spaces && c->n && !text_append(&c->text, " ", 1)) ||
            !text_append(&c->text, piece.data, piece.len))
            return false;
        chain_end(c, ids[i]);
    }
    return true;
}

static kvasir_status decode_chain(const struct tokenizer *t, const int32_t *ids, size_t n,
                                  unsigned flags, struct text_guard *guard,
                                  struct token_chain work[2], struct text_buf *out,
                                  kvasir_error *err) {
    const struct decoder *d = &t->decoder;
    for (int k = 0; k < 2; k++) {
        work[k].end = mem_calloc(n + 1, sizeof *work[k].end); /* FUSE makes one token of none */
        work[k].cap = n + 1;
        work[k].id = mem_calloc(n + 1, sizeof *work[k].id);
        if (!work[k].end || !work[k].id || !text_append(&work[k].text, "", 0))
            return decode_ended(guard, n, err);
    }
    if (!start_chain(t, ids, n, flags, guard, &work[0]))
        return decode_ended(guard, n, err);
    size_t len = work[0].text.len, limit = growth_limit(len);
    for (int i = 0; i < d->n; i++) {
        struct token_chain *to = &work[(i + 1) % 2];
        if (!run_decoder_step(&d->step[i], limit, &work[i % 2], guard, to))
            return decode_ended(guard, n, err);
        if (to->text.len <= limit)
            continue;
        int32_t id = to->id[to->n - 1];
        char where[32] = "";
        if (id != NO_ID)
            snprintf(where, sizeof where, " at token %d", id);
        return fail(err, KVASIR_ERR_TEXT,
                    "the decoder makes a text too long%s: more than %zu bytes of %zu", where, limit,
                    len);
    }
    struct text_buf *whole = &work[d->n % 2].text;
    struct detok whole_only = {0}; /* pieces need not be UTF-8 */
    return detok_push(&whole_only, (struct text_span){whole->data, whole->len}, out) &&
                   detok_finish(&whole_only, out)
               ? KVASIR_OK
               : decode_ended(guard, n, err);
}

static bool decode_bytes(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                         struct text_guard *guard, struct text_buf *out) {
    struct detok d = {0};
    for (size_t i = 0; i < n; i++)
        if (token_stops(guard) ||
            (!is_skipped(t, ids[i], flags) && !detok_push(&d, tokenizer_bytes(t, ids[i]), out)))
            return false;
    return detok_finish(&d, out);
}

kvasir_status tokenizer_decode_by(const struct tokenizer *t, const int32_t *ids, size_t n,
                                  unsigned flags, const kvasir_text_limits *limits,
                                  struct text_buf *out, kvasir_error *err) {
    struct text_guard guard = {.stop = limits ? limits->stop : NULL,
                               .user = limits ? limits->user : NULL};
    if (t->decoder.n && t->decoder.step[0].kind == DECODE_BYTE_LEVEL)
        return decode_bytes(t, ids, n, flags, &guard, out) ? KVASIR_OK
                                                           : decode_ended(&guard, n, err);
    struct token_chain work[2] = {{.n = 0}, {.n = 0}};
    kvasir_status status = decode_chain(t, ids, n, flags, &guard, work, out, err);
    for (int k = 0; k < 2; k++) {
        text_free(&work[k].text);
        mem_free(work[k].end);
        mem_free(work[k].id);
    }
    return status;
}

kvasir_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                               unsigned flags, struct text_buf *out, kvasir_error *err) {
    return tokenizer_decode_by(t, ids, n, flags, NULL, out, err);
}
