/* SPDX-License-Identifier: Apache-2.0 */
/* context_api.c: a context as its user asks for it: options of any version, a device, and a
 * calibration if it may make one. */
#include "engine/calibration.h"

kvasir_status kvasir_context_create(const kvasir_model *model,
                                    const kvasir_context_options *options, kvasir_context **out,
                                    kvasir_error *err) {
    struct backend *backend;
    struct calibration known = {0};
    kvasir_context_options settled;
    kvasir_status status;
    TRY(context_options_read(options, &settled, err));
    TRY_GOTO(calibration_find(model, &settled, &known, err));
    TRY_GOTO(device_create(&settled, &backend, err));
    status = context_create_take(model, &settled, &known, backend, out, err);
done:
    calibration_deinit(&known);
    return status;
}
