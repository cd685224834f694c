/* SPDX-License-Identifier: Apache-2.0 */
/* svg.h: what the plots of bench and quality have in common. Text and lines of the grid follow the
 * reader's colour scheme, light or dark. Functions that
 * return bool return false if memory ran out.
 */
#ifndef KVASIR_CLI_SVG_H
#define KVASIR_CLI_SVG_H

#include "cli.h"

enum { SVG_WIDTH = 720 };

/* The head of a document; its caller ends it with </svg>. label: for those who do not see it. */
bool svg_begin(struct text_buf *out, double height, const char *label);
/* Text from outside, escaped. */
bool svg_text(struct text_buf *out, const char *text);
/* A square of the colour and what it stands for, to the right of it; y: of the text's line. */
bool svg_key(struct text_buf *out, double x, double y, const char *colour, const char *text);
/* Of the i-th line; the first 8 differ. */
const char *svg_colour(size_t i);
/* 1, 2 or 5 times a power of ten, so that about four of them make up `all` (> 0). */
double svg_tick(double all);
/* Writes the document to the file of --svg, which is open, and frees it. made: false, memory ran
 * out. */
int svg_write(const struct command *c, struct out_file *out, bool made, struct text_buf *text);

#endif
