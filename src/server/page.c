/* SPDX-License-Identifier: Apache-2.0 */
/* page.c: the bytes of page.html between two symbols (CMake passes the file's path), and the policy
 * that names the hashes of its style and scripts, made at the first use. */
#include "server/page.h"

#include "util/assert.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(size_t) == 8, "the length below is written as 8 bytes");

__asm__(".pushsection .rodata\n"
        ".global SERVER_PAGE, SERVER_PAGE_LEN\n"
        ".hidden SERVER_PAGE, SERVER_PAGE_LEN\n"
        "SERVER_PAGE:\n"
        ".incbin \"" SERVER_PAGE_FILE "\"\n"
        "server_page_end:\n"
        ".byte 0\n"
        ".balign 8\n"
        "SERVER_PAGE_LEN:\n"
        ".8byte server_page_end - SERVER_PAGE\n"
        ".popsection\n");

/* Writes " 'sha256-...'" for the text of each element between `open` and `close`. */
static void write_hashes(const char *open, const char *close, char *out, size_t room) {
    const char *at = SERVER_PAGE;
    size_t len = 0;
    while ((at = strstr(at, open)) != NULL) {
        at += strlen(open);
        const char *end = strstr(at, close);
        ASSERT(end);
        unsigned char hash[crypto_hash_sha256_BYTES];
        char text[sodium_base64_ENCODED_LEN(sizeof hash, sodium_base64_VARIANT_ORIGINAL)];
        crypto_hash_sha256(hash, (const unsigned char *)at, (size_t)(end - at));
        sodium_bin2base64(text, sizeof text, hash, sizeof hash, sodium_base64_VARIANT_ORIGINAL);
        len += (size_t)snprintf(out + len, room - len, " 'sha256-%s'", text);
        ASSERT(len < room);
        at = end;
    }
}

static char policy[640];

static void make_policy(void) {
    char styles[160], scripts[160];
    write_hashes("<style>", "</style>", styles, sizeof styles);
    write_hashes("<script>", "</script>", scripts, sizeof scripts);
    const int len = snprintf(policy, sizeof policy, SERVER_PAGE_POLICY, styles, scripts);
    ASSERT(len > 0 && (size_t)len < sizeof policy);
}

const char *server_page_policy(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_policy);
    return policy;
}
