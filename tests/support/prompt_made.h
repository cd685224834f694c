/* SPDX-License-Identifier: Apache-2.0 */
/* Small prompt-cache files made by hand, for tests: tensors as a list of words, metadata as JSON
 * members. Knows the forms from their README, not from the writer. Behind model_files.h.
 *
 *     "0.0 BF16 1,2,3,64|0.1 BF16 1,2,3,64|0.2 =3|0.3 none|0.4 $KVCache"
 *
 * Data count upwards; =N is an I32 scalar, $TEXT a string, none is None: the newer form's metadata
 * for these (2.0 and on) are added by made_032.
 */
#ifndef KVASIR_TEST_PROMPT_MADE_H
#define KVASIR_TEST_PROMPT_MADE_H

#include "model_files.h"

struct made {
    struct safetensors_writer w;
    struct text_buf kinds;
    unsigned n_kinds;
};

static inline void made_kind(struct made *m, const char *name, const char *kind) {
    m->n_kinds++;
    assert_true(text_printf(&m->kinds, ",\"2.%u.0\":\"%s\",\"2.%u.1\":\"%s\"", m->n_kinds, name,
                            m->n_kinds, kind));
}

static inline void made_value(struct made *m, const char *name, const char *what) {
    uint64_t n = strlen(what) - 1;
    if (what[0] == '=') {
        int32_t value = (int32_t)strtol(what + 1, NULL, 10);
        safetensors_add(&m->w, name, "I32", 0, NULL, &value, sizeof value);
        made_kind(m, name, "scalar");
    } else if (what[0] == '$') {
        int32_t codes[64];
        for (uint64_t i = 0; i < n; i++)
            codes[i] = what[1 + i];
        safetensors_add(&m->w, name, "I32", 1, &n, codes, n * sizeof *codes);
        made_kind(m, name, "string");
    } else {
        n = 0;
        safetensors_add(&m->w, name, "F32", 1, &n, "", 0);
        made_kind(m, name, "none");
    }
}

static inline void made_tensor(struct made *m, const char *name, const char *dtype,
                               const char *shape) {
    static uint8_t data[1 << 16];
    uint64_t dims[8];
    uint32_t n_dims = 0;
    size_t bytes = dtype[1] == '1' || dtype[1] == 'F' ? 2 : 4;
    for (const char *at = shape; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        dims[n_dims] = strtoull(at, NULL, 10);
        bytes *= dims[n_dims++];
    }
    assert_true(bytes <= sizeof data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + n_dims + (uint8_t)name[strlen(name) - 1]);
    safetensors_add(&m->w, name, dtype, n_dims, dims, data, bytes);
}

/* metadata: JSON members without braces. */
static inline struct text_buf made_file(const char *tensors, const char *metadata, bool kinds) {
    struct made m = {0};
    char *copy = strdup(tensors), *rest = copy;
    for (char *item; (item = strsep(&rest, "|"));) {
        char *name = strsep(&item, " "), *what = strsep(&item, " ");
        if (item)
            made_tensor(&m, name, what, item);
        else
            made_value(&m, name, what);
    }
    free(copy);
    assert_true(text_printf(&m.w.header, ",\"__metadata__\":{%s%s%s}", metadata,
                            kinds ? ",\"2.0\":\"\"" : "", kinds && m.n_kinds ? m.kinds.data : ""));
    text_free(&m.kinds);
    return safetensors_finish(&m.w);
}

static inline struct text_buf made_032(const char *tensors, const char *metadata) {
    return made_file(tensors, metadata, true);
}
static inline struct text_buf made_legacy(const char *tensors, const char *metadata) {
    return made_file(tensors, metadata, false);
}

#endif
