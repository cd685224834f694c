/* SPDX-License-Identifier: Apache-2.0 */
/* A server under a storm: many clients at once that send requests, read slowly, disconnect at any
 * byte, cancel by id, send half a request, read figures, forget all prefixes, over a budget that is
 * too small for all of them, so that some requests are preempted and resumed.
 *
 * Each request of a fixed list is first answered alone. In the storm every complete answer is the
 * same one, bit for bit (I1, end to end); an incomplete one was broken off by its own client, or is
 * a refusal that says so (429). Afterwards nothing runs, the budget has held, and once the prefixes
 * are forgotten the cache holds as much as before.
 *
 *     sim_server [--seconds=S] [--clients=N] [--seed=N] [--model=FOLDER]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http_client.h"
#include "tiny_server.h"

enum { REQUESTS = 24, BODY = 1200, CLIENTS_MAX = 256, BUDGET = 2 << 20, SETTLE_MS = 30000 };

static struct {
    struct tiny_server tiny;
    char body[REQUESTS][BODY];
    bool stream[REQUESTS];
    struct said alone[REQUESTS];
    double until;
    atomic_ulong whole, broken, refused, wrong;
} storm;

static uint32_t below(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* ---- requests -------------------------------------------------------------------------------- */

enum kind { COMPLETION, CHAT, CHAT_JSON, MESSAGE, KINDS };

static enum kind kind_of(int i) {
    return i % 2 == 0 ? COMPLETION : i % 8 == 5 ? CHAT_JSON : i % 8 == 7 ? MESSAGE : CHAT;
}

static const char *path_of(int i) {
    static const char *const PATHS[KINDS] = {[COMPLETION] = "/v1/completions",
                                             [CHAT] = "/v1/chat/completions",
                                             [CHAT_JSON] = "/v1/chat/completions",
                                             [MESSAGE] = "/v1/messages"};
    return PATHS[kind_of(i)];
}

/* Prompts that share beginnings of several lengths; answers of several lengths, sampled with a seed
 * if the API has one. */
static void make_requests(uint64_t seed) {
    static const char WORDS[] =
        "the quick brown fox jumps over a lazy dog while seven wizards box ";
    static const int SHARED[] = {0, 40, 64, 100, 200, 300};
    uint64_t state = seed;
    for (int i = 0; i < REQUESTS; i++) {
        char prompt[512], more[200] = "";
        const int n = 20 + (int)below(&state, 300), shared = SHARED[below(&state, 6)];
        for (int k = 0; k < n; k++)
            prompt[k] = WORDS[(k + (k < shared ? 0 : 7 * i)) % (int)(sizeof WORDS - 1)];
        prompt[n] = 0;
        storm.stream[i] = i % 3 != 0;
        const enum kind kind = kind_of(i);
        const uint32_t choices = i % 7 == 3 ? 2 : 1, tokens = 3 + below(&state, 120);
        if (kind == MESSAGE)
            snprintf(more, sizeof more, "\"temperature\":0");
        else
            snprintf(more, sizeof more,
                     "\"n\":%u,\"temperature\":1,\"seed\":%d,%s,"
                     "\"stream_options\":{\"include_usage\":true}",
                     choices, i,
                     kind == CHAT_JSON ? "\"response_format\":{\"type\":\"json_object\"}"
                                       : "\"ignore_eos\":true");
        char start[700];
        snprintf(start, sizeof start,
                 kind == COMPLETION ? "\"prompt\":\"%s\""
                                    : "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]",
                 prompt);
        snprintf(storm.body[i], BODY, "{%s,\"max_tokens\":%u,\"stream\":%s,%s}", start, tokens,
                 storm.stream[i] ? "true" : "false", more);
    }
}

static bool same(const struct said *a, const struct said *b) {
    return memcmp(a->text, b->text, sizeof a->text) == 0 &&
           memcmp(a->finish, b->finish, sizeof a->finish) == 0 &&
           a->prompt_tokens == b->prompt_tokens && a->completion_tokens == b->completion_tokens;
}

static void answer_alone(int i) {
    struct client c;
    if (!client_open(&c, storm.tiny.port, -1) ||
        !client_request(&c, "POST", path_of(i), "", storm.body[i]))
        exit(1);
    struct client_answer a = client_read(&c);
    said_read(&a, &storm.alone[i]);
    if (a.status != 200 || !storm.alone[i].done || storm.alone[i].failed) {
        printf("alone, request %d: status %d, %s\n%s\n", i, a.status, storm.alone[i].error,
               storm.body[i]);
        exit(1);
    }
    free(a.body);
    client_close(&c);
}

