/* SPDX-License-Identifier: Apache-2.0 */
/* trace.h: recorded requests, as published for Mooncake (FAST'25): when a request came, how long
 * its prompt and its answer were, and which blocks of 512 prompt tokens it shared with others. A
 * trace has no text, but it is enough to replay what a cache sees.
 *
 * One request a line:
 *
 *     {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}
 *
 * Tokens are made up, so that they are equal exactly if the trace says so:
 *
 *     prompt   position p of a prompt          id * 512 + p % 512, id: that of block p / 512
 *     output   all outputs in order, counted   from the first number above all prompt tokens
 *
 * Both are >= 0 and below 2^31. No output token is a prompt token or a token of another output.
 * Equal prompt tokens have equal ids and offsets.
 */
#ifndef LAB_TRACE_H
#define LAB_TRACE_H

#include "kvasir.h"
#include "util/util.h"

enum {
    TRACE_BLOCK_TOKENS = 512,
    TRACE_ID_MAX = (1 << 22) - 1,     /* the last one's tokens end at 2^31 - 1 */
    TRACE_LENGTH_MAX = (1 << 30) - 1, /* of a prompt or an output: their sum fits 31 bits */
};

struct trace_request {
    uint32_t at_ms;          /* arrival; never decreases */
    uint32_t prompt, output; /* tokens, each at least 1 */
    uint32_t first_block;    /* index in trace.blocks of its (prompt + 511) / 512 blocks */
    int32_t first_output;    /* its first output token; the others follow it */
};

struct trace {
    struct trace_request *requests; /* [n] */
    uint32_t n, cap;
    uint32_t *blocks; /* [n_blocks] ids, request after request */
    uint32_t n_blocks, cap_blocks;
    uint64_t prompt_tokens, output_tokens;
};

/* Reads a file (path "-": standard input). Unknown fields are skipped. Errors name line and
 * field. *t is empty after a failure. */
kvasir_status trace_read(const char *path, struct trace *t, kvasir_error *err) MUST_CHECK;
/* The same from memory; errors do not name a file. */
kvasir_status trace_parse(const char *text, size_t len, struct trace *t,
                          kvasir_error *err) MUST_CHECK;
/* Drops all requests but the first n. */
void trace_cut(struct trace *t, uint32_t n);
void trace_deinit(struct trace *t);

static inline uint32_t trace_blocks(const struct trace_request *r) {
    return (r->prompt + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
}
/* The token at a position of the request: of its prompt, then of its output. */
static inline int32_t trace_token(const struct trace *t, const struct trace_request *r,
                                  uint32_t position) {
    DEBUG_ASSERT(position < r->prompt + r->output);
    if (position >= r->prompt)
        return r->first_output + (int32_t)(position - r->prompt);
    uint32_t id = t->blocks[r->first_block + position / TRACE_BLOCK_TOKENS];
    return (int32_t)(id * TRACE_BLOCK_TOKENS + position % TRACE_BLOCK_TOKENS);
}

#endif
