/* SPDX-License-Identifier: Apache-2.0 */
/* chat.c: from a chat to token ids, with the template that the flags choose.
 *
 *     request (messages, tools ...) <- --chat-template-kwargs
 *         |  kvasir_chat_render: the model's template or --chat-template
 *     prompt text
 *         |  answer_tokenize_prompt: control tokens that the template wrote are recognised, with
 *         |  --control-tokens all also others; it writes its own BOS, so none is added
 *     ids
 */
#include "api/api.h"
#include "cli.h"
#include "util/utf8.h"

#include <stdlib.h>
#include <string.h>

static int read_kwargs(const struct command *c, const char *text, json_t **out) {
    kvasir_error why;
    if (json_load_request(text, strlen(text), JSON_ALLOW_NUL, out, &why) != KVASIR_OK)
        return usage_error(c, "--chat-template-kwargs: %s", why.text);
    if (!json_is_object(*out))
        return usage_error(c, "--chat-template-kwargs: not a JSON object: %.60s", text);
    return EXIT_GOOD;
}

int chat_read(const struct command *c, const struct chat_args *a, struct chat *chat) {
    *chat = (struct chat){.file = a->template_file};
    if (a->control && strcmp(a->control, "template") != 0 && strcmp(a->control, "all") != 0)
        return usage_error(c, "--control-tokens: \"%.40s\" is neither template nor all",
                           a->control);
    chat->all_control = a->control && strcmp(a->control, "all") == 0;
    if (a->kwargs) {
        int code = read_kwargs(c, a->kwargs, &chat->kwargs);
        if (code)
            return code;
    }
    if (!a->template_file)
        return EXIT_GOOD;
    return read_text(c, "--chat-template", a->template_file, &chat->source, &chat->source_len);
}

int chat_set_template(const struct command *c, const struct chat *chat, kvasir_tokenizer *t) {
    kvasir_error err;
    if (chat->file &&
        kvasir_tokenizer_set_chat_template(t, chat->file, chat->source, chat->source_len, &err))
        return run_error(c, "--chat-template: %s", err.text);
    return EXIT_GOOD;
}

int chat_add_message(const struct command *c, json_t *messages, const char *role, const char *text,
                     size_t len) {
    size_t good = utf8_check(text, len);
    if (good < len)
        return run_error(c, "the %s message is not UTF-8 (at byte %zu)", role, good);
    json_t *content = json_stringn(text, len);
    json_t *message = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    if (!message || json_array_append_new(messages, message) != 0)
        return run_error(c, "chat: out of memory");
    return EXIT_GOOD;
}

static kvasir_status out_of_memory(kvasir_error *err) {
    *err = (kvasir_error){.code = KVASIR_ERR_MEMORY, .offset = -1};
    snprintf(err->text, sizeof err->text, "chat: out of memory");
    return err->code;
}

kvasir_status chat_render(const struct chat *chat, const kvasir_tokenizer *t, json_t *request,
                          char **out, char **authors, size_t *len, kvasir_error *err) {
    *authors = NULL;
    if (chat->kwargs && json_object_update(request, chat->kwargs) != 0)
        return out_of_memory(err);
    return kvasir_chat_render_value(t, request, NULL, out, chat->all_control ? NULL : authors, len,
                                    err);
}

kvasir_status chat_encode(const struct chat *chat, const kvasir_tokenizer *t, json_t *request,
                          int32_t **ids, size_t *n, kvasir_error *err) {
    char *prompt, *authors;
    size_t len;
    kvasir_status status = chat_render(chat, t, request, &prompt, &authors, &len, err);
    if (status)
        return status;
    struct answer_syntax syntax = answer_syntax_of(t);
    status = answer_tokenize_prompt(&syntax, t, prompt, len, authors, NULL, ids, n, err);
    kvasir_free(authors);
    kvasir_free(prompt);
    return status;
}

void chat_free(struct chat *chat) {
    free(chat->source);
    json_decref(chat->kwargs);
    *chat = (struct chat){0};
}
