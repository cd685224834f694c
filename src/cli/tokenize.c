/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize.c: `kvasir tokenize`, text to token ids and back, with a vocabulary alone.
 *
 *     text, or a chat's request  -->  ids  -->  one line of ids | a line for each piece
 *     ids                        -->  text
 *     --jsonl: one object a line, and the same object back with what was made of it
 *
 * Standard input is text as is, including its last line end. Special tokens that are written in it
 * ("<|im_end|>") are recognized, as Hugging Face's encode does.
 *
 * A corpus is processed in one run: --jsonl reads one line at a time, and results are written
 * before the program waits for more, so that it can also be used interactively. A bad line ends the
 * run; the results before it are complete.
 */
#include "cli.h"
#include "util/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tokenize_args {
    const char *model;
    struct chat_args chat_flags;
    bool add_special, ids, pieces, decode, jsonl, chat;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct tokenize_args, field)
static const struct option OPTIONS[] = {
    {.name = "--model", .alias = "-m", .value = "MODEL", .kind = OPTION_TEXT, .required = true,
     ROW(model), .shown = "",
     .help = "GGUF file, folder with tokenizer.json, or a tokenizer.json"},
    {.name = "--ids", .kind = OPTION_FLAG, ROW(ids),
     .help = "write one line of ids (default)"},
    {.name = "--pieces", .kind = OPTION_FLAG, ROW(pieces),
     .help = "write a line per token: its id, a tab, its piece as a JSON string"},
    {.name = "--decode", .kind = OPTION_FLAG, ROW(decode),
     .help = "read ids, write their text"},
    {.name = "--add-special", .kind = OPTION_FLAG, ROW(add_special),
     .help = "add BOS and EOS where the tokenizer's settings say so"},
    {.name = "--chat", .kind = OPTION_FLAG, ROW(chat),
     .help = "read a chat: an array of messages, or an object with \"messages\", \"tools\" and so "
             "on"},
    CHAT_OPTIONS(struct tokenize_args, chat_flags),
    {.name = "--jsonl", .kind = OPTION_FLAG, ROW(jsonl),
     .help = "read one JSON object per line with \"text\", \"messages\" or \"ids\", and write it "
             "with the result added"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "tokenize",
    .summary = "Converts text or chats on standard input to token ids, or ids to text.",
    .usage = "-m MODEL [--ids | --pieces | --decode] [--jsonl] [--chat] [flags] < TEXT",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Special tokens that are written in the text, such as <|im_end|>, are "
               "recognized.\nExit codes: 0 success, 1 the run failed, 2 wrong usage.",
};

/* A place in standard input, for errors. */
struct place {
    size_t line;   /* from 1; 0: standard input is read as a whole */
    uint64_t byte; /* of the line's first */
};

struct run {
    const struct tokenize_args *a;
    struct chat chat;
    kvasir_tokenizer *tokenizer;
    kvasir_tokenizer_info info;
    struct place place;
    struct progress *progress; /* NULL: none */
};

/* ---- errors ---------------------------------------------------------------------------------- */

/* An error `offset` bytes into the input or its line; offset < 0: somewhere in it. */
static int input_error(const struct run *r, int64_t offset, const char *text) {
    char at[64] = "";
    if (r->progress)
        progress_end(r->progress);
    if (r->place.line || offset >= 0)
        snprintf(at, sizeof at, " (at byte %llu)",
                 (unsigned long long)(r->place.byte + (offset >= 0 ? (uint64_t)offset : 0)));
    if (r->place.line)
        return run_error(&COMMAND, "standard input: line %zu: %s%s", r->place.line, text, at);
    return run_error(&COMMAND, "standard input: %s%s", text, at);
}

static int input_library_error(const struct run *r, const kvasir_error *err, bool json) {
    /* Offsets inside JSON strings count the string's bytes, not those of the line. */
    return input_error(r, json ? -1 : err->offset, err->text);
}

static int out_of_memory(void) {
    return run_error(&COMMAND, "out of memory");
}

static int check_output(void) {
    return ferror(stdout) ? finish_output(&COMMAND) : EXIT_GOOD;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Faster than printf, for millions of ids. */
static void put_id(int32_t id, FILE *to) {
    char digits[12];
    size_t n = sizeof digits;
    uint32_t rest = (uint32_t)id;
    do
        digits[--n] = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    fwrite(digits + n, 1, sizeof digits - n, to);
}

static void put_id_list(const int32_t *ids, size_t n, char between, FILE *to) {
    for (size_t i = 0; i < n; i++) {
        if (i)
            putc(between, to);
        put_id(ids[i], to);
    }
}

/* A piece may contain any bytes: invalid UTF-8 is shown as U+FFFD. NULL: out of memory. */
static json_t *piece_json(const struct run *r, int32_t id) {
    size_t len, used = 0;
    const char *piece = kvasir_token_piece(r->tokenizer, id, &len);
    if (!piece)
        return json_string("");
    char *text = malloc(3 * len + 1);
    for (size_t at = 0; text && at < len;) {
        size_t good = utf8_check(piece + at, len - at);
        memcpy(text + used, piece + at, good);
        used += good;
        at += good;
        if (at < len) {
            memcpy(text + used, "\xef\xbf\xbd", 3);
            used += 3;
            at++;
        }
    }
    json_t *json = text ? json_stringn(text, used) : NULL;
    free(text);
    return json;
}

static int print_pieces(const struct run *r, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        json_t *piece = piece_json(r, ids[i]);
        char *text = piece ? json_dumps(piece, JSON_ENCODE_ANY) : NULL;
        json_decref(piece);
        if (!text)
            return out_of_memory();
        put_id(ids[i], stdout);
        printf("\t%s\n", text);
        free(text);
    }
    return check_output();
}

/* ---- text, chats and ids --------------------------------------------------------------------- */

static int encode_text(struct run *r, const char *text, size_t len, int32_t **ids, size_t *n) {
    kvasir_error err;
    unsigned flags = KVASIR_TOKENIZE_PARSE_SPECIAL;
    if (r->a->add_special)
        flags |= KVASIR_TOKENIZE_ADD_SPECIAL;
    if (kvasir_tokenize(r->tokenizer, text, len, flags, ids, n, &err))
        return input_library_error(r, &err, r->place.line != 0);
    return EXIT_GOOD;
}

static int encode_request(struct run *r, json_t *request, int32_t **ids, size_t *n) {
    kvasir_error err;
    if (chat_encode(&r->chat, r->tokenizer, request, ids, n, &err))
        return input_library_error(r, &err, true);
    return EXIT_GOOD;
}

/* False: no token has this id. */
static bool is_token(const struct run *r, int64_t id) {
    size_t len;
    return id >= 0 && id < r->info.size && kvasir_token_piece(r->tokenizer, (int32_t)id, &len);
}

static int no_token(const struct run *r, int64_t offset, const char *id) {
    char text[128];
    snprintf(text, sizeof text,
             "\"%.24s\" is not in this vocabulary of %u "
             "tokens",
             id, r->info.size);
    return input_error(r, offset, text);
}

/* ---- standard input as one piece ------------------------------------------------------------- */

/* An array of messages is treated as an object that contains it. */
static int parse_request(const struct run *r, const char *text, size_t len, json_t **request) {
    json_error_t why;
    json_t *json = json_loadb(text, len, JSON_ALLOW_NUL, &why);
    if (!json)
        return input_error(r, why.position, why.text);
    if (json_is_array(json))
        json = json_pack("{s:o}", "messages", json);
    *request = json;
    return json ? EXIT_GOOD : out_of_memory();
}

static int encode_input(struct run *r, const char *text, size_t len) {
    int32_t *ids = NULL;
    size_t n = 0;
    int code;
    if (r->a->chat) {
        json_t *request = NULL;
        code = parse_request(r, text, len, &request);
        if (!code)
            code = encode_request(r, request, &ids, &n);
        json_decref(request);
    } else {
        code = encode_text(r, text, len, &ids, &n);
    }
    if (!code && r->a->pieces)
        code = print_pieces(r, ids, n);
    else if (!code) {
        put_id_list(ids, n, ' ', stdout);
        putchar('\n');
    }
    kvasir_free(ids);
    return code;
}

/* Ids separated by white space or commas, with or without brackets. */
static int parse_ids(const struct run *r, const char *text, size_t len, int32_t *ids, size_t *n) {
    for (const char *s = text; s < text + len;) {
        size_t digits = strspn(s, "0123456789");
        if (digits == 0 && *s && strchr(" \t\r\n,[]", *s)) {
            s++;
            continue;
        }
        char word[25];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(s, " \t\r\n,[]"), s);
        if (digits == 0 || strlen(word) != digits || digits > 10 || !is_token(r, atoll(word)))
            return no_token(r, s - text, word);
        ids[(*n)++] = (int32_t)atoll(word);
        s += digits;
    }
    return EXIT_GOOD;
}

