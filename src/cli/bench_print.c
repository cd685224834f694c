/* SPDX-License-Identifier: Apache-2.0 */
/* bench_print.c: what `kvasir bench` found, as a table and as JSON. */
#include "bench.h"

#include <math.h>

static double step_bytes(const struct bench_row *row) {
    return (row->work.weight_bytes + row->work.cache_bytes) / row->work.steps;
}

/* In a batch each sequence gets a token a step. */
static double ms_a_token(const struct bench_results *r, const struct bench_row *row) {
    return 1e3 * lab_median(row->seconds, r->a->rounds) / row->tokens;
}

static bool multiply_known(const struct bench_results *r) {
    return r->known && r->multiply[0] > 0;
}

/* ---- table ----------------------------------------------------------------------------------- */

static void print_head(const struct bench_results *r) {
    const kvasir_context_info *info = &r->formats[0];
    char weights[24], machine[MACHINE_BYTES];
    printf("model    %s: %s, %.1f M parameters, weights %s\n", r->name, r->model.arch,
           (double)r->model.parameters / 1e6, human_bytes((double)r->model.weight_bytes, weights));
    printf("machine  %s, activations %d bits, steps of %u\n", context_machine(info, machine),
           info->act_bits, info->prefill_chunk);
    if (!r->known) {
        printf("ceiling  not known of a GPU\n");
        return;
    }
    const struct bench_figure read = bench_figure(r->read, r->n_ceilings),
                              multiply = bench_figure(r->multiply, r->n_ceilings);
    printf("ceiling  reads %.1f GB/s (%.1f to %.1f)", read.median / 1e9, read.least / 1e9,
           read.most / 1e9);
    if (multiply_known(r))
        printf(", %.0f billion multiply-adds/s of %s (%.0f to %.0f)", multiply.median / 1e9,
               r->floats ? "floats" : "8-bit codes", multiply.least / 1e9, multiply.most / 1e9);
    printf("\n");
}

static void print_row(const struct bench_results *r, const struct bench_row *row) {
    const struct bench_figure speed = bench_speed(r, row);
    char test[32], depth[16], bytes[24], roofline[48] = "-";
    snprintf(test, sizeof test, "%s %u", row->decode ? "decode" : "prompt", row->tokens);
    if (r->known) {
        const struct bench_figure f = bench_figure(row->percent, r->a->rounds);
        snprintf(roofline, sizeof roofline, "%.0f %% (%.0f to %.0f) %s", f.median, f.least, f.most,
                 row->memory ? "memory" : "multiply");
    }
    printf("%-12s %-9s %9s %5u %10.2f %9.2f %9.2f %9.3f %11s  %s\n", test, row->bits,
           grouped_number(row->depth, depth), row->batch, speed.median, speed.least, speed.most,
           ms_a_token(r, row), human_bytes(step_bytes(row), bytes), roofline);
}

static void print_slopes(const struct bench_results *r) {
    const struct bench_args *a = r->a;
    struct bench_figure ns;
    if (!bench_slope(r, 0, a->batches.items[0], &ns))
        return;
    printf("\n%-9s %5s %17s %9s %9s %17s %6s\n", "kv bits", "batch", "ns a cached token", "least",
           "most", "bytes of a token", "GB/s");
    for (size_t f = 0; f < a->bits.n; f++)
        for (size_t b = 0; b < a->batches.n; b++) {
            const uint64_t bytes = r->formats[f].kv_bytes_per_token;
            char speed[16] = "-"; /* noise may be larger than the slope */
            bench_slope(r, f, a->batches.items[b], &ns);
            if (ns.median > 0)
                snprintf(speed, sizeof speed, "%.1f", (double)bytes / ns.median);
            printf("%-9s %5u %17.1f %9.1f %9.1f %17llu %6s\n", a->bits.items[f],
                   a->batches.items[b], ns.median, ns.least, ns.most, (unsigned long long)bytes,
                   speed);
        }
}

