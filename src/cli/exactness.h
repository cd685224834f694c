/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `kvasir exactness`:
 *
 *   exactness.c          the command: cases, comparison, report
 *   exactness_client.c   a server that is started and stopped, and requests to it, many at once
 */
#ifndef KVASIR_CLI_EXACTNESS_H
#define KVASIR_CLI_EXACTNESS_H

#include "cli.h"

enum { EXACT_TOKENS_MAX = 512, EXACT_TOKEN_BYTES = 64 };

/* One token of an answer: its text, cut off if it is long, and its log-probability. */
struct exact_token {
    char text[EXACT_TOKEN_BYTES];
    double logprob;
};
struct exact_answer {
    struct exact_token *tokens; /* [n]; NULL: only text */
    uint32_t n;
    char *text;
    char finish[32];
    int64_t cached_tokens; /* of the prompt; -1: the server does not say */
};
void exact_answer_free(struct exact_answer *a);

struct exact_server {
    const struct command *c;
    const char *url, *api_key, *model, *start; /* start: NULL: it runs already */
    double start_seconds, request_seconds;
    bool completions; /* /v1/completions instead of /v1/chat/completions */
    uint32_t max_tokens;
    char found_model[MODEL_NAME_BYTES];
    char *base; /* the URL up to where /v1 begins */
    struct curl_slist *headers;
    int pid; /* of the process group that was started; 0: none */
};
/* Reads url and api_key; close ends the server, too, whatever open returned. */
int exact_server_open(struct exact_server *s);
void exact_server_close(struct exact_server *s);
/* Starts it, or starts it anew, and waits until it lists its models. */
int exact_server_start(struct exact_server *s);
void exact_server_stop(struct exact_server *s);
/* Sends all prompts at once, greedy, and waits for the answers. An error is printed. */
int exact_ask(const struct exact_server *s, const char *const *prompts, size_t n,
              struct exact_answer *answers);

#endif
