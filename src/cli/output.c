/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: what all commands print the same way: error lines, bytes for people, JSON, progress.
 *
 * Results go to standard output, everything else to standard error. An error is one line, whatever
 * the names in it contain.
 */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- errors ---------------------------------------------------------------------------------- */

bool use_colour(FILE *to) {
    const char *off = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return !(off && *off) && isatty(fileno(to)) && terminal && strcmp(terminal, "dumb") != 0;
}

static void error_line(const struct command *c, const char *format, va_list args) {
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    fflush(stdout);
    const bool colour = use_colour(stderr);
    fprintf(stderr, "%skvasir%s%s:%s %s\n", colour ? "\033[1;31m" : "", c ? " " : "",
            c ? c->name : "", colour ? "\033[0m" : "", text);
}

int usage_error(const struct command *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_line(c, format, args);
    va_end(args);
    return EXIT_USAGE;
}

int run_error(const struct command *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_line(c, format, args);
    va_end(args);
    return EXIT_RUN;
}

/* ---- numbers --------------------------------------------------------------------------------- */

double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

const char *grouped_number(uint32_t n, char out[16]) {
    if (n >= 1000000)
        snprintf(out, 16, "%u,%03u,%03u", n / 1000000, n / 1000 % 1000, n % 1000);
    else if (n >= 1000)
        snprintf(out, 16, "%u,%03u", n / 1000, n % 1000);
    else
        snprintf(out, 16, "%u", n);
    return out;
}

/* ---- machines -------------------------------------------------------------------------------- */

static const char *machine_name(const kvasir_context_info *info) {
    return strcmp(info->kind, "cpu") == 0 ? cpu_model_name() : info->device;
}

const char *context_machine(const kvasir_context_info *info, char out[MACHINE_BYTES]) {
    if (strcmp(info->kind, "cpu") == 0)
        snprintf(out, MACHINE_BYTES, "%s, %s, %d thread%s", machine_name(info), info->cpu_tier,
                 info->threads, info->threads == 1 ? "" : "s");
    else
        snprintf(out, MACHINE_BYTES, "%s", machine_name(info));
    return out;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void put_text(json_t *object, const char *key, const char *text) {
    json_t *string = text ? json_string(text) : NULL; /* also NULL if text is not UTF-8 */
    json_object_set_new(object, key, string ? string : json_null());
}

void put_whole(json_t *object, const char *key, uint64_t value) {
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

void put_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

void put_ids(json_t *object, const char *key, const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    json_object_set_new(object, key, array);
}

void put_divergence(json_t *object, const lab_summary *kl, double same_top) {
    put_real(object, "kld_mean", kl->mean);
    put_real(object, "kld_median", kl->median);
    put_real(object, "kld_p99", kl->p99);
    put_real(object, "kld_p999", kl->p999);
    put_real(object, "kld_max", kl->max);
    put_real(object, "same_top", same_top);
}

void put_machine(json_t *object, const kvasir_context_info *info) {
    put_text(object, "kind", info->kind);
    put_text(object, "name", machine_name(info));
    put_text(object, "tier", info->cpu_tier);
    put_whole(object, "threads", (uint64_t)info->threads);
    put_whole(object, "act_bits", (uint64_t)info->act_bits);
    put_whole(object, "prefill_chunk", info->prefill_chunk);
}

int json_print(const struct command *c, json_t *object) {
    char *text = json_dumps(object, JSON_REAL_PRECISION(12));
    json_decref(object);
    if (!text)
        return run_error(c, "out of memory for the JSON result");
    puts(text);
    free(text);
    return finish_output(c);
}

int finish_output(const struct command *c) {
    if (fflush(stdout) != 0 || ferror(stdout))
        return run_error(c, "standard output: %s", strerror(errno));
    return EXIT_GOOD;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* A terminal is updated often, a log gets few lines. */
static const double TERMINAL_SECONDS = 0.1, LOG_SECONDS = 5;

static void put_amount(const struct progress *p, double n, const char *format, char out[32]) {
    if (p->bytes)
        human_bytes(n, out);
    else
        snprintf(out, 32, format, n);
}

/* "[####----] 50 %, " on a terminal, if the end is known. */
static void put_bar(const struct progress *p, size_t done, char out[64]) {
    enum { WIDTH = 20 };
    const double share = done < p->total ? ratio((double)done, (double)p->total) : 1;
    const int full = (int)(share * WIDTH);
    *out = 0;
    if (p->terminal && p->total)
        snprintf(out, 64, "[%.*s%.*s] %.0f %%, ", full, "####################", WIDTH - full,
                 "--------------------", floor(share * 100));
}

/* "1m20s", from two seconds on. */
static void put_left(const struct progress *p, size_t done, double seconds, char out[40]) {
    const double speed = ratio((double)(done - p->first), seconds);
    const double left = p->total > done ? ratio((double)(p->total - done), speed) : 0;
    *out = 0;
    if (left >= 2 && left < 60)
        snprintf(out, 40, ", %.0f s left", left);
    else if (left >= 60 && left < 1e7)
        snprintf(out, 40, ", %.0f min left", ceil(left / 60));
}

static void show(struct progress *p, size_t done, double seconds) {
    char amount[32], total[40] = "", number[32], rate[60] = "", left[40] = "", bar[64];
    put_bar(p, done, bar);
    put_amount(p, (double)done, "%.0f", amount);
    if (p->total) {
        put_amount(p, (double)p->total, "%.0f", number);
        snprintf(total, sizeof total, " of %s", number);
    }
    if (done > p->first) {
        put_amount(p, ratio((double)(done - p->first), seconds), "%.1f", number);
        snprintf(rate, sizeof rate, ", %s a second", number);
        put_left(p, done, seconds, left);
    }
    fprintf(stderr, "%s%s: %s%s%s%s%s%s%s%s", p->terminal ? "\r" : "", p->what, bar, amount, total,
            p->bytes ? "" : " ", p->bytes ? "" : p->unit, rate, left, p->terminal ? "   " : "\n");
    p->shown = true;
}

void progress_start(struct progress *p, const char *what, size_t total, const char *unit) {
    double now = clock_seconds();
    *p = (struct progress){.what = what,
                           .unit = unit,
                           .total = total,
                           .start = now,
                           .last = now,
                           .bytes = strcmp(unit, "bytes") == 0,
                           .terminal = isatty(STDERR_FILENO) != 0};
    /* A step may take long on a slow machine: a terminal shows at once what is going on. */
    if (what && p->terminal)
        show(p, 0, 0);
}

void progress_step(struct progress *p, size_t done) {
    double now = clock_seconds();
    if (!p->what || now - p->last < (p->terminal ? TERMINAL_SECONDS : LOG_SECONDS))
        return;
    p->last = now;
    show(p, done, now - p->start);
}

void progress_end(struct progress *p) {
    if (p->terminal && p->shown)
        fprintf(stderr, "\r%95s\r", "");
    p->shown = false;
}

/* ---- models ---------------------------------------------------------------------------------- */

void model_base_name(const char *path, char out[MODEL_NAME_BYTES]) {
    size_t end = strlen(path), start;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (start = end; start > 0 && path[start - 1] != '/'; start--)
        ;
    snprintf(out, MODEL_NAME_BYTES, "%.*s", (int)(end - start), path + start);
}
