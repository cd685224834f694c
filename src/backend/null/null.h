/* SPDX-License-Identifier: Apache-2.0 */
/* Backends for simulations and tests, without operations. Pages of the one have addresses and no
 * bytes: what is read is zeros. Pages of the other are memory of the host, so that what moves them
 * can be tried without a model. */
#ifndef KVASIR_BACKEND_NULL_H
#define KVASIR_BACKEND_NULL_H

#include "backend/backend.h"

kvasir_status backend_null_create(struct backend **out, kvasir_error *err) MUST_CHECK;
kvasir_status backend_null_create_bytes(struct backend **out, kvasir_error *err) MUST_CHECK;

#endif
