/* SPDX-License-Identifier: Apache-2.0 */
/* pick_reference.h: the operation `pick` of backend.h as its definition says it, one row at a time
 * and slowly: what devices are compared with, and itself compared with engine/sampler.c. */
#ifndef PICK_REFERENCE_H
#define PICK_REFERENCE_H

#include "backend/pick.h"

/* row [vocab]. Never -1: it sorts the whole vocabulary. */
void pick_reference(const float *row, uint32_t vocab, const struct pick *p, struct picked *out);

/* Logits of any kind: plain ones most often, a few that are not finite, or nothing but one such. */
void pick_fill_logits(float *x, uint32_t n);

#endif
