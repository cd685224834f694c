/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_status.h: how calls of kvasir.h report failure. */
#ifndef KVASIR_PUBLIC_STATUS_H
#define KVASIR_PUBLIC_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVASIR_API __attribute__((visibility("default")))
#else
#define KVASIR_API
#endif

/* ---- status ---------------------------------------------------------------------------------- */

/* Numbers are frozen: never reused, never renumbered. */
#define KVASIR_STATUS_MAP(X)                                                                       \
    X(OK, 0, "ok")                                                                                 \
    X(ERR_ARGUMENT, 1, "invalid argument")                                                         \
    X(ERR_MEMORY, 2, "out of memory")                                                              \
    X(ERR_IO, 3, "input or output failed")                                                         \
    X(ERR_FORMAT, 4, "damaged or malformed file")                                                  \
    X(ERR_UNSUPPORTED, 5, "not supported")                                                         \
    X(ERR_BUDGET, 6, "cache budget exceeded")                                                      \
    X(ERR_CONTEXT, 7, "context length exceeded")                                                   \
    X(ERR_TEXT, 8, "invalid text")                                                                 \
    X(ERR_TEMPLATE, 9, "chat template failed")                                                     \
    X(ERR_CANCELLED, 10, "cancelled")                                                              \
    X(ERR_BUSY, 11, "too many requests wait")

typedef enum kvasir_status {
#define KVASIR_STATUS_ENUM(name, number, text) KVASIR_##name = number,
    KVASIR_STATUS_MAP(KVASIR_STATUS_ENUM)
#undef KVASIR_STATUS_ENUM
} kvasir_status;

/* What went wrong, and where. Nothing in it must be freed. Its layout is frozen. */
typedef struct kvasir_error {
    kvasir_status code;
    int64_t offset; /* byte offset in the file that text names; -1: none */
    /* The option at fault, as struct and member of these headers: "context.kv_bits",
     * "sampling.top_p". Static. NULL: none. text says what is wrong with its value and what is
     * allowed, not its name. */
    const char *field;
    char text[512]; /* one line without a full stop */
} kvasir_error;

KVASIR_API const char *kvasir_status_text(kvasir_status status);
KVASIR_API const char *kvasir_version(void);
/* GPUs that "cuda:N" of kvasir_context_options.device can name; 0 in a build without CUDA. */
KVASIR_API int kvasir_gpus(void);
/* Free memory, in bytes, where a context with this kvasir_context_options.device computes: the
 * GPU's, or the host's. */
KVASIR_API kvasir_status kvasir_free_memory(const char *device, uint64_t *bytes, kvasir_error *err);
/* Frees memory of functions that say so. */
KVASIR_API void kvasir_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
