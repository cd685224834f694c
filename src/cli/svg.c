/* SPDX-License-Identifier: Apache-2.0 */
/* svg.c: the parts of a plot that do not depend on what it shows. */
#include "svg.h"

#include <math.h>

static const char *const COLOURS[] = {"#2a7ab8", "#c8553d", "#3f9b52", "#b8860b",
                                      "#8a63b5", "#2fa3a0", "#d0709a", "#7f8a93"};

bool svg_begin(struct text_buf *out, double height, const char *label) {
    return text_printf(out,
                       "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" "
                       "font-family=\"sans-serif\" font-size=\"11\" role=\"img\" "
                       "aria-label=\"%s\">\n"
                       "<style>text{fill:#444}.grid{stroke:#8886}"
                       "@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>\n",
                       SVG_WIDTH, height, label);
}

bool svg_text(struct text_buf *out, const char *text) {
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

bool svg_key(struct text_buf *out, double x, double y, const char *colour, const char *text) {
    return text_printf(out,
                       "<rect x=\"%.0f\" y=\"%.0f\" width=\"12\" height=\"12\" rx=\"2\" "
                       "fill=\"%s\"/><text x=\"%.0f\" y=\"%.0f\">",
                       x, y - 10, colour, x + 17, y) &&
           svg_text(out, text) && text_printf(out, "</text>\n");
}

const char *svg_colour(size_t i) {
    return COLOURS[i % (sizeof COLOURS / sizeof *COLOURS)];
}

double svg_tick(double all) {
    const double unit = pow(10, floor(log10(all / 4))), times = all / 4 / unit;
    return unit * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

int svg_write(const struct command *c, struct out_file *out, bool made, struct text_buf *text) {
    int code = made ? EXIT_GOOD : run_error(c, "--svg: out of memory");
    if (!code)
        code = out_write(c, out, text->data, text->len);
    if (!code)
        code = out_commit(c, out);
    text_free(text);
    return code;
}
