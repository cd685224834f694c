/* SPDX-License-Identifier: Apache-2.0 */
/* explain.c: turns data of the library into sentences for the command line. Its errors name a
 * member of an options struct, which becomes the flag that sets it; facts about a context become
 * sentences. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

/* Flags whose names differ from the member they set. */
static const struct {
    const char *field, *flag;
} FLAGS[] = {
    {"context.cache_bytes", "--cache-mb"},
    {"engine.cache_disk_bytes", "--cache-disk-gb"},
    {"engine.cache_host_bytes", "--cache-host-mb"},
    {"engine.cache_memory_bytes", "--cache-memory-mb"},
    {"engine.max_running", "--max-num-seqs"},
    {"engine.stored_kv_bits", "--kv-cache-quantization-bits"},
    {"engine.stored_kv_group_size", "--kv-cache-quantization-group-size"},
    {"kv_bench.formats", "--bits"},
    {"kv_bench.kv_group_size", "--group-size"},
    {"load.convert", "--convert-cache"},
    {"request.stops", "--stop"},
    {"sampling.frequency_context", "--frequency-context-size"},
    {"sampling.presence_context", "--presence-context-size"},
    {"sampling.repetition_context", "--repetition-context-size"},
    {"simulate.budget_bytes", "--budget"},
    {"simulate.budget_percent", "--budget"},
    {"simulate.disk_bytes", "--disk"},
    {"simulate.host_bytes", "--host"},
    {"simulate.max_running", "--max-num-seqs"},
    {"simulate.remote_bytes", "--remote"},
};

/* Flags that change a limit that a run has reached. */
static const struct {
    kvasir_status code;
    const char *flag, *advice;
} LIMITS[] = {
    {KVASIR_ERR_CONTEXT, "--ctx", "raise --ctx"},
    {KVASIR_ERR_CONTEXT, "--max-kv-size", "limit what a token sees with --max-kv-size"},
    {KVASIR_ERR_BUDGET, "--cache-mb", "raise --cache-mb"},
    {KVASIR_ERR_BUDGET, "--cache-memory-mb", "raise --cache-memory-mb"},
};

static bool has_flag(const struct command *c, const char *flag) {
    return option_find(c, flag, strlen(flag)) != NULL;
}

/* The command's flag for a field, in `buf` if it has the member's name; NULL: it has none. */
static const char *flag_of(const struct command *c, const char *field, char buf[64]) {
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++)
        if (strcmp(FLAGS[i].field, field) == 0 && has_flag(c, FLAGS[i].flag))
            return FLAGS[i].flag;
    const char *member = strchr(field, '.');
    snprintf(buf, 64, "--%s", member ? member + 1 : field);
    for (char *p = buf; *p; p++)
        *p = *p == '_' ? '-' : *p;
    return has_flag(c, buf) ? buf : NULL;
}

int library_error(const struct command *c, const kvasir_error *err) {
    char buf[64], advice[128] = "", hint[MODEL_HINT_MAX];
    const char *flag = err->field ? flag_of(c, err->field, buf) : NULL;
    if (err->code == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    if (flag || err->code == KVASIR_ERR_ARGUMENT)
        return usage_error(c, "%s%s%s", flag ? flag : "", flag ? ": " : "", err->text);
    for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++)
        if (LIMITS[i].code == err->code && has_flag(c, LIMITS[i].flag)) {
            const size_t n = strlen(advice);
            snprintf(advice + n, sizeof advice - n, "%s %s", n ? " or" : ":", LIMITS[i].advice);
        }
    if (err->offset >= 0)
        return run_error(c, "%s (at byte %lld)", err->text, (long long)err->offset);
    return run_error(c, "%s%s%s", err->text, advice, model_hint(err->text, hint));
}

int model_unchanged(const struct command *c, const kvasir_model *model, int code) {
    const bool told = code == EXIT_RUN && file_map_any_fault(); /* by what could not read it */
    kvasir_error err;
    return told || !model || !kvasir_model_verify(model, &err) ? code : library_error(c, &err);
}

/* ---- facts ----------------------------------------------------------------------------------- */

/* {0} is n[0] and so on, {0:b} as bytes, {0:c} the name of a source of key centres, {1/2} a
 * quotient, {0:t} threads and why. */
