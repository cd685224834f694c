/* SPDX-License-Identifier: Apache-2.0 */
/* quality_svg.c: the plot of `kvasir quality`, mean KL divergence by bits a value: a line for each
 * depth, and dashed ones of the peers in the file of --peers that were measured on this model.
 *
 *     | model, text                    |
 *     | -- depth 0  -- llama.cpp       |
 *     |  1 |*                          |
 *     | .1 |   *        + q4_0/q4_0    |    logarithmic
 *     |.01 |        *                  |
 *     |    +-------------------------- |
 *     |    2    4    6    8   bits     |
 *
 * The file: {"peers": [{"name": "llama.cpp, ...", "model": "qwen2.5-coder-0.5b", "source": "...",
 * "points": [{"kv": "q8_0/q8_0", "bits": 8.5, "kld_mean": 0.0081}, ...]}, ...]}. "model" is in the
 * name of the model's file, in any case.
 */
#include "quality.h"

#include "svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEIGHT = 440, LEFT = 70, RIGHT = 24, TOP = 74, BOTTOM = 44, POINTS_MAX = 32 };

struct point {
    double bits, kl;
    const char *label;
};
struct line {
    char name[80];
    struct point points[POINTS_MAX]; /* [n] */
    size_t n;
    bool peer;
};
struct plot {
    struct line *lines; /* [n] */
    size_t n;
    double least_bits, most_bits; /* of the axis */
    int low, high;                /* its powers of ten */
};

/* ---- the file of peers ----------------------------------------------------------------------- */

static bool peer_is_good(const json_t *peer) {
    const json_t *points = json_object_get(peer, "points"), *point;
    size_t i;
    if (!json_is_string(json_object_get(peer, "name")) ||
        !json_is_string(json_object_get(peer, "model")) ||
        !json_is_string(json_object_get(peer, "source")) || !json_is_array(points) ||
        json_array_size(points) > POINTS_MAX)
        return false;
    json_array_foreach(points, i, point) {
        if (!json_is_string(json_object_get(point, "kv")) ||
            !(json_number_value(json_object_get(point, "bits")) > 0) ||
            !(json_number_value(json_object_get(point, "kld_mean")) > 0))
            return false;
    }
    return true;
}

