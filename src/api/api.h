/* SPDX-License-Identifier: Apache-2.0 */
/* api/: requests and answers as clients know them, without HTTP and without an engine. A protocol
 * (form.h) turns a JSON body into a request, and events of the engine into JSON: OpenAI's chats and
 * completions, Anthropic's messages. The server is one user, `kvasir batch` another. */
#ifndef API_API_H
#define API_API_H

#include "api/answer_syntax.h"
#include "api/anthropic.h"
#include "api/form.h"
#include "api/openai.h"
#include "api/text_endpoints.h"

#endif
