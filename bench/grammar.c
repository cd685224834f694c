/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of tokens of grammars, and compiling them:
 *
 *     bench_grammar [--repeat N] TOKENIZER SCHEMAS.jsonl [GBNF]
 *
 * TOKENIZER is a tokenizer.json, its folder or a GGUF model. Each line of SCHEMAS has a "schema"
 * and "tests" with "data" and "valid", as of `kvasir grammar check --jsonl`. Each schema is
 * compiled, and each valid instance is walked token by token: the set of tokens that may come next
 * is made before each. A new grammar has nothing kept. With GBNF that grammar stands for all
 * schemas.
 *
 * Prints a table and one line of JSON. Times are processor time, since the machine may be busy with
 * other things, and with --repeat each is the least of N runs; the table also has the mean time on
 * the clock of the first run. `sets` is a hash of all sets: a change for speed must not change it.
 * The slowest are named on standard error.
 */
#include "bench.h"

#include <xxhash.h>

#include "grammar/grammar.h"
#include "model/model.h"
#include "text/text.h"
#include "util/json.h"

struct moment {
    double cpu, wall; /* seconds */
};

struct times {
    double *at; /* [n] seconds: the least of all runs */
    size_t n, cap, next;
    double most, wall; /* of the first run */
};

struct bench {
    struct tokenizer *t;
    struct grammar_vocab *v;
    uint64_t *bits;
    struct text_span gbnf;
    struct grammar *g; /* of the line */
    const char *name;
    struct times compile, allow, push;
    unsigned schemas, compiled, refused, instances, wrong;
    size_t bytes_most;
    XXH3_state_t *sets;
    bool again; /* not the first run */
};

static void die(const char *what) {
    fprintf(stderr, "bench_grammar: %s\n", what);
    exit(1);
}

static struct moment now(void) {
    return (struct moment){seconds_of(CLOCK_THREAD_CPUTIME_ID), seconds_of(CLOCK_MONOTONIC)};
}

/* Runs do the same in the same order. */
static void add_time(const struct bench *b, struct times *t, struct moment start,
                     const char *what) {
    const struct moment end = now();
    const double seconds = end.cpu - start.cpu;
    if (b->again) {
        ASSERT(t->next < t->n);
        t->at[t->next] = seconds < t->at[t->next] ? seconds : t->at[t->next];
        t->next++;
        return;
    }
    if (!ARRAY_GROW(t->at, t->cap, t->n + 1))
        die("out of memory");
    t->at[t->n++] = seconds;
    t->wall += end.wall - start.wall;
    if (seconds <= t->most)
        return;
    t->most = seconds;
    fprintf(stderr, "%s: %.3f ms: %s\n", what, 1e3 * seconds, b->name);
}

struct figures {
    double mean, median, p99, p999, most, wall; /* microseconds */
};

static struct figures figures_of(struct times *t) {
    double sum = 0;
    if (!t->n)
        return (struct figures){0};
    qsort(t->at, t->n, sizeof *t->at, by_value);
    for (size_t i = 0; i < t->n; i++)
        sum += t->at[i];
    const double n = (double)t->n;
    return (struct figures){1e6 * sum / n,
                            1e6 * t->at[t->n / 2],
                            1e6 * t->at[(size_t)(0.99 * n)],
                            1e6 * t->at[(size_t)(0.999 * n)],
                            1e6 * t->at[t->n - 1],
                            1e6 * t->wall / n};
}

enum { KINDS = 3 };

static void print_figures(struct bench *b) {
    static const char *const NAMES[KINDS] = {"compile", "set", "push"};
    struct times *const all[KINDS] = {&b->compile, &b->allow, &b->push};
    struct figures f[KINDS];
    printf("%-8s %8s %9s %9s %9s %9s %9s %9s\n", "us", "n", "mean", "median", "99 %", "99.9 %",
           "most", "(clock)");
    for (int i = 0; i < KINDS; i++) {
        f[i] = figures_of(all[i]);
        printf("%-8s %8zu %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", NAMES[i], all[i]->n, f[i].mean,
               f[i].median, f[i].p99, f[i].p999, f[i].most, f[i].wall);
    }
    printf("{\"tokens\": %zu, \"schemas\": %u, \"compiled\": %u, \"refused\": %u, "
           "\"instances\": %u, \"wrong\": %u, \"grammar_mb_most\": %.1f, \"sets\": \"%016llx\"",
           tokenizer_size(b->t), b->schemas, b->compiled, b->refused, b->instances, b->wrong,
           (double)b->bytes_most / 1e6, (unsigned long long)XXH3_64bits_digest(b->sets));
    for (int i = 0; i < KINDS; i++)
        printf(", \"%s\": {\"n\": %zu, \"mean_us\": %.1f, \"median_us\": %.1f, \"p99_us\": %.1f, "
               "\"p999_us\": %.1f, \"most_us\": %.1f, \"wall_mean_us\": %.1f}",
               NAMES[i], all[i]->n, f[i].mean, f[i].median, f[i].p99, f[i].p999, f[i].most,
               f[i].wall);
    printf("}\n");
}

