/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer whose ids are bytes: 0 to 255 are themselves, 256 is <s>, which begins a text, and
 * 257 is </s>, which ends an answer. So a prompt's ids can be read. */
#ifndef KVASIR_BYTE_TOKENIZER_H
#define KVASIR_BYTE_TOKENIZER_H

#include <stdio.h>
#include <stdlib.h>

enum { BYTE_BOS = 256, BYTE_EOS = 257, BYTE_VOCAB = 258 };

/* GPT-2's alphabet: printable bytes stand for themselves, the others are U+0100 and up. With JSON
 * escapes. */
static inline void byte_tokenizer_vocab(FILE *f) {
    unsigned next = 0x100;
    for (unsigned b = 0; b < 256; b++) {
        int prints = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
        fprintf(f, "%s\"\\u%04x\":%u", b ? "," : "", prints ? b : next, b);
        next += !prints;
    }
}

/* Further members of the lists, each after a comma; "": none. */
struct byte_tokenizer_more {
    const char *added, *vocab;
    const char *merges; /* all of them */
};

/* Writes tokenizer.json and tokenizer_config.json, the latter with the chat template if it is not
 * NULL. The template has no quotes and no backslashes. */
static inline void byte_tokenizer_write_more(const char *path, const char *config_path,
                                             const char *chat_template,
                                             const struct byte_tokenizer_more *more) {
    FILE *f = fopen(path, "wb"), *config = fopen(config_path, "wb");
    if (!f || !config)
        abort();
    fprintf(f,
            "{\"version\":\"1.0\",\"added_tokens\":["
            "{\"id\":256,\"content\":\"<s>\",\"special\":true},"
            "{\"id\":257,\"content\":\"</s>\",\"special\":true}%s]",
            more->added);
    fputs(",\"normalizer\":null,"
          "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
          "\"use_regex\":false},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
          "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
          "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{"
          "\"id\":\"<s>\",\"ids\":[256],\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":"
          "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":false,\"vocab\":{",
          f);
    byte_tokenizer_vocab(f);
    fprintf(f, "%s},\"merges\":[%s]}}", more->vocab, more->merges);
    fputs("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"", config);
    if (chat_template)
        fprintf(config, ",\"chat_template\":\"%s\"", chat_template);
    fputs("}", config);
    if (fclose(f) != 0 || fclose(config) != 0)
        abort();
}

static inline void byte_tokenizer_write(const char *path, const char *config_path,
                                        const char *chat_template) {
    byte_tokenizer_write_more(path, config_path, chat_template,
                              &(const struct byte_tokenizer_more){"", "", ""});
}

#endif
