/* SPDX-License-Identifier: Apache-2.0 */
/* What convert_tensors.c and convert_files.c share. */
#ifndef KVASIR_MODEL_CONVERT_H
#define KVASIR_MODEL_CONVERT_H

#include "model/model_internal.h"

/* Writes config.json, the tokenizer's files and the chat template of `in` into `folder`. dtype:
 * "F16" ..., of tensors that are not quantized. */
kvasir_status convert_files(const char *in, const char *folder, const struct model *m,
                            const kvasir_convert_options *o, const char *dtype,
                            kvasir_error *err) MUST_CHECK;

#endif
