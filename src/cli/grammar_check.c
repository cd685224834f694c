/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_check.c: `kvasir grammar check`, what a compiled grammar accepts: a line for each
 * instance,
 *
 *     accept
 *     refuse: #/tags/1 (byte 27)                  the first byte that no right text has there
 *     refuse: # (byte 40: the text must go on)    it may not end yet
 *
 * With --jsonl, instances are the lines of their files. Without an instance the first file has a
 * schema and its instances in each line:
 *
 *     {"name": "a", "schema": {...}, "tests": [{"data": ..., "valid": true}, ...]}
 *
 * Schemas and instances in such lines are read as they are written there.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_NOT_SUPPORTED = 3 };

struct grammar_args {
    const char *action, *schema;
    struct word_list instances;
    bool gbnf, regex, jsonl;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct grammar_args, field)
static const struct option OPTIONS[] = {
    {.name = "ACTION", .kind = OPTION_TEXT, ROW(action), .required = true,
     .help = "check: say which instances the grammar accepts"},
    {.name = "SCHEMA", .kind = OPTION_TEXT, ROW(schema), .required = true,
     .help = "file with a JSON schema; - is standard input"},
    {.name = "INSTANCE", .kind = OPTION_REST, ROW(instances),
     .help = "files with one text each; blanks at the end of JSON are ignored"},
    {.name = "--gbnf", .kind = OPTION_FLAG, ROW(gbnf),
     .help = "SCHEMA is a grammar in llama.cpp's GBNF"},
    {.name = "--regex", .kind = OPTION_FLAG, ROW(regex),
     .help = "SCHEMA is a regular expression, which the whole text must match; a line end at its "
             "end is ignored"},
    {.name = "--jsonl", .kind = OPTION_FLAG, ROW(jsonl),
     .help = "each line of an INSTANCE is one; without INSTANCE, each line of SCHEMA is an object "
             "with a \"schema\" and \"tests\", a list of objects with \"data\" and \"valid\""},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "grammar",
    .summary = "Says what the grammar of a JSON schema accepts, and why not more.",
    .usage = "check SCHEMA [INSTANCE ...] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Writes a line for each instance: accept, or refuse: and the place as a JSON "
               "pointer.\nExit codes: 0 all accepted, 1 one refused (or judged otherwise than "
               "\"valid\" says),\n2 no schema or wrong usage, 3 the schema asks for what is not "
               "supported.",
};

struct run {
    const struct grammar_args *a;
    kvasir_grammar_kind kind;
    struct text_buf pointer;
    bool refused; /* an instance, or one of --jsonl was not judged as its "valid" says */
    uint64_t compiled, unsupported, wrong;       /* schemas */
    uint64_t tests, agree, accepted, too_strict; /* with "valid" */
};

/* ---- the place in an instance ---------------------------------------------------------------- */

/* An array or object that is open at the place. */
struct level {
    bool object;
    bool value;       /* of an object: behind a name and its colon */
    size_t index;     /* of an array */
    const char *name; /* [name_len], as the text has it */
    size_t name_len;
};

static bool append_name(struct text_buf *b, const struct level *l) {
    if (!l->object)
        return text_printf(b, "/%zu", l->index);
    bool good = text_puts(b, "/");
    for (size_t i = 0; i < l->name_len && good; i++) {
        const char c = l->name[i];
        const char *escaped = c == '~' ? "~0" : c == '/' ? "~1" : (uint8_t)c < 0x20 ? "?" : NULL;
        good = escaped ? text_puts(b, escaped) : text_append(b, &c, 1);
    }
    return good;
}

/* The end of a string that begins at `at`, behind its quote, or `len`. */
static size_t string_end(const char *text, size_t at, size_t len) {
    for (at++; at < len; at++) {
        if (text[at] == '"')
            return at + 1;
        at += text[at] == '\\';
    }
    return len;
}

/* What one character of a text means for the innermost open level. */
static void follow(struct level *l, char c) {
    if (!l->object)
        l->index += c == ',';
    else if (c == ':')
        l->value = true;
    else if (c == ',')
        l->value = false;
}

/* Appends the JSON pointer of the value that the byte at text[at] belongs to. The text up to it is
 * the beginning of JSON. */
