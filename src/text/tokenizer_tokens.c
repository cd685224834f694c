/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_tokens.c: what a tokenizer knows of its tokens. */
#include "text/tokenizer_internal.h"

const char *tokenizer_name(const struct tokenizer *t) {
    return t->name;
}

size_t tokenizer_size(const struct tokenizer *t) {
    return t->pieces.n;
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) {
    return pieces_has(&t->pieces, id) && t->ends[id];
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id) {
    return pieces_has(&t->pieces, id) && is_control_kind(t->pieces.kind[id]);
}

struct text_span tokenizer_bytes(const struct tokenizer *t, int32_t id) {
    if (!pieces_has(&t->pieces, id))
        return (struct text_span){"", 0};
    DEBUG_ASSERT(t->start[id] <= t->start[id + 1]);
    return (struct text_span){t->bytes + t->start[id], t->start[id + 1] - t->start[id]};
}

struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id) {
    return pieces_at(&t->pieces, id);
}
