/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary GGUF file: header, metadata, tensor table, the configuration they give, the
 * tensors bound to their places, the vocabulary and the chat template. Or a set of two parts:
 *
 *     NO GGUF... GGUF...        NO: 1 or 2, the part whose name is opened
 *
 * where the first part ends at the next "GGUF", and the second is missing if there is none. */
#define _GNU_SOURCE /* memmem */
#include <string.h>
#include <unistd.h>

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

static const char *write_parts(const uint8_t *data, size_t size) {
    static const char *const names[] = {"parts-00001-of-00002.gguf", "parts-00002-of-00002.gguf"};
    enum { MAGIC = 4 };
    const uint8_t *first = data + 1;
    const uint8_t *second =
        size > 1 + MAGIC ? memmem(first + MAGIC, size - 1 - MAGIC, "GGUF", MAGIC) : NULL;
    const uint8_t *end = data + size;
    fuzz_write(names[0], first, (size_t)((second ? second : end) - first));
    if (second)
        fuzz_write(names[1], second, (size_t)(end - second));
    else
        unlink(fuzz_path(names[1]));
    return fuzz_path(names[data[0] - 1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model *m = NULL;
    kvasir_error err;
    const char *path = size && (data[0] == 1 || data[0] == 2)
                           ? write_parts(data, size)
                           : fuzz_write("model.gguf", data, size);
    budget_begin(fuzz_budget(size));
    kvasir_status status = model_open(path, &m, &err);
    check_error(status, &err);
    if (m)
        read_text(model_checkpoint(m));
    model_close(m);
    budget_end();
    return 0;
}
