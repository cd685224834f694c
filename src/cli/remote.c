/* SPDX-License-Identifier: Apache-2.0 */
/* remote.c: --url and --api-key of commands that ask a server with OpenAI's API. */
#include "cli.h"

#include <curl/curl.h>
#include <string.h>

char *remote_base(const char *url) {
    size_t n = strlen(url);
    while (n && url[n - 1] == '/')
        n--;
    if (n > 3 && memcmp(url + n - 3, "/v1", 3) == 0)
        n -= 3;
    return mem_strndup(url, n);
}

int remote_headers(const struct command *c, const char *api_key, struct curl_slist **out) {
    struct text_buf key = {0};
    if (api_key && (!*api_key || strpbrk(api_key, "\r\n")))
        return usage_error(c, "--api-key: is empty or holds a line end");
    bool good = (*out = curl_slist_append(NULL, "Content-Type: application/json")) != NULL;
    if (api_key)
        good = good && text_puts(&key, "Authorization: Bearer ") && text_puts(&key, api_key) &&
               curl_slist_append(*out, key.data);
    text_free(&key);
    return good ? EXIT_GOOD : run_error(c, "out of memory");
}