static bool append_pointer(struct text_buf *b, const char *text, size_t at) {
    struct level *levels = NULL;
    size_t n = 0, cap = 0;
    bool good = text_puts(b, "#");
    for (size_t i = 0; i < at && good;) {
        const char c = text[i];
        if (c == '"') {
            const size_t end = string_end(text, i, at);
            if (n && levels[n - 1].object && !levels[n - 1].value) {
                levels[n - 1].name = text + i + 1;
                levels[n - 1].name_len = end - i - 1 - (text[end - 1] == '"' && end > i + 1);
            }
            i = end;
            continue;
        }
        if (c == '{' || c == '[') {
            good = ARRAY_GROW(levels, cap, n + 1);
            if (good)
                levels[n++] = (struct level){.object = c == '{'};
        } else if ((c == '}' || c == ']') && n) {
            n--;
        } else if (n) {
            follow(&levels[n - 1], c);
        }
        i++;
    }
    for (size_t i = 0; i < n && good; i++)
        if (!levels[i].object || levels[i].value)
            good = append_name(b, &levels[i]);
    free(levels);
    return good;
}

/* ---- instances ------------------------------------------------------------------------------- */

static int out_of_memory(void) {
    return run_error(&COMMAND, "out of memory");
}

/* Prints the line of an instance, and what is behind it. */
static int print_refusal(struct run *r, const char *text, size_t len, size_t at, const char *more) {
    const char *why = at == len ? ": the text must go on" : "";
    r->pointer.len = 0;
    if (r->kind != KVASIR_GRAMMAR_JSON_SCHEMA) {
        printf("refuse: byte %zu%s%s\n", at, why, more);
        return EXIT_GOOD;
    }
    if (!append_pointer(&r->pointer, text, at))
        return out_of_memory();
    printf("refuse: %s (byte %zu%s)%s\n", r->pointer.data, at, why, more);
    return EXIT_GOOD;
}

/* valid: what the text should be; NULL: not known. */
static int check_text(struct run *r, const kvasir_grammar *g, const char *text, size_t len,
                      const bool *valid) {
    kvasir_error err;
    bool matches;
    size_t at;
    if (r->kind == KVASIR_GRAMMAR_JSON_SCHEMA)
        while (len && strchr(" \t\r\n", text[len - 1]))
            len--;
    if (kvasir_grammar_match(g, text, len, &matches, &at, &err))
        return run_error(&COMMAND, "%s", err.text);
    if (valid) {
        r->tests++;
        r->agree += matches == *valid;
        r->accepted += matches && !*valid;
        r->too_strict += !matches && *valid;
        r->refused |= matches != *valid;
    } else {
        r->refused |= !matches;
    }
    if (!matches)
        return print_refusal(r, text, len, at, valid && *valid ? ", but it is valid" : "");
    printf("accept%s\n", valid && !*valid ? ", but it is not valid" : "");
    return EXIT_GOOD;
}

static int check_file(struct run *r, const kvasir_grammar *g, const char *path) {
    char *text = NULL;
    size_t len = 0;
    if (read_text(&COMMAND, "INSTANCE", path, &text, &len))
        return EXIT_USAGE;
    const int code = check_text(r, g, text ? text : "", len, NULL);
    free(text);
    return code;
}

/* A file, line by line. `fn` sees each that is not blank. */
typedef int line_fn(struct run *r, const struct line_reader *in, const void *user);
static int each_line(struct run *r, const char *path, line_fn *fn, const void *user) {
    struct line_reader in = {.name = strcmp(path, "-") == 0 ? NULL : path};
    kvasir_error err;
    if (in.name && file_open_input(path, &in.fd, &err))
        return usage_error(&COMMAND, "%s", err.text);
    int code = line_next(&COMMAND, &in);
    for (; !code && in.line; code = code ? code : line_next(&COMMAND, &in))
        if (!line_is_blank(in.line, in.len))
            code = fn(r, &in, user);
    line_reader_free(&in);
    if (in.name)
        close(in.fd);
    return code;
}

static int check_line(struct run *r, const struct line_reader *in, const void *user) {
    return check_text(r, user, in->line, in->len, NULL);
}

