/* SPDX-License-Identifier: Apache-2.0 */
/* bench_svg.c: tokens a second by depth, a line for each format, a panel for each prompt length and
 * each batch. A point is the median, the bar through it goes from the least to the most. Text and
 * lines of the grid follow the reader's colour scheme, light or dark.
 *
 *     +--------------------------------+
 *     | model, machine                 |
 *     | -- 8,4  -- f16                 |
 *     | decode, batch 1                |
 *     | 120 |*-----                    |
 *     |   0 +------*------             |
 *     |     0     8,192                |
 *     | (the next panel)               |
 */
#include "bench.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 720, HEAD = 70, PANEL = 230, LEFT = 64, RIGHT = 24, TOP = 30, BOTTOM = 40 };

static const char *const COLOURS[BENCH_FORMATS_MAX] = {"#2a7ab8", "#c8553d", "#3f9b52", "#b8860b",
                                                       "#8a63b5", "#2fa3a0", "#d0709a", "#7f8a93"};

struct panel {
    const struct bench_results *r;
    const struct bench_row *first; /* rows like this one, of any depth and format */
    double top, deepest, fastest;  /* top: of its area on the page */
};

static bool in_panel(const struct panel *p, const struct bench_row *row) {
    return row->decode == p->first->decode && row->batch == p->first->batch &&
           row->tokens == p->first->tokens;
}

static double x_of(const struct panel *p, double depth) {
    return LEFT + (p->deepest > 0 ? depth / p->deepest : 0.5) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *p, double speed) {
    return p->top + PANEL - BOTTOM - speed / p->fastest * (PANEL - TOP - BOTTOM);
}

/* 1, 2 or 5 times a power of ten, so that about four of them make up `all`. */
static double tick_of(double all) {
    const double unit = pow(10, floor(log10(all / 4))), times = all / 4 / unit;
    return unit * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

/* Text from outside. */
static bool put_escaped(struct text_buf *out, const char *text) {
    bool good = true;
    for (; *text && good; text++) {
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                             : *text == '"' ? "&quot;"
                                            : NULL;
        good = entity ? text_printf(out, "%s", entity) : text_append(out, text, 1);
    }
    return good;
}

static bool put_grid(struct text_buf *out, const struct panel *p) {
    const double tick = tick_of(p->fastest);
    bool good = true;
    for (double v = 0; v <= p->fastest * 1.0001 && good; v += tick)
        good =
            text_printf(out,
                        "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                        "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                        LEFT, WIDTH - RIGHT, y_of(p, v), y_of(p, v), LEFT - 8, y_of(p, v) + 4, v);
    for (size_t d = 0; d < p->r->a->depths.n && good; d++) {
        const uint32_t depth = p->r->a->depths.items[d];
        good = text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%u</text>\n",
                           x_of(p, depth), p->top + PANEL - BOTTOM + 18, depth);
    }
    return good;
}

/* One format: points with bars, and the line through them. */
static bool put_line(struct text_buf *out, const struct panel *p, size_t format) {
    struct text_buf path = {0};
    bool good =
        text_printf(out, "<g stroke=\"%s\" fill=\"%s\">\n", COLOURS[format], COLOURS[format]);
    for (size_t i = 0; i < p->r->n_rows && good; i++) {
        const struct bench_row *row = &p->r->rows[i];
        if (!in_panel(p, row) || row->format != format)
            continue;
        const struct bench_figure f = bench_speed(p->r, row);
        const double x = x_of(p, row->depth), y = y_of(p, f.median);
        good = text_printf(&path, "%.1f,%.1f ", x, y) &&
               text_printf(out,
                           "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>"
                           "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n",
                           x, y, x, x, y_of(p, f.least), y_of(p, f.most));
    }
    good = good && text_printf(out,
                               "<polyline fill=\"none\" stroke-width=\"2\" points=\"%s\"/>\n"
                               "</g>\n",
                               path.len ? path.data : "");
    text_free(&path);
    return good;
}

static bool put_panel(struct text_buf *out, struct panel *p) {
    const struct bench_row *first = p->first;
    for (size_t i = 0; i < p->r->n_rows; i++) {
        const struct bench_row *row = &p->r->rows[i];
        const double most = in_panel(p, row) ? bench_speed(p->r, row).most : 0;
        p->fastest = most > p->fastest ? most : p->fastest;
        p->deepest = row->depth > p->deepest ? row->depth : p->deepest;
    }
    bool good = text_printf(out, "<text x=\"%d\" y=\"%.1f\" font-size=\"13\">", LEFT, p->top + 18);
    if (first->decode)
        good = good && text_printf(out, "decode, batch %u", first->batch);
    else
        good = good && text_printf(out, "prompt of %u", first->tokens);
    good = good && text_printf(out, ": tokens/s by depth</text>\n") && put_grid(out, p);
    for (size_t f = 0; f < p->r->a->bits.n && good; f++)
        good = put_line(out, p, f);
    return good;
}

static bool put_head(struct text_buf *out, const struct bench_results *r, double height) {
    const kvasir_context_info *info = &r->formats[0];
    const bool gpu = strcmp(info->kind, "cpu") != 0;
    bool good = text_printf(out,
                            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" "
                            "font-family=\"sans-serif\" font-size=\"11\" role=\"img\" "
                            "aria-label=\"tokens per second by depth\">\n"
                            "<style>text{fill:#444}.grid{stroke:#8886}"
                            "@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>\n"
                            "<text x=\"%d\" y=\"24\" font-size=\"15\">",
                            WIDTH, height, LEFT) &&
                put_escaped(out, r->name) && text_printf(out, ", ") &&
                put_escaped(out, gpu ? info->device : cpu_model_name());
    if (!gpu)
        good = good && text_printf(out, ", %s, %d thread%s", info->cpu_tier, info->threads,
                                   info->threads == 1 ? "" : "s");
    good = good && text_printf(out, "</text>\n");
    for (size_t f = 0; f < r->a->bits.n && good; f++) {
        const double x = LEFT + 82 * (double)f;
        good = text_printf(out,
                           "<rect x=\"%.0f\" y=\"42\" width=\"12\" height=\"12\" rx=\"2\" "
                           "fill=\"%s\"/><text x=\"%.0f\" y=\"52\">",
                           x, COLOURS[f], x + 17) &&
               put_escaped(out, r->a->bits.items[f]) && text_printf(out, "</text>\n");
    }
    return good;
}

bool bench_svg(const struct bench_results *r, struct text_buf *out) {
    const size_t formats = r->a->bits.n;
    size_t panels = 0; /* the cells of the first depth */
    while (panels * formats < r->n_rows && r->rows[panels * formats].depth == r->rows[0].depth)
        panels++;
    bool good = put_head(out, r, HEAD + PANEL * (double)panels);
    for (size_t i = 0; i < panels && good; i++) {
        struct panel p = {.r = r, .first = &r->rows[i * formats], .top = HEAD + PANEL * (double)i};
        good = put_panel(out, &p);
    }
    return good && text_printf(out, "</svg>\n");
}
