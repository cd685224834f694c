/* SPDX-License-Identifier: Apache-2.0 */
/* config.json from outside. What is accepted must be within the bounds that model_internal.h says:
 * everything behind the readers trusts them. */
#include "fuzz.h"
#include "model/model_internal.h"

static void check_bounds(const struct model_config *c) {
    if (c->n_layers < 1 || c->n_layers > LAYERS_MAX || c->dim < 1 || c->dim > DIM_MAX ||
        c->ffn_dim < 1 || c->ffn_dim > FFN_MAX || c->heads < 1 || c->heads > HEADS_MAX ||
        c->kv_heads < 1 || c->kv_heads > HEADS_MAX || c->head_dim < 1 || c->head_dim > DIM_MAX ||
        c->vocab < 1 || c->vocab > VOCAB_MAX || c->ctx_train > CTX_MAX || c->window > CTX_MAX)
        fuzz_fail("a configuration out of bounds was accepted");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_config config;
    struct quantization quantization = {0};
    kvasir_error err;
    budget_begin(fuzz_budget(size));
    kvasir_status status = config_parse((const char *)data, size, &config, &quantization, &err);
    check_error(status, &err);
    if (status == KVASIR_OK)
        check_bounds(&config);
    quantization_deinit(&quantization);
    budget_end();
    return 0;
}
