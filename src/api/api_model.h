/* SPDX-License-Identifier: Apache-2.0 */
/* api_model.h: what protocols say of the model that is served. */
#ifndef API_API_MODEL_H
#define API_API_MODEL_H

#include "api/api_request.h"

struct api_model {
    const struct api_setup *setup;
    kvasir_model_info info;
    int64_t since_s; /* Unix time at which the server started */
};

#endif
