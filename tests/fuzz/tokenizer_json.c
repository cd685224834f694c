/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary tokenizer.json: encodes a text with it, and decodes a few of the ids. */
#define _GNU_SOURCE /* memmem */
#include <string.h>

#include "fuzz.h"
#include "text/text.h"

static const char TEXT[] =
    "Hello  w\xc3\xb6rld\xcc\x88 \xe2\x96\x81 123456\r\n<s></s><|im_end|> \t.";

/* Steps that write more than they read may make a piece, an added token or a text 16 times as long
 * (growth_limit), in three buffers that grow by doubling. */
enum { GROWN_TIMES = 16 * 3 * 2 };

/* Only a file that has such steps gets room for what they write. */
static size_t budget_of(const uint8_t *data, size_t size) {
    bool grows = memmem(data, size, "Replace", 7) || memmem(data, size, "NFK", 3);
    return fuzz_budget(size) + (grows ? GROWN_TIMES * size : 0);
}

/* How many ids are decoded, and at most how many bytes of pieces. Each piece may be as long as the
 * input, and eight steps over 16 times that would take most of the target's time. */
enum { BACK = 8, BACK_BYTES = 1 << 13 };

/* F3: what comes back is valid UTF-8. */
static void check_back(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags) {
    struct text_buf back = {0};
    kvasir_error err;
    size_t len = 0, few = 0;
    for (; few < n && few < BACK; few++) {
        len += tokenizer_piece(t, ids[few]).len;
        if (len > BACK_BYTES)
            break;
    }
    budget_begin(FUZZ_BYTES + GROWN_TIMES * BACK_BYTES);
    kvasir_status status = tokenizer_decode(t, ids, few, flags, &back, &err);
    check_error(status, &err);
    size_t valid = utf8_check(back.data ? back.data : "", back.len);
    if (valid != back.len)
        fuzz_fail("decoded text of %zu bytes is not UTF-8 at %zu", back.len, valid);
    if (status != KVASIR_OK && back.len)
        fuzz_fail("an error, and %zu bytes of text", back.len);
    text_free(&back);
    budget_end();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct tokenizer_spec spec = {.json = {(const char *)data, size}};
    struct tokenizer *t = NULL;
    kvasir_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    budget_begin(budget_of(data, size));
    kvasir_status status = tokenizer_create(&spec, &t, &err);
    check_error(status, &err);
    if (t) {
        status = tokenizer_encode(t, TEXT, sizeof TEXT - 1,
                                  TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, &ids, &n, &err);
        check_error(status, &err);
    }
    budget_end();
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= tokenizer_size(t))
            fuzz_fail("id %d of %zu", ids[i], tokenizer_size(t));
    if (t) {
        check_back(t, ids, n, 0);
        check_back(t, ids, n, DETOKENIZE_SKIP_SPECIAL);
        check_back(t, (const int32_t[BACK]){0, 1, 2, 3, 4, 5, 6, 7}, BACK, 0);
    }
    mem_free(ids);
    tokenizer_destroy(t);
    return 0;
}
