/* SPDX-License-Identifier: Apache-2.0 */
/* A backend for simulations and tests: pages have addresses and no bytes, what is read is
 * zeros, and there are no operations. */
#ifndef KVASIR_BACKEND_NULL_H
#define KVASIR_BACKEND_NULL_H

#include "backend/backend.h"

kvasir_status backend_null_create(struct backend **out, kvasir_error *err) MUST_CHECK;

#endif
