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

int remote_check_url(const struct command *c, const char *url) {
    if (strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0)
        return EXIT_GOOD;
    return usage_error(c, "--url: \"%.80s\" begins with neither http:// nor https://", url);
}

const char *remote_explain(int result, const char *error, char out[REMOTE_WHY_MAX]) {
    const char *hint = result == CURLE_COULDNT_CONNECT
                           ? ": is a server running there? \"kvasir serve\" starts one"
                       : result == CURLE_COULDNT_RESOLVE_HOST ? ": is the URL right?"
                                                              : "";
    if (result == CURLE_SSL_CONNECT_ERROR) /* the TLS library's text tells nobody anything */
        snprintf(out, REMOTE_WHY_MAX, "no TLS connection is possible: is it an http:// URL?");
    else
        snprintf(out, REMOTE_WHY_MAX, "%.180s%s",
                 *error ? error : curl_easy_strerror((CURLcode)result), hint);
    return out;
}

static size_t on_reply(char *data, size_t size, size_t n, void *user) {
    enum { REPLY_MAX = 64 << 20 };
    struct text_buf *body = user;
    n *= size;
    return n <= REPLY_MAX - body->len && text_append(body, data, n) ? n : 0;
}

void remote_setup(void *curl, const char *url, struct curl_slist *headers, char *why) {
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 10L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
}

bool remote_get(const char *base, const char *path, struct curl_slist *headers,
                struct remote_reply *out) {
    char error[CURL_ERROR_SIZE] = "";
    struct text_buf url = {0};
    CURL *h = curl_easy_init();
    CURLcode result = CURLE_OUT_OF_MEMORY;
    if (h && text_puts(&url, base) && text_puts(&url, path)) {
        remote_setup(h, url.data, headers, error);
        curl_easy_setopt(h, CURLOPT_TIMEOUT, 30L);
        curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_reply);
        curl_easy_setopt(h, CURLOPT_WRITEDATA, &out->body);
        result = curl_easy_perform(h);
        curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &out->status);
    }
    (void)remote_explain((int)result, error, out->why);
    curl_easy_cleanup(h);
    text_free(&url);
    return result == CURLE_OK;
}
