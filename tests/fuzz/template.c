/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary chat template. If it parses, it is rendered for a conversation with tools, under its
 * own limits (a loop may run into them; that is an error like any other). Each byte of the output
 * has one author, and of the bytes that only the request has, none is the template's. */
#include <stdlib.h>

#include "fuzz.h"
#include "text/text.h"

static const char ARGS[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
    "{\"role\":\"user\",\"content\":\"Gr\\u00fc\\u00df <b>\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.5,\"y\":[true,null]}}}]},"
    "{\"role\":\"tool\",\"name\":\"f\",\"content\":\"42\"},"
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"and?\"}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"}}}}}],"
    "\"documents\":[{\"title\":\"t\",\"text\":\"x\"}],\"add_generation_prompt\":true,"
    "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"enable_thinking\":false}";

/* Bounds of template.c. Parsing: some 400 bytes per byte of source. Rendering: ARENA_BASE, and 16
 * times the output in buffers that double, with its authors. */
enum { PARSE_BYTES = 1 << 16, PARSE_TIMES = 512, RENDER_BYTES = 64 << 20 };

/* The secret is in the conversation only. Its characters may be the template's, but if none of them
 * occurs in the source (nor a way to spell it), all are the request's. */
static void check_authors(const struct text_buf *out, const struct text_buf *authors,
                          const uint8_t *source, size_t size) {
    if (out->len != authors->len)
        fuzz_fail("%zu bytes of output, %zu authors", out->len, authors->len);
    bool spelled = false; /* by an escape or as the character itself */
    for (size_t i = 0; i < size; i++)
        spelled |= source[i] == '\\' || source[i] >= 0x80;
    for (size_t i = 0; i < out->len; i++)
        if ((uint8_t)authors->data[i] > KVASIR_BY_TEMPLATE ||
            (!spelled && (uint8_t)out->data[i] >= 0x80 && authors->data[i] == KVASIR_BY_TEMPLATE))
            fuzz_fail("byte %zu has author %d", i, authors->data[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *args;
    if (!args && !(args = json_loads(ARGS, 0, NULL)))
        abort();
    const struct template_limits limits = {.steps = 20000, .depth = 64, .output_bytes = 1 << 20};
    struct template *t = NULL;
    struct text_buf out = {0}, authors = {0};
    kvasir_error err;
    budget_begin(PARSE_BYTES + PARSE_TIMES * size);
    kvasir_status status = template_parse((const char *)data, size, &t, &err);
    check_error(status, &err);
    budget_end();
    if (t) {
        budget_begin(RENDER_BYTES + 16 * limits.output_bytes);
        status = template_render_by(t, args, NULL, 1700000000, &limits, &out, &authors, &err);
        /* the text of raise_exception may have several lines */
        if (status != KVASIR_OK && !err.text[0])
            fuzz_fail("status %d without a text", (int)status);
        if (out.len > limits.output_bytes)
            fuzz_fail("%zu bytes of output past the limit", out.len);
        budget_end();
        check_authors(&out, &authors, data, size);
    }
    text_free(&authors);
    text_free(&out);
    template_destroy(t);
    return 0;
}