/* False: the grammar refuses a token of the text. */
static bool walk(struct bench *b, struct grammar *g, const char *text, size_t len) {
    struct grammar_place *p;
    int32_t *ids;
    size_t n = 0, taken;
    bool good = true;
    if (grammar_begin(g, &p, &err) || tokenizer_encode(b->t, text, len, 0, &ids, &n, &err))
        die(err.text);
    for (size_t i = 0; i < n && good; i++) {
        const struct text_span bytes = grammar_token_bytes(b->v, ids[i]);
        struct moment start = now();
        if (grammar_allow(p, b->v, b->bits, &err)) {
            fprintf(stderr, "%s: %s\n", b->name, err.text);
            good = false;
            break;
        }
        add_time(b, &b->allow, start, "set");
        if (!b->again)
            XXH3_64bits_update(b->sets, b->bits,
                               token_set_words((uint32_t)tokenizer_size(b->t)) * sizeof *b->bits);
        start = now();
        if (grammar_push(p, bytes, &taken, &err))
            die(err.text);
        add_time(b, &b->push, start, "push");
        good = bytes.len > 0 && taken == bytes.len;
        if (good != (b->bits[ids[i] / 64] >> ids[i] % 64 & 1)) {
            fprintf(stderr, "%s: token %zu (%.*s) is %s: %.60s\n", b->name, i, (int)bytes.len,
                    bytes.data, good ? "left out" : "allowed", text);
            die("a set of tokens differs from its bytes");
        }
    }
    good = good && grammar_place_end(p) != GRAMMAR_OPEN;
    mem_free(ids);
    grammar_place_destroy(p);
    return good;
}

/* The parts of a line, or of a test, as they are written there. */
struct parts {
    struct json_part schema, tests, name, data, valid;
};

static kvasir_status keep_part(void *user, const struct json_part *part, kvasir_error *why) {
    struct parts *p = user;
    (void)why;
    if (json_name_is(part->name, part->name_len, "schema"))
        p->schema = *part;
    if (json_name_is(part->name, part->name_len, "tests"))
        p->tests = *part;
    if (json_name_is(part->name, part->name_len, "name"))
        p->name = *part;
    if (json_name_is(part->name, part->name_len, "data"))
        p->data = *part;
    if (json_name_is(part->name, part->name_len, "valid"))
        p->valid = *part;
    return KVASIR_OK;
}

static kvasir_status one_test(void *user, const struct json_part *part, kvasir_error *why) {
    struct bench *b = user;
    struct parts p = {0};
    TRY(json_walk(part->value, part->value_len, keep_part, &p, why));
    if (!p.data.value || !p.valid.value || *p.valid.value != 't')
        return KVASIR_OK;
    b->instances++;
    if (!walk(b, b->g, p.data.value, p.data.value_len)) {
        b->wrong++;
        fprintf(stderr, "refused: %s: %.*s\n", b->name, (int)min_size(p.data.value_len, 200),
                p.data.value);
    }
    return KVASIR_OK;
}

static void one_schema(struct bench *b, const char *line, size_t len) {
    struct parts p = {0};
    char name[80];
    if (json_walk(line, len, keep_part, &p, &err) || !p.schema.value) {
        fprintf(stderr, "left out: %s\n", err.text);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)p.name.value_len, p.name.value ? p.name.value : "");
    b->name = name;
    b->schemas++;
    const struct text_span text = {p.schema.value, p.schema.value_len};
    const struct moment start = now();
    const kvasir_status status =
        b->gbnf.data ? grammar_compile(GRAMMAR_GBNF, b->gbnf, NULL, &b->g, &err)
                     : grammar_compile(GRAMMAR_JSON_SCHEMA, text, NULL, &b->g, &err);
    add_time(b, &b->compile, start, "compile");
    if (status) {
        b->refused++;
        return;
    }
    b->compiled++;
    if (p.tests.value && json_walk(p.tests.value, p.tests.value_len, one_test, b, &err))
        die(err.text);
    b->bytes_most = max_size(b->bytes_most, grammar_bytes(b->g));
    grammar_release(b->g);
}

static void open_tokenizer(struct bench *b, const char *path) {
    struct checkpoint *c;
    if (checkpoint_open_text(path, &c, &err) != KVASIR_OK ||
        tokenizer_create(checkpoint_tokenizer(c), &b->t, &err) != KVASIR_OK)
        die(err.text);
    checkpoint_close(c);
    const uint32_t n = (uint32_t)tokenizer_size(b->t);
    b->bits = calloc(token_set_words(n), sizeof *b->bits);
    if (!b->bits || grammar_vocab_create(b->t, n, &b->v, &err) != KVASIR_OK)
        die("no vocabulary");
}

/* All schemas of the file, once more. */
static void run(struct bench *b, const char *path) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    if (!f)
        die("cannot read the schemas");
    b->schemas = b->compiled = b->refused = b->instances = b->wrong = 0;
    b->compile.next = b->allow.next = b->push.next = 0;
    for (ssize_t n; (n = getline(&line, &room, f)) >= 0;)
        one_schema(b, line, (size_t)n);
    fclose(f);
    free(line);
}

int main(int argc, char **argv) {
    struct bench b = {.sets = XXH3_createState()};
    struct file_map gbnf = {0};
    long repeat = 1;
    if (argc > 2 && strcmp(argv[1], "--repeat") == 0) {
        repeat = strtol(argv[2], NULL, 10);
        argv += 2;
        argc -= 2;
    }
    if (argc < 3 || argc > 4 || repeat < 1)
        die("usage: bench_grammar [--repeat N] TOKENIZER SCHEMAS.jsonl [GBNF]");
    if (!b.sets || XXH3_64bits_reset(b.sets) != XXH_OK)
        die("out of memory");
    open_tokenizer(&b, argv[1]);
    if (argc == 4) {
        if (file_map_open(&gbnf, argv[3], &err))
            die(err.text);
        b.gbnf = (struct text_span){(const char *)gbnf.data, gbnf.size};
    }
    for (long i = 0; i < repeat; i++) {
        run(&b, argv[2]);
        b.again = true;
    }
    print_figures(&b);
    file_map_close(&gbnf);
    grammar_vocab_destroy(b.v);
    tokenizer_destroy(b.t);
    free(b.bits);
    free(b.compile.at);
    free(b.allow.at);
    free(b.push.at);
    XXH3_freeState(b.sets);
    return 0;
}
