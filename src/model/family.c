/* SPDX-License-Identifier: Apache-2.0 */
/* The list of families. Each family's file ends with its rows. */
#include <stdio.h>

#include "model/family.h"

/* The order is that of the lists in errors. Each list ends with a row without a name. */
static const struct family *const families[] = {
    llama_family,  olmo3_family,   olmoe_family,       gemma_family,
    gemma4_family, gpt_oss_family, qwen_hybrid_family, lfm2_family,
};
enum { FAMILIES = sizeof families / sizeof *families };

/* The row after `f` (NULL: the first); NULL after the last. */
static const struct family *next_family(const struct family *f, size_t *list) {
    if (!f)
        *list = 0;
    for (f = f ? f + 1 : families[0]; !f->arch; f = families[*list])
        if (++*list == FAMILIES)
            return NULL;
    return f;
}
#define EACH_FAMILY(f)                                                                             \
    size_t list_ = 0;                                                                              \
    for (const struct family *f = next_family(NULL, &list_); f; f = next_family(f, &list_))

const struct family *family_of_class(const char *class_name) {
    EACH_FAMILY(f) {
        for (size_t j = 0; j < FAMILY_CLASSES && f->classes[j]; j++)
            if (strcmp(class_name, f->classes[j]) == 0)
                return f;
    }
    return NULL;
}

const struct family *family_of_arch(const char *arch) {
    EACH_FAMILY(f) {
        if (strcmp(arch, f->arch) == 0)
            return f;
    }
    return NULL;
}

const struct family *family_of_gguf(const char *arch, size_t len) {
    EACH_FAMILY(f) {
        if (f->gguf && len == strlen(f->gguf) && memcmp(arch, f->gguf, len) == 0)
            return f;
    }
    return NULL;
}

static void add_name(char *buf, size_t size, size_t *len, const char *name) {
    if (name && *len < size)
        *len += (size_t)snprintf(buf + *len, size - *len, "%s%s", *len ? ", " : "", name);
}

const char *family_class_list(char *buf, size_t size) {
    size_t len = 0;
    EACH_FAMILY(f)
    add_name(buf, size, &len, f->classes[0]);
    return buf;
}

const char *family_gguf_list(char *buf, size_t size) {
    size_t len = 0;
    EACH_FAMILY(f)
    add_name(buf, size, &len, f->gguf);
    return buf;
}
