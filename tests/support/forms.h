/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder in memory, to be written again in another form: its configuration as JSON
 * and its tensors, each with memory of its own. It trusts what it reads, and ends the test if
 * something is missing. */
#ifndef KVASIR_TEST_FORMS_H
#define KVASIR_TEST_FORMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FORM_DIMS_MAX = 5 };

struct form_tensor {
    char name[160], dtype[12];
    uint32_t n_dims;
    uint64_t dims[FORM_DIMS_MAX]; /* slowest first */
    size_t bytes;
    uint8_t *data; /* owned */
};
struct form {
    json_t *config;
    struct form_tensor *list; /* [n] */
    size_t n, cap;
};

void form_read(struct form *f, const char *folder);
void form_free(struct form *f);
/* config.json and model.safetensors, as mlx writes them: the header unpadded. */
void form_write(const struct form *f, const char *folder);

/* Sets fields of the configuration from `patch` (JSON with ' for "); null removes a field. */
void form_configure(struct form *f, const char *patch);

/* NULL: there is none. Valid until a tensor is added or removed. */
struct form_tensor *form_find(const struct form *f, const char *name);
/* A new tensor, filled with 0. dims ends with 0, or has FORM_DIMS_MAX entries. */
struct form_tensor *form_add(struct form *f, const char *name, const char *dtype,
                             const uint64_t *dims);
void form_remove(struct form *f, const char *name);

/* All values of a BF16 or F32 tensor; the caller frees them. */
float *form_floats(const struct form_tensor *t, size_t *n);
/* Replaces a tensor by one of F32 values, or adds it. */
void form_set_floats(struct form *f, const char *name, const uint64_t *dims, const float *values);

/* What mlx-lm does to a Qwen hybrid or LFM2 folder: convolutions [channels][1][width] become
 * [channels][width][1]; gains that are stored minus 1 get the 1 back, in bfloat16 as mlx-lm writes
 * them, or in float32, which rounds nothing. */
void form_turn_convolutions(struct form *f);
void form_gains_whole(struct form *f, bool bf16);

bool form_ends_in(const char *name, const char *tail);
float form_bf16(float x); /* x rounded to bfloat16 */
/* 32 values as a block of MXFP4: codes of values 2i and 2i + 1 in byte i, the low half first, and a
 * power of two, 127 more than its exponent. values become what the block holds. */
void form_mxfp4_block(float values[32], uint8_t codes[16], uint8_t *scale);
/* A group of n values as mlx's affine codes of 4 bits: 8 to a word, the lowest bits first; value =
 * code * scale + bias. values become what the group holds. */
void form_affine4_group(float *values, uint32_t n, uint32_t *words, uint16_t *scale,
                        uint16_t *bias);

#endif
