/* SPDX-License-Identifier: Apache-2.0 */
/* A device that can be lost: the CPU's backend, whose waits for results all fail once so many have
 * succeeded. One at a time. */
#ifndef LOST_DEVICE_H
#define LOST_DEVICE_H

#include "backend/backend.h"

#define LOST_DEVICE_TEXT "the device is lost"

/* It works until lost_device_after is called. Fails the test without memory. */
struct backend *lost_device_create(void);
/* waits: those that still succeed; INT32_MAX: all. From any thread. */
void lost_device_after(int waits);

#endif