static int decode_input(struct run *r, const char *text, size_t len) {
    size_t n = 0, out_len;
    /* An id takes a digit and a separator. */
    int32_t *ids = malloc((len / 2 + 1) * sizeof *ids);
    if (!ids)
        return out_of_memory();
    kvasir_error err;
    char *out = NULL;
    int code = parse_ids(r, text, len, ids, &n);
    if (!code && kvasir_detokenize(r->tokenizer, ids, n, 0, &out, &out_len, &err))
        code = library_error(&COMMAND, &err);
    if (!code)
        fwrite(out, 1, out_len, stdout);
    kvasir_free(out);
    free(ids);
    return code;
}

static int run_whole(struct run *r) {
    char *text = NULL;
    size_t len;
    int code = read_text(&COMMAND, "text", "-", &text, &len);
    if (!code)
        code = r->a->decode ? decode_input(r, text, len) : encode_input(r, text, len);
    free(text);
    return code ? code : finish_output(&COMMAND);
}

/* ---- one line of JSON ------------------------------------------------------------------------ */

enum task { TASK_TEXT, TASK_CHAT, TASK_IDS };

static int print_object(const json_t *object, const char *last, size_t less) {
    char *text = json_dumps(object, JSON_COMPACT);
    if (!text)
        return out_of_memory();
    fwrite(text, 1, strlen(text) - less, stdout);
    fputs(last, stdout);
    free(text);
    return check_output();
}

