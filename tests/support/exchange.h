/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence with some pages in other formats, as after a hit of stored prefixes that were
 * requantized (tree_requantize). It gives the right answer for a request that goes on after such
 * pages. */
#ifndef KVASIR_TEST_EXCHANGE_H
#define KVASIR_TEST_EXCHANGE_H

#include "engine/engine.h"

/* Replaces page i, for each bit i of `pages` and in each layer group that still holds it, by that
 * of a fork that kvasir_seq_requantize has put into these formats. What comes after stays in the
 * formats of the context. Full pages only. */
void exchange_pages(kvasir_seq *s, uint32_t pages, const char *bits);

#endif
