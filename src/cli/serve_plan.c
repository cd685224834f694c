/* SPDX-License-Identifier: Apache-2.0 */
/* serve_plan.c: `kvasir serve --dry-run`, how a server would use memory. It asks a real engine, so
 * that what would fail does; weights are mapped but not read. */
#include "serve.h"

static const uint32_t LENGTHS[] = {1, 2, 4, 8, 16, 32, 64, 128}; /* times 1,024 tokens */
enum { N_LENGTHS = sizeof LENGTHS / sizeof *LENGTHS };

/* How many sequences of that many tokens fit the budget at once. */
static uint64_t at_once(const kvasir_memory_plan *p, const kvasir_sequence_plan *of) {
    return of->need_bytes ? (p->budget_bytes - p->step_bytes) / of->need_bytes : 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void print_groups(const kvasir_memory_plan *p) {
    uint64_t all = 0, all16 = 0;
    char bytes[24], bytes16[24];
    printf("\n%-8s %-10s %-10s %-9s %-9s %-16s %14s %10s\n", "layers", "kv heads", "head size",
           "sees", "K", "V", "bytes a token", "at 16 bits");
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const kvasir_layer_group *l = &p->groups[g];
        char sees[16] = "all";
        if (l->window)
            snprintf(sees, sizeof sees, "%u", l->window);
        printf("%-8u %-10u %-10u %-9s %-9s %-16s %14llu %10llu\n", l->layers, l->kv_heads,
               l->head_dim, sees, l->k_format, l->v_format, (unsigned long long)l->bytes_per_token,
               (unsigned long long)l->bytes_per_token16);
        all += l->bytes_per_token;
        all16 += l->bytes_per_token16;
    }
    printf("%-66s %14llu %10llu\n", "all", (unsigned long long)all, (unsigned long long)all16);
    if (p->state_bytes)
        printf("recurrent layers: %s a sequence, of any length\n",
               human_bytes((double)p->state_bytes, bytes));
    if (p->start_tokens)
        printf("--quantized-kv-start: the first %u tokens of a sequence stay f16: up to %s, "
               "quantized %s\n",
               p->start_tokens, human_bytes((double)p->start_bytes, bytes),
               human_bytes((double)p->start_bytes_quantized, bytes16));
    if (p->open_page_bytes)
        printf("open page: the newest tokens of a sequence are f16, too, until it is full: %s\n",
               human_bytes((double)p->open_page_bytes, bytes));
    if (p->tail_tokens)
        printf("--kv-exact-tail: the last %u tokens of a sequence are f16, too: up to %s\n",
               p->tail_tokens, human_bytes((double)p->tail_bytes, bytes));
}

static void print_lengths(kvasir_engine *e, const kvasir_memory_plan *p) {
    printf("\n%9s %12s %12s %8s %9s\n", "tokens", "this cache", "at 16 bits", "saving", "at once");
    for (size_t i = 0; i < N_LENGTHS; i++) {
        char bytes[24], bytes16[24];
        kvasir_sequence_plan of;
        kvasir_engine_plan_sequence(e, LENGTHS[i] * 1024, &of);
        printf("%9u %12s %12s %7.2fx %9llu\n", LENGTHS[i] * 1024,
               human_bytes((double)of.bytes, bytes), human_bytes((double)of.bytes16, bytes16),
               ratio((double)of.bytes16, (double)of.bytes), (unsigned long long)at_once(p, &of));
    }
}

static void print_text(kvasir_engine *e, const kvasir_memory_plan *p,
                       const kvasir_context_info *info, uint64_t requests) {
    char bytes[24];
    printf("weights   %s, beside the budget\n", human_bytes((double)p->weight_bytes, bytes));
    printf("requests  up to %s, beside the budget: bodies, texts, tokens, answers; half for one\n",
           human_bytes((double)requests, bytes));
    printf("budget    %s for all below\n", human_bytes((double)p->budget_bytes, bytes));
    printf("steps     %s of it: buffers, always\n", human_bytes((double)p->step_bytes, bytes));
    printf("cache     %s of it: room for one sequence of %u tokens",
           human_bytes((double)(p->budget_bytes - p->step_bytes), bytes), p->fit_tokens);
    printf(info->ctx ? "; --ctx allows %u\n" : "; any length runs\n", info->ctx);
    print_groups(p);
    print_lengths(e, p);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *groups_json(const kvasir_memory_plan *p) {
    json_t *list = json_array();
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const kvasir_layer_group *l = &p->groups[g];
        json_t *o = json_object();
        put_whole(o, "layers", l->layers);
        put_whole(o, "kv_heads", l->kv_heads);
        put_whole(o, "head_dim", l->head_dim);
        put_whole(o, "window", l->window);
        put_text(o, "k_format", l->k_format);
        put_text(o, "v_format", l->v_format);
        put_whole(o, "bytes_per_token", l->bytes_per_token);
        put_whole(o, "bytes_per_token_16bit", l->bytes_per_token16);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *lengths_json(kvasir_engine *e, const kvasir_memory_plan *p) {
    json_t *list = json_array();
    for (size_t i = 0; i < N_LENGTHS; i++) {
        json_t *o = json_object();
        kvasir_sequence_plan of;
        kvasir_engine_plan_sequence(e, LENGTHS[i] * 1024, &of);
        put_whole(o, "tokens", LENGTHS[i] * 1024);
        put_whole(o, "bytes", of.bytes);
        put_whole(o, "bytes_16bit", of.bytes16);
        put_whole(o, "need_bytes", of.need_bytes);
        put_whole(o, "at_once", at_once(p, &of));
        json_array_append_new(list, o);
    }
    return list;
}

static int print_json(const struct command *c, kvasir_engine *e, const kvasir_memory_plan *p,
                      const kvasir_context_info *info, uint64_t requests) {
    json_t *o = json_object();
    put_whole(o, "weight_bytes", p->weight_bytes);
    put_whole(o, "request_memory_bytes", requests);
    put_whole(o, "step_bytes", p->step_bytes);
    put_whole(o, "state_bytes", p->state_bytes);
    put_whole(o, "fit_tokens", p->fit_tokens);
    put_whole(o, "start_tokens", p->start_tokens);
    put_whole(o, "start_bytes", p->start_bytes);
    put_whole(o, "start_bytes_quantized", p->start_bytes_quantized);
    put_whole(o, "open_page_bytes", p->open_page_bytes);
    put_whole(o, "tail_tokens", p->tail_tokens);
    put_whole(o, "tail_bytes", p->tail_bytes);
    json_object_set_new(o, "layer_groups", groups_json(p));
    json_object_set_new(o, "lengths", lengths_json(e, p));
    put_context_facts(o, info);
    return json_print(c, o);
}

int serve_plan_print(const struct command *c, kvasir_engine *e, uint64_t requests, bool json) {
    kvasir_memory_plan p;
    kvasir_context_info info;
    kvasir_engine_get_plan(e, &p);
    kvasir_engine_get_context(e, &info);
    if (json)
        return print_json(c, e, &p, &info, requests);
    print_text(e, &p, &info, requests);
    return finish_output(c);
}
