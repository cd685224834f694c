/* SPDX-License-Identifier: Apache-2.0 */
/* Backends for simulations and tests, without operations. Pages of the first have addresses and no
 * bytes: what is read is zeros. Pages of the others are memory of the host, so that what moves them
 * can be tried without a model: of the second they are within its reach, and of the third, as on a
 * device, only lanes and reads and writes of the arena come to them. */
#ifndef KVASIR_BACKEND_NULL_H
#define KVASIR_BACKEND_NULL_H

#include "backend/backend.h"

kvasir_status backend_null_create(struct backend **out, kvasir_error *err) MUST_CHECK;
kvasir_status backend_null_create_bytes(struct backend **out, kvasir_error *err) MUST_CHECK;
kvasir_status backend_null_create_lanes(struct backend **out, kvasir_error *err) MUST_CHECK;
/* Of the last one: from now on lanes copy nothing and fail, or work again. From any thread. */
void backend_null_break_lanes(struct backend *b, bool broken);

#endif
