/* SPDX-License-Identifier: Apache-2.0 */
/* top_view.c: a page of figures, at most 80 columns wide.
 *
 *     kvasir 0.1.0  http://127.0.0.1:8080  qwen  up 3 h 12 min
 *     requests     3 running, 0 waiting; 1.5 answered, 0.0 refused a second
 *     tokens       85.2 generated, 320.1 of prompts a second
 *     latency      0.21 s to the first token, 31 ms between tokens, 0.1 ms queued
 *     reuse        [##############------] 72 % of prompt tokens, 91 % since the start
 *     cache        [######--------------] 1.2 GiB of 4.0 GiB, 1.0 GiB stored prefixes
 *     disk         [###-----------------] 3.1 GiB of 16.0 GiB, 12345 records, 3.0 pages found ...
 *     memory       5.2 GiB
 */
#include "top.h"

#include <string.h>

enum { BAR = 20 };
static const char DIM[] = "\033[2m", GREEN[] = "\033[32m", YELLOW[] = "\033[33m",
                  RED[] = "\033[31m", PLAIN[] = "\033[0m";

struct view {
    struct text_buf *out;
    const struct top_sample *before, *now;
    double seconds; /* between them; 0: there is only one */
    bool colour, good;
};

static void PRINTF_LIKE(2, 3) put(struct view *v, const char *format, ...) {
    va_list args;
    va_start(args, format);
    v->good = v->good && text_vprintf(v->out, format, args);
    va_end(args);
}

static void paint(struct view *v, const char *how) {
    if (v->colour)
        put(v, "%s", how);
}

static void title(struct view *v, const char *name) {
    paint(v, DIM);
    put(v, "%-13s", name);
    paint(v, PLAIN);
}

/* share: 0 to 1. */
static void bar(struct view *v, double share, const char *colour) {
    const double rounded = share * BAR + 0.5;
    const int full = rounded < 0 ? 0 : rounded > BAR ? BAR : (int)rounded;
    put(v, "[");
    paint(v, colour);
    for (int i = 0; i < BAR; i++)
        put(v, i < full ? "#" : "-");
    paint(v, PLAIN);
    put(v, "] ");
}

/* A counter that fell is a server that was restarted. */
static double rate(const struct view *v, double before, double now) {
    return now >= before ? ratio(now - before, v->seconds) : 0;
}
#define RATE(v, field) rate(v, (v)->before->field, (v)->now->field)

/* "31 ms", the mean of what came between the samples, else of all; "-": nothing yet */
static const char *mean(const double sum[2], const double n[2], char out[24]) {
    const bool some = n[1] > n[0] && sum[1] >= sum[0];
    const double s = ratio(sum[1] - (some ? sum[0] : 0), n[1] - (some ? n[0] : 0));
    if (n[1] <= 0)
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, s < 0.01 ? "%.1f ms" : s < 1 ? "%.0f ms" : "%.2f s", s < 1 ? s * 1e3 : s);
    return out;
}
#define MEAN(v, name, out)                                                                         \
    mean((const double[]){(v)->before->name##_sum, (v)->now->name##_sum},                          \
         (const double[]){(v)->before->name##_n, (v)->now->name##_n}, out)

static void put_uptime(struct view *v, double seconds) {
    const unsigned minutes = (unsigned)(seconds / 60);
    if (seconds <= 0)
        return;
    if (minutes < 60)
        put(v, "  up %u min", minutes);
    else if (minutes < 48 * 60)
        put(v, "  up %u h %u min", minutes / 60, minutes % 60);
    else
        put(v, "  up %u days", minutes / 60 / 24);
}

static void put_head(struct view *v, const char *url) {
    const struct top_sample *s = v->now;
    put(v, "%s%s%s  %s", s->kvasir ? "kvasir" : "server", *s->version ? " " : "", s->version, url);
    if (s->models == 1)
        put(v, "  %s", s->model);
    else if (s->models)
        put(v, "  %u models", s->models);
    put_uptime(v, s->uptime);
    put(v, "\n");
}

static void put_requests(struct view *v) {
    const struct top_sample *s = v->now;
    char first[24], between[24], queue[24];
    title(v, "requests");
    put(v, "%.0f running, ", s->running);
    paint(v, s->waiting > 0 ? YELLOW : PLAIN);
    put(v, "%.0f waiting", s->waiting);
    paint(v, PLAIN);
    put(v, "; %.1f answered, ", RATE(v, finished));
    paint(v, s->refused > v->before->refused ? RED : PLAIN);
    put(v, "%.1f refused a second\n", RATE(v, refused));
    paint(v, PLAIN);
    title(v, "tokens");
    put(v, "%.1f generated, %.1f of prompts a second\n", RATE(v, generated),
        RATE(v, prompt_tokens));
    title(v, "latency");
    put(v, "%s to the first token, %s between tokens, %s queued\n", MEAN(v, first, first),
        MEAN(v, between, between), MEAN(v, queue, queue));
}

static void put_cache(struct view *v) {
    const struct top_sample *s = v->now, *b = v->before;
    char used[24], budget[24], stored[24];
    const double all = ratio(s->found, s->looked_up),
                 recent = s->looked_up > b->looked_up && s->found >= b->found
                              ? ratio(s->found - b->found, s->looked_up - b->looked_up)
                              : all;
    title(v, "reuse");
    bar(v, recent, GREEN);
    put(v, "%.0f %% of prompt tokens, %.0f %% since the start\n", recent * 100, all * 100);
    title(v, "cache");
    if (s->budget > 0) {
        bar(v, s->used / s->budget, s->usage > 0.9 ? RED : s->usage > 0.7 ? YELLOW : GREEN);
        put(v, "%s of %s, %s stored prefixes\n", human_bytes(s->used, used),
            human_bytes(s->budget, budget), human_bytes(s->stored, stored));
    } else {
        bar(v, s->usage, s->usage > 0.9 ? RED : s->usage > 0.7 ? YELLOW : GREEN);
        put(v, "%.0f %% in use\n", s->usage * 100);
    }
    if (s->preemptions > b->preemptions || s->evicted > b->evicted) {
        title(v, "");
        put(v, "%.1f pages evicted, %.1f preemptions a second\n", RATE(v, evicted),
            RATE(v, preemptions));
    }
}

static void put_tiers(struct view *v) {
    for (unsigned i = 0; i < v->now->n_tiers; i++) {
        const struct top_tier *t = &v->now->tiers[i];
        const double before = i < v->before->n_tiers ? v->before->tiers[i].hit_pages : 0;
        char bytes[24], limit[24];
        title(v, t->name);
        if (t->down > 0) {
            paint(v, RED);
            put(v, "down, ");
            paint(v, PLAIN);
        }
        if (t->limit > 0) {
            bar(v, t->bytes / t->limit, GREEN);
            put(v, "%s of %s, %.0f records, ", human_bytes(t->bytes, bytes),
                human_bytes(t->limit, limit), t->records);
        }
        put(v, "%.1f pages found a second\n", rate(v, before, t->hit_pages));
    }
}

bool top_view(struct text_buf *out, const char *url, const struct top_sample *before,
              const struct top_sample *now, bool colour) {
    char resident[24];
    struct view v = {.out = out,
                     .before = before,
                     .now = now,
                     .seconds = now->seconds - before->seconds,
                     .colour = colour,
                     .good = true};
    put_head(&v, url);
    put_requests(&v);
    put_cache(&v);
    put_tiers(&v);
    if (now->resident > 0) {
        title(&v, "memory");
        put(&v, "%s\n", human_bytes(now->resident, resident));
    }
    return v.good;
}
