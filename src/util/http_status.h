/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes of HTTP that the program uses. api/ knows what an error means to a client without
 * knowing HTTP's transport. */
#ifndef UTIL_HTTP_STATUS_H
#define UTIL_HTTP_STATUS_H

enum {
    HTTP_OK = 200,
    HTTP_NO_CONTENT = 204,
    HTTP_BAD_REQUEST = 400,
    HTTP_UNAUTHORIZED = 401,
    HTTP_FORBIDDEN = 403,
    HTTP_NOT_FOUND = 404,
    HTTP_METHOD_NOT_ALLOWED = 405,
    HTTP_CONFLICT = 409,
    HTTP_CONTENT_TOO_LARGE = 413,
    HTTP_URI_TOO_LONG = 414,
    HTTP_TOO_MANY_REQUESTS = 429,
    HTTP_HEADERS_TOO_LARGE = 431,
    HTTP_CLIENT_CLOSED = 499, /* cancelled: no client retries it by itself */
    HTTP_SERVER_ERROR = 500,
    HTTP_NOT_IMPLEMENTED = 501,
    HTTP_UNAVAILABLE = 503,
    HTTP_VERSION_UNKNOWN = 505,
};

#endif
