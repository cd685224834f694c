/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes for the grammar of a JSON object. What it accepts to the end must be an object to jansson,
 * and it must accept every object that jansson accepts, but for its documented limits. Then for the
 * walk without a tree, which must agree with jansson, errors included. */
#include <string.h>

#include "fuzz.h"
#include "grammar/grammar.h"
#include "util/json.h"

enum { LEVELS_MAX = 64, BLANKS_MAX = 64, DIGITS_MAX = 64 }; /* docs/structured-output.md */
enum { TIMES = 400, BYTES = 1 << 20 };                      /* jansson's tree */

static bool is_blank(uint8_t c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* More brackets, or more blanks or digits in a row, than the limits, or an exponent of three
 * digits. Those inside strings count, too: a wrong true only skips a comparison. */
static bool is_beyond_limits(const uint8_t *data, size_t size) {
    size_t levels = 0, blanks = 0, digits = 0;
    bool exponent = false;
    for (size_t i = 0; i < size; i++) {
        const bool digit = data[i] >= '0' && data[i] <= '9';
        levels += data[i] == '{' || data[i] == '[';
        blanks = is_blank(data[i]) ? blanks + 1 : 0;
        digits = digit ? digits + 1 : 0;
        exponent = (data[i] | 0x20) == 'e' || (exponent && (digit || strchr("+-", data[i])));
        if (levels > LEVELS_MAX || blanks > BLANKS_MAX || digits > DIGITS_MAX ||
            (exponent && digits > 2))
            return true;
    }
    return false;
}

static kvasir_status count_part(void *user, const struct json_part *part, kvasir_error *err) {
    size_t *n = user;
    (void)err;
    *n += part->value_len > 0;
    return KVASIR_OK;
}

/* jansson skips a NUL byte after a number, and finds an equal name before it looks at the rest of
 * the object. */
static void check_walk(const char *text, size_t size) {
    kvasir_error theirs = {0}, ours = {0};
    json_t *tree;
    size_t n = 0;
    const kvasir_status want =
        json_load_request(text, size, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &tree, &theirs);
    const kvasir_status got = json_walk(text, size, count_part, &n, &ours);
    const size_t members = json_is_object(tree) ? json_object_size(tree) : json_array_size(tree);
    json_decref(tree);
    check_error(got, &ours);
    if (memchr(text, 0, size) || want == KVASIR_ERR_FORMAT)
        return;
    const bool twice = want && strstr(theirs.text, "duplicate object key");
    if (want != got || (!want && n != members))
        fuzz_fail("%d and %d, %zu and %zu: %.*s", want, got, members, n, (int)size, text);
    if (want && !twice && strcmp(theirs.text, ours.text) != 0)
        fuzz_fail("\"%s\" and \"%s\": %.*s", theirs.text, ours.text, (int)size, text);
}

/* Whether the grammar takes it all; *n: how many bytes at least. */
static bool is_taken(const uint8_t *data, size_t size, size_t *n) {
    static const char schema[] = "{\"type\": \"object\"}";
    static struct grammar *grammar;
    struct grammar_place *place;
    if (!grammar &&
        grammar_compile(GRAMMAR_JSON_SCHEMA, (struct text_span){schema, sizeof schema - 1}, NULL,
                        &grammar, NULL))
        fuzz_fail("no grammar");
    if (grammar_begin(grammar, &place, NULL) ||
        grammar_push(place, (struct text_span){(const char *)data, size}, n, NULL))
        fuzz_fail("out of memory");
    const bool taken = *n == size && grammar_place_end(place) == GRAMMAR_ENDED;
    grammar_place_destroy(place);
    return taken;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t n;
    while (size && is_blank(data[size - 1]))
        size--; /* the grammar takes nothing after the object, not even blanks, */
    while (size && is_blank(*data)) { /* and none before it */
        data++;
        size--;
    }
    const bool ours = is_taken(data, size, &n);
    budget_begin(BYTES + TIMES * size);
    json_t *value =
        json_loadb((const char *)data, size, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    const bool theirs = json_is_object(value);
    json_decref(value);
    check_walk((const char *)data, size);
    budget_end();
    if (ours && !theirs)
        fuzz_fail("taken: %.*s", (int)size, (const char *)data);
    /* jansson skips a NUL after a number, and has no limit for levels and numbers */
    if (theirs && !ours && !memchr(data, 0, size) && !is_beyond_limits(data, size))
        fuzz_fail("refused at %zu: %.*s", n, (int)size, (const char *)data);
    return 0;
}
