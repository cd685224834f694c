/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_calibrate.h: calibrations that contexts make by themselves; kvasir.h includes it.
 *
 * Tile formats of K ("t4") store balanced keys, which need a calibration: a basis for each KV head,
 * from a few hundred tokens (`kvasir calibrate`). With these options and key_centre "auto" a
 * context whose model has no calibration file beside it takes the one that was kept in a folder, or
 * measures one over a built-in text and keeps it there: seconds for a small model, on the CPU. It
 * has the bits of a machine and a CPU tier, so contexts that share stored pages need the same file.
 */
#ifndef KVASIR_PUBLIC_CALIBRATE_H
#define KVASIR_PUBLIC_CALIBRATE_H

#include "kvasir_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a context has its centres and bases from. */
typedef enum kvasir_centre_source {
    KVASIR_CENTRE_BIAS,   /* the model's key biases */
    KVASIR_CENTRE_BESIDE, /* the calibration file next to the model */
    KVASIR_CENTRE_FILE,   /* the file that key_centre names */
    KVASIR_CENTRE_KEPT,   /* a calibration by kvasir_calibrate_options, kept or just measured */
} kvasir_centre_source;

typedef struct kvasir_calibrating {
    size_t done, total; /* tokens */
    double seconds;     /* since the start */
    bool ended;         /* this is the last event */
    const char *path;   /* the file that was written; NULL: none, or not yet */
    const char *why;    /* at the end: there is none, so it is kept in memory only */
} kvasir_calibrating;
/* Called while a calibration is measured, by the thread that creates the context. False:
 * KVASIR_ERR_CANCELLED. */
typedef bool kvasir_calibrating_fn(void *user, const kvasir_calibrating *now);

typedef struct kvasir_calibrate_options {
    size_t struct_size;
    /* Made as needed. A file's name is the model's fingerprint (kvasir_model_info); a damaged one
     * is an error. NULL: nothing is kept */
    const char *folder;
    kvasir_calibrating_fn *on_event; /* NULL: none */
    void *user;
} kvasir_calibrate_options;
/* All NULL. */
static inline kvasir_calibrate_options kvasir_calibrate_defaults(void) {
    kvasir_calibrate_options options = {sizeof options, NULL, NULL, NULL};
    return options;
}

#ifdef __cplusplus
}
#endif
#endif
