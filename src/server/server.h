/* SPDX-License-Identifier: Apache-2.0 */
/* server/: between JSON and the engine's requests and events; no tensors, no files, no printing.
 *
 *     body (JSON) --openai_read--> struct openai_request --kvasir_engine_submit--> engine
 *     body (JSON) <--openai_answer_body-- struct openai_answer <--events-- engine
 *
 * Like cli/ it is a user of the library: it sees <kvasir.h> and jansson, and nothing else of ours.
 */
#ifndef SERVER_H
#define SERVER_H

#include "server/openai.h"

#endif
