/* SPDX-License-Identifier: Apache-2.0 */
/* text_windows.h: windows of a text, as `kvasir perplexity` and `kvasir quality` cut them.
 *
 *     the text's ids, tokenized at once:   | w ids | w ids | ...   no overlap, from the start
 *     (a vocabulary that adds BOS:     BOS | w - 1 | BOS | w - 1 | ...)
 *
 *     one window:      id0   id1   id2  ...  id(w-2)   id(w-1)
 *     what is run:     id0   id1   id2  ...  id(w-2)
 *     its prediction:  id1   id2   id3  ...  id(w-1)            w - 1 of them
 */
#ifndef KVASIR_CLI_TEXT_WINDOWS_H
#define KVASIR_CLI_TEXT_WINDOWS_H

#include "cli.h"

/* The flags of both. */
/* clang-format off */
#define TEXT_WINDOW_OPTIONS(type, file_field, window_field, windows_field, windows_initial)        \
    {.name = "--file", .alias = "-f", .value = "TEXT", .kind = OPTION_TEXT, .required = true,      \
     .offset = offsetof(type, file_field),                                                         \
     .help = "file with the text, read as bytes; - is standard input"},                            \
    {.name = "--window", .value = "N", .kind = OPTION_U32, .offset = offsetof(type, window_field), \
     .initial = "1024", .min = 2, .max = 1 << 24, .help = "tokens in a window"},                   \
    {.name = "--windows", .value = "N", .kind = OPTION_U32, .max = 1 << 24,                        \
     .offset = offsetof(type, windows_field), .initial = windows_initial,                          \
     .help = "number of windows, from the start of the text; 0: all"}
/* clang-format on */

struct text_windows {
    uint32_t n, window; /* windows, tokens in each */
    int32_t bos;        /* -1: windows have none */
    int32_t *ids;       /* of the text; kvasir_free */
    size_t n_ids;
    uint64_t text_hash; /* XXH3 of the text's bytes */
};
/* Reads and tokenizes a file. most: 0 for all of its windows. A note says if there are fewer,
 * unless quiet. The caller frees w, also after a failure. */
int text_windows_read(const struct command *c, const kvasir_model *model, const char *path,
                      uint32_t window, uint32_t most, bool quiet, struct text_windows *w);
/* ids: [window] */
void text_windows_take(const struct text_windows *w, uint32_t number, int32_t *ids);
void text_windows_free(struct text_windows *w);

#endif
