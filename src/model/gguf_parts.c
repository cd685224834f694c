/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF model on disk: one file, or the parts into which gguf-split cuts it.
 *
 *     NAME-00001-of-00003.gguf    every value of the model, and its first tensors
 *     NAME-00002-of-00003.gguf    split.* alone, and more tensors
 *     NAME-00003-of-00003.gguf
 *
 * The name of any part opens the set: the others are next to it. A part's name must agree with its
 * values:
 *
 *     split.no                 the part's number, from 0
 *     split.count              how many parts there are
 *     split.tensors.count      tensors of all parts together: a part of another model differs here,
 *                              or has a duplicate tensor
 *
 * A part's data offsets count from its own data, and it has its own alignment.
 */
#include <inttypes.h>
#include <stdio.h>

#include "model/model_internal.h"

struct set {
    const char *path;   /* any part's */
    size_t prefix;      /* bytes of it before the numbers */
    uint32_t count;     /* 1: path is the only file */
    uint32_t n_tensors; /* of all parts */
};

/* The five-digit number at `text`; 0 if there is none. */
static uint32_t five_digits(const char *text) {
    uint32_t n = 0;
    for (int i = 0; i < 5; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        n = n * 10 + (uint32_t)(text[i] - '0');
    }
    return n;
}

static struct set set_of(const char *path) {
    enum { TAIL = sizeof "-00001-of-00003.gguf" - 1 };
    struct set set = {.path = path, .count = 1};
    size_t len = strlen(path);
    const char *tail = len > TAIL ? path + len - TAIL : "";
    if (*tail != '-' || memcmp(tail + 6, "-of-", 4) != 0 || strcmp(tail + 15, ".gguf") != 0)
        return set;
    uint32_t no = five_digits(tail + 1), count = five_digits(tail + 10);
    if (no == 0 || no > count)
        return set;
    set.prefix = len - TAIL;
    set.count = count;
    return set;
}

static kvasir_status part_path(const struct set *set, uint32_t no, char path[PATH_MAX_BYTES],
                               kvasir_error *err) {
    int n = set->count == 1 ? snprintf(path, PATH_MAX_BYTES, "%s", set->path)
                            : snprintf(path, PATH_MAX_BYTES, "%.*s-%05u-of-%05u.gguf",
                                       (int)set->prefix, set->path, no, set->count);
    if (n < 0 || n >= PATH_MAX_BYTES)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", set->path);
    bool exists;
    TRY(file_exists(path, &exists, err));
    if (set->count > 1 && !exists)
        return fail(err, KVASIR_ERR_IO, "%s: the file is missing: part %u of %u of this model",
                    path, no, set->count);
    return KVASIR_OK;
}

/* Checks the part's values against its name and against part 1. */
static kvasir_status check_part(struct set *set, uint32_t no, const struct gguf *g,
                                kvasir_error *err) {
    uint32_t count = 1, index = 0, n_tensors = 0;
    bool several = set->count > 1;
    TRY(gguf_get_u32(g, "split.count", several, 0, UINT32_MAX, &count, err));
    if (!several && count > 1)
        return fail(err, KVASIR_ERR_FORMAT,
                    "metadata split.count is %u: the names of such parts must end in "
                    "-00001-of-%05u.gguf",
                    count, count);
    if (!several)
        return KVASIR_OK;
    TRY(gguf_get_u32(g, "split.no", true, 0, UINT32_MAX, &index, err));
    TRY(gguf_get_u32(g, "split.tensors.count", true, 0, INT32_MAX, &n_tensors, err));
    if (count != set->count || index != no - 1)
        return fail(err, KVASIR_ERR_FORMAT,
                    "metadata split.no is %u and split.count %u, the name says part %u of %u",
                    index, count, no, set->count);
    if (no > 1 && n_tensors != set->n_tensors)
        return fail(err, KVASIR_ERR_FORMAT,
                    "metadata split.tensors.count is %u, part 1 says %u: not of one model",
                    n_tensors, set->n_tensors);
    set->n_tensors = n_tensors;
    return KVASIR_OK;
}

static kvasir_status read_model(struct checkpoint *c, const struct gguf *g, uint32_t no,
                                kvasir_error *err) {
    if (no == 1) {
        TRY(gguf_read_config(g, &c->config, err));
        TRY(gguf_read_pooling(g, c, err));
        TRY(gguf_read_tokenizer(g, c, err));
        TRY(sampling_hints_gguf(g, &c->sampling, err));
    }
    return gguf_read_tensors(g, c, err);
}

static kvasir_status read_text(struct checkpoint *c, const struct gguf *g, uint32_t no,
                               kvasir_error *err) {
    (void)no;
    TRY(gguf_read_tokenizer(g, c, err));
    if (!c->has_tokenizer)
        return fail(err, KVASIR_ERR_FORMAT, "metadata tokenizer.ggml.model is missing");
    return KVASIR_OK;
}

typedef kvasir_status part_reader(struct checkpoint *c, const struct gguf *g, uint32_t no,
                                  kvasir_error *err);

static kvasir_status open_part(struct checkpoint *c, struct set *set, uint32_t no,
                               part_reader *read, kvasir_error *err) {
    char path[PATH_MAX_BYTES];
    struct gguf g = {0};
    kvasir_status status;
    TRY(part_path(set, no, path, err));
    TRY(checkpoint_map(c, path, &g.map, err));
    TRY_GOTO(gguf_read_values(&g, err));
    TRY_GOTO(check_part(set, no, &g, err));
    c->format = g.version == 2 ? "GGUF v2" : "GGUF v3";
    TRY_GOTO(read(c, &g, no, err));
done:
    mem_free(g.values);
    return in_file(path, status, err);
}

static kvasir_status finish(struct checkpoint *c, const struct set *set, kvasir_error *err) {
    if (set->count > 1 && c->n_tensors != set->n_tensors)
        return fail(err, KVASIR_ERR_FORMAT,
                    "metadata split.tensors.count is %u, the parts hold %zu tensors",
                    set->n_tensors, c->n_tensors);
    TRY(checkpoint_seal(c, err));
    c->config.tied_embedding = !checkpoint_find(c, "lm_head.weight");
    return KVASIR_OK;
}

kvasir_status gguf_open(struct checkpoint *c, const char *path, kvasir_error *err) {
    struct set set = set_of(path);
    for (uint32_t no = 1; no <= set.count; no++)
        TRY(open_part(c, &set, no, read_model, err));
    return in_file(path, finish(c, &set, err), err);
}

kvasir_status gguf_open_text(struct checkpoint *c, const char *path, kvasir_error *err) {
    struct set set = set_of(path);
    return open_part(c, &set, 1, read_text, err);
}
