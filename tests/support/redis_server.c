/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

bool redis_server_installed(void) {
    static const char *const places[] = {"/usr/bin/redis-server", "/usr/local/bin/redis-server",
                                         "/usr/bin/valkey-server"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], X_OK) == 0)
            return true;
    return false;
}

uint16_t free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    uint16_t port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, len) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        port = ntohs(at.sin_port);
    close(fd);
    return port;
}

redisContext *redis_server_connect(const struct redis_server *s, const char *password) {
    redisContext *c = redisConnectWithTimeout("127.0.0.1", s->port, (struct timeval){2, 0});
    if (c && !c->err && password)
        freeReplyObject(redisCommand(c, "AUTH %s", password));
    if (c && c->err) {
        redisFree(c);
        return NULL;
    }
    return c;
}

static void child(const struct redis_server *s, const char *password) {
    char port[16], bus_port[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the test */
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
    snprintf(port, sizeof port, "%u", s->port);
    snprintf(bus_port, sizeof bus_port, "%u", s->bus_port);
    const char *name =
        access("/usr/bin/valkey-server", X_OK) == 0 ? "valkey-server" : "redis-server";
    const char *args[32] = {name,
                            "--port",
                            port,
                            "--bind",
                            "127.0.0.1",
                            "--save",
                            "",
                            "--appendonly",
                            "no",
                            "--dir",
                            s->dir,
                            "--requirepass",
                            password ? password : ""};
    int n = 13;
    if (s->cluster) {
        static const char *const more[] = {"--cluster-enabled",
                                           "yes",
                                           "--cluster-node-timeout",
                                           "3000",
                                           "--cluster-require-full-coverage",
                                           "no",
                                           "--cluster-port"};
        memcpy(args + n, more, sizeof more);
        n += (int)(sizeof more / sizeof *more);
        args[n] = bus_port;
    }
    execvp(name, (char *const *)(uintptr_t)args);
    _exit(127);
}

bool redis_server_start(struct redis_server *s, const char *password) {
    if (!s->dir[0]) {
        snprintf(s->dir, sizeof s->dir, "/tmp/kvasir-redis-XXXXXX");
        if (!mkdtemp(s->dir))
            return false;
        s->port = free_port();
        s->bus_port = free_port();
        snprintf(s->url, sizeof s->url, "redis://127.0.0.1:%u", s->port);
    }
    s->pid = fork();
    if (s->pid == 0)
        child(s, password);
    for (int i = 0; i < 500; i++) { /* 5 s */
        redisContext *c = redis_server_connect(s, password);
        redisReply *r = c ? redisCommand(c, "PING") : NULL;
        const bool good = r && r->type == REDIS_REPLY_STATUS;
        freeReplyObject(r);
        if (c)
            redisFree(c);
        if (good)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}

void redis_server_kill(struct redis_server *s) {
    if (s->pid <= 0)
        return;
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    s->pid = 0;
}

void redis_server_remove(struct redis_server *s) {
    char file[96];
    redis_server_kill(s);
    snprintf(file, sizeof file, "%s/nodes.conf", s->dir);
    if (s->dir[0]) {
        unlink(file);
        rmdir(s->dir);
    }
    s->dir[0] = 0;
}
