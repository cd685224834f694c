/* SPDX-License-Identifier: Apache-2.0 */
/* The page at /, page.html, inside the program. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char SERVER_PAGE[]; /* [SERVER_PAGE_LEN], UTF-8, and a NUL */
extern const size_t SERVER_PAGE_LEN;

/* Headers to send with it. The page contains its style and script, which the hashes name, and talks
 * to its own server only. No other site may put it into a frame. */
#define SERVER_PAGE_TYPE "text/html; charset=utf-8"
#define SERVER_PAGE_CSP                                                                            \
    "default-src 'none'; connect-src 'self'; "                                                     \
    "style-src 'sha256-O6ale3kKsh/66AKNLL7RYbIO2TIAE1lJkgyOdIbjviY='; "                            \
    "script-src 'sha256-H953aJpWMLYrKC5ZdqfCq3ErwPEwka8ZjmN4ijq8HXo='; "                           \
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

#endif
