/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary chat template. If it parses, it is rendered for a conversation with tools, under its
 * own limits (a loop may run into them; that is an error like any other). */
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

/* Bounds of template.c. Parsing: some 400 bytes per byte of source. Rendering: ARENA_BASE, and 8
 * times the output in buffers that double. */
enum { PARSE_BYTES = 1 << 16, PARSE_TIMES = 512, RENDER_BYTES = 64 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *args;
    if (!args && !(args = json_loads(ARGS, 0, NULL)))
        abort();
    const struct template_limits limits = {.steps = 20000, .depth = 64, .output_bytes = 1 << 20};
    struct template *t = NULL;
    struct text_buf out = {0};
    kvasir_error err;
    budget_begin(PARSE_BYTES + PARSE_TIMES * size);
    kvasir_status status = template_parse((const char *)data, size, &t, &err);
    check_error(status, &err);
    budget_end();
    if (t) {
        budget_begin(RENDER_BYTES + 8 * limits.output_bytes);
        status = template_render(t, args, 1700000000, &limits, &out, &err);
        /* the text of raise_exception may have several lines */
        if (status != KVASIR_OK && !err.text[0])
            fuzz_fail("status %d without a text", (int)status);
        if (out.len > limits.output_bytes)
            fuzz_fail("%zu bytes of output past the limit", out.len);
        budget_end();
    }
    text_free(&out);
    template_destroy(t);
    return 0;
}
