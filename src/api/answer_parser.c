/* SPDX-License-Identifier: Apache-2.0 */
/* answer_parser.c: an answer's text to parts (answer_syntax.h).
 *
 *     push --> in: text that is not decided yet
 *                |
 *              step    TEXT    content or reasoning up to the next marker
 *                |     CALL    held until its end marker, then read (answer_calls.c)
 *                |     BARE    may a call begin here without a marker? (Llama 3, Qwen2.5)
 *                |     FENCE   may a call begin in this block of code?
 *                |     HEADER  of harmony, held until <|message|>
 *                |     REST    content up to the end
 *                v
 *              segment: text of one kind between markers, without the white space that is
 *                syntax --> fn
 *
 * Each step either takes something from `in` or waits for more. It remembers how far it has looked,
 * so that only the bytes of a marker's beginning are looked at twice.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/answer_syntax.h"
#include "util/json.h"

/* ---- state ----------------------------------------------------------------------------------- */

enum state { TEXT, CALL, BARE, FENCE, HEADER, REST };

enum action {
    OPEN_THINKING,
    CLOSE_THINKING,
    OPEN_CALL,
    OPEN_FUNCTION, /* Qwen3-Coder's, without the outer marker */
    OPEN_FENCE,
    DROP,
    END_MESSAGE,  /* of harmony */
    NEXT_MESSAGE, /* likewise: its header begins here */
};
struct marker {
    const char *text;
    enum action action;
};

struct answer_parser {
    struct answer_options o;
    answer_part_fn *fn;
    void *user;
    enum state state;
    bool failed, ended, cut;
    struct text_buf in;
    size_t at;      /* offset in `in`; text before it is decided */
    size_t scanned; /* bytes after at that were looked at */
    /* CALL */
    size_t body;       /* offset from at, after the call's marker */
    const char *close; /* its end marker; NULL: the next call's beginning */
    bool bare;         /* it began without a marker */
    bool fenced;       /* it is in a block of code */
    bool sure, quotes; /* known whether texts are quoted; they are */
    bool braces;       /* the first one was passed */
    char in_quotes;    /* the quote that began a text; 0: none did */
    bool escaped;
    json_t *name; /* harmony's; NULL: in the body */
    /* segment */
    bool thinking;         /* it is reasoning */
    bool begun;            /* a part of it was given */
    bool after_marker;     /* a marker precedes it */
    bool given[2];         /* there was content, reasoning */
    struct text_buf space; /* of it: white space that may be syntax */
    bool call_in_reason;   /* a call ended reasoning, whose end marker may still come */
    bool bare_function;    /* </tool_call> may come without <tool_call> */
    uint32_t n_calls;
};

static bool harmony(const struct answer_parser *p) {
    return p->o.syntax.tools == ANSWER_HARMONY;
}

static const char *undecided(const struct answer_parser *p) {
    return p->in.data ? p->in.data + p->at : "";
}

static size_t undecided_len(const struct answer_parser *p) {
    return p->in.len - p->at;
}

static void consume(struct answer_parser *p, size_t n) {
    ASSERT(n <= undecided_len(p));
    p->at += n;
    p->scanned = 0;
}

/* Drops decided text. Moves less than was dropped, so that the total cost is linear. */
static void compact(struct answer_parser *p) {
    ASSERT(p->at <= p->in.len);
    if (p->at <= p->in.len / 2)
        return;
    memmove(p->in.data, p->in.data + p->at, undecided_len(p));
    p->in.len -= p->at;
    p->at = 0;
}

/* ---- segments -------------------------------------------------------------------------------- */

static void give_part(struct answer_parser *p, const struct answer_part *one) {
    if (!p->failed && !p->fn(p->user, one))
        p->failed = true;
}

static void text_part(struct answer_parser *p, const char *text, size_t len) {
    if (len)
        give_part(p, &(struct answer_part){.kind = p->thinking ? ANSWER_REASONING : ANSWER_CONTENT,
                                           .text = text,
                                           .len = len});
}

static void hold_space(struct answer_parser *p, const char *text, size_t len) {
    if (!text_append(&p->space, text, len))
        p->failed = true;
}

static void give_space(struct answer_parser *p) {
    text_part(p, p->space.data, p->space.len);
    p->space.len = 0;
}