static const char *const SENTENCES[] = {
    [KVASIR_FACT_LAYERS_EXACT] = "warning: --kv-bits leaves {0} layer(s) at f16: no group "
                                 "size fits their heads of {1} values",
    [KVASIR_FACT_CHUNK_LOWERED] = "--prefill-chunk {0} is lowered to {1}: this model's steps need "
                                  "{2:b} a row",
    [KVASIR_FACT_CTX_LOWERED] = "the context is lowered to {0} tokens: a cache for the model's {1} "
                                "does not fit into {2:b}",
    [KVASIR_FACT_CTX_UNTRAINED] = "warning: --ctx {0} is more than the {1} tokens that the model "
                                  "was trained for",
    [KVASIR_FACT_BUDGET_SMALL] = "warning: a sequence may need {0:b} of cache, the budget is "
                                 "{1:b}",
    [KVASIR_FACT_BUDGET_TOKENS] = "the budget has room for a sequence of {0} tokens",
    [KVASIR_FACT_START_UNUSED] = "--quantized-kv-start has no effect: the cache is not quantized",
    [KVASIR_FACT_START_EXACT] = "--quantized-kv-start: the first {0} tokens stay f16: {1:b} a "
                                "token instead of {2:b}",
    [KVASIR_FACT_MAX_SIZE_UNUSED] = "--max-kv-size has no effect: every layer keeps its own window "
                                    "of {0} tokens",
    [KVASIR_FACT_WINDOW_KEPT] = "--max-kv-size {0}: layers with a window keep their own of {1} "
                                "tokens",
    [KVASIR_FACT_SNAPSHOT_UNUSED] = "--snapshot-tokens has no effect: no layer is recurrent, and "
                                    "there is no exact tail",
    [KVASIR_FACT_LADDER] = "--kv-bits auto: pages take {1:b} a token, {2:b} when memory is short; "
                           "so the same prompt may give different answers, depending on what was "
                           "in memory",
    [KVASIR_FACT_TAIL_UNUSED] = "--kv-exact-tail has no effect: the cache is not quantized",
    [KVASIR_FACT_TAIL_EXACT] = "--kv-exact-tail: the last {0} tokens are kept as f16, too: {1:b} a "
                               "token",
    [KVASIR_FACT_CENTRE_UNUSED] = "--key-centre has no effect: keys are not quantized",
    [KVASIR_FACT_CENTRE_NOTHING] = "--key-centre has no effect: the constants in {0:c} are too "
                                   "small to help",
    [KVASIR_FACT_CENTRED] = "keys are centred by {0:c}: {1/2} of {3} rotary pairs of a head on "
                            "average",
    [KVASIR_FACT_BALANCED] = "keys are balanced with queries by {0:c}",
    [KVASIR_FACT_NOT_BALANCED] = "keys are rotated, not balanced: tile formats then have 2 to 25 "
                                 "times the KL divergence; --key-centre auto, or a file of `kvasir "
                                 "calibrate`, balances them",
    [KVASIR_FACT_THREADS] = "threads: {0:t}",
    [KVASIR_FACT_OPEN_PAGE] = "pages are encoded when they are full: the newest {0} tokens of a "
                              "sequence are kept as f16, too: {1:b}",
    [KVASIR_FACT_RUNNING_LOWERED] = "--max-num-seqs {0} is lowered to {1}",
};
static const char *const CENTRE_SOURCES[] = {
    [KVASIR_CENTRE_BIAS] = "the model's key biases",
    [KVASIR_CENTRE_BESIDE] = "the calibration file beside the model",
    [KVASIR_CENTRE_FILE] = "the calibration file",
    [KVASIR_CENTRE_KEPT] = "a calibration made for this model",
};
#define COUNT_FACT(name) +1
_Static_assert(sizeof SENTENCES / sizeof *SENTENCES == KVASIR_FACT_MAP(COUNT_FACT),
               "every fact has a sentence");

static void write_fact(FILE *to, const kvasir_fact *f) {
    char bytes[HUMAN_BYTES];
    const bool yellow = strncmp(SENTENCES[f->kind], "warning:", 8) == 0 && use_colour(to);
    fputs(yellow ? "\033[33m" : "", to);
    for (const char *p = SENTENCES[f->kind]; *p; p++) {
        if (*p != '{') {
            fputc(*p, to);
            continue;
        }
        const uint64_t n = f->n[p[1] - '0'];
        if (p[2] == ':' && p[3] == 'b')
            fputs(human_bytes((double)n, bytes), to);
        else if (p[2] == ':' && p[3] == 't')
            write_threads(to, f->n);
        else if (p[2] == ':')
            fputs(CENTRE_SOURCES[n], to);
        else if (p[2] == '/')
            fprintf(to, "%.1f", ratio((double)n, (double)f->n[p[3] - '0']));
        else
            fprintf(to, "%llu", (unsigned long long)n);
        p = strchr(p, '}');
    }
    fputs(yellow ? "\033[0m" : "", to);
}