/* A list of a million numbers should not become a million JSON values first: the ids are written
 * where the object's last bracket would be. */
static int print_with_ids(json_t *object, const int32_t *ids, size_t n) {
    json_object_del(object, "ids");
    bool alone = json_object_size(object) == 0;
    int code = print_object(object, alone ? "\"ids\":[" : ",\"ids\":[", 1);
    if (code)
        return code;
    put_id_list(ids, n, ',', stdout);
    fputs("]}\n", stdout);
    return check_output();
}

static int add_pieces(const struct run *r, json_t *object, const int32_t *ids, size_t n) {
    json_t *pieces = json_array();
    for (size_t i = 0; pieces && i < n; i++)
        if (json_array_append_new(pieces, piece_json(r, ids[i])) != 0) {
            json_decref(pieces);
            pieces = NULL;
        }
    return json_object_set_new(object, "pieces", pieces) == 0 ? EXIT_GOOD : out_of_memory();
}

static int encode_object(struct run *r, json_t *object, enum task task) {
    json_t *text = json_object_get(object, "text");
    int32_t *ids = NULL;
    size_t n = 0;
    int code;
    if (task == TASK_CHAT) {
        json_t *request = json_copy(object); /* the flag's variables are not part of the output */
        code = request ? encode_request(r, request, &ids, &n) : out_of_memory();
        json_decref(request);
    } else if (!json_is_string(text)) {
        code = input_error(r, -1, "\"text\" is not a string");
    } else {
        code = encode_text(r, json_string_value(text), json_string_length(text), &ids, &n);
    }
    if (!code && r->a->pieces)
        code = add_pieces(r, object, ids, n);
    if (!code)
        code = print_with_ids(object, ids, n);
    kvasir_free(ids);
    return code;
}

static int take_ids(const struct run *r, const json_t *list, int32_t *ids) {
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) {
        char number[24] = "a value of another kind";
        if (json_is_integer(item))
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(item));
        if (!json_is_integer(item) || !is_token(r, json_integer_value(item)))
            return no_token(r, -1, number);
        ids[i] = (int32_t)json_integer_value(item);
    }
    return EXIT_GOOD;
}

static int decode_object(struct run *r, json_t *object) {
    json_t *list = json_object_get(object, "ids");
    if (!json_is_array(list))
        return input_error(r, -1, "\"ids\" is not an array");
    size_t n = json_array_size(list), len;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids)
        return out_of_memory();
    kvasir_error err;
    char *text = NULL;
    int code = take_ids(r, list, ids);
    if (!code && kvasir_detokenize(r->tokenizer, ids, n, 0, &text, &len, &err))
        code = input_library_error(r, &err, true);
    if (!code && json_object_set_new(object, "text", json_stringn(text, len)) != 0)
        code = out_of_memory();
    if (!code && r->a->pieces)
        code = add_pieces(r, object, ids, n);
    if (!code)
        code = print_object(object, "\n", 0);
    kvasir_free(text);
    free(ids);
    return code;
}

