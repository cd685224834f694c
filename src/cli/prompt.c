/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.c: from what a user gave to token ids.
 *
 *     -p TEXT, -f FILE, standard input --+-- --raw ----------------------> tokenizer, BOS added
 *                                        +-- chat template of the model -> tokenizer, control
 *                                                                          tokens recognised
 *     --tokens 1,2,3 ----------------------------------------------------> as they are
 *
 * Text of a user is never read for control tokens by --raw: "<|im_start|>" is eleven characters
 * there. In a chat they are recognised, because the template writes its own ones that way.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int read_typed_ids(const struct command *c, const char *text, struct prompt *p) {
    size_t cap = 1;
    for (const char *s = text; *s; s++)
        cap += *s == ',';
    p->typed = malloc(cap * sizeof *p->typed);
    if (!p->typed)
        return run_error(c, "--tokens: out of memory");
    for (const char *s = text; *s;) {
        size_t digits = strspn(s, "0123456789");
        errno = 0;
        unsigned long id = strtoul(s, NULL, 10);
        char behind = s[digits];
        if (digits == 0 || (behind != 0 && behind != ',') || (behind == ',' && s[digits + 1] == 0))
            return usage_error(c, "--tokens: \"%.20s\" at place %td is not a token id", s,
                               s - text + 1);
        if (errno || id > INT32_MAX)
            return usage_error(c, "--tokens: %.*s is no token id", (int)digits, s);
        p->typed[p->n++] = (int32_t)id;
        s += digits + (behind == ',');
    }
    p->ids = p->typed;
    return p->n ? EXIT_GOOD : usage_error(c, "--tokens: the prompt is empty");
}

/* One line end at the end of a file or pipe belongs to the file, not to what the user says. */
static void drop_line_end(struct prompt *p) {
    if (p->len > 0 && p->text[p->len - 1] == '\n')
        p->len--;
    if (p->len > 0 && p->text[p->len - 1] == '\r')
        p->len--;
    p->text[p->len] = 0;
}

int prompt_read(const struct command *c, const struct prompt_args *a, struct prompt *p) {
    if ((a->text != NULL) + (a->file != NULL) + (a->tokens != NULL) > 1)
        return usage_error(c, "-p, -f and --tokens: give one of them");
    if (a->system && (a->raw || a->tokens))
        return usage_error(c, "--system: has no place without a chat template (%s is given)",
                           a->raw ? "--raw" : "--tokens");
    if (a->tokens)
        return read_typed_ids(c, a->tokens, p);
    if (!a->text && !a->file && isatty(STDIN_FILENO))
        return usage_error(c, "give a prompt: -p TEXT, -f FILE, --tokens IDS or standard input");
    const char *from = a->text ? "-p" : a->file ? "-f" : "standard input";
    if (a->text) {
        p->text = strdup(a->text);
        if (!p->text)
            return run_error(c, "-p: out of memory");
        p->len = strlen(p->text);
    } else {
        int code =
            read_text(c, a->file ? "-f" : "prompt", a->file ? a->file : "-", &p->text, &p->len);
        if (code)
            return code;
    }
    if (!a->raw && !a->text)
        drop_line_end(p);
    return p->len ? EXIT_GOOD : usage_error(c, "%s: the prompt is empty", from);
}

static int encode_chat(const struct command *c, const struct prompt_args *a,
                       const kvasir_model *model, struct prompt *p) {
    if (memchr(p->text, 0, p->len))
        return run_error(c, "prompt: a NUL byte (at byte %zu) has no place in a chat message",
                         strlen(p->text));
    kvasir_message messages[2];
    size_t n = 0, len;
    if (a->system)
        messages[n++] = (kvasir_message){"system", a->system};
    messages[n++] = (kvasir_message){"user", p->text};
    kvasir_error err;
    char *rendered;
    if (kvasir_chat_render(model, messages, n, &rendered, &len, &err))
        return library_error(c, &err);
    kvasir_status status = kvasir_tokenize(model, rendered, len, KVASIR_TOKENIZE_PARSE_SPECIAL,
                                           &p->encoded, &p->n, &err);
    kvasir_free(rendered);
    return status ? library_error(c, &err) : EXIT_GOOD;
}

static int check_typed_ids(const struct command *c, const kvasir_model_info *info,
                           const struct prompt *p) {
    for (size_t i = 0; i < p->n; i++)
        if ((uint32_t)p->ids[i] >= info->vocab)
            return usage_error(c, "--tokens: id %d is not below the vocabulary size %u", p->ids[i],
                               info->vocab);
    return EXIT_GOOD;
}

int prompt_encode(const struct command *c, const struct prompt_args *a, const kvasir_model *model,
                  const kvasir_model_info *info, struct prompt *p) {
    if (p->typed)
        return check_typed_ids(c, info, p);
    if (a->system && !info->has_chat_template)
        return usage_error(c, "--system: this model has no chat template");
    int code = EXIT_GOOD;
    kvasir_error err;
    if (!a->raw && info->has_chat_template)
        code = encode_chat(c, a, model, p);
    else if (kvasir_tokenize(model, p->text, p->len, KVASIR_TOKENIZE_ADD_SPECIAL, &p->encoded,
                             &p->n, &err))
        code = library_error(c, &err);
    p->ids = p->encoded;
    if (!code && p->n == 0)
        code = usage_error(c, "the prompt has no tokens");
    return code;
}

void prompt_free(struct prompt *p) {
    free(p->text);
    free(p->typed);
    kvasir_free(p->encoded);
    *p = (struct prompt){0};
}
