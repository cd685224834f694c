/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds an answer's text to the parser of one syntax. The first byte picks the syntax and how the
 * text begins, the second where the text is cut. The whole text and the cut one must give the same
 * parts; calls must have names, and objects as arguments; and no more text may come out than went
 * in, except the line ends that join parts. */
#include "../support/answer_parts.h"
#include "fuzz.h"

enum { CUTS = 256 };

/* A call's values are jansson objects: one with a single member takes some 300 bytes. */
enum { TIMES = 600, BYTES = 1 << 20 };

static const char TOOLS[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *tools;
    size_t cuts[CUTS];
    struct answer_parts whole = {0}, cut = {0};
    if (!tools && !(tools = json_loads(TOOLS, 0, NULL)))
        abort();
    if (size < 2 || kvasir_utf8_check((const char *)data + 2, size - 2) != size - 2)
        return 0;
    const char *text = (const char *)data + 2;
    uint32_t random = data[1];
    for (int i = 0; i < CUTS; i++) {
        random = random * 1664525 + 1013904223;
        cuts[i] = random >> 16 & ((random >> 8 & 7) == 0 ? 127 : 3);
    }
    const struct answer_options o = {.syntax = ALL[data[0] % N_ALL],
                                     .start = (enum answer_start)(data[0] / N_ALL % 3),
                                     .tools = data[0] < 216,
                                     .fences = data[1] & 1,
                                     .schema = tools};
    budget_begin(BYTES + TIMES * size);
    if (!parts_of(&o, text, size - 2, NULL, 0, &whole) ||
        !parts_of(&o, text, size - 2, cuts, CUTS, &cut))
        fuzz_fail("out of memory");
    if (whole.len != cut.len || memcmp(whole.text, cut.text, cut.len) != 0)
        fuzz_fail("%d\n%s\n%s", o.syntax.tools, whole.text, cut.text);
    if (whole.wrong || cut.wrong || whole.bytes > 2 * size)
        fuzz_fail("%d, %d: %llu bytes of %zu", whole.wrong, cut.wrong,
                  (unsigned long long)whole.bytes, size);
    parts_free(&whole);
    parts_free(&cut);
    budget_end();
    return 0;
}
