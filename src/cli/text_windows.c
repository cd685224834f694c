/* SPDX-License-Identifier: Apache-2.0 */
/* text_windows.c: reads a text and cuts it into windows of token ids (text_windows.h has the
 * drawing). The text is tokenized at once and without special tokens; where the vocabulary adds a
 * BOS, each window begins with it and has one id of the text less.
 */
#include "text_windows.h"

#include <string.h>
#include <xxhash.h>

/* What the vocabulary puts before the ids of some text. */
static int find_bos(const struct command *c, const kvasir_tokenizer *t, int32_t *bos) {
    int32_t *plain = NULL, *special = NULL;
    size_t n_plain = 0, n_special = 0;
    kvasir_error err;
    int code = EXIT_GOOD;
    *bos = -1;
    if (kvasir_tokenize(t, "a", 1, 0, &plain, &n_plain, &err) ||
        kvasir_tokenize(t, "a", 1, KVASIR_TOKENIZE_ADD_SPECIAL, &special, &n_special, &err))
        code = library_error(c, &err);
    else if (n_special > n_plain && n_plain > 0 && special[0] != plain[0])
        *bos = special[0];
    kvasir_free(plain);
    kvasir_free(special);
    return code;
}

static int read_ids(const struct command *c, const kvasir_tokenizer *t, const char *path,
                    struct text_windows *w) {
    char *text = NULL;
    size_t len;
    kvasir_error err;
    int code = read_text(c, "-f", path, &text, &len);
    if (!code && len == 0)
        code = run_error(c, "-f: %s: the text is empty", path);
    if (!code && kvasir_tokenize(t, text, len, 0, &w->ids, &w->n_ids, &err))
        code = library_error(c, &err);
    if (!code)
        w->text_hash = XXH3_64bits(text, len);
    mem_free(text);
    return code ? code : find_bos(c, t, &w->bos);
}

static uint32_t ids_per_window(const struct text_windows *w) {
    return w->bos >= 0 ? w->window - 1 : w->window;
}

int text_windows_read(const struct command *c, const kvasir_model *model, const char *path,
                      uint32_t window, uint32_t most, bool quiet, struct text_windows *w) {
    *w = (struct text_windows){.window = window};
    int code = read_ids(c, kvasir_model_tokenizer(model), path, w);
    if (code)
        return code;
    const size_t there = w->n_ids / ids_per_window(w);
    if (there == 0)
        return run_error(c, "-f: %s has %zu tokens, one window needs %u", path, w->n_ids,
                         ids_per_window(w));
    w->n = most && most < there ? most : (uint32_t)there;
    if (w->n < most && !quiet)
        fprintf(stderr, "note:   the text has %u windows of %u tokens, not %u\n", w->n, window,
                most);
    return EXIT_GOOD;
}

void text_windows_take(const struct text_windows *w, uint32_t number, int32_t *ids) {
    const uint32_t n = ids_per_window(w);
    uint32_t at = 0;
    if (w->bos >= 0)
        ids[at++] = w->bos;
    memcpy(ids + at, w->ids + (size_t)number * n, n * sizeof *ids);
}

void text_windows_free(struct text_windows *w) {
    kvasir_free(w->ids);
    *w = (struct text_windows){0};
}
