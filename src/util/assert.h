/* SPDX-License-Identifier: Apache-2.0 */
/* util/assert.h: checks of what cannot happen unless our own code is wrong.
 *
 * ASSERT is always on, in releases too: a server that continued after a broken invariant could show
 * one sequence another's tokens. DEBUG_ASSERT is for inner loops and on in debug builds (which
 * sanitizer builds are). Neither may be reachable from outside bytes, which get errors, and neither
 * may have side effects.
 */
#ifndef KVASIR_UTIL_ASSERT_H
#define KVASIR_UTIL_ASSERT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Prints one line to standard error and aborts. */
__attribute__((noreturn, cold)) void assert_failed(const char *file, int line, const char *text);

#ifdef __cplusplus
}
#endif

#define ASSERT(cond) ((cond) ? (void)0 : assert_failed(__FILE__, __LINE__, #cond))

#ifdef KVASIR_DEBUG
#define DEBUG_ASSERT(cond) ASSERT(cond)
#else
#define DEBUG_ASSERT(cond) ((void)sizeof((cond) ? 1 : 0)) /* checked by the compiler, not run */
#endif

#endif