int bench_print_table(const struct command *c, const struct bench_results *r) {
    print_head(r);
    printf("\n%-12s %-9s %9s %5s %10s %9s %9s %9s %11s  %s\n", "test", "kv bits", "depth", "batch",
           "tokens/s", "least", "most", "ms/token", "step reads", "of the roofline");
    for (size_t i = 0; i < r->n_rows; i++)
        print_row(r, &r->rows[i]);
    print_slopes(r);
    return finish_output(c);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_figure(json_t *o, const char *key, struct bench_figure f) {
    json_t *figure = json_object();
    put_real(figure, "median", f.median);
    put_real(figure, "min", f.least);
    put_real(figure, "max", f.most);
    json_object_set_new(o, key, figure);
}

static json_t *machine_json(const struct bench_results *r) {
    json_t *o = json_object();
    put_machine(o, &r->formats[0]);
    json_object_set_new(o, "read_bytes_per_second", json_null());
    json_object_set_new(o, "multiply_adds_per_second", json_null());
    put_text(o, "multiply_kind", r->floats ? "float32" : "int8");
    if (r->known)
        put_figure(o, "read_bytes_per_second", bench_figure(r->read, r->n_ceilings));
    if (multiply_known(r))
        put_figure(o, "multiply_adds_per_second", bench_figure(r->multiply, r->n_ceilings));
    return o;
}

static json_t *formats_json(const struct bench_results *r) {
    json_t *list = json_array();
    for (size_t f = 0; f < r->a->bits.n; f++) {
        json_t *o = json_object();
        put_text(o, "kv_bits", r->a->bits.items[f]);
        put_text(o, "kv_format", r->formats[f].kv_format);
        put_whole(o, "kv_bytes_per_token", r->formats[f].kv_bytes_per_token);
        put_whole(o, "state_bytes", r->formats[f].state_bytes);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *row_json(const struct bench_results *r, const struct bench_row *row) {
    const double steps = row->work.steps;
    json_t *o = json_object(), *seconds = json_array();
    put_text(o, "kv_bits", row->bits);
    put_text(o, "phase", row->decode ? "decode" : "prompt");
    put_whole(o, "depth", row->depth);
    put_whole(o, "tokens", row->tokens);
    put_whole(o, "batch", row->batch);
    for (uint32_t i = 0; i < r->a->rounds; i++)
        json_array_append_new(seconds, json_real(row->seconds[i]));
    json_object_set_new(o, "seconds", seconds);
    put_figure(o, "tokens_per_second", bench_speed(r, row));
    put_real(o, "ms_per_token", ms_a_token(r, row));
    put_whole(o, "steps", row->work.steps);
    put_real(o, "weight_bytes_per_step", row->work.weight_bytes / steps);
    put_real(o, "kv_bytes_per_step", row->work.cache_bytes / steps);
    put_real(o, "bytes_per_step", step_bytes(row));
    put_real(o, "multiply_adds_per_step", row->work.multiplies / steps);
    json_object_set_new(o, "roofline_percent", json_null());
    put_text(o, "bound", r->known ? row->memory ? "memory" : "multiply" : NULL);
    if (r->known)
        put_figure(o, "roofline_percent", bench_figure(row->percent, r->a->rounds));
    return o;
}

static json_t *slopes_json(const struct bench_results *r) {
    json_t *list = json_array();
    for (size_t f = 0; f < r->a->bits.n && r->a->answer; f++)
        for (size_t b = 0; b < r->a->batches.n; b++) {
            struct bench_figure ns;
            if (!bench_slope(r, f, r->a->batches.items[b], &ns))
                continue;
            json_t *o = json_object();
            put_text(o, "kv_bits", r->a->bits.items[f]);
            put_whole(o, "batch", r->a->batches.items[b]);
            put_figure(o, "ns_per_cached_token", ns);
            json_array_append_new(list, o);
        }
    return list;
}

int bench_print_json(const struct command *c, const struct bench_results *r) {
    json_t *o = json_object(), *rows = json_array();
    put_text(o, "model", r->name);
    put_text(o, "arch", r->model.arch);
    put_text(o, "weight_types", r->model.weight_types);
    put_whole(o, "parameters", r->model.parameters);
    put_whole(o, "weight_bytes", r->model.weight_bytes);
    put_whole(o, "repetitions", r->a->rounds);
    json_object_set_new(o, "machine", machine_json(r));
    json_object_set_new(o, "formats", formats_json(r));
    for (size_t i = 0; i < r->n_rows; i++)
        json_array_append_new(rows, row_json(r, &r->rows[i]));
    json_object_set_new(o, "results", rows);
    json_object_set_new(o, "slopes", slopes_json(r));
    return json_print(c, o);
}
