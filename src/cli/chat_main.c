/* SPDX-License-Identifier: Apache-2.0 */
/* chat_main.c: `kvasir chat`, a conversation.
 *
 *     line -- "/name ..." --> a command                                    (COMMANDS below)
 *          -- else ---------> a message -> chat_source -> answer -> a message
 *
 * On a terminal an error is printed and the conversation continues as it was; otherwise it ends the
 * program, since nobody is there to react. Ctrl-C ends an answer, whose beginning is kept; at the
 * prompt it drops the line; without a terminal it ends the program.
 *
 * Invariant
 *   CHAT-1  `messages` is the conversation so far: at most one system message, at its front, and no
 *           message of the user whose answer failed.
 *
 * Standard output has only answers; the output of commands goes to standard error.
 */
#include "cli/chat_main.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define ROW(field) .offset = offsetof(struct chat_options, field)
static const struct option OPTIONS[] = {
    {.name = "--model", .alias = "-m", .value = "MODEL", .kind = OPTION_TEXT, ROW(model),
     .help = "GGUF file, or folder with config.json and safetensors; with --url: name of a model "
             "on the server (default: its first)"},
    LOAD_OPTIONS(struct chat_options, load),
    {.name = "--url", .value = "URL", .kind = OPTION_TEXT, ROW(url),
     .help = "chat with a model on this server, through OpenAI's API: http://127.0.0.1:8080"},
    {.name = "--api-key", .value = "KEY", .kind = OPTION_TEXT, ROW(api_key),
     .shown = "environment variable KVASIR_API_KEY", .help = "key that the server requires"},
    {.name = "--system", .value = "TEXT", .kind = OPTION_TEXT, ROW(system),
     .help = "system message before the conversation"},
    CHAT_OPTIONS(struct chat_options, chat),
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(max_tokens),
     .initial = "2048", .max = UINT32_MAX,
     .help = "maximum tokens to generate per answer; 0: as many as fit"},
    SAMPLING_OPTIONS(struct chat_options, sampling),
    ENGINE_OPTIONS(struct chat_options, engine),
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors and the output of commands like /stats on standard error"},
};
/* clang-format on */

#define COMMANDS_HELP                                                                              \
    "/regen        answer the last message again\n"                                                \
    "/undo         take back the last message and its answer\n"                                    \
    "/edit [TEXT]  take them back and send TEXT instead; without TEXT, edit the message\n"         \
    "/reset        forget the conversation, but not the system message\n"                          \
    "/system TEXT  set the system message; without TEXT, remove it\n"                              \
    "/save FILE    write the conversation as JSON\n"                                               \
    "/load FILE    continue a saved conversation\n"                                                \
    "/stats        speed and tokens of the last answer, bytes of the cache\n"                      \
    "/help         this list\n"                                                                    \
    "/quit         quit, as does Ctrl-D\n"                                                         \
    "//TEXT        send /TEXT; a line that ends in \\ continues on the next one, and a message\n"  \
    "              that begins with \"\"\" goes on to the line that ends with \"\"\""

static const struct command COMMAND = {
    .name = "chat",
    .summary = "Chats with a model, in this process or on a server.",
    .usage = "-m MODEL | --url URL [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = COMMANDS_HELP "\n\nCtrl-C ends an answer. If standard input is not a terminal, each "
                             "line of it is a message, and\nthe first error ends the program. Exit "
                             "codes: 0 success, 1 the run failed, 2 wrong usage.",
};

struct conversation {
    const struct chat_options *o;
    struct chat_source source;
    struct lines lines;
    json_t *messages;   /* array */
    struct answer last; /* zero-initialised: none yet */
    bool quit;
};

/* ---- messages -------------------------------------------------------------------------------- */

static int keep_answer(struct conversation *v, const struct answer *a) {
    const struct text_buf *text = &a->parts[ANSWER_CONTENT],
                          *reasoning = &a->parts[ANSWER_REASONING];
    json_t *content = json_stringn(text->data ? text->data : "", text->len);
    json_t *message =
        content ? json_pack("{s:s, s:o}", "role", "assistant", "content", content) : NULL;
    if (message && reasoning->len)
        json_object_set_new(message, "reasoning_content",
                            json_stringn(reasoning->data, reasoning->len));
    if (!message || json_array_append_new(v->messages, message) != 0)
        return run_error(&COMMAND, "out of memory for the answer");
    return EXIT_GOOD;
}

/* Answers the last message. Without an answer it is taken back. */
static int answer_last(struct conversation *v) {
    const size_t last = json_array_size(v->messages) - 1;
    struct answer a;
    answer_begin(&a, v->lines.terminal);
    int code = v->source.answer(v->source.self, v->messages, &a);
    int end = answer_end(&COMMAND, &a);
    code = code ? code : end;
    if (!code && a.cut)
        fprintf(stderr, "note:   the limit of its length ended the answer\n");
    bool empty = !a.parts[ANSWER_CONTENT].len && !a.parts[ANSWER_REASONING].len;
    if (!code && !(interrupted() && empty))
        code = keep_answer(v, &a);
    else
        json_array_remove(v->messages, last);
    answer_free(&v->last);
    v->last = a;
    return !code && interrupted() ? EXIT_INTERRUPTED : code;
}

