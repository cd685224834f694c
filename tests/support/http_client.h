/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP client on loopback that sends whatever a test wants, mistakes included: raw bytes out,
 * answers in, server-sent events taken apart. Times out after five minutes: under a sanitizer, on a
 * busy machine, a queue of answers takes more than one minute. */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct client {
    int fd;
    char *in; /* [len] received and not taken yet, and a NUL */
    size_t len, cap;
    bool closed; /* by the server */
};

struct client_answer {
    int status; /* 0: none came */
    bool keeps; /* the connection stays open */
    char *body; /* [len] and a NUL; chunks are joined; free */
    size_t len;
    bool cut; /* the connection ended before the body did */
};

/* -1 for receive_bytes: the system's buffer. False: no connection. */
bool client_open(struct client *c, uint16_t port, int receive_bytes);
void client_close(struct client *c);
void client_reset(struct client *c); /* closes abruptly, with RST */
bool client_send(struct client *c, const void *data, size_t n);
/* "POST /path HTTP/1.1" with a body; headers: further lines, each with its "\r\n". */
bool client_request(struct client *c, const char *method, const char *path, const char *headers,
                    const char *body);
/* Waits until n bytes have come; false: the connection ended before. */
bool client_wait_bytes(struct client *c, size_t n);
/* One answer, whole. */
struct client_answer client_read(struct client *c);

/* What an answer of OpenAI's or Anthropic's says, streamed or not. */
enum { SAID_CHOICES = 4, SAID_TEXT = 4096 };
struct said {
    char text[SAID_CHOICES][SAID_TEXT];
    char finish[SAID_CHOICES][16];
    int64_t prompt_tokens, completion_tokens, cached_tokens; /* -1: not said */
    bool done;   /* [DONE], message_stop; or not streamed */
    bool failed; /* an error object */
    char error[256];
    int comments;
};
void said_read(const struct client_answer *a, struct said *out);

#endif