static int check_instances(struct run *r, const kvasir_grammar *g) {
    const struct word_list *list = &r->a->instances;
    int code = EXIT_GOOD;
    for (size_t i = 0; i < list->n && !code; i++)
        code = r->a->jsonl ? each_line(r, list->items[i], check_line, g)
                           : check_file(r, g, list->items[i]);
    return code;
}

/* ---- one schema ------------------------------------------------------------------------------ */

static int check_schema(struct run *r) {
    const char *path = r->a->schema;
    kvasir_grammar *g = NULL;
    kvasir_error err;
    char *text = NULL;
    size_t len = 0;
    if (read_text(&COMMAND, "SCHEMA", path, &text, &len))
        return EXIT_USAGE;
    if (r->kind == KVASIR_GRAMMAR_REGEX && len && text[len - 1] == '\n')
        len--;
    const kvasir_status status = kvasir_grammar_create(r->kind, text ? text : "", len, &g, &err);
    free(text);
    if (status == KVASIR_ERR_UNSUPPORTED) {
        (void)run_error(&COMMAND, "%s: not supported: %s", path, err.text);
        return EXIT_NOT_SUPPORTED;
    }
    if (status == KVASIR_ERR_MEMORY)
        return run_error(&COMMAND, "%s: %s", path, err.text);
    if (status)
        return err.offset >= 0 ? usage_error(&COMMAND, "%s: %s (at byte %lld)", path, err.text,
                                             (long long)err.offset)
                               : usage_error(&COMMAND, "%s: %s", path, err.text);
    const int code = check_instances(r, g);
    kvasir_grammar_destroy(g);
    return code ? code : r->refused ? EXIT_RUN : EXIT_GOOD;
}

/* ---- many schemas ---------------------------------------------------------------------------- */

/* The members of an object, or the items of an array, as the text has them. Neither numbers nor
 * names are looked at: that is the grammar's affair. */
struct members {
    const char *text;
    size_t len, at;
    bool object;
};

static void skip_between(struct members *m) {
    while (m->at < m->len && strchr(" \t\r\n,:", m->text[m->at]))
        m->at++;
}

static struct members members_of(struct json_part whole) {
    struct members m = {.text = whole.value, .len = whole.value_len};
    skip_between(&m);
    m.object = m.at < m.len && m.text[m.at] == '{';
    if (m.object || (m.at < m.len && m.text[m.at] == '['))
        m.at++;
    else
        m.at = m.len;
    return m;
}

static size_t value_end(const struct members *m) {
    size_t depth = 0;
    for (size_t i = m->at; i < m->len;) {
        const char c = m->text[i];
        if (c == '"') {
            i = string_end(m->text, i, m->len);
            if (!depth)
                return i;
            continue;
        }
        if (!depth && strchr(" \t\r\n,:]}", c))
            return i;
        depth += (size_t)(c == '{' || c == '[');
        depth -= (size_t)(c == '}' || c == ']');
        i++;
        if (!depth && (c == '}' || c == ']'))
            return i;
    }
    return m->len;
}

/* False: no more, or what follows is no JSON. */
static bool next_member(struct members *m, struct json_part *out) {
    *out = (struct json_part){0};
    skip_between(m);
    if (m->at >= m->len || strchr("]}", m->text[m->at]))
        return false;
    if (m->object) {
        const size_t end = value_end(m);
        if (m->text[m->at] != '"' || end < m->at + 2)
            return false;
        out->name = m->text + m->at + 1;
        out->name_len = end - m->at - 2;
        m->at = end;
        skip_between(m);
    }
    out->value = m->text + m->at;
    out->value_len = value_end(m) - m->at;
    m->at += out->value_len;
    return out->value_len > 0;
}

/* The object's member of this name; value NULL: there is none. */
static struct json_part member(struct json_part object, const char *name) {
    struct members m = members_of(object);
    struct json_part part;
    while (m.object && next_member(&m, &part))
        if (part.name_len == strlen(name) && memcmp(part.name, name, part.name_len) == 0)
            return part;
    return (struct json_part){0};
}

static bool is_word(struct json_part part, const char *word) {
    return part.value && part.value_len == strlen(word) &&
           memcmp(part.value, word, part.value_len) == 0;
}

