/* SPDX-License-Identifier: Apache-2.0 */
/* I6 for the engine: 1,000 decode steps of 8 requests that stream allocate nothing and make no
 * system call but parking (futex, and sched_yield where threads share a core), on the engine's
 * thread and on those that compute for it.
 *
 * A child process runs them. Once all 8 generate, calls of malloc and its family are counted, and a
 * seccomp filter on all threads turns every other system call into a signal, which is counted. The
 * filter cannot be removed, so the child exits after its last step.
 */
#include "model_files.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "count_allocations.h"
#include "tensors.h"

#if COUNTS_ALLOCATIONS
#include "count_calls.h"

enum { BATCH = 8, WARM = 50, STEPS = 1000, PROMPT = 90 };

/* The child's findings, in memory shared with it. */
struct findings {
    long allocations;
    struct call_count calls;
    uint32_t tokens; /* of all requests, while calls were counted */
    int filter_errno;
    bool complete;
    char text[sizeof(((kvasir_error *)0)->text)];
};
static struct findings *found;
static uint32_t generated[BATCH], at_start[BATCH];
static long allocated;
static bool counting;

struct setting {
    const char *model, *kv_bits;
    uint32_t max_kv_size;
    int top_logprobs;
    bool planted; /* makes one allocation and one system call, which must be counted */
    bool json;    /* answers are objects whose first key never ends */
};

static const struct setting *setting;
static void *volatile planted;

static uint32_t fewest(void) {
    uint32_t least = UINT32_MAX;
    for (int i = 0; i < BATCH; i++)
        least = generated[i] - at_start[i] < least ? generated[i] - at_start[i] : least;
    return least;
}

static void on_event(void *user, const kvasir_event *e) {
    uint32_t *mine = user;
    if (e->kind == KVASIR_EVENT_DONE)
        _exit(3); /* a request ended too early */
    if (e->kind != KVASIR_EVENT_TOKEN)
        return;
    ++*mine;
    if (!counting && fewest() >= WARM) {
        counting = true;
        memcpy(at_start, generated, sizeof at_start);
        allocated = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
        found->filter_errno = count_calls(&found->calls);
        if (setting->planted) {
            planted = malloc(1);
            syscall(SYS_getppid);
        }
    } else if (counting && fewest() >= STEPS) {
        found->allocations = __atomic_load_n(&allocations, __ATOMIC_RELAXED) - allocated;
        for (int i = 0; i < BATCH; i++)
            found->tokens += generated[i] - at_start[i];
        found->complete = true;
        _exit(0);
    }
}

static bool has_escape(const char *piece, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (piece[i] == '\\' || (piece[i] & 0x80))
            return true;
    return false;
}

/* A bias against tokens that end strings, and a stronger one against "}", which gives "{}". Others
 * that lead to a state of the grammar that was not there before are out, too: only new states take
 * memory. */
static void open_key(const kvasir_model *model, kvasir_request *r) {
    static const char object[] = "{\"type\":\"object\"}";
    static kvasir_logit_bias bias[512];
    static kvasir_grammar *grammar;
    if (!grammar &&
        kvasir_grammar_create(KVASIR_GRAMMAR_JSON_SCHEMA, object, strlen(object), &grammar, NULL))
        _exit(3);
    r->ignore_end = false;
    r->grammar = grammar;
    r->sampling.logit_bias = bias;
    r->sampling.n_logit_bias = 0;
    for (int32_t id = 0; id < 512; id++) {
        size_t len;
        const char *piece = kvasir_token_piece(kvasir_model_tokenizer(model), id, &len);
        const bool byte = piece && len == 6 && memcmp(piece, "<0x", 3) == 0;
        const bool brace =
            piece && (memchr(piece, '}', len) || (byte && !memcmp(piece + 3, "7D", 2)));
        if (brace)
            bias[r->sampling.n_logit_bias++] = (kvasir_logit_bias){id, -2000};
        else if (piece && (memchr(piece, '"', len) || has_escape(piece, len) || byte))
            bias[r->sampling.n_logit_bias++] = (kvasir_logit_bias){id, -1000};
    }
}

