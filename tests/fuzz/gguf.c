/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file from outside: header, metadata, tensor table, the configuration they give, the
 * tensors bound to their places, the vocabulary and the chat template. */
#include <string.h>

#include "fuzz.h"
#include "model/model.h"

static void read_text(const struct checkpoint *c) {
    struct tokenizer *t = NULL;
    struct template *template = NULL;
    kvasir_error err;
    kvasir_status status;
    if (checkpoint_tokenizer(c)) {
        status = tokenizer_create(checkpoint_tokenizer(c), &t, &err);
        check_error(status, &err);
        tokenizer_destroy(t);
    }
    const char *source = checkpoint_chat_template(c);
    if (source) {
        status = template_parse(source, strlen(source), &template, &err);
        check_error(status, &err);
        template_destroy(template);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model *m = NULL;
    kvasir_error err;
    const char *path = fuzz_write("model.gguf", data, size);
    budget_begin(size);
    kvasir_status status = model_open(path, &m, &err);
    check_error(status, &err);
    if (m)
        read_text(model_checkpoint(m));
    model_close(m);
    budget_end();
    return 0;
}
