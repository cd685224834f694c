/* SPDX-License-Identifier: Apache-2.0 */
/* A real redis-server of the test: a free port of 127.0.0.1, a folder of its own, nothing saved. */
#ifndef REDIS_SERVER_H
#define REDIS_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <hiredis/hiredis.h>

struct redis_server {
    pid_t pid; /* 0: it does not run */
    uint16_t port, bus_port;
    bool cluster; /* set before the first start: it is one of a cluster */
    char dir[64];
    char url[64]; /* redis://127.0.0.1:PORT */
};
bool redis_server_installed(void);
/* Waits until it answers. `password`, or NULL. The port is kept from one start to the next. */
bool redis_server_start(struct redis_server *s, const char *password);
void redis_server_kill(struct redis_server *s);   /* SIGKILL, and waits for its end */
void redis_server_remove(struct redis_server *s); /* and its folder */
/* A connection of the test's own; one command on it. */
redisContext *redis_server_connect(const struct redis_server *s, const char *password);
uint16_t free_port(void);

#endif