static int say(struct conversation *v, const char *text, size_t len) {
    int code = chat_add_message(&COMMAND, v->messages, "user", text, len);
    return code ? code : answer_last(v);
}

/* The place of the last message of the user; the number of messages if there is none. */
static size_t last_message(const struct conversation *v) {
    const size_t n = json_array_size(v->messages);
    for (size_t i = n; i-- > 0;) {
        const json_t *role = json_object_get(json_array_get(v->messages, i), "role");
        if (json_string_value(role) && strcmp(json_string_value(role), "user") == 0)
            return i;
    }
    return n;
}

static void cut_messages(struct conversation *v, size_t n) {
    while (json_array_size(v->messages) > n)
        json_array_remove(v->messages, n);
}

/* ---- commands -------------------------------------------------------------------------------- */

static bool begins_with_system(const json_t *messages) {
    const char *role = json_string_value(json_object_get(json_array_get(messages, 0), "role"));
    return role && strcmp(role, "system") == 0;
}

static int do_undo(struct conversation *v, const char *rest) {
    (void)rest;
    const size_t last = last_message(v);
    if (last == json_array_size(v->messages))
        return usage_error(&COMMAND, "/undo: nothing was said yet");
    cut_messages(v, last);
    return EXIT_GOOD;
}

static int do_regen(struct conversation *v, const char *rest) {
    (void)rest;
    const size_t last = last_message(v);
    if (last == json_array_size(v->messages))
        return usage_error(&COMMAND, "/regen: nothing was said yet");
    json_t *old = json_deep_copy(v->messages);
    if (!old)
        return run_error(&COMMAND, "out of memory for the conversation");
    cut_messages(v, last + 1);
    int code = answer_last(v);
    if (json_array_size(v->messages) <= last) { /* there is no new answer: the old one stays */
        json_decref(v->messages);
        v->messages = old;
    } else {
        json_decref(old);
    }
    return code;
}

/* On a terminal without a text, the message is there to be edited. */
static int do_edit(struct conversation *v, const char *rest) {
    const size_t last = last_message(v);
    if (last == json_array_size(v->messages))
        return usage_error(&COMMAND, "/edit: nothing was said yet");
    if (!*rest && !v->lines.terminal)
        return usage_error(&COMMAND, "/edit: needs a text where input is not a terminal");
    const json_t *content = json_object_get(json_array_get(v->messages, last), "content");
    if (!*rest && !json_is_string(content))
        return usage_error(&COMMAND, "/edit: the last message is not a plain text: /undo it");
    if (!*rest && !lines_prefill(&v->lines, json_string_value(content)))
        return run_error(&COMMAND, "out of memory for a line");
    cut_messages(v, last);
    return *rest ? say(v, rest, strlen(rest)) : EXIT_GOOD;
}

static int do_reset(struct conversation *v, const char *rest) {
    (void)rest;
    json_t *system = begins_with_system(v->messages) ? json_array_get(v->messages, 0) : NULL;
    json_incref(system);
    json_array_clear(v->messages);
    if (system)
        json_array_append_new(v->messages, system);
    return EXIT_GOOD;
}

static int do_system(struct conversation *v, const char *rest) {
    json_t *one = json_array();
    int code = *rest ? chat_add_message(&COMMAND, one, "system", rest, strlen(rest)) : EXIT_GOOD;
    if (!code && begins_with_system(v->messages))
        json_array_remove(v->messages, 0);
    if (!code && *rest)
        json_array_insert(v->messages, 0, json_array_get(one, 0));
    json_decref(one);
    return code;
}

static int do_save(struct conversation *v, const char *rest) {
    return *rest ? chat_save(&COMMAND, rest, v->messages)
                 : usage_error(&COMMAND, "/save: needs the name of a file");
}

static int do_load(struct conversation *v, const char *rest) {
    if (!*rest)
        return usage_error(&COMMAND, "/load: needs the name of a file");
    json_t *messages;
    int code = chat_load(&COMMAND, rest, &messages);
    if (code)
        return code;
    json_decref(v->messages);
    v->messages = messages;
    fprintf(stderr, "note:   %zu messages\n", json_array_size(messages));
    return EXIT_GOOD;
}

static int do_stats(struct conversation *v, const char *rest) {
    (void)rest;
    answer_print_stats(&v->last);
    v->source.print_stats(v->source.self);
    return EXIT_GOOD;
}

static int do_help(struct conversation *v, const char *rest) {
    (void)v, (void)rest;
    fprintf(stderr, "%s\n", COMMANDS_HELP);
    return EXIT_GOOD;
}

static int do_quit(struct conversation *v, const char *rest) {
    (void)rest;
    v->quit = true;
    return EXIT_GOOD;
}