int quality_peers_read(const struct command *c, const char *path, json_t **out) {
    char *text;
    size_t len, i;
    kvasir_error err;
    json_t *peer;
    int code = read_text(c, "--peers", path, &text, &len);
    if (code)
        return code;
    if (json_load_bounded(text ? text : "", len, 0, JSON_REJECT_DUPLICATES, out, &err))
        code = run_error(c, "--peers: %s: %s", path, err.text);
    mem_free(text);
    if (code)
        return code;
    const json_t *peers = json_object_get(*out, "peers");
    if (!json_is_array(peers))
        return run_error(c, "--peers: %s: it has no array \"peers\"", path);
    json_array_foreach(peers, i, peer) {
        if (!peer_is_good(peer))
            return run_error(c,
                             "--peers: %s: peers[%zu] needs name, model and source as strings, and "
                             "points of kv, bits and kld_mean, %d at most",
                             path, i, POINTS_MAX);
    }
    return EXIT_GOOD;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static int by_bits(const void *a, const void *b) {
    const struct point *x = a, *y = b;
    return (x->bits > y->bits) - (x->bits < y->bits);
}

static bool take_depth(const struct quality_results *r, uint32_t depth, struct line *line) {
    *line = (struct line){0};
    snprintf(line->name, sizeof line->name, "Kvasir, from depth %u", depth);
    for (size_t i = 0; i < r->a->bits.n; i++) {
        const struct quality_run *run = &r->runs[r->formats[i]];
        struct quality_figures f;
        if (!quality_figures(r, run, depth, &f))
            return false;
        if (f.kl.mean > 0 && isfinite(f.kl.mean)) /* else it has no place on the axis */
            line->points[line->n++] = (struct point){f.value_bits, f.kl.mean, run->bits};
    }
    return true;
}

static void take_peer(const json_t *peer, struct line *line) {
    const json_t *points = json_object_get(peer, "points"), *point;
    size_t i;
    *line = (struct line){.peer = true};
    snprintf(line->name, sizeof line->name, "%s", json_string_value(json_object_get(peer, "name")));
    json_array_foreach(points, i, point) {
        line->points[line->n++] =
            (struct point){json_number_value(json_object_get(point, "bits")),
                           json_number_value(json_object_get(point, "kld_mean")),
                           json_string_value(json_object_get(point, "kv"))};
    }
}

/* `part` in any case. */
static bool name_has(const char *name, const char *part) {
    const size_t n = strlen(part);
    for (; *name; name++)
        if (strncasecmp(name, part, n) == 0)
            return true;
    return n == 0;
}

static bool take_lines(struct plot *p, const struct quality_results *r, const json_t *peers) {
    const json_t *list = json_object_get(peers, "peers"), *peer;
    size_t i;
    p->lines = calloc(r->a->depths.n + json_array_size(list), sizeof *p->lines);
    if (!p->lines)
        return false;
    for (i = 0; i < r->a->depths.n; i++)
        if (!take_depth(r, r->a->depths.items[i], &p->lines[p->n++]))
            return false;
    json_array_foreach(list, i, peer) {
        if (name_has(r->name, json_string_value(json_object_get(peer, "model"))))
            take_peer(peer, &p->lines[p->n++]);
    }
    return true;
}

static void settle_axes(struct plot *p) {
    double least = INFINITY, most = 0, low = INFINITY, high = 0;
    for (size_t i = 0; i < p->n; i++) {
        qsort(p->lines[i].points, p->lines[i].n, sizeof *p->lines[i].points, by_bits);
        for (size_t k = 0; k < p->lines[i].n; k++) {
            const struct point *q = &p->lines[i].points[k];
            least = q->bits < least ? q->bits : least;
            most = q->bits > most ? q->bits : most;
            low = q->kl < low ? q->kl : low;
            high = q->kl > high ? q->kl : high;
        }
    }
    const bool none = most == 0;
    p->least_bits = none ? 0 : floor(least - 0.25);
    p->most_bits = none ? 16 : ceil(most + 0.75);
    p->low = none ? -4 : (int)floor(log10(low));
    p->high = none ? 0 : (int)ceil(log10(high));
    p->high += p->high == p->low;
}

/* ---- drawing --------------------------------------------------------------------------------- */

static double x_of(const struct plot *p, double bits) {
    return LEFT +
           (bits - p->least_bits) / (p->most_bits - p->least_bits) * (SVG_WIDTH - LEFT - RIGHT);
}

static double y_of(const struct plot *p, double kl) {
    return HEIGHT - BOTTOM - (log10(kl) - p->low) / (p->high - p->low) * (HEIGHT - TOP - BOTTOM);
}

static bool put_grid(struct text_buf *out, const struct plot *p) {
    const double tick = svg_tick(p->most_bits - p->least_bits);
    bool good = true;
    for (int power = p->low; power <= p->high && good; power++) {
        const double y = y_of(p, pow(10, power));
        good = text_printf(out,
                           "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                           "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                           LEFT, SVG_WIDTH - RIGHT, y, y, LEFT - 8, y + 4, pow(10, power));
    }
    for (double v = ceil(p->least_bits / tick) * tick; v <= p->most_bits && good; v += tick)
        good = text_printf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
                           x_of(p, v), HEIGHT - BOTTOM + 18, v);
    return good &&
           text_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">bits a value</text>\n",
                       SVG_WIDTH - RIGHT, HEIGHT - 8);
}

static bool put_line(struct text_buf *out, const struct plot *p, size_t i) {
    const struct line *line = &p->lines[i];
    struct text_buf path = {0};
    bool good = true;
    for (size_t k = 0; k < line->n && good; k++) {
        const struct point *q = &line->points[k];
        const double x = x_of(p, q->bits), y = y_of(p, q->kl);
        good = text_printf(&path, "%.1f,%.1f ", x, y) &&
               text_printf(out,
                           "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>"
                           "<text x=\"%.1f\" y=\"%.1f\">",
                           x, y, svg_colour(i), x + 6, y + (line->peer ? 13 : -5)) &&
               svg_text(out, q->label) && text_printf(out, "</text>\n");
    }
    good = good && text_printf(out,
                               "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s "
                               "points=\"%s\"/>\n",
                               svg_colour(i), line->peer ? " stroke-dasharray=\"5 4\"" : "",
                               path.len ? path.data : "");
    text_free(&path);
    return good;
}

bool quality_svg(const struct quality_results *r, const json_t *peers, struct text_buf *out) {
    struct plot p = {0};
    char window[16];
    bool good = take_lines(&p, r, peers);
    if (good)
        settle_axes(&p);
    good = good && svg_begin(out, HEIGHT, "KL divergence by bits a value") &&
           text_printf(out, "<text x=\"%d\" y=\"24\" font-size=\"14\">", LEFT) &&
           svg_text(out, r->name) &&
           text_printf(out, ": mean KL, %u window%s of %s tokens</text>\n", r->text.n,
                       r->text.n == 1 ? "" : "s", grouped_number(r->a->window, window)) &&
           put_grid(out, &p);
    for (size_t i = 0; i < p.n && good; i++)
        good = svg_key(out, LEFT + 210 * (double)(i % 3), 46 + 18 * (double)(i / 3), svg_colour(i),
                       p.lines[i].name) &&
               put_line(out, &p, i);
    free(p.lines);
    return good && text_printf(out, "</svg>\n");
}
