/* SPDX-License-Identifier: Apache-2.0 */
/* What a parser made of an answer, as one text with adjacent pieces joined:
 *
 *     content   reasoning      call 0, its name and arguments
 *     C(...)    R(...)         F0 name({...})
 */
#ifndef KVASIR_ANSWER_PARTS_H
#define KVASIR_ANSWER_PARTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/answer_syntax.h"

/* Every syntax, with its usual markers. */
static const struct answer_syntax ALL[] = {
    {ANSWER_HERMES, "<tool_call>", "</tool_call>", "<think>", "</think>"},
    {ANSWER_QWEN_CODER, "<tool_call>", "</tool_call>", "<think>", "</think>"},
    {ANSWER_LLAMA3, "<|python_tag|>", NULL, "<think>", "</think>"},
    {ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, "[THINK]", "[/THINK]"},
    {ANSWER_GEMMA4, "<|tool_call>", "<tool_call|>", "<|channel>thought", "<channel|>"},
    {ANSWER_FUNCTION_GEMMA, "<start_function_call>", "<end_function_call>", NULL, NULL},
    {ANSWER_TOOL_CODE, "```tool_code", "```", NULL, NULL},
    {ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>", "<think>", "</think>"},
    {ANSWER_HARMONY, NULL, NULL, NULL, NULL},
};
enum { N_ALL = sizeof ALL / sizeof *ALL };

struct answer_parts {
    char *text; /* [len] and a NUL */
    size_t len, cap;
    int last; /* kind of the last part; -1: none */
    uint32_t calls, arguments;
    uint64_t bytes;    /* of content and reasoning */
    bool wrong;        /* a part broke a rule */
    char ids[4][80];   /* of the first calls */
    bool cut;          /* the answer was ended by its length */
    uint32_t refuse;   /* gives up at this many parts; 0: never */
    uint32_t n_pieces; /* parts so far, if refuse is set */
};

static inline void parts_add(struct answer_parts *a, const char *text, size_t n) {
    if (a->cap - a->len <= n) {
        a->cap = 2 * a->cap + n + 256;
        a->text = realloc(a->text, a->cap);
        if (!a->text)
            abort();
    }
    memcpy(a->text + a->len, text, n);
    a->len += n;
    a->text[a->len] = 0;
}

static inline bool parts_take(void *user, const struct answer_part *part) {
    struct answer_parts *a = user;
    char head[32];
    bool piece = part->kind == ANSWER_CONTENT || part->kind == ANSWER_REASONING;
    if (a->refuse && ++a->n_pieces >= a->refuse)
        return false;
    if (a->last >= 0 && (!piece || a->last != (int)part->kind) && part->kind != ANSWER_ARGUMENTS)
        parts_add(a, ")", 1);
    if (part->kind == ANSWER_CALL) {
        parts_add(a, head, (size_t)snprintf(head, sizeof head, "F%u ", part->call));
        a->wrong |= part->call != a->calls || !part->id || !*part->id || !*part->text ||
                    a->arguments != a->calls;
        if (a->calls < 4)
            snprintf(a->ids[a->calls], sizeof a->ids[0], "%s", part->id);
        a->calls++;
    } else if (part->kind == ANSWER_ARGUMENTS) {
        json_t *object = json_loadb(part->text, part->len, JSON_ALLOW_NUL, NULL);
        a->wrong |=
            !json_is_object(object) || a->calls != ++a->arguments || part->call + 1 != a->calls;
        json_decref(object);
        parts_add(a, "(", 1);
    } else {
        if (a->last != (int)part->kind)
            parts_add(a, part->kind == ANSWER_CONTENT ? "C(" : "R(", 2);
        a->wrong |= part->len == 0;
        a->bytes += part->len;
    }
    parts_add(a, part->text, part->len);
    a->last = part->kind;
    return true;
}

/* The answer in pieces: cut[i] bytes each, the rest as one. False: the parser gave up. */
static inline bool parts_of(const struct answer_options *o, const char *text, size_t len,
                            const size_t *cuts, size_t n_cuts, struct answer_parts *a) {
    struct answer_parser *p = answer_parser_create(o, parts_take, a);
    bool good = p != NULL;
    a->last = -1;
    parts_add(a, "", 0);
    for (size_t i = 0; good && i <= n_cuts; i++) {
        size_t n = i < n_cuts && cuts[i] < len ? cuts[i] : len;
        good = answer_parser_push(p, text, n);
        text += n;
        len -= n;
    }
    good = good && answer_parser_finish(p, a->cut);
    if (a->last >= 0)
        parts_add(a, ")", 1);
    a->wrong |= good && answer_parser_calls(p) != a->calls;
    answer_parser_destroy(p);
    return good;
}

static inline void parts_free(struct answer_parts *a) {
    free(a->text);
    *a = (struct answer_parts){0};
}

#endif
