/* SPDX-License-Identifier: Apache-2.0 */
/* api/: requests and answers as clients know them, without HTTP and without an engine.
 *
 *     body (JSON) -- struct protocol --> struct api_request --> engine
 *     body (JSON) <-- struct protocol -- struct api_answer <-- events
 *
 * api_*: what all protocols share. openai_*, responses_*, anthropic_*, ollama_* and native_*: the
 * protocols (protocol.h). llama_options, fim, sessions: what some of them share. answer_*:
 * reasoning and tool calls in a model's text. The server is one user, `kvasir batch` another.
 */
#ifndef API_API_H
#define API_API_H

#include "api/answer_syntax.h"
#include "api/anthropic.h"
#include "api/api_answer.h"
#include "api/api_error.h"
#include "api/api_fields.h"
#include "api/api_json.h"
#include "api/api_prompts.h"
#include "api/api_request.h"
#include "api/embeddings.h"
#include "api/native.h"
#include "api/ollama.h"
#include "api/openai.h"
#include "api/protocol.h"
#include "api/rerank.h"
#include "api/responses.h"
#include "api/sessions.h"
#include "api/text_endpoints.h"

#endif
