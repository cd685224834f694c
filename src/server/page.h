/* SPDX-License-Identifier: Apache-2.0 */
/* The page at /, inside the program: the parts of page/ and the libraries that they use, joined at
 * build time (page/join.cmake). */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char SERVER_PAGE[]; /* [SERVER_PAGE_LEN], UTF-8, and a NUL */
extern const size_t SERVER_PAGE_LEN;

#define SERVER_PAGE_TYPE "text/html; charset=utf-8"

/* The Content-Security-Policy to send with it: only the style and the scripts that are in it, by
 * their hashes (%s). It talks to its own server only, only DOMPurify makes markup of text, and no
 * other site may put it into a frame. */
#define SERVER_PAGE_POLICY                                                                         \
    "default-src 'none'; connect-src 'self'; img-src data:; style-src%s; script-src%s; "           \
    "require-trusted-types-for 'script'; trusted-types dompurify; base-uri 'none'; "               \
    "form-action 'none'; frame-ancestors 'none'"
const char *server_page_policy(void);

#endif
