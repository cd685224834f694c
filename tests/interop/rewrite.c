/* SPDX-License-Identifier: Apache-2.0 */
/* rewrite IN OUT 032|legacy: reads a prompt-cache file and writes it again; for prompt_cache.py. */
#include <stdio.h>
#include <string.h>

#include "files/prompt_file.h"

int main(int argc, char **argv) {
    struct prompt_file f = {0};
    kvasir_error err;
    if (argc != 4)
        return 2;
    kvasir_status status = prompt_file_open(argv[1], &f, &err);
    f.form = strcmp(argv[3], "legacy") == 0 ? PROMPT_FORM_LEGACY : PROMPT_FORM_032;
    if (status == KVASIR_OK)
        status = prompt_file_write(argv[2], &f, &err);
    if (status != KVASIR_OK)
        fprintf(stderr, "%s\n", err.text);
    prompt_file_close(&f);
    return status != KVASIR_OK;
}