/* The kind that a flag says, else the first of the three that the object has. */
static int choose_task(const struct run *r, const json_t *object, enum task *task) {
    if (r->a->decode)
        *task = TASK_IDS;
    else if (r->a->chat)
        *task = TASK_CHAT;
    else if (json_object_get(object, "text"))
        *task = TASK_TEXT;
    else if (json_object_get(object, "messages"))
        *task = TASK_CHAT;
    else if (json_object_get(object, "ids"))
        *task = TASK_IDS;
    else
        return input_error(r, -1, "has neither \"text\" nor \"messages\" nor \"ids\"");
    return EXIT_GOOD;
}

static int run_line(struct run *r, const char *line, size_t len) {
    json_error_t why;
    json_t *object = json_loadb(line, len, JSON_ALLOW_NUL, &why);
    if (!object)
        return input_error(r, why.position, why.text);
    enum task task = TASK_TEXT;
    int code = json_is_object(object) ? choose_task(r, object, &task)
                                      : input_error(r, 0, "is not a JSON object");
    if (!code)
        code = task == TASK_IDS ? decode_object(r, object) : encode_object(r, object, task);
    json_decref(object);
    return code;
}

/* ---- standard input line by line ------------------------------------------------------------- */

/* No progress if standard error is a file, or if standard output is a terminal too, where lines
 * would be mixed. */
static void start_progress(struct progress *p) {
    struct stat st;
    bool watched = isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO);
    bool sized = fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode);
    progress_start(p, watched ? "tokenize" : NULL, sized ? (size_t)st.st_size : 0, "bytes");
}

static int run_lines(struct run *r) {
    struct line_reader in = {0};
    struct progress progress;
    start_progress(&progress);
    r->progress = &progress;
    int code;
    while (!(code = line_next(&COMMAND, &in)) && in.line) {
        r->place = (struct place){in.number, in.byte};
        if (!line_is_blank(in.line, in.len))
            code = run_line(r, in.line, in.len);
        if (code)
            break;
        progress_step(&progress, in.byte);
    }
    progress_end(&progress);
    line_reader_free(&in);
    return code ? code : finish_output(&COMMAND);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int check_flags(const struct tokenize_args *a) {
    if (a->ids + a->pieces + a->decode > 1)
        return usage_error(&COMMAND, "--ids, --pieces and --decode: give one of them");
    if (a->decode && a->chat)
        return usage_error(&COMMAND, "--chat: not allowed with --decode");
    if (a->add_special && (a->decode || a->chat))
        return usage_error(&COMMAND, "--add-special: not allowed with %s",
                           a->decode ? "--decode" : "--chat, whose template adds them");
    const char *flag = a->chat_flags.template_file ? "--chat-template"
                       : a->chat_flags.kwargs      ? "--chat-template-kwargs"
                       : a->chat_flags.control     ? "--control-tokens"
                                                   : NULL;
    if (flag && (a->decode || (!a->chat && !a->jsonl)))
        return usage_error(&COMMAND, "%s: only allowed with --chat or --jsonl", flag);
    return EXIT_GOOD;
}

static int tokenize(struct run *r) {
    int code = chat_read(&COMMAND, &r->a->chat_flags, &r->chat);
    if (code)
        return code;
    kvasir_error err;
    if (kvasir_tokenizer_open(r->a->model, &r->tokenizer, &err))
        return library_error(&COMMAND, &err);
    kvasir_tokenizer_get_info(r->tokenizer, &r->info);
    code = chat_set_template(&COMMAND, &r->chat, r->tokenizer);
    if (code)
        return code;
    return r->a->jsonl ? run_lines(r) : run_whole(r);
}

int tokenize_main(int argc, char **argv) {
    struct tokenize_args a = {0};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    code = check_flags(&a);
    if (code)
        return code;
    struct run r = {.a = &a};
    code = tokenize(&r);
    kvasir_tokenizer_close(r.tokenizer);
    chat_free(&r.chat);
    return code;
}
