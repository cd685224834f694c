/* SPDX-License-Identifier: Apache-2.0 */
/* A sequence some of whose pages were put into other formats, as the pages of stored prefixes are
 * (tree_requantize): the right answer to what goes on behind those. */
#ifndef KVASIR_TEST_EXCHANGE_H
#define KVASIR_TEST_EXCHANGE_H

#include "engine/engine.h"

/* Page i, for each bit i of `pages` (and each layer group that still holds it), is exchanged for
 * that of a fork that kvasir_seq_requantize has put into these formats; what comes behind stays in
 * the formats of the context. Full pages only. */
void exchange_pages(kvasir_seq *s, uint32_t pages, const char *bits);

#endif
