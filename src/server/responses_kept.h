/* SPDX-License-Identifier: Apache-2.0 */
/* responses_kept.h: answers of /v1/responses, kept for requests that continue them, and for GET.
 *
 *     response c --previous--> b --previous--> a      each with the items that were new in its
 *                                                     request, and its own
 *
 * A response holds texts, not trees, and not its predecessors' items, so that a conversation of n
 * turns takes n pieces. Whoever continues c uses b and a, too: they are as young as c then, and
 * leave after it. What has not been used for so many seconds leaves, and the oldest when there is
 * no more room. A response is only found with the key that it was made with.
 */
#ifndef SERVER_RESPONSES_KEPT_H
#define SERVER_RESPONSES_KEPT_H

#include "api/api.h"
#include "util/account.h"

struct kept_responses;
/* max_bytes: of all; they are charged to the account. NULL: out of memory. */
struct kept_responses *kept_create(struct mem_account *account, uint64_t max_bytes,
                                   uint32_t ttl_seconds);
void kept_destroy(struct kept_responses *all); /* NULL is allowed */

/* As in struct responses_store; key: whose they are, copied. */
void kept_add(struct kept_responses *all, const char *key, const char *previous, json_t *input,
              json_t *response);
bool kept_recall(struct kept_responses *all, const char *key, const char *id, json_t *items,
                 struct api_error *err);
/* The text of a response, or of its input's items; mem_free. NULL: there is none, or out of memory
 * (*found). */
char *kept_text(struct kept_responses *all, const char *key, const char *id, bool input,
                bool *found);
bool kept_forget(struct kept_responses *all, const char *key, const char *id);

struct kept_figures {
    uint64_t responses, bytes;
};
struct kept_figures kept_figures(struct kept_responses *all);

#endif
