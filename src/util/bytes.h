/* SPDX-License-Identifier: Apache-2.0 */
/* util/bytes.h: numbers of bytes for people. */
#ifndef UTIL_BYTES_H
#define UTIL_BYTES_H

/* "9.1 KiB". Returns buf. */
enum { HUMAN_BYTES = 24 };
char *human_bytes(double bytes, char buf[HUMAN_BYTES]);

#endif
