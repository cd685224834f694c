/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.c: from what a user gave to token ids.
 *
 *     -p TEXT, -f FILE, standard input --+-- --raw ----------------------> tokenizer, BOS added
 *                                        +-- chat template (chat.c)
 *     --tokens 1,2,3 ----------------------------------------------------> as they are
 *
 * Control tokens in the user's text are not recognised: "<|im_start|>" is twelve characters there,
 * except in a chat with --control-tokens all. Those of the template are.
 */
#include "api/api.h"
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
            return usage_error(c, "--tokens: %.*s is not a token id", (int)digits, s);
        p->typed[p->n++] = (int32_t)id;
        s += digits + (behind == ',');
    }
    p->ids = p->typed;
    return p->n ? EXIT_GOOD : usage_error(c, "--tokens: the prompt is empty");
}

/* A line end at the end of a file or pipe belongs to the file, not to the prompt. */
static void drop_line_end(struct prompt *p) {
    if (p->len > 0 && p->text[p->len - 1] == '\n')
        p->len--;
    if (p->len > 0 && p->text[p->len - 1] == '\r')
        p->len--;
    p->text[p->len] = 0;
}

/* The first given flag that needs a chat template; NULL: none. */
static const char *chat_flag(const struct prompt_args *a) {
    return a->system               ? "--system"
           : a->chat.template_file ? "--chat-template"
           : a->chat.kwargs        ? "--chat-template-kwargs"
           : a->chat.control       ? "--control-tokens"
                                   : NULL;
}

int prompt_read(const struct command *c, const struct prompt_args *a, struct prompt *p) {
    if ((a->text != NULL) + (a->file != NULL) + (a->tokens != NULL) > 1)
        return usage_error(c, "-p, -f and --tokens: give one of them");
    const char *flag = chat_flag(a);
    if (flag && (a->raw || a->tokens))
        return usage_error(c, "%s: only allowed with a chat template (%s is given)", flag,
                           a->raw ? "--raw" : "--tokens");
    int code = chat_read(c, &a->chat, &p->chat);
    if (code)
        return code;
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
        code = read_text(c, a->file ? "-f" : "prompt", a->file ? a->file : "-", &p->text, &p->len);
        if (code)
            return code;
    }
    if (!a->raw && !a->text)
        drop_line_end(p);
    return p->len ? EXIT_GOOD : usage_error(c, "%s: the prompt is empty", from);
}

/* Marks the place of the user's text while a template is rendered. */
static const char MARK[] = "kvasir:the-text-of-the-user";

/* One part of a rendered chat: the user's text with what comes before or after it. */
static int encode_part(const struct command *c, const struct prompt_args *a,
                       const kvasir_tokenizer *t, json_t *request, struct prompt *p) {
    kvasir_error err;
    char *chat, *authors, *joined, *by;
    size_t len;
    if (chat_render(&p->chat, t, request, &chat, &authors, &len, &err))
        return library_error(c, &err);
    const char *mark = strstr(chat, MARK);
    joined = malloc(len + p->len + 1);
    by = calloc(len + p->len + 1, 1); /* zeros: KVASIR_BY_REQUEST */
    if (!mark || !joined || !by || strstr(mark + 1, MARK)) {
        kvasir_free(chat);
        kvasir_free(authors);
        free(joined);
        free(by);
        return mark ? run_error(c, "chat: the template writes the user's text more than once, or "
                                   "memory ran out")
                    : run_error(c, "chat: the template does not write the user's text as it is; "
                                   "--raw leaves it out");
    }
    const char *behind = mark + strlen(MARK);
    size_t head = a->part == PROMPT_HEAD ? (size_t)(mark - chat) : 0,
           tail = a->part == PROMPT_TAIL ? len - (size_t)(behind - chat) : 0;
    memcpy(joined, chat, head);
    memcpy(joined + head, p->text, p->len);
    memcpy(joined + head + p->len, behind, tail);
    if (authors) {
        memcpy(by, authors, head);
        memcpy(by + head + p->len, authors + (behind - chat), tail);
    }
    int code = EXIT_GOOD;
    if (answer_tokenize_prompt(NULL, t, joined, head + p->len + tail, authors ? by : NULL, NULL,
                               &p->encoded, &p->n, &err))
        code = library_error(c, &err);
    kvasir_free(chat);
    kvasir_free(authors);
    free(joined);
    free(by);
    return code;
}

static int encode_chat(const struct command *c, const struct prompt_args *a,
                       const kvasir_tokenizer *t, struct prompt *p) {
    json_t *messages = json_array(), *request = json_pack("{s:o}", "messages", messages);
    if (!request)
        return run_error(c, "chat: out of memory");
    const bool whole = a->part == PROMPT_WHOLE;
    int code = EXIT_GOOD;
    if (a->system)
        code = chat_add_message(c, messages, "system", a->system, strlen(a->system));
    if (!code)
        code = whole ? chat_add_message(c, messages, "user", p->text, p->len)
                     : chat_add_message(c, messages, "user", MARK, strlen(MARK));
    kvasir_error err;
    if (!code && !whole)
        code = encode_part(c, a, t, request, p);
    else if (!code && chat_encode(&p->chat, t, request, &p->encoded, &p->n, &err))
        code = library_error(c, &err);
    json_decref(request);
    return code;
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
    kvasir_tokenizer *t = kvasir_model_tokenizer(model);
    int code = chat_set_template(c, &p->chat, t);
    if (code)
        return code;
    kvasir_tokenizer_info text;
    kvasir_tokenizer_get_info(t, &text);
    if (chat_flag(a) && !text.has_chat_template)
        return usage_error(c, "%s: this model has no chat template", chat_flag(a));
    kvasir_error err;
    if (!a->raw && text.has_chat_template)
        code = encode_chat(c, a, t, p);
    else if (kvasir_tokenize(t, p->text, p->len,
                             a->part == PROMPT_TAIL ? 0 : KVASIR_TOKENIZE_ADD_SPECIAL, &p->encoded,
                             &p->n, &err)) {
        const size_t n = strlen(err.text);
        if (err.code == KVASIR_ERR_UNSUPPORTED)
            snprintf(err.text + n, sizeof err.text - n, "; %s takes token ids",
                     option_find(c, "--tokens", strlen("--tokens")) ? "--tokens"
                                                                    : "generate --tokens");
        code = library_error(c, &err);
    }
    p->ids = p->encoded;
    if (!code && p->n == 0)
        code = usage_error(c, "the prompt has no tokens");
    return code;
}

void prompt_free(struct prompt *p) {
    chat_free(&p->chat);
    free(p->text);
    free(p->typed);
    kvasir_free(p->encoded);
    *p = (struct prompt){0};
}