static void run_child(const struct setting *s) {
    static const char *const stops[] = {"never said", "\u2603"};
    static int32_t prompt[BATCH][PROMPT];
    kvasir_model *model;
    kvasir_engine *e;
    kvasir_engine_options o = kvasir_engine_defaults();
    kvasir_error *err = &(kvasir_error){0};
    setting = s;
    o.context.kv_bits = s->kv_bits;
    o.context.max_kv_size = s->max_kv_size;
    o.context.ctx = 2048;
    o.context.threads = 2;
    o.cache_memory_bytes = 256 << 20;
    kvasir_status status = kvasir_model_open(s->model, &model, err);
    if (status == KVASIR_OK)
        status = kvasir_engine_create(model, &o, &e, err);
    for (int i = 0; i < BATCH && status == KVASIR_OK; i++) {
        kvasir_request r = kvasir_request_defaults();
        for (int k = 0; k < PROMPT; k++)
            prompt[i][k] = (k * 7 + i * k) % 512;
        r.tokens = prompt[i];
        r.n_tokens = PROMPT - (size_t)i;
        r.max_tokens = 1900;
        r.ignore_end = true;
        r.top_logprobs = s->top_logprobs;
        r.sampling.temp = i % 2 ? 1 : 0;
        r.sampling.top_p = 0.9f;
        r.sampling.repetition_penalty = 1.1f;
        r.stops = stops;
        r.n_stops = strstr(s->model, ".gguf") ? 2 : 0; /* stop texts need a tokenizer */
        if (s->json)
            open_key(model, &r);
        r.on_event = on_event;
        r.user = &generated[i];
        status = kvasir_engine_submit(e, &r, NULL, err);
    }
    if (status != KVASIR_OK) {
        memcpy(found->text, err->text, sizeof found->text);
        _exit(2);
    }
    for (;;)
        pause(); /* entered before the filter exists, so not counted */
}

static void check(const struct setting *s) {
    memset(found, 0, sizeof *found);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        run_child(s);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!found->complete)
        fail_msg("%s: ended with status %d: %s; %ld calls, first %ld", s->model, status,
                 found->text, found->calls.calls, found->calls.first);
    assert_true(found->tokens >= BATCH * STEPS);
    assert_int_equal(found->allocations, s->planted);
    if (found->filter_errno)
        printf("%s: no seccomp filter here (%s): system calls were not counted\n", s->model,
               strerror(found->filter_errno));
    else if (found->calls.calls != s->planted)
        fail_msg("%s: %ld system calls in %d steps, the first is number %ld", s->model,
                 found->calls.calls, STEPS, found->calls.first);
}

static void test_1000_steps_of_8_requests(void **state) {
    (void)state;
    static const struct setting settings[] = {
        {SHARED_DIR "/fixtures/tiny/llama", "8,4", 0, -1, true, false},
        {SHARED_DIR "/fixtures/tiny/llama", "8,4", 0, -1, false, false},
        {SHARED_DIR "/fixtures/tiny/llama", "8,4", 128, -1, false, false}, /* pages come and go */
        {SHARED_DIR "/fixtures/tiny/gemma2", "4", 0, 5, false, false},
        {SHARED_DIR "/fixtures/tiny/qwen3_next", "8,4", 0, -1, false, false},
        /* text */
        {SHARED_DIR "/models/stories260K/stories260K-f32.gguf", "f16", 0, 20, false, false},
        {SHARED_DIR "/models/stories260K/stories260K-f32.gguf", "f16", 0, -1, false, true},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        check(&settings[i]);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    skip_without(SHARED_DIR "/models/stories260K/stories260K-f32.gguf");
    found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED)
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_1000_steps_of_8_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void) {
    printf("SKIPPED: a sanitizer has malloc for itself\n");
    return 77;
}
#endif