static void begin_segment(struct answer_parser *p) {
    bool join = p->given[p->thinking] && (p->thinking || harmony(p));
    if (join)
        text_part(p, "\n", 1);
    p->begun = p->given[p->thinking] = true;
}

static void give_text(struct answer_parser *p, const char *text, size_t len) {
    size_t i = 0;
    if (!p->begun) {
        while (p->after_marker && p->space.len == 0 && i < len && text[i] == '\n')
            i++;
        size_t from = i;
        while (i < len && isspace((unsigned char)text[i]))
            i++;
        hold_space(p, text + from, i - from);
        if (i == len)
            return;
        begin_segment(p);
    }
    size_t end = len;
    while (end > i && text[end - 1] == '\n')
        end--;
    if (end > i) {
        give_space(p);
        text_part(p, text + i, end - i);
    }
    hold_space(p, text + end, len - end);
}

/* A marker follows. */
static void end_segment(struct answer_parser *p) {
    p->space.len = 0;
    p->begun = false;
    p->after_marker = true;
}

/* ---- markers --------------------------------------------------------------------------------- */

enum { MARKERS_MAX = 12 };

static void add_marker(struct marker *m, size_t *n, const char *text, enum action action) {
    ASSERT(*n < MARKERS_MAX);
    if (text)
        m[(*n)++] = (struct marker){text, action};
}

static size_t harmony_markers(struct marker *m) {
    size_t n = 0;
    add_marker(m, &n, "<|end|>", END_MESSAGE);
    add_marker(m, &n, "<|return|>", END_MESSAGE);
    add_marker(m, &n, "<|call|>", END_MESSAGE);
    add_marker(m, &n, "<|start|>", NEXT_MESSAGE);
    add_marker(m, &n, "<|channel|>", NEXT_MESSAGE);
    add_marker(m, &n, "<|message|>", DROP);
    add_marker(m, &n, "<|constrain|>", DROP);
    return n;
}

/* Markers that count in text. */
static size_t text_markers(const struct answer_parser *p, struct marker *m) {
    const struct answer_syntax *s = &p->o.syntax;
    size_t n = 0;
    if (harmony(p))
        return harmony_markers(m);
    add_marker(m, &n, s->think_open, OPEN_THINKING);
    if (p->thinking || p->call_in_reason)
        add_marker(m, &n, s->think_close, CLOSE_THINKING);
    if (!p->o.tools)
        return n;
    add_marker(m, &n, s->call_open, OPEN_CALL);
    if (s->tools == ANSWER_QWEN_CODER) {
        add_marker(m, &n, "<function=", OPEN_FUNCTION);
        if (p->bare_function)
            add_marker(m, &n, s->call_close, DROP);
    }
    if (p->o.fences && !p->thinking && s->tools != ANSWER_TOOL_CODE) {
        add_marker(m, &n, "```json", OPEN_FENCE);
        add_marker(m, &n, "```tool_call", OPEN_FENCE);
    }
    return n;
}

/* Markers that end a call. */
static size_t call_markers(const struct answer_parser *p, struct marker *m) {
    size_t n = 0;
    if (harmony(p))
        return harmony_markers(m);
    if (p->close)
        add_marker(m, &n, p->close, DROP);
    else /* the next one's beginning */
        add_marker(m, &n, p->o.syntax.call_open, OPEN_CALL);
    return n;
}

/* Whether the first character of a call tells that its texts are quoted. */
static bool begins_quoted(enum answer_tools tools, char c) {
    switch (tools) {
    case ANSWER_MISTRAL:
    case ANSWER_PYTHONIC:
    case ANSWER_TOOL_CODE:
        return true;
    case ANSWER_GEMMA4: /* call:f{"k": JSON: see pass_char */
    case ANSWER_FUNCTION_GEMMA:
    case ANSWER_TOOLS_NONE:
        return false;
    default:
        return c == '{' || c == '[';
    }
}

static bool is_quote(enum answer_tools tools, char c) {
    return c == '"' || (c == '\'' && (tools == ANSWER_PYTHONIC || tools == ANSWER_TOOL_CODE));
}

/* In JSON and Python, markers inside quoted strings are not markers. Other syntaxes between the
 * same markers do not quote (an apostrophe is just text). The first character tells which it is,
 * or the first one in braces. */
