/* SPDX-License-Identifier: Apache-2.0 */
/* A server in this process, on a tiny model whose tokens are bytes, at a free port of loopback. Its
 * template writes the messages' texts one after the other. */
#ifndef TINY_SERVER_H
#define TINY_SERVER_H

#include "byte_tokenizer.h"
#include "model_files.h"
#include "server/server.h"

#include <time.h>

struct tiny_server {
    struct temp_folder folder;
    const char *weights; /* the folder they and the config are in, an absolute path */
    const struct byte_tokenizer_more *more; /* of its tokenizer; NULL: nothing */
    kvasir_engine_options engine_options;
    struct server_options options;
    struct backend *backend; /* the engine's, which owns it then; NULL: that of its options */
    kvasir_model *model;
    kvasir_engine *engine;
    struct server *server;
    uint16_t port;
};

/* Sets what may be changed before opening: the fixture's weights, a context of 512 tokens, two
 * threads. */
void tiny_server_init(struct tiny_server *t);
/* Ends the test as skipped if the weights are missing. */
void tiny_server_open(struct tiny_server *t);
/* Waits until nothing is open; false: after timeout_ms something still was. */
bool tiny_server_idle(struct tiny_server *t, int timeout_ms, kvasir_engine_stats *stats);
void tiny_server_close(struct tiny_server *t);

static inline double now(void) { /* seconds, monotonic */
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void pause_ms(unsigned ms) {
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

#endif
