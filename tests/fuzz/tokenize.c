/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary text through small vocabularies of each kind. The first byte of the input picks
 * the vocabulary and the flags.
 *
 *     byte-level   ids decode to the text itself, NFC aside (the letter alone cannot be composed)
 *     characters   likewise: the vocabulary has a token for every byte
 *
 * A text that is not UTF-8 is refused with the offset of its first bad byte; nothing else is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "text/text.h"

enum { PIECES = 300 };

struct vocabulary {
    struct text_span pieces[PIECES];
    uint8_t kinds[PIECES];
    float scores[PIECES];
    char text[PIECES][8];
    size_t n;
};

static void add(struct vocabulary *v, const char *text, enum token_kind kind) {
    size_t i = v->n++;
    size_t len = strlen(text);
    if (len > sizeof v->text[i])
        abort();
    memcpy(v->text[i], text, len);
    v->pieces[i] = (struct text_span){v->text[i], len};
    v->kinds[i] = (uint8_t)kind;
    v->scores[i] = -(float)i;
}

/* GPT-2's alphabet: printable bytes stand for themselves, the others are U+0100 and up. */
static void add_bytes(struct vocabulary *v) {
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        bool prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        unsigned c = prints ? b : next++;
        char utf8[3] = {(char)c};
        if (c >= 0x80) {
            utf8[0] = (char)(0xc0 | c >> 6);
            utf8[1] = (char)(0x80 | (c & 0x3f));
        }
        add(v, utf8, TOKEN_NORMAL);
    }
}

static struct tokenizer *make_byte_level(const char *pre) {
    static const struct text_span merges[] = {{"a b", 3}, {"ab c", 4}, {"\xc4\xa0 a", 4}};
    struct vocabulary *v = calloc(1, sizeof *v);
    struct tokenizer *t;
    kvasir_error err;
    add_bytes(v);
    add(v, "ab", TOKEN_NORMAL);
    add(v, "abc", TOKEN_NORMAL);
    add(v,
        "\xc4\xa0"
        "a",
        TOKEN_NORMAL);
    add(v, "<s>", TOKEN_CONTROL);
    add(v, "<u>", TOKEN_USER_DEFINED);
    const struct tokenizer_spec spec = {.model = "gpt2",
                                        .pre = pre,
                                        .pieces = v->pieces,
                                        .kinds = v->kinds,
                                        .n_tokens = v->n,
                                        .merges = merges,
                                        .n_merges = 3,
                                        .bos = 259,
                                        .eos = 259,
                                        .eot = -1,
                                        .unk = -1,
                                        .pad = -1,
                                        .add_bos = true};
    if (tokenizer_create(&spec, &t, &err) != KVASIR_OK)
        fuzz_fail("%s", err.text);
    free(v);
    return t;
}

static struct tokenizer *make_characters(bool prefix) {
    struct vocabulary *v = calloc(1, sizeof *v);
    struct tokenizer *t;
    kvasir_error err;
    add(v, "<unk>", TOKEN_UNKNOWN);
    add(v, "<s>", TOKEN_CONTROL);
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        add(v, name, TOKEN_BYTE);
    }
    const struct {
        char text[8];
    } words[] = {{{'\xe2', '\x96', '\x81', 'a'}},
                 {"ab"},
                 {"\xe2\x96\x81"},
                 {"a"},
                 {"b"},
                 {"c"},
                 {"\xc3\xa9"},
                 {"e"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        add(v, words[i].text, TOKEN_NORMAL);
    const struct tokenizer_spec spec = {.model = "llama",
                                        .pieces = v->pieces,
                                        .kinds = v->kinds,
                                        .scores = v->scores,
                                        .n_tokens = v->n,
                                        .add_space_prefix = prefix,
                                        .bos = 1,
                                        .eos = 1,
                                        .eot = -1,
                                        .unk = 0,
                                        .pad = -1,
                                        .add_bos = true};
    if (tokenizer_create(&spec, &t, &err) != KVASIR_OK)
        fuzz_fail("%s", err.text);
    free(v);
    return t;
}

static void check_back(const struct tokenizer *t, const int32_t *ids, size_t n, const char *text,
                       size_t len) {
    struct text_buf back = {0};
    kvasir_error err;
    kvasir_status status = tokenizer_decode(t, ids, n, 0, &back, &err);
    check_error(status, &err);
    if (back.len != len || (len && memcmp(back.data, text, len) != 0))
        fuzz_fail("%zu bytes came back as %zu others", len, back.len);
    text_free(&back);
}

/* SentencePiece writes a space as U+2581, and its decoder drops one at the front. */
static bool comes_back(unsigned kind, const char *text, size_t len) {
    for (size_t i = 0; kind == 4 && i + 3 <= len; i++)
        if (memcmp(text + i, "\xe2\x96\x81", 3) == 0)
            return false;
    return kind < 2 || kind == 4;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *tokenizers[5];
    if (!tokenizers[0]) {
        tokenizers[0] = make_byte_level("smollm");
        tokenizers[1] = make_byte_level("llama-bpe");
        tokenizers[2] = make_byte_level("qwen2"); /* NFC */
        tokenizers[3] = make_characters(true);
        tokenizers[4] = make_characters(false);
    }
    if (size == 0)
        return 0;
    unsigned kind = data[0] % 5, flags = data[0] / 5 % 4;
    const char *text = (const char *)data + 1;
    size_t len = size - 1, n = 0;
    int32_t *ids = NULL;
    kvasir_error err;
    budget_begin(fuzz_budget(size));
    kvasir_status status = tokenizer_encode(tokenizers[kind], text, len, flags, &ids, &n, &err);
    check_error(status, &err);
    size_t bad = utf8_check(text, len);
    if ((status == KVASIR_OK) != (bad == len) || (bad < len && err.offset != (int64_t)bad))
        fuzz_fail("status %d at %lld, the first bad byte is %zu of %zu", (int)status,
                  (long long)(status == KVASIR_OK ? -1 : err.offset), bad, len);
    for (size_t i = 0; status == KVASIR_OK && i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= tokenizer_size(tokenizers[kind]))
            fuzz_fail("id %d", ids[i]);
    if (status == KVASIR_OK && !(flags & TOKENIZE_ADD_SPECIAL) && comes_back(kind, text, len))
        check_back(tokenizers[kind], ids, n, text, len);
    mem_free(ids);
    budget_end();
    return 0;
}
