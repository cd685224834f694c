/* SPDX-License-Identifier: Apache-2.0 */
/* api_model.h: what protocols say of the models that are served. */
#ifndef API_API_MODEL_H
#define API_API_MODEL_H

#include "api/api_request.h"

struct api_model {
    const char *name;
    const struct api_setup *setup; /* NULL: one of several models that is not loaded */
    kvasir_model_info info;        /* of a loaded one */
    int64_t since_s;               /* Unix time at which the server started */
    const char *state;             /* of one of several; NULL: it is the only one */
    uint64_t file_bytes;           /* of one that is not loaded, about */
};

#endif
