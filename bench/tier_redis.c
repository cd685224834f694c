/* SPDX-License-Identifier: Apache-2.0 */
/* Reading records from a Redis or Valkey on this machine, beside what a socket carries.
 *
 *     tier_redis URL [MIB [RECORD_KIB [THREADS]]]
 *
 * Prints, for as many bytes in records of that size, with as many connections: a plain socket on
 * the loopback from a process that has them in memory; the tier without a secret and with one; and
 * the last two divided by the first, of which the issue allows 1.3. The best of 9 runs. The
 * memory that is read into was touched before. Needs a server with room; leaves it as it was.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/tier.h"

enum { RUNS = 9, THREADS_MAX = 8, RECORDS_MAX = 4096 };

static uint64_t record_bytes;
static uint32_t n_records, n_threads;
static struct tier_read reads[RECORDS_MAX];

/* Work of thread i: its share of the records. */
typedef void share_fn(void *user, uint32_t first, uint32_t n);
struct share {
    share_fn *fn;
    void *user;
    uint32_t first, n;
};
static void *run_share(void *user) {
    const struct share *s = user;
    s->fn(s->user, s->first, s->n);
    return NULL;
}
static double timed(share_fn *fn, void *user) {
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        pthread_t threads[THREADS_MAX];
        struct share shares[THREADS_MAX];
        const double start = clock_seconds();
        for (uint32_t i = 0; i < n_threads; i++) {
            const uint32_t from = n_records * i / n_threads;
            shares[i] = (struct share){fn, user, from, n_records * (i + 1) / n_threads - from};
            if (pthread_create(&threads[i], NULL, run_share, &shares[i]) != 0)
                exit(1);
        }
        for (uint32_t i = 0; i < n_threads; i++)
            pthread_join(threads[i], NULL);
        best = fmin(best, clock_seconds() - start);
    }
    return best;
}

/* ---- a plain socket -------------------------------------------------------------------------- */

/* From as much memory as the records take: a store has them in memory, not in a cache. */
static void send_for_ever(int listener) {
    const uint64_t size = n_records * record_bytes;
    uint8_t *bytes = malloc(size);
    if (!bytes)
        _exit(1);
    memset(bytes, 7, size);
    for (;;) {
        const int fd = accept(listener, NULL, NULL);
        if (fork() == 0) {
            ssize_t sent = 1;
            for (uint64_t at = 0; sent > 0; at = (at + (uint64_t)sent) % size)
                sent = send(fd, bytes + at, min_size(size - at, 1 << 20), MSG_NOSIGNAL);
            _exit(0);
        }
        close(fd);
    }
}

static void read_socket(void *user, uint32_t first, uint32_t n) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, user, sizeof(struct sockaddr_in)) != 0)
        exit(1);
    for (uint32_t i = first; i < first + n; i++)
        for (uint64_t done = 0; done < record_bytes;) {
            const ssize_t got = recv(fd, reads[i].payload + done, record_bytes - done, 0);
            if (got <= 0)
                exit(1);
            done += (uint64_t)got;
        }
    close(fd);
}

static double plain_socket(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &len) != 0)
        exit(1);
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGCHLD, SIG_IGN);
        send_for_ever(listener);
    }
    const double seconds = timed(read_socket, &at);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(listener);
    return seconds;
}

/* ---- the tier -------------------------------------------------------------------------------- */

static void read_tier(void *user, uint32_t first, uint32_t n) {
    struct tier *t = user;
    t->ops->read(t, reads + first, n, clock_seconds() + 60);
    for (uint32_t i = first; i < first + n; i++)
        if (reads[i].result != TIER_OK) {
            printf("record %u: result %d\n", i, (int)reads[i].result);
            exit(1);
        }
}

static void complain(void *user, const char *line) {
    (void)user;
    printf("%s\n", line);
}

static double tier(const char *url, const char *secret) {
    const struct tier_redis_options o = {.url = url,
                                         .secret = (const uint8_t *)secret,
                                         .secret_bytes = secret ? strlen(secret) : 0,
                                         .ttl_seconds = 60,
                                         .connect_seconds = 1,
                                         .exchange_seconds = 10,
                                         .connections = n_threads,
                                         .complain = secret ? complain : NULL};
    struct tier *t = NULL;
    kvasir_error err;
    if (tier_redis_create(&o, &t, &err) != KVASIR_OK) {
        printf("%s\n", err.text);
        exit(1);
    }
    uint8_t *payload = calloc(1, record_bytes);
    if (!payload)
        exit(1);
    struct record_head head = {.kind = RECORD_PAGE, .bytes = record_bytes};
    for (uint64_t i = 0; i < record_bytes; i++)
        payload[i] = (uint8_t)mix_bits(i);
    for (uint32_t i = 0; i < n_records; i++) {
        head.chain.word[0] = i;
        record_seal(&head, payload);
        reads[i].key = head.key;
        if (!t->ops->write(t, &head, payload)) {
            printf("record %u was not written\n", i);
            exit(1);
        }
    }
    const double seconds = timed(read_tier, t);
    t->ops->forget(t, head.context, NULL, 0, NULL);
    t->ops->destroy(t);
    free(payload);
    return seconds;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        printf("usage: tier_redis URL [MIB [RECORD_KIB [THREADS]]]\n");
        return 2;
    }
    const uint64_t bytes = (uint64_t)(argc > 2 ? atoi(argv[2]) : 256) << 20;
    record_bytes = (uint64_t)(argc > 3 ? atoi(argv[3]) : 3072) << 10;
    n_records = (uint32_t)(bytes / record_bytes);
    n_threads = (uint32_t)(argc > 4 ? atoi(argv[4]) : 1);
    if (n_records == 0 || n_records > RECORDS_MAX || n_threads == 0 || n_threads > THREADS_MAX)
        return 2;
    for (uint32_t i = 0; i < n_records; i++) {
        reads[i].bytes = record_bytes;
        reads[i].payload = aligned_alloc(4096, record_bytes);
        if (!reads[i].payload)
            return 1;
        memset(reads[i].payload, 1, record_bytes);
    }
    const double gb = (double)(n_records * record_bytes) / 1e9;
    const double socket_s = plain_socket(), plain_s = tier(argv[1], NULL),
                 keyed_s = tier(argv[1], "a secret of the benchmark");
    printf("%u records of %llu KiB, %u threads\n", n_records,
           (unsigned long long)record_bytes >> 10, n_threads);
    printf("socket %.2f GB/s; tier %.2f GB/s, x %.2f; with a secret %.2f GB/s, x %.2f\n",
           gb / socket_s, gb / plain_s, plain_s / socket_s, gb / keyed_s, keyed_s / socket_s);
    return 0;
}
