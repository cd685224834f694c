/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts of a tokenizer.json, read from JSON values (NULL and null: there is none). Errors
 * name the path in the file. Inside text/ only. */
#ifndef KVASIR_TOKENIZER_PARTS_H
#define KVASIR_TOKENIZER_PARTS_H

#include "text/tokenizer_internal.h"

kvasir_status part_normalizer(const json_t *value, struct normalizer *n,
                              kvasir_error *err) MUST_CHECK;
/* *byte_level: words are spelled in bytes. */
kvasir_status part_pre_tokenizer(const json_t *value, struct pretokenizer *pre, bool *byte_level,
                                 kvasir_error *err) MUST_CHECK;
/* Fills in t->before and t->after; t's pieces are complete. */
kvasir_status part_post_processor(const json_t *value, struct tokenizer *t,
                                  kvasir_error *err) MUST_CHECK;
kvasir_status part_decoder(const json_t *value, struct decoder *d, kvasir_error *err) MUST_CHECK;

#endif
