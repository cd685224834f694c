/* SPDX-License-Identifier: Apache-2.0 */
/* chat_file.c: a chat as a file that people and other programs read:
 *
 *     {"messages": [{"role": "user", "content": "Hello"},
 *                   {"role": "assistant", "content": "...", "reasoning_content": "..."}]}
 *
 * It is also a valid body for /v1/chat/completions. A bare array of messages is accepted as well.
 */
#include "cli/chat_main.h"

#include <stdlib.h>
#include <string.h>

int chat_save(const struct command *c, const char *path, json_t *messages) {
    json_t *chat = json_pack("{s:O}", "messages", messages);
    char *text = chat ? json_dumps(chat, JSON_INDENT(2)) : NULL;
    json_decref(chat);
    if (!text)
        return run_error(c, "/save: out of memory");
    struct out_file out = {0};
    int code = out_open(c, &out, "/save", path);
    if (!code)
        code = out_write(c, &out, text, strlen(text));
    if (!code)
        code = out_write(c, &out, "\n", 1);
    if (!code)
        code = out_commit(c, &out);
    out_abandon(&out);
    free(text);
    return code;
}

static int check_message(const struct command *c, const char *path, size_t i, const json_t *m) {
    static const char *const TEXTS[] = {"content", "reasoning_content"};
    if (!json_is_object(m))
        return run_error(c, "/load: %s: messages[%zu]: is not an object", path, i);
    if (!json_is_string(json_object_get(m, "role")))
        return run_error(c, "/load: %s: messages[%zu].role: is missing or not a string", path, i);
    for (size_t k = 0; k < 2; k++) {
        const json_t *text = json_object_get(m, TEXTS[k]);
        if (text && !json_is_string(text) && !json_is_null(text))
            return run_error(c, "/load: %s: messages[%zu].%s: is not a string", path, i, TEXTS[k]);
    }
    return EXIT_GOOD;
}

int chat_load(const struct command *c, const char *path, json_t **out) {
    char *text;
    size_t len;
    json_t *chat;
    kvasir_error why;
    int code = read_text(c, "/load", path, &text, &len);
    if (code)
        return code;
    const kvasir_status status =
        json_load_request(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &chat, &why);
    free(text);
    if (status != KVASIR_OK)
        return run_error(c, "/load: %s: %s", path, why.text);
    json_t *messages = json_is_array(chat) ? chat : json_object_get(chat, "messages");
    if (!json_is_array(messages))
        code = run_error(c, "/load: %s: messages: is missing or not an array", path);
    for (size_t i = 0; !code && i < json_array_size(messages); i++)
        code = check_message(c, path, i, json_array_get(messages, i));
    *out = code ? NULL : json_incref(messages);
    json_decref(chat);
    return code;
}
