/* SPDX-License-Identifier: Apache-2.0 */
/* calibrating.c: lets a context measure a calibration if its formats want one and the model has
 * none (kvasir_calibrate.h). It is kept in the user's folder for caches,
 * $XDG_CACHE_HOME/kvasir/calibrations (~/.cache if that is not set), and a line says so. */
#include "cli.h"

#include <string.h>

static struct {
    kvasir_calibrate_options options;
    struct progress progress;
    char model[MODEL_NAME_BYTES], bits[32];
    bool begun, quiet;
} state; /* a command creates one context at a time */

const char *calibrations_folder(void) {
    static char folder[HUB_PATH_MAX];
    user_folder(folder, "XDG_CACHE_HOME", ".cache", "kvasir/calibrations");
    return folder;
}

void calibrations_make_folder(void) {
    const kvasir_status status = folder_make_all(calibrations_folder(), 0700, NULL);
    (void)status;
}

bool may_calibrate(const kvasir_context_options *o) {
    return strcmp(o->key_centre, "auto") == 0 &&
           (o->kv_bits[0] == 't' || strcmp(o->kv_bits, "auto") == 0);
}

void calibrating_line(const kvasir_calibrating *now, const char *model, const char *bits,
                      char line[CALIBRATING_LINE_MAX]) {
    snprintf(line, CALIBRATING_LINE_MAX, "calibrated %.100s for %.20s: %.1f s, %s%.300s", model,
             bits, now->seconds,
             now->path ? "written to " : "kept in memory only: ", now->path ? now->path : now->why);
}

static bool on_event(void *user, const kvasir_calibrating *now) {
    char line[CALIBRATING_LINE_MAX];
    (void)user;
    if (!state.begun)
        progress_start(&state.progress, state.quiet ? NULL : "calibrating", now->total, "tokens");
    progress_step(&state.progress, now->done);
    state.begun = !now->ended;
    if (now->ended)
        progress_end(&state.progress);
    if (now->ended && !state.quiet) {
        calibrating_line(now, state.model, state.bits, line);
        fprintf(stderr, "note:   %s\n", line);
    }
    return !interrupted() && !interrupt_waits();
}

void calibrate_unasked(kvasir_context_options *o, const char *model, bool quiet) {
    state.quiet = quiet;
    model_base_name(model, state.model);
    snprintf(state.bits, sizeof state.bits, "%s", o->kv_bits);
    state.options = kvasir_calibrate_defaults();
    state.options.folder = calibrations_folder();
    state.options.on_event = on_event;
    o->calibrate = &state.options;
}
