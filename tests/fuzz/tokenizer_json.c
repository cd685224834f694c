/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json from outside, and a text through what it makes. */
#include "fuzz.h"
#include "text/text.h"

static const char TEXT[] =
    "Hello  w\xc3\xb6rld\xcc\x88 \xe2\x96\x81 123456\r\n<s></s><|im_end|> \t.";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct tokenizer_spec spec = {.json = {(const char *)data, size}};
    struct tokenizer *t = NULL;
    kvasir_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    budget_begin(size);
    kvasir_status status = tokenizer_create(&spec, &t, &err);
    check_error(status, &err);
    if (t) {
        status = tokenizer_encode(t, TEXT, sizeof TEXT - 1,
                                  TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, &ids, &n, &err);
        check_error(status, &err);
        for (size_t i = 0; status == KVASIR_OK && i < n; i++)
            if (ids[i] < 0 || (size_t)ids[i] >= tokenizer_size(t))
                fuzz_fail("id %d of %zu", ids[i], tokenizer_size(t));
        mem_free(ids);
    }
    tokenizer_destroy(t);
    budget_end();
    return 0;
}