/* ---- clients --------------------------------------------------------------------------------- */

enum manner {
    READS,
    READS_AGAIN, /* on the same connection */
    READS_SLOWLY,
    LEAVES_EARLY, /* at some byte of the answer, or before it */
    RESETS,
    CLOSES_ITS_SIDE,
    CANCELS_BY_ID,
    SENDS_HALF,
    STALLS, /* reads nothing for a while */
    LOOKS,  /* reads figures; now and then it forgets all prefixes */
    MANNERS
};

static void note(int i, const struct client_answer *a, bool may_break) {
    struct said said;
    said_read(a, &said);
    if (a->status == 429) {
        atomic_fetch_add(&storm.refused, 1);
    } else if (a->status == 200 && said.done && !said.failed && !a->cut) {
        if (same(&said, &storm.alone[i])) {
            atomic_fetch_add(&storm.whole, 1);
            return;
        }
        atomic_fetch_add(&storm.wrong, 1);
        printf("request %d differs:\n  alone \"%.200s\"\n  here  \"%.200s\"\n", i,
               storm.alone[i].text[0], said.text[0]);
    } else if (may_break) {
        atomic_fetch_add(&storm.broken, 1);
    } else {
        atomic_fetch_add(&storm.wrong, 1);
        printf("request %d: status %d, %s%s: %s\n", i, a->status, a->cut ? "cut, " : "",
               said.done ? "done" : "not done", said.error);
    }
}

static void look(struct client *c, uint64_t *state) {
    static const char *const PATHS[] = {"/metrics", "/v1/status", "/v1/cache/stats", "/v1/cache"};
    const uint32_t which = below(state, 40);
    const char *path = PATHS[which == 0 ? 3 : which % 3];
    if (client_request(c, which == 0 ? "DELETE" : "GET", path, "Connection: close\r\n", "")) {
        struct client_answer a = client_read(c);
        if (a.status != 200) {
            atomic_fetch_add(&storm.wrong, 1);
            printf("%s: status %d\n", path, a.status);
        }
        free(a.body);
    }
    client_close(c);
}

static void read_answer(struct client *c, int i, bool may_break) {
    struct client_answer a = client_read(c);
    note(i, &a, may_break);
    free(a.body);
}

