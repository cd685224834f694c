/* SPDX-License-Identifier: Apache-2.0 */
/* embeddings.h: OpenAI's bodies of /v1/embeddings, and reranking by embeddings (jina's and
 * cohere's /v1/rerank).
 *
 *     {"input": ["a", "b"]}                 --> two prompts, each to an embedding
 *     {"query": "q", "documents": ["a"]}    --> two prompts; score: the cosine of q's and a's;
 *                                               or (rerank.h) one, a question
 *
 * What they compute is stored nowhere, since texts that are embedded rarely begin alike; stored
 * prefixes are used. The invariants of openai.h hold here, too.
 */
#ifndef API_EMBEDDINGS_H
#define API_EMBEDDINGS_H

#include "api/api_body.h"
#include "api/protocol.h"

extern const struct protocol PROTOCOL_EMBEDDINGS, PROTOCOL_RERANK;
/* ollama's /api/embed, and the older /api/embeddings of one "prompt". */
extern const struct protocol PROTOCOL_OLLAMA_EMBED, PROTOCOL_OLLAMA_EMBEDDINGS;

#endif
