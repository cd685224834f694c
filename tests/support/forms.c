/* SPDX-License-Identifier: Apache-2.0 */
#include "forms.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "forms: %s\n", what);
    abort();
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint16_t to_bf16(float x) {
    uint32_t u = bits_of(x);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float form_bf16(float x) {
    return of_bits((uint32_t)to_bf16(x) << 16);
}

void form_mxfp4_block(float values[32], uint8_t codes[16], uint8_t *scale) {
    static const float levels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float max = 0;
    int exponent = 0;
    for (int i = 0; i < 32; i++)
        max = fmaxf(max, fabsf(values[i]));
    if (max > 0)
        frexpf(max, &exponent);
    exponent -= 3; /* the largest level is 1.5 x 2^2 */
    *scale = (uint8_t)(127 + exponent);
    memset(codes, 0, 16);
    for (int i = 0; i < 32; i++) {
        float x = ldexpf(fabsf(values[i]), -exponent);
        unsigned best = 0;
        for (unsigned level = 1; level < 8; level++)
            if (fabsf(levels[level] - x) < fabsf(levels[best] - x))
                best = level;
        unsigned code = best | (values[i] < 0 ? 8u : 0);
        codes[i / 2] = (uint8_t)(codes[i / 2] | code << (i % 2 * 4));
        values[i] = copysignf(ldexpf(levels[best], exponent), values[i]);
    }
}

void form_affine4_group(float *values, uint32_t n, uint32_t *words, uint16_t *scale,
                        uint16_t *bias) {
    float low = values[0], high = values[0];
    for (uint32_t i = 1; i < n; i++) {
        low = fminf(low, values[i]);
        high = fmaxf(high, values[i]);
    }
    float step = form_bf16(fmaxf((high - low) / 15, 1e-7f));
    low = form_bf16(low);
    *scale = to_bf16(step);
    *bias = to_bf16(low);
    memset(words, 0, n / 8 * sizeof *words);
    for (uint32_t i = 0; i < n; i++) {
        float code = roundf((values[i] - low) / step);
        code = fminf(fmaxf(code, 0), 15);
        words[i / 8] |= (uint32_t)code << (i % 8 * 4);
        values[i] = code * step + low;
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

static size_t dtype_bytes(const char *dtype) {
    static const struct {
        const char *name;
        size_t bytes;
    } known[] = {{"F32", 4}, {"U32", 4}, {"BF16", 2}, {"F16", 2}, {"U8", 1}, {"I64", 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(dtype, known[i].name) == 0)
            return known[i].bytes;
    need(false, dtype);
    return 0;
}

struct form_tensor *form_find(const struct form *f, const char *name) {
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->list[i].name, name) == 0)
            return &f->list[i];
    return NULL;
}

struct form_tensor *form_add(struct form *f, const char *name, const char *dtype,
                             const uint64_t *dims) {
    need(!form_find(f, name), name);
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 128;
        f->list = realloc(f->list, f->cap * sizeof *f->list);
        need(f->list, "out of memory");
    }
    struct form_tensor *t = &f->list[f->n++];
    *t = (struct form_tensor){.bytes = dtype_bytes(dtype)};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    for (; t->n_dims < FORM_DIMS_MAX && dims[t->n_dims]; t->n_dims++) {
        t->dims[t->n_dims] = dims[t->n_dims];
        t->bytes *= dims[t->n_dims];
    }
    t->data = calloc(1, t->bytes);
    need(t->data, "out of memory");
    return t;
}

void form_remove(struct form *f, const char *name) {
    struct form_tensor *t = form_find(f, name);
    need(t, name);
    free(t->data);
    *t = f->list[--f->n];
}

float *form_floats(const struct form_tensor *t, size_t *n) {
    bool wide = strcmp(t->dtype, "F32") == 0;
    need(wide || strcmp(t->dtype, "BF16") == 0, t->name);
    *n = t->bytes / (wide ? 4 : 2);
    float *out = malloc(*n * sizeof *out);
    need(out, "out of memory");
    for (size_t i = 0; i < *n; i++) {
        uint16_t half;
        memcpy(&half, t->data + i * 2, 2);
        if (wide)
            memcpy(&out[i], t->data + i * 4, 4);
        else
            out[i] = of_bits((uint32_t)half << 16);
    }
    return out;
}

void form_set_floats(struct form *f, const char *name, const uint64_t *dims, const float *values) {
    uint64_t kept[FORM_DIMS_MAX + 1] = {0};
    for (uint32_t i = 0; i < FORM_DIMS_MAX && dims[i]; i++)
        kept[i] = dims[i];
    if (form_find(f, name))
        form_remove(f, name);
    struct form_tensor *t = form_add(f, name, "F32", kept);
    memcpy(t->data, values, t->bytes);
}

/* ---- folders --------------------------------------------------------------------------------- */

static FILE *open_in(const char *folder, const char *name, const char *mode) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, mode);
    need(file, path);
    return file;
}