static int check_tests(struct run *r, const kvasir_grammar *g, struct json_part tests) {
    struct members m = members_of(tests);
    struct json_part test;
    int code = EXIT_GOOD;
    while (!code && next_member(&m, &test)) {
        const struct json_part data = member(test, "data"), v = member(test, "valid");
        const bool valid = is_word(v, "true"), known = valid || is_word(v, "false");
        if (data.value)
            code = check_text(r, g, data.value, data.value_len, known ? &valid : NULL);
    }
    return code;
}

/* "12 name: " */
static void print_head(const struct line_reader *in, struct json_part name) {
    const bool text = name.value_len > 2 && name.value[0] == '"';
    printf("%zu%s%.*s: ", in->number, text ? " " : "", text ? (int)(name.value_len - 2) : 0,
           text ? name.value + 1 : "");
}

static int check_schema_line(struct run *r, const struct line_reader *in, const void *user) {
    const struct json_part line = {.value = in->line, .value_len = in->len};
    const struct json_part schema = member(line, "schema");
    kvasir_grammar *g = NULL;
    kvasir_error err;
    (void)user;
    if (!schema.value)
        return usage_error(&COMMAND, "%s: line %zu: there is no \"schema\"",
                           in->name ? in->name : "standard input", in->number);
    print_head(in, member(line, "name"));
    const kvasir_status status =
        kvasir_grammar_create(r->kind, schema.value, schema.value_len, &g, &err);
    if (status) {
        const bool unsupported = status == KVASIR_ERR_UNSUPPORTED;
        printf("%s: %s\n", unsupported ? "not supported" : "no schema", err.text);
        *(unsupported ? &r->unsupported : &r->wrong) += 1;
        return EXIT_GOOD;
    }
    r->compiled++;
    printf("compiled\n");
    const int code = check_tests(r, g, member(line, "tests"));
    kvasir_grammar_destroy(g);
    return code;
}

static int check_schemas(struct run *r) {
    const int code = each_line(r, r->a->schema, check_schema_line, NULL);
    if (code)
        return code;
    printf("%llu schemas: %llu compiled, %llu not supported, %llu no schema\n",
           (unsigned long long)(r->compiled + r->unsupported + r->wrong),
           (unsigned long long)r->compiled, (unsigned long long)r->unsupported,
           (unsigned long long)r->wrong);
    printf("%llu tests of them: %llu as they should be, %llu accepted that are not valid, %llu "
           "refused that are valid\n",
           (unsigned long long)r->tests, (unsigned long long)r->agree,
           (unsigned long long)r->accepted, (unsigned long long)r->too_strict);
    if (r->refused)
        return EXIT_RUN;
    return r->unsupported ? EXIT_NOT_SUPPORTED : r->wrong ? EXIT_USAGE : EXIT_GOOD;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int check_flags(const struct grammar_args *a) {
    if (strcmp(a->action, "check") != 0)
        return usage_error(&COMMAND, "unknown action \"%.60s\"; there is check", a->action);
    if (a->gbnf && a->regex)
        return usage_error(&COMMAND, "--gbnf and --regex: only one is allowed");
    if (a->jsonl && !a->instances.n && (a->gbnf || a->regex))
        return usage_error(&COMMAND, "--jsonl: needs an INSTANCE with %s",
                           a->gbnf ? "--gbnf" : "--regex");
    return EXIT_GOOD;
}

int grammar_main(int argc, char **argv) {
    struct grammar_args a = {0};
    int code;
    if (options_read(&COMMAND, argc, argv, &a, &code)) {
        struct run r = {.a = &a,
                        .kind = a.gbnf    ? KVASIR_GRAMMAR_GBNF
                                : a.regex ? KVASIR_GRAMMAR_REGEX
                                          : KVASIR_GRAMMAR_JSON_SCHEMA};
        code = check_flags(&a);
        if (!code)
            code = a.jsonl && !a.instances.n ? check_schemas(&r) : check_schema(&r);
        const int written = finish_output(&COMMAND);
        code = written ? written : code;
        text_free(&r.pointer);
    }
    free(a.instances.items);
    return code;
}