/* One request in one manner. */
static void ask(struct client *c, uint64_t *state, uint32_t number) {
    static const char HALF[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{";
    const enum manner manner = (enum manner)below(state, MANNERS);
    const int i = (int)below(state, REQUESTS);
    char headers[96];
    snprintf(headers, sizeof headers, "X-Request-Id: r%u-%u\r\n%s", number, below(state, 1u << 30),
             manner == READS_AGAIN ? "" : "Connection: close\r\n"); /* so that the stream ends */
    if (manner == SENDS_HALF) {
        client_send(c, HALF, sizeof HALF - 1);
        pause_ms(below(state, 300));
        client_close(c);
        return;
    }
    if (manner == LOOKS) {
        look(c, state);
        return;
    }
    if (!client_request(c, "POST", path_of(i), headers, storm.body[i])) {
        client_close(c);
        return;
    }
    switch (manner) {
    case READS_SLOWLY:
        for (size_t n = 1; n < 40 && client_wait_bytes(c, n * 20); n++)
            pause_ms(5);
        read_answer(c, i, false);
        break;
    case LEAVES_EARLY:
    case RESETS:
        if (below(state, 2))
            client_wait_bytes(c, 1 + below(state, 2000));
        else
            pause_ms(below(state, 50));
        if (manner == RESETS)
            client_reset(c);
        break;
    case CLOSES_ITS_SIDE:
        pause_ms(below(state, 20));
        shutdown(c->fd, SHUT_WR);
        read_answer(c, i, true);
        break;
    case CANCELS_BY_ID: {
        struct client other;
        char path[96];
        snprintf(path, sizeof path, "/v1/requests/%.*s", (int)strcspn(headers + 14, "\r"),
                 headers + 14);
        pause_ms(below(state, 100));
        if (client_open(&other, storm.tiny.port, -1) &&
            client_request(&other, "DELETE", path, "", "")) {
            struct client_answer a = client_read(&other);
            free(a.body);
        }
        client_close(&other);
        read_answer(c, i, true);
        break;
    }
    case STALLS:
        pause_ms(below(state, 1500));
        read_answer(c, i, true);
        break;
    default:
        read_answer(c, i, false);
        if (manner == READS_AGAIN)
            return; /* keeps the connection */
    }
    client_close(c);
}

static void *client_thread(void *user) {
    const uint32_t number = (uint32_t)(uintptr_t)user;
    uint64_t state = number * 0x9e3779b97f4a7c15u + 5;
    struct client c = {.fd = -1};
    while (now() < storm.until) {
        if ((c.fd < 0 || c.closed) &&
            !client_open(&c, storm.tiny.port, below(&state, 4) ? -1 : 2048)) {
            pause_ms(10); /* all allowed connections are in use */
            continue;
        }
        ask(&c, &state, number);
    }
    if (c.fd >= 0)
        client_close(&c);
    return NULL;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void open_server(const char *model) {
    struct tiny_server *t = &storm.tiny;
    tiny_server_init(t);
    if (model)
        t->weights = model;
    t->engine_options.cache_memory_bytes = BUDGET;
    t->engine_options.max_running = 24;
    t->engine_options.max_waiting = 40;
    t->options.buffer_bytes = 64 << 10;
    t->options.keepalive_s = 1;
    tiny_server_open(t);
}

/* Bytes of the cache with nothing running and nothing stored. */
static uint64_t idle_bytes(void) {
    kvasir_engine_stats stats = {0};
    kvasir_engine_forget(storm.tiny.engine, NULL);
    for (int i = 0; i < 300; i++) {
        kvasir_engine_get_stats(storm.tiny.engine, &stats);
        if (stats.used_bytes <= stats.fixed_bytes)
            break;
        pause_ms(10);
    }
    return stats.used_bytes - stats.fixed_bytes;
}

int main(int argc, char **argv) {
    unsigned long seconds = 5, clients = 64;
    uint64_t seed = 20261122;
    const char *model = NULL; /* an absolute path; NULL: the fixture */
    pthread_t threads[CLIENTS_MAX];
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--seconds=", 10) == 0)
            seconds = strtoul(argv[i] + 10, NULL, 10);
        else if (strncmp(argv[i], "--clients=", 10) == 0)
            clients = strtoul(argv[i] + 10, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            seed = strtoull(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "--model=", 8) == 0)
            model = argv[i] + 8;
    }
    clients = clients < CLIENTS_MAX ? clients : CLIENTS_MAX;
    open_server(model);
    make_requests(seed);
    for (int i = 0; i < REQUESTS; i++)
        answer_alone(i);
    kvasir_engine_stats stats;
    const bool before = tiny_server_idle(&storm.tiny, SETTLE_MS, &stats);
    const uint64_t idle = idle_bytes();
    printf("%lu clients for %lu seconds, seed %llu\n", clients, seconds, (unsigned long long)seed);
    storm.until = now() + (double)seconds;
    for (unsigned long i = 0; i < clients; i++)
        pthread_create(&threads[i], NULL, client_thread, (void *)(uintptr_t)(i + seed));
    for (unsigned long i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    const bool after = tiny_server_idle(&storm.tiny, SETTLE_MS, &stats);
    const uint64_t left = idle_bytes();
    printf(
        "%lu answers as alone, %lu broken by their clients, %lu refused (429), %lu wrong\n"
        "%llu hits of prompts' tokens in %llu, %llu preemptions, %llu cancels; peak %llu of %llu "
        "bytes; idle %llu, before %llu\n",
        atomic_load(&storm.whole), atomic_load(&storm.broken), atomic_load(&storm.refused),
        atomic_load(&storm.wrong), (unsigned long long)stats.cached_tokens,
        (unsigned long long)stats.prompt_tokens, (unsigned long long)stats.preemptions,
        (unsigned long long)stats.cancelled, (unsigned long long)stats.peak_bytes,
        (unsigned long long)stats.budget_bytes, (unsigned long long)left, (unsigned long long)idle);
    tiny_server_close(&storm.tiny);
    return !(before && after && left == idle && atomic_load(&storm.wrong) == 0 &&
             atomic_load(&storm.whole) > 0 && stats.failed == 0 && stats.cancelled > 0 &&
             stats.preemptions > 0 && stats.peak_bytes <= stats.budget_bytes);
}
