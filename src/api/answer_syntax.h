/* SPDX-License-Identifier: Apache-2.0 */
/* What a chat's answer says besides its content: reasoning and tool calls, written in markers that
 * each family of models has of its own (answer_syntax.c: which; answer_parser.c: a stream of text
 * to parts; answer_calls.c: the text of calls to names and arguments).
 *
 *     <think>It asks for the weather.</think>I look. <tool_call>{"name": "get", ...}</tool_call>
 *            REASONING                       CONTENT            CALL, ARGUMENTS
 *
 * Invariants
 *   ANSWER-1  Parts depend on the whole text, not on where it was cut; pieces of one kind that
 *             follow each other are one part in pieces.
 *   ANSWER-2  No marker is in a part, but for ANSWER-3 and for an end that ends nothing. Text that
 *             may become a marker is held back.
 *   ANSWER-3  What cannot be read as calls stays text, as it was written, markers and all: content,
 *             or reasoning where it stood in that. Names are checked against nothing.
 *   ANSWER-4  Arguments are the JSON text of an object, always.
 *   ANSWER-5  Time is linear in the text; memory is what the text itself takes, at most (a call's
 *             text and white space are held until it is known what they are).
 *
 * White space: line ends beside a marker are syntax and dropped, white space alone between two
 * markers, or between a marker and an end of the answer, too. All other white space is text. So
 * "</think>\n\nHi" is "Hi", "a\n<tool_call>..." is "a", and "hi <tool_call>..</tool_call> bye" is
 * "hi  bye". Several reasoning parts of an answer are joined by a line end, as are several messages
 * of harmony (commentary, final).
 *
 * A call may begin within reasoning, which it ends (as in mlx-lm).
 */
#ifndef API_ANSWER_SYNTAX_H
#define API_ANSWER_SYNTAX_H

#include <jansson.h>
#include <kvasir.h>

/* ---- which syntax ---------------------------------------------------------------------------- */

enum answer_tools {
    ANSWER_TOOLS_NONE,
    ANSWER_HERMES,         /* <tool_call>{"name": "f", "arguments": {..}}</tool_call>; where an
                              answer begins without the marker, too (Qwen2.5-Coder) */
    ANSWER_QWEN_CODER,     /* <tool_call><function=f><parameter=k>v</parameter></function>.. */
    ANSWER_LLAMA3,         /* {"name": "f", "parameters": {..}}; {..}, or behind <|python_tag|> */
    ANSWER_MISTRAL,        /* [TOOL_CALLS][{"name": ..}, ..] or [TOOL_CALLS]f[ARGS]{..} */
    ANSWER_GEMMA4,         /* <|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|> */
    ANSWER_FUNCTION_GEMMA, /* <start_function_call>call:f{k:<escape>v<escape>}<end_function_call> */
    ANSWER_TOOL_CODE,      /* ```tool_code f(k="v") ``` (Gemma 3) */
    ANSWER_PYTHONIC,       /* <|tool_call_start|>[f(k="v")]<|tool_call_end|> (LFM2) */
    ANSWER_HARMONY,        /* <|channel|>commentary to=functions.f <|message|>{..}<|call|> */
};

/* Texts are static. */
struct answer_syntax {
    enum answer_tools tools;
    const char *call_open, *call_close;   /* NULL: no calls, or not of this simple kind */
    const char *think_open, *think_close; /* NULL: no reasoning of this simple kind */
};
/* By the markers that the chat template has, and the vocabulary where those do not tell. */
struct answer_syntax answer_syntax_of(const kvasir_tokenizer *tokenizer);

/* Control tokens that are to be in the answer's text (kvasir_request.shown_tokens): those of
 * reasoning, and of calls where tools are shown. *ids: free(). False: out of memory. */
bool answer_shown_tokens(const struct answer_syntax *syntax, bool tools,
                         const kvasir_tokenizer *tokenizer, int32_t **ids, size_t *n);

/* Where an answer begins: what its prompt ends with. */
enum answer_start {
    ANSWER_AT_CONTENT,
    ANSWER_AT_REASONING, /* the prompt opened it */
    ANSWER_AT_HEADER,    /* of harmony: <|start|>assistant */
};
enum answer_start answer_start_of(const struct answer_syntax *syntax, const char *prompt,
                                  size_t len);

/* ---- text to parts --------------------------------------------------------------------------- */

enum answer_part_kind {
    ANSWER_CONTENT,
    ANSWER_REASONING,
    ANSWER_CALL,      /* begins call `call`: its name in text, its id */
    ANSWER_ARGUMENTS, /* of that call, whole */
};
struct answer_part {
    enum answer_part_kind kind;
    const char *text; /* [len], UTF-8 where pushes were; NUL behind names and arguments */
    size_t len;
    uint32_t call;  /* 0, 1, .. in the order of the answer */
    const char *id; /* ANSWER_CALL */
};
/* What a part points to is valid during the call. False: give up; the parser says so, too. */
typedef bool answer_part_fn(void *user, const struct answer_part *part);

struct answer_options {
    struct answer_syntax syntax;
    enum answer_start start;
    bool tools;     /* shown to the model: without, calls are text like any other */
    bool single;    /* calls behind the first are dropped ("parallel_tool_calls": false) */
    json_t *schema; /* the request's tools, for forms that do not write types; may be NULL */
    uint64_t seed;  /* of the ids of calls (answer_seed) */
};
/* Of choice `choice` of request `id`: the same calls get the same ids. */
uint64_t answer_seed(const char *id, uint32_t choice);

/* One choice's answer; one thread at a time. */
struct answer_parser;
/* What options points to is borrowed. NULL: out of memory. */
struct answer_parser *answer_parser_create(const struct answer_options *options, answer_part_fn *fn,
                                           void *user);
void answer_parser_destroy(struct answer_parser *p);
/* False: out of memory, or fn gave up; nothing more comes of this answer. */
bool answer_parser_push(struct answer_parser *p, const char *text, size_t len);
/* The answer ended: what was held back. Nothing may be pushed behind. */
bool answer_parser_finish(struct answer_parser *p);
/* Calls so far: finish_reason is "tool_calls" where there are any. */
uint32_t answer_parser_calls(const struct answer_parser *p);

/* ---- the text of calls (for answer_parser.c) ------------------------------------------------- */

/* Reads calls from `text`, what stands between the markers (`closed`: both were there), into
 * *calls, a new array of {"name", "arguments": {}} and perhaps "id". Returns how many bytes they
 * took: all, or none where it is no call; MISTRAL and LLAMA3, which write no end, may leave text
 * behind the last call. */
size_t answer_calls_read(enum answer_tools tools, const char *text, size_t len, bool closed,
                         json_t *schema, json_t **calls);
/* The JSON text of arguments; free(). NULL: out of memory. */
char *answer_arguments_text(json_t *arguments);

#endif