void form_read(struct form *f, const char *folder) {
    FILE *in = open_in(folder, "config.json", "rb");
    *f = (struct form){.config = json_loadf(in, 0, NULL)};
    fclose(in);
    in = open_in(folder, "model.safetensors", "rb");
    uint64_t length = 0;
    need(f->config && fread(&length, sizeof length, 1, in) == 1, folder);
    char *text = malloc(length);
    need(text && fread(text, 1, length, in) == length, folder);
    json_t *header = json_loadb(text, length, 0, NULL), *info;
    const char *name;
    need(header, folder);
    json_object_foreach(header, name, info) {
        const json_t *shape = json_object_get(info, "shape"), *number;
        uint64_t dims[FORM_DIMS_MAX + 1] = {0};
        size_t i;
        if (!shape)
            continue;
        json_array_foreach((json_t *)shape, i, number) {
            dims[i] = (uint64_t)json_integer_value(number);
        }
        struct form_tensor *t =
            form_add(f, name, json_string_value(json_object_get(info, "dtype")), dims);
        const json_t *at = json_array_get(json_object_get(info, "data_offsets"), 0);
        need(fseek(in, (long)(8 + length) + (long)json_integer_value(at), SEEK_SET) == 0 &&
                 fread(t->data, 1, t->bytes, in) == t->bytes,
             name);
    }
    json_decref(header);
    free(text);
    fclose(in);
}

void form_free(struct form *f) {
    for (size_t i = 0; i < f->n; i++)
        free(f->list[i].data);
    free(f->list);
    json_decref(f->config);
    *f = (struct form){0};
}

void form_write(const struct form *f, const char *folder) {
    FILE *out = open_in(folder, "config.json", "wb");
    need(json_dumpf(f->config, out, JSON_INDENT(2)) == 0 && fclose(out) == 0, folder);
    json_t *header = json_object();
    size_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        const struct form_tensor *t = &f->list[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape,
                                      "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    out = open_in(folder, "model.safetensors", "wb");
    fwrite(&length, sizeof length, 1, out);
    fwrite(text, 1, length, out);
    for (size_t i = 0; i < f->n; i++)
        fwrite(f->list[i].data, 1, f->list[i].bytes, out);
    need(!ferror(out) && fclose(out) == 0, folder);
    free(text);
    json_decref(header);
}

void form_configure(struct form *f, const char *patch) {
    char *text = strdup(patch);
    const char *key;
    json_t *value;
    for (char *at = text; (at = strchr(at, '\'')) != NULL;)
        *at = '"';
    json_t *fields = json_loads(text, 0, NULL);
    need(fields, patch);
    json_object_foreach(fields, key, value) {
        if (json_is_null(value))
            json_object_del(f->config, key);
        else
            json_object_set(f->config, key, value);
    }
    json_decref(fields);
    free(text);
}

/* ---- mlx-lm's Qwen hybrids and LFM2 ---------------------------------------------------------- */

bool form_ends_in(const char *name, const char *tail) {
    size_t len = strlen(name), n = strlen(tail);
    return len >= n && strcmp(name + len - n, tail) == 0;
}

void form_turn_convolutions(struct form *f) {
    for (size_t i = 0; i < f->n; i++) {
        struct form_tensor *t = &f->list[i];
        if (!form_ends_in(t->name, "conv1d.weight") && !form_ends_in(t->name, "conv.conv.weight"))
            continue;
        t->dims[1] = t->dims[2]; /* the same bytes */
        t->dims[2] = 1;
    }
}

static bool is_gain(const char *name) {
    static const char *const tails[] = {".input_layernorm.weight",
                                        ".post_attention_layernorm.weight", "model.norm.weight",
                                        ".q_norm.weight", ".k_norm.weight"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (form_ends_in(name, tails[i]))
            return true;
    return false;
}

void form_gains_whole(struct form *f, bool bf16) {
    for (size_t i = 0; i < f->n; i++) {
        struct form_tensor *t = &f->list[i];
        if (!is_gain(t->name))
            continue;
        size_t n;
        float *values = form_floats(t, &n);
        for (size_t j = 0; j < n; j++)
            values[j] = bf16 ? form_bf16(values[j] + 1) : values[j] + 1;
        free(t->data);
        t->data = (uint8_t *)values;
        t->bytes = n * sizeof *values;
        strcpy(t->dtype, "F32");
    }
}
