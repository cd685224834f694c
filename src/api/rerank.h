/* SPDX-License-Identifier: Apache-2.0 */
/* rerank.h: models that are asked whether a document answers a query, and say yes or no
 * (Qwen3-Reranker): the prompts, and the score.
 *
 *     <|im_start|>system .. <|im_end|> <|im_start|>user       PREFIX, with control tokens
 *     <Instruct>: .. <Query>: .. <Document>: ..               text of the client, without
 *     <|im_end|> <|im_start|>assistant <think> </think>       SUFFIX
 *     yes or no: score = P(yes) / (P(yes) + P(no))
 */
#ifndef API_RERANK_H
#define API_RERANK_H

#include "api/api_request.h"

/* "cosine", "yes-no", or "auto": what the model's path says. False: it is none of them. */
bool rerank_form_of(const char *word, const char *path, enum rerank_form *out);

struct rerank_prefix;
/* What all prompts of a request share, and into r what the engine is asked of each. instruction:
 * NULL: that of web searches. NULL with *err: the vocabulary has no tokens for the answers. */
struct rerank_prefix *rerank_begin(const struct api_setup *setup, json_t *instruction,
                                   json_t *query, struct api_request *r, struct api_error *err);
void rerank_end(struct rerank_prefix *p); /* NULL is allowed */
/* Adds a document, a text that lives as long as r. */
bool rerank_add(const struct rerank_prefix *p, const char *path, json_t *document,
                struct api_request *r, struct api_error *err);
/* Of the log-probabilities that the engine gave. */
double rerank_score(const float *asked);

#endif