static void pass_char(struct answer_parser *p, char c) {
    enum answer_tools tools = p->o.syntax.tools;
    if (!p->sure && !isspace((unsigned char)c)) {
        const bool braces = tools == ANSWER_GEMMA4 || tools == ANSWER_FUNCTION_GEMMA;
        p->quotes = begins_quoted(tools, c) || (p->braces && c == '"');
        p->sure = !braces || p->braces;
        p->braces |= braces && c == '{';
    }
    if (!p->quotes)
        return;
    if (p->escaped)
        p->escaped = false;
    else if (p->in_quotes && c == '\\')
        p->escaped = true;
    else if (p->in_quotes ? c == p->in_quotes : is_quote(tools, c))
        p->in_quotes = p->in_quotes ? 0 : c;
    else if (c == '\n') /* not allowed in a string: the quote was none */
        p->in_quotes = 0;
}

/* Continues the search for a marker at p->scanned. NULL: none before p->scanned, where one may
 * begin once more text comes. */
static const struct marker *find_marker(struct answer_parser *p, const struct marker *m, size_t n,
                                        size_t most) {
    const char *text = undecided(p);
    size_t len = undecided_len(p) < most ? undecided_len(p) : most;
    DEBUG_ASSERT(p->scanned <= undecided_len(p));
    for (; p->scanned < len; p->scanned++) {
        size_t left = len - p->scanned;
        const char *here = text + p->scanned;
        for (size_t k = 0; k < n && !p->in_quotes; k++) {
            size_t size = strlen(m[k].text);
            bool same =
                *here == *m[k].text && memcmp(here, m[k].text, left < size ? left : size) == 0;
            if (same && left >= size)
                return &m[k];
            if (same && !p->ended)
                return NULL;
        }
        if (p->state == CALL)
            pass_char(p, *here);
    }
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

uint64_t answer_seed(const char *id, uint32_t choice) {
    return (hash_fnv1a(id, strlen(id)) ^ choice) * 0x100000001b3u;
}

/* "call_" and 24 characters; Mistral's templates want 9 characters and nothing else. */
enum { ID_SIZE = 8 + 24 + 1 };
static void make_id(const struct answer_parser *p, char id[ID_SIZE]) {
    static const char CHARS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    bool mistral = p->o.syntax.tools == ANSWER_MISTRAL;
    uint64_t state = p->o.seed + 0x9e3779b97f4a7c15u * p->n_calls;
    const char *prefix = p->o.id_prefix ? p->o.id_prefix : "call_";
    size_t n = mistral ? 0 : strlen(prefix);
    ASSERT(n <= 8);
    memcpy(id, prefix, n);
    for (int i = 0; i < (mistral ? 9 : 24); i++) { /* splitmix64 */
        state += 0x9e3779b97f4a7c15u * (UINT64_C(1) << 32 | 1);
        id[n++] = CHARS[mix_bits(state) % (sizeof CHARS - 1)];
    }
    ASSERT(n < ID_SIZE);
    id[n] = 0;
}

static void call_parts(struct answer_parser *p, json_t *call) {
    json_t *name = json_object_get(call, "name");
    const char *given = json_string_value(json_object_get(call, "id"));
    char id[ID_SIZE], *arguments;
    if (p->failed || (p->o.single && p->n_calls))
        return;
    arguments = answer_arguments_text(json_object_get(call, "arguments"));
    if (!arguments) {
        p->failed = true;
        return;
    }
    make_id(p, id);
    give_part(p, &(struct answer_part){.kind = ANSWER_CALL,
                                       .text = json_string_value(name),
                                       .len = json_string_length(name),
                                       .call = p->n_calls,
                                       .id = given ? given : id});
    give_part(p, &(struct answer_part){.kind = ANSWER_ARGUMENTS,
                                       .text = arguments,
                                       .len = strlen(arguments),
                                       .call = p->n_calls});
    p->n_calls++;
    free(arguments);
}

/* Harmony's body is the arguments. */
static size_t read_named(const struct answer_parser *p, const char *text, size_t len,
                         json_t **calls) {
    json_t *arguments = NULL;
    size_t i = 0;
    while (i < len && isspace((unsigned char)text[i]))
        i++;
    *calls = NULL;
    if (i == len)
        arguments = json_object();
    else if (json_load_request(text, len, JSON_ALLOW_NUL, &arguments, NULL) != KVASIR_OK)
        return 0;
    if (json_is_object(arguments))
        *calls = json_pack("[{s:O, s:O}]", "name", p->name, "arguments", arguments);
    json_decref(arguments);
    return *calls ? len : 0;
}

static void begin_call(struct answer_parser *p, size_t marker, const char *close) {
    p->state = CALL;
    p->body = p->scanned = marker;
    p->close = close;
    p->bare = p->fenced = p->sure = p->quotes = p->braces = p->escaped = false;
    p->in_quotes = 0;
}

static void continue_text(struct answer_parser *p) {
    enum answer_tools tools = p->o.syntax.tools;
    bool bare = tools == ANSWER_LLAMA3 || tools == ANSWER_HERMES;
    bare = bare && p->o.tools && !p->o.body && !p->thinking && !p->begun;
    p->state = bare ? BARE : TEXT;
}

/* Whether all names are those of tools. */
static bool are_tools(json_t *calls, json_t *tools) {
    json_t *call, *tool;
    size_t i, k;
    json_array_foreach(calls, i, call) {
        bool found = false;
        json_array_foreach(tools, k, tool) found |=
            json_equal(json_object_get(json_object_get(tool, "function"), "name"),
                       json_object_get(call, "name"));
        if (!found)
            return false;
    }
    return true;
}

/* The call's text ends at offset `end` from at, where a marker of `marker` bytes ends it. */
static void close_call(struct answer_parser *p, size_t end, size_t marker, bool closed) {
    ASSERT(p->body <= end && end + marker <= undecided_len(p));
    const char *body = undecided(p) + p->body;
    size_t len = end - p->body, i, n;
    json_t *calls = NULL, *call;
    enum answer_tools syntax = p->fenced ? ANSWER_HERMES
                               : p->bare ? ANSWER_LLAMA3
                                         : p->o.syntax.tools;
    size_t used = p->name ? read_named(p, body, len, &calls)
                          : answer_calls_read(syntax, body, len, closed, p->o.schema, &calls);
    const bool half = p->cut && !closed && (p->o.forced || !p->bare);
    if (p->fenced && !(closed && are_tools(calls, p->o.schema))) {
        json_decref(calls);
        calls = NULL;
    }
    p->in_quotes = 0;
    p->state = TEXT;
    if (!calls) { /* as it was written */
        n = end + marker;
        if (!half)
            give_text(p, undecided(p), n);
        consume(p, n);
    } else {
        ASSERT(used <= len);
        end_segment(p);
        json_array_foreach(calls, i, call) call_parts(p, call);
        json_decref(calls);
        p->call_in_reason |= p->thinking;
        p->thinking = false;
        if (!half || !p->o.forced)
            give_text(p, body + used, len - used);
        consume(p, end + marker);
        continue_text(p);
    }
    json_decref(p->name);
    p->name = NULL;
}

static bool step_call(struct answer_parser *p) {
    struct marker m[MARKERS_MAX];
    size_t n = call_markers(p, m);
    const struct marker *found = find_marker(p, m, n, SIZE_MAX);
    if (!found && !p->ended)
        return false;
    if (!found) {
        close_call(p, undecided_len(p), 0, false);
        return true;
    }
    bool taken = found->action == DROP || found->action == END_MESSAGE;
    bool message = found->action == END_MESSAGE || found->action == NEXT_MESSAGE;
    close_call(p, p->scanned, taken ? strlen(found->text) : 0, true);
    if (message)
        p->state = HEADER;
    return true;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void set_thinking(struct answer_parser *p, bool thinking, size_t marker) {
    end_segment(p);
    consume(p, marker);
    p->thinking = thinking;
    p->call_in_reason = false;
    continue_text(p);
}

static void act(struct answer_parser *p, const struct marker *m) {
    size_t size = strlen(m->text);
    switch (m->action) {
    case OPEN_THINKING:
        if (p->thinking) /* the prompt had opened it already */
            consume(p, size);
        else
            set_thinking(p, true, size);
        break;
    case CLOSE_THINKING:
        set_thinking(p, false, size);
        break;
    case OPEN_CALL:
        begin_call(p, size, p->o.syntax.call_close);
        break;
    case OPEN_FUNCTION:
        begin_call(p, 0, "</function>");
        p->bare_function = true;
        break;
    case OPEN_FENCE:
        p->body = size;
        p->state = FENCE;
        break;
    case DROP:
        end_segment(p);
        consume(p, size);
        break;
    case END_MESSAGE:
    case NEXT_MESSAGE:
        end_segment(p);
        consume(p, m->action == END_MESSAGE ? size : 0);
        p->thinking = false;
        p->state = HEADER;
        break;
    }
}

/* Of an answer that follows a grammar: whether its body begins here, behind white space. */
static bool begins_body(const struct answer_parser *p, const struct marker *m, size_t n) {
    const char *text = undecided(p);
    size_t len = undecided_len(p), i = 0;
    while (i < len && isspace((unsigned char)text[i]))
        i++;
    for (size_t k = 0; k < n; k++) {
        size_t size = strlen(m[k].text), left = len - i;
        if (memcmp(text + i, m[k].text, left < size ? left : size) == 0)
            return false; /* or may yet become one */
    }
    return i < len;
}

static bool step_rest(struct answer_parser *p) {
    size_t len = undecided_len(p);
    give_text(p, undecided(p), len);
    consume(p, len);
    return true;
}

static bool step_text(struct answer_parser *p) {
    struct marker m[MARKERS_MAX];
    size_t n = text_markers(p, m);
    p->scanned = 0;
    if (p->o.body && !harmony(p) && !p->thinking && begins_body(p, m, n)) {
        p->state = REST;
        return true;
    }
    const struct marker *found = find_marker(p, m, n, SIZE_MAX);
    size_t len = p->scanned;
    give_text(p, undecided(p), len);
    consume(p, len);
    if (found)
        act(p, found);
    return found || len;
}

/* ---- calls without a marker ------------------------------------------------------------------ */

enum likely { NO, YES, UNSURE };
enum { SPACE_MAX = 64 }; /* before a call, and before its first key */

/* It may be a call if it is an object whose first key is one of a call. */
static enum likely begins_call(const char *text, size_t len) {
    static const char *const KEYS[] = {"name\"",       "type\"",      "function\"",
                                       "parameters\"", "arguments\"", "id\""};
    ASSERT(len > 0);
    size_t i = 1, from = 1;
    if (text[0] != '{')
        return NO;
    while (i < len && isspace((unsigned char)text[i]))
        i++;
    if (i - from > SPACE_MAX)
        return NO;
    if (i == len)
        return UNSURE;
    if (text[i++] != '"')
        return NO;
    for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++) {
        size_t size = strlen(KEYS[k]), left = len - i;
        if (memcmp(text + i, KEYS[k], left < size ? left : size) == 0)
            return left < size ? UNSURE : YES;
    }
    return NO;
}

static bool step_bare(struct answer_parser *p) {
    size_t i = 0;
    while (i < undecided_len(p) && isspace((unsigned char)undecided(p)[i]))
        i++;
    give_text(p, undecided(p), i);
    consume(p, i);
    if (undecided_len(p) == 0)
        return true;
    enum likely call = begins_call(undecided(p), undecided_len(p));
    if (call == UNSURE && !p->ended)
        return false;
    p->state = TEXT;
    if (call == YES) {
        begin_call(p, 0, NULL);
        p->bare = true;
    }
    return true;
}

/* A block of code holds a call if it begins like one; its end says whether it is (close_call). */
static bool step_fence(struct answer_parser *p) {
    const char *text = undecided(p);
    const size_t len = undecided_len(p), marker = p->body;
    size_t i = marker;
    ASSERT(marker <= len);
    while (i < len && i - marker <= SPACE_MAX && isspace((unsigned char)text[i]))
        i++;
    const enum likely call = i < len ? begins_call(text + i, len - i) : UNSURE;
    if (call == UNSURE && !p->ended)
        return false;
    if (call == YES) {
        begin_call(p, marker, "```");
        p->bare = p->fenced = true;
        return true;
    }
    give_text(p, text, marker);
    consume(p, marker);
    p->state = TEXT;
    return true;
}

/* ---- harmony --------------------------------------------------------------------------------- */

enum { HEADER_MAX = 512 };

/* The word after `mark` in a header; NULL and length 0 if there is no mark. */
static const char *word_after(const char *text, size_t len, const char *mark, size_t *n) {
    size_t size = strlen(mark);
    *n = 0;
    for (size_t i = 0; i + size <= len; i++) {
        if (memcmp(text + i, mark, size) != 0)
            continue;
        const char *word = text + i + size;
        size_t left = len - i - size;
        while (*n < left && !isspace((unsigned char)word[*n]) && word[*n] != '<')
            ++*n;
        return word;
    }
    return NULL;
}

static void open_message(struct answer_parser *p, size_t header) {
    static const char FUNCTIONS[] = "functions.";
    size_t n, n_to, all = header + strlen("<|message|>");
    const char *channel = word_after(undecided(p), header, "<|channel|>", &n);
    const char *to = word_after(undecided(p), header, "to=", &n_to);
    p->thinking = n == 8 && memcmp(channel, "analysis", n) == 0;
    p->state = TEXT;
    if (n_to && p->o.tools && !memchr(to, 0, n_to)) {
        size_t skip = sizeof FUNCTIONS - 1;
        if (n_to > skip && memcmp(to, FUNCTIONS, skip) == 0) {
            to += skip;
            n_to -= skip;
        }
        p->thinking = false;
        p->name = json_stringn(to, n_to);
        if (p->name)
            begin_call(p, all, NULL);
        else
            p->failed = true;
        return;
    }
    end_segment(p);
    consume(p, all);
    if (p->o.body && !p->thinking)
        p->state = REST;
}

/* Text that is too long for a header, or has no sign of one, is content. In the first case its
 * first marker is dropped, so that it is not taken for a header again. */
static bool step_header(struct answer_parser *p) {
    static const struct marker MESSAGE = {"<|message|>", DROP};
    const struct marker *found = find_marker(p, &MESSAGE, 1, HEADER_MAX + strlen(MESSAGE.text));
    if (p->scanned > HEADER_MAX) {
        struct marker m[MARKERS_MAX];
        size_t n = harmony_markers(m), drop = 0;
        for (size_t k = 0; k < n; k++)
            if (memcmp(undecided(p), m[k].text, strlen(m[k].text)) == 0)
                drop = strlen(m[k].text);
        consume(p, drop);
        p->state = TEXT;
        return true;
    }
    if (found) {
        open_message(p, p->scanned);
        return true;
    }
    if (!p->ended)
        return false;
    size_t n, len = undecided_len(p);
    if (word_after(undecided(p), len, "<|", &n)) /* a header that was cut off */
        consume(p, len);
    p->state = TEXT;
    return true;
}

/* ---- a stream -------------------------------------------------------------------------------- */

static bool step(struct answer_parser *p) {
    switch (p->state) {
    case TEXT:
        return step_text(p);
    case CALL:
        return step_call(p);
    case BARE:
        return step_bare(p);
    case FENCE:
        return step_fence(p);
    case HEADER:
        return step_header(p);
    case REST:
        return step_rest(p);
    }
    return false;
}

struct answer_parser *answer_parser_create(const struct answer_options *options, answer_part_fn *fn,
                                           void *user) {
    struct answer_parser *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->o = *options;
    p->fn = fn;
    p->user = user;
    p->thinking = p->after_marker = options->start == ANSWER_AT_REASONING;
    continue_text(p);
    if (options->start == ANSWER_AT_HEADER)
        p->state = HEADER;
    return p;
}

void answer_parser_destroy(struct answer_parser *p) {
    if (!p)
        return;
    json_decref(p->name);
    text_free(&p->in);
    text_free(&p->space);
    free(p);
}

bool answer_parser_push(struct answer_parser *p, const char *text, size_t len) {
    ASSERT(!p->ended);
    p->failed = p->failed || !text_append(&p->in, text, len);
    while (!p->failed && undecided_len(p) && step(p)) {
    }
    compact(p);
    return !p->failed;
}

bool answer_parser_finish(struct answer_parser *p, bool cut) {
    p->ended = true;
    p->cut = cut;
    while (!p->failed && undecided_len(p) && step(p)) {
    }
    if (p->begun || !p->after_marker)
        give_space(p);
    return !p->failed;
}

uint32_t answer_parser_calls(const struct answer_parser *p) {
    return p->n_calls;
}
