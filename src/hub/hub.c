/* SPDX-License-Identifier: Apache-2.0 */
/* hub.c: models of both folders by name (hub.h). */
#include <string.h>

#include "hub/hub_internal.h"

kvasir_status hub_find(const struct hub *h, const struct hub_name *name, char path[HUB_PATH_MAX],
                       kvasir_error *err) {
    *path = 0;
    ASSERT(name->kind != HUB_NOT_A_NAME);
    return name->kind == HUB_REPOSITORY ? repository_find(h, name, path, err)
                                        : package_find(h, name, path, err);
}

kvasir_status hub_pull(const struct hub *h, const struct hub_name *name, bool verify,
                       char path[HUB_PATH_MAX], kvasir_error *err) {
    ASSERT(name->kind != HUB_NOT_A_NAME);
    TRY(name->kind == HUB_REPOSITORY ? repository_pull(h, name, verify, err)
                                     : package_pull(h, name, verify, err));
    TRY(hub_find(h, name, path, err));
    return *path ? KVASIR_OK : fail(err, KVASIR_ERR_IO, "%s: was removed meanwhile", name->text);
}

kvasir_status hub_list(const struct hub *h, hub_model_fn *each, void *user, kvasir_error *err) {
    TRY(repository_list(h, each, user, err));
    return package_list(h, each, user, err);
}

kvasir_status hub_remove(const struct hub *h, const struct hub_name *name, uint64_t *bytes,
                         kvasir_error *err) {
    *bytes = 0;
    ASSERT(name->kind != HUB_NOT_A_NAME);
    return name->kind == HUB_REPOSITORY ? repository_remove(h, name, bytes, err)
                                        : package_remove(h, name, bytes, err);
}