/* rest: the text after the name, without blanks around it. */
static const struct {
    const char *name;
    int (*run)(struct conversation *v, const char *rest);
    bool alone; /* no text may follow the name */
} COMMANDS[] = {{"/regen", do_regen, true},    {"/undo", do_undo, true},
                {"/edit", do_edit, false},     {"/reset", do_reset, true},
                {"/system", do_system, false}, {"/save", do_save, false},
                {"/load", do_load, false},     {"/stats", do_stats, true},
                {"/help", do_help, true},      {"/quit", do_quit, true}};

static int run_command(struct conversation *v, const char *line) {
    const size_t name = strcspn(line, " \t\r\n");
    char *rest = strdup(line + name + strspn(line + name, " \t\r\n"));
    if (!rest)
        return run_error(&COMMAND, "out of memory");
    size_t end = strlen(rest);
    while (end && strchr(" \t\r\n", rest[end - 1]))
        rest[--end] = 0;
    int code = -1;
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS && code < 0; i++)
        if (strlen(COMMANDS[i].name) == name && memcmp(COMMANDS[i].name, line, name) == 0)
            code = COMMANDS[i].alone && *rest
                       ? usage_error(&COMMAND, "%s: takes no value", COMMANDS[i].name)
                       : COMMANDS[i].run(v, rest);
    if (code < 0)
        code = usage_error(&COMMAND, "unknown command \"%.40s\"; /help lists them", line);
    free(rest);
    return code;
}

/* ---- the conversation ------------------------------------------------------------------------ */

static int converse(struct conversation *v) {
    int code = EXIT_GOOD;
    while (!code && !v->quit) {
        const char *text;
        size_t len;
        catch_interrupt();
        code = lines_next(&COMMAND, &v->lines, &text, &len);
        if (code || !text)
            break;
        if (line_is_blank(text, len))
            continue;
        catch_interrupt(); /* a Ctrl-C before the line was complete does not end the answer */
        int done = *text != '/'     ? say(v, text, len)
                   : text[1] == '/' ? say(v, text + 1, len - 1)
                                    : run_command(v, text);
        if (!v->lines.terminal)
            code = done;
    }
    return code;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Of the kinds that ENGINE_OPTIONS has. */
static size_t field_size(const struct option *o) {
    return o->kind == OPTION_FLAG   ? sizeof(bool)
           : o->kind == OPTION_TEXT ? sizeof(char *)
           : o->kind == OPTION_U64  ? sizeof(uint64_t)
                                    : sizeof(uint32_t); /* int and float, too */
}

/* The first given flag of the engine that cannot be sent to a server; NULL: none. */
static const char *flag_of_engine(const struct chat_options *o,
                                  const struct chat_options *initial) {
    for (size_t i = 0; i < COMMAND.n_options; i++) {
        const struct option *row = &OPTIONS[i];
        size_t begin = offsetof(struct chat_options, engine);
        if (row->offset >= begin && row->offset < begin + sizeof o->engine &&
            memcmp((const char *)o + row->offset, (const char *)initial + row->offset,
                   field_size(row)) != 0)
            return row->name;
    }
    return o->chat.template_file ? "--chat-template" : NULL;
}

static int check(struct chat_options *o, const struct chat_options *initial) {
    if (!o->model && !o->url)
        return usage_error(&COMMAND, "-m or --url: missing; see kvasir chat --help");
    if (o->api_key && !o->url)
        return usage_error(&COMMAND, "--api-key: only allowed with --url");
    const char *flag = o->url ? flag_of_engine(o, initial) : NULL;
    if (o->url && strcmp(o->sampling.generation_config, "model") != 0)
        flag = "--generation-config";
    if (flag)
        return usage_error(&COMMAND, "%s: not allowed with --url: the server decides it", flag);
    if (o->url && !o->api_key)
        o->api_key = getenv("KVASIR_API_KEY");
    return EXIT_GOOD;
}

int chat_main(int argc, char **argv) {
    struct chat_options o = {.load = kvasir_model_defaults(),
                             .sampling = sampling_args_defaults(),
                             .engine = engine_args_defaults()};
    o.engine.options.max_running = 1;
    const struct chat_options initial = o;
    int code;
    if (!options_read(&COMMAND, argc, argv, &o, &code))
        return code;
    code = check(&o, &initial);
    if (code)
        return code;
    struct conversation v = {.o = &o, .messages = json_array()};
    catch_interrupt();
    if (!v.messages)
        code = run_error(&COMMAND, "out of memory");
    if (!code && o.system)
        code = chat_add_message(&COMMAND, v.messages, "system", o.system, strlen(o.system));
    if (!code)
        code = o.url ? chat_remote_open(&COMMAND, &o, &v.source)
                     : chat_engine_open(&COMMAND, &o, &v.source);
    if (!code)
        code = lines_open(&COMMAND, &v.lines);
    if (!code && v.lines.terminal && !o.quiet)
        fprintf(stderr, "/help lists the commands; Ctrl-D leaves\n\n");
    if (!code)
        code = converse(&v);
    lines_close(&v.lines);
    if (v.source.close)
        v.source.close(v.source.self);
    answer_free(&v.last);
    json_decref(v.messages);
    return code;
}
