/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_convert: model/ does it; the options' defaults and the calls are public here. */
#include "engine/engine.h"

kvasir_convert_options kvasir_convert_defaults(void) {
    return (kvasir_convert_options){.group_size = 64, .dtype = "bf16"};
}

kvasir_status kvasir_convert(const char *in, const char *out, const kvasir_convert_options *options,
                             kvasir_error *err) {
    return model_convert(in, out, options, err);
}