/* Which layers cache what, unless all cache alike. */
static void write_groups(FILE *to, const kvasir_context_info *i, const char *begin) {
    if (i->n_groups <= 1 && !i->recurrent_layers && !i->sharing_layers)
        return;
    char bytes[HUMAN_BYTES];
    fputs(begin, to);
    for (uint32_t g = 0; g < i->n_groups; g++) {
        const kvasir_layer_group *l = &i->groups[g];
        char window[32] = "all tokens";
        if (l->window)
            snprintf(window, sizeof window, "%u tokens", l->window);
        fprintf(to, "%s%u layer%s see%s %s: K %s, V %s, %s a token", g ? "; " : "", l->layers,
                l->layers == 1 ? "" : "s", l->layers == 1 ? "s" : "", window, l->k_format,
                l->v_format, human_bytes((double)l->bytes_per_token, bytes));
    }
    if (i->sharing_layers)
        fprintf(to, "; %u read the K and V of others", i->sharing_layers);
    if (i->recurrent_layers)
        fprintf(to, "; %u recurrent: %s a sequence", i->recurrent_layers,
                human_bytes((double)i->state_bytes, bytes));
    fputc('\n', to);
}

/* Lines that each begin with `begin`. */
static void write_notes(FILE *to, const kvasir_context_info *i, const char *begin) {
    char bytes[24];
    for (uint32_t f = 0; f < i->n_facts; f++) {
        fputs(begin, to);
        write_fact(to, &i->facts[f]);
        fputc('\n', to);
    }
    write_groups(to, i, begin);
    if (i->visible)
        fprintf(to,
                "%sa token sees at most %u: at any length at most %s of cache, the pages of a step "
                "of %u tokens included\n",
                begin, i->visible, human_bytes((double)i->ctx_bytes, bytes), i->prefill_chunk);
    else
        fprintf(to, "%sa sequence of %u tokens takes %s of cache\n", begin, i->ctx,
                human_bytes((double)i->ctx_bytes, bytes));
}

void print_model_line(const kvasir_model_info *m) {
    char weights[24];
    fprintf(stderr, "model:  %s (%s, %s), %.1f M parameters, weights %s\n",
            m->name && *m->name ? m->name : "without a name", m->arch, m->format,
            (double)m->parameters / 1e6, human_bytes((double)m->weight_bytes, weights));
}

void print_sampling_line(const kvasir_sampling *s, bool recommended) {
    const struct {
        const char *name;
        double value, off;
    } parts[] = {{"top_p", (double)s->top_p, 1},
                 {"top_k", s->top_k, 0},
                 {"min_p", (double)s->min_p, 0},
                 {"repetition_penalty", (double)s->repetition_penalty, 1},
                 {"presence_penalty", (double)s->presence_penalty, 0},
                 {"frequency_penalty", (double)s->frequency_penalty, 0}};
    fprintf(stderr, "sample: temperature %g", (double)s->temp);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].value != 0 && parts[i].value != parts[i].off)
            fprintf(stderr, ", %s %g", parts[i].name, parts[i].value);
    fprintf(stderr, "%s\n", recommended ? " (the model's, where no flag sets it)" : "");
}

/* What the machine does not have. */
static void warn_excess(const kvasir_context_info *i) {
    const uint64_t memory = memory_machine_bytes();
    char budget[24], all[24];
    warn_threads(i->threads);
    if (memory && i->cache_bytes > memory)
        fprintf(stderr,
                "note:   warning: the cache's budget of %s is more than the machine's memory "
                "of %s\n",
                human_bytes((double)i->cache_bytes, budget), human_bytes((double)memory, all));
}

