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
#include "svg.h"

enum { HEAD = 70, PANEL = 230, LEFT = 64, RIGHT = 24, TOP = 30, BOTTOM = 40 };

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
    return LEFT + (p->deepest > 0 ? depth / p->deepest : 0.5) * (SVG_WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *p, double speed) {
    return p->top + PANEL - BOTTOM - speed / p->fastest * (PANEL - TOP - BOTTOM);
}

static bool put_grid(struct text_buf *out, const struct panel *p) {
    const double tick = svg_tick(p->fastest);
    bool good = true;
    for (double v = 0; v <= p->fastest * 1.0001 && good; v += tick)
        good = text_printf(out,
                           "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                           "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                           LEFT, SVG_WIDTH - RIGHT, y_of(p, v), y_of(p, v), LEFT - 8,
                           y_of(p, v) + 4, v);
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
        text_printf(out, "<g stroke=\"%s\" fill=\"%s\">\n", svg_colour(format), svg_colour(format));
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
    char machine[MACHINE_BYTES];
    bool good = svg_begin(out, height, "tokens per second by depth") &&
                text_printf(out, "<text x=\"%d\" y=\"24\" font-size=\"15\">", LEFT) &&
                svg_text(out, r->name) && text_printf(out, ", ") &&
                svg_text(out, context_machine(&r->formats[0], machine)) &&
                text_printf(out, "</text>\n");
    for (size_t f = 0; f < r->a->bits.n && good; f++)
        good = svg_key(out, LEFT + 82 * (double)f, 52, svg_colour(f), r->a->bits.items[f]);
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