void print_context_facts(const kvasir_context_info *i) {
    char token[24], token16[24], budget[24], length[48] = "any length";
    if (i->ctx)
        snprintf(length, sizeof length, "up to %u tokens", i->ctx);
    fprintf(stderr, "cache:  %s, %s a token (16-bit: %s, %.2fx); %s, budget %s\n", i->kv_format,
            human_bytes((double)i->kv_bytes_per_token, token),
            human_bytes((double)i->kv_bytes_per_token16, token16),
            ratio((double)i->kv_bytes_per_token16, (double)i->kv_bytes_per_token), length,
            human_bytes((double)i->cache_bytes, budget));
    if (strcmp(i->kind, "cpu") != 0)
        fprintf(stderr, "device: %s, activations %d bits\n", i->device, i->act_bits);
    else
        fprintf(stderr, "cpu:    %s, tier %s, %d thread%s, activations %d bits\n", cpu_model_name(),
                i->cpu_tier, i->threads, i->threads == 1 ? "" : "s", i->act_bits);
    warn_excess(i);
    write_notes(stderr, i, "note:   ");
}

/* "redis://host:port/db" of a URL that may have a user and a password before the host. */
static void write_address(FILE *to, const char *url) {
    const char *host = strstr(url, "//"), *sign = strrchr(url, '@');
    if (host && sign)
        fprintf(to, "%.*s%s", (int)(host + 2 - url), url, sign + 1);
    else
        fputs(url, to);
}

void print_stores_line(kvasir_engine *e, const kvasir_engine_options *o) {
    enum { STORES_MAX = 4 };
    kvasir_tier_stats tiers[STORES_MAX];
    const size_t n = kvasir_engine_get_tiers(e, tiers, STORES_MAX);
    for (size_t i = 0; i < n && i < STORES_MAX; i++) {
        const kvasir_tier_stats *t = &tiers[i];
        const bool host = strcmp(t->name, "host") == 0, disk = strcmp(t->name, "disk") == 0;
        char bytes[24], limit[24];
        human_bytes((double)t->limit_bytes, limit);
        fprintf(stderr, "%s%s", i ? "; " : "stores: ", t->name);
        if (host) {
            fprintf(stderr, " %s", limit);
        } else if (disk && o->cache_dir) {
            fprintf(stderr, " %.200s, %s of %s, %llu record%s", o->cache_dir,
                    human_bytes((double)t->bytes, bytes), limit, (unsigned long long)t->records,
                    t->records == 1 ? "" : "s");
        } else if (!disk && o->cache_remote) {
            fputc(' ', stderr);
            write_address(stderr, o->cache_remote);
        }
    }
    if (n)
        fputc('\n', stderr);
}

void warn_prompt_cache(const kvasir_prompt_cache *cache, const char *path,
                       const kvasir_context_info *info) {
    kvasir_prompt_cache_info file;
    kvasir_prompt_cache_get_info(cache, &file);
    if (file.act_bits && file.act_bits != info->act_bits)
        fprintf(stderr,
                "warning: %s was computed with --act-bits %d, this run uses %d: its answers are "
                "not those of the whole prompt\n",
                path, file.act_bits, info->act_bits);
    if (file.tier && strcmp(file.tier, cpu_tier_of_bits(info->cpu_tier)) != 0)
        fprintf(stderr,
                "warning: %s was computed on tier %.31s, this run uses %s: its logits differ by "
                "rounding from those of the whole prompt\n",
                path, file.tier, info->cpu_tier);
    if (file.other_arithmetic)
        fprintf(stderr,
                "warning: %s was encoded by another version of Kvasir's arithmetic: its answers "
                "are not those of the whole prompt\n",
                path);
}

void put_context_facts(json_t *object, const kvasir_context_info *i) {
    char *notes = NULL;
    size_t size;
    FILE *to = open_memstream(&notes, &size);
    put_text(object, "kv_format", i->kv_format);
    put_whole(object, "kv_bytes_per_token", i->kv_bytes_per_token);
    put_whole(object, "kv_bytes_per_token_16bit", i->kv_bytes_per_token16);
    put_whole(object, "ctx", i->ctx);
    put_whole(object, "visible_tokens", i->visible);
    put_whole(object, "ctx_bytes", i->ctx_bytes);
    put_whole(object, "cache_budget_bytes", i->cache_bytes);
    put_text(object, "device", i->device);
    put_text(object, "cpu_tier", i->cpu_tier);
    put_whole(object, "threads", (uint64_t)i->threads);
    put_whole(object, "act_bits", (uint64_t)i->act_bits);
    put_text(object, "fingerprint", i->fingerprint);
    if (to) {
        write_notes(to, i, "");
        fclose(to);
    }
    put_text(object, "notes", notes);
    free(notes);
}
