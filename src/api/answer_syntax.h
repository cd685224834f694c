/* SPDX-License-Identifier: Apache-2.0 */
/* answer_syntax.h: reasoning and tool calls in a chat's answer. Each family of models marks them in
 * its own way (answer_syntax.c: which way; answer_parser.c: a stream of text to parts;
 * answer_calls.c: the text of calls to names and arguments).
 *
 *     <think>It asks for the weather.</think>I look. <tool_call>{"name": "get", ...}</tool_call>
 *            REASONING                       CONTENT            CALL, ARGUMENTS
 *
 * Invariants
 *   ANSWER-1  Parts depend on the whole text, not on how it was cut into pushes. Consecutive pieces
 *             of one kind are one part.
 *   ANSWER-2  No part contains a marker, except by ANSWER-3 and for an end marker that ends
 *             nothing. Text that may become a marker is held back.
 *   ANSWER-3  What cannot be read as calls stays text exactly as written, with its markers:
 *             content, or reasoning if it is inside reasoning. Function names are not checked,
 *             except where a call has the form of other text: ```json {"name": "f", ..} ```
 *             Only the beginning of a call that the answer's length cut off is dropped.
 *   ANSWER-4  Arguments are always the JSON text of an object.
 *   ANSWER-5  Time is linear in the text. Memory is at most that of the text (a call's text and
 *             white space are held until it is known what they are).
 *
 * White space: line ends next to a marker are syntax and dropped, and so is white space alone
 * between two markers, or between a marker and the start or end of the answer. All other white
 * space is text. So "</think>\n\nHi" is "Hi", "a\n<tool_call>..." is "a", and "hi
 * <tool_call>..</tool_call> bye" is "hi  bye". Several reasoning parts of an answer are joined by a
 * line end, as are several messages of harmony (commentary, final).
 *
 * A call may begin inside reasoning, which it ends (as in mlx-lm).
 */
#ifndef API_ANSWER_SYNTAX_H
#define API_ANSWER_SYNTAX_H

#include <jansson.h>
#include <kvasir.h>

/* ---- which syntax ---------------------------------------------------------------------------- */

enum answer_tools {
    ANSWER_TOOLS_NONE,
    ANSWER_HERMES,         /* <tool_call>{"name": "f", "arguments": {..}}</tool_call>; at the start
                              of an answer also without the marker (Qwen2.5-Coder) */
    ANSWER_QWEN_CODER,     /* <tool_call><function=f><parameter=k>v</parameter></function>.. */
    ANSWER_LLAMA3,         /* {"name": "f", "parameters": {..}}; {..}, or after <|python_tag|> */
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
    const char *call_open, *call_close;   /* NULL: no calls, or not marked by two texts */
    const char *think_open, *think_close; /* NULL: no reasoning, or likewise */
};
/* By the markers in the chat template, or else by the vocabulary. */
struct answer_syntax answer_syntax_of(const kvasir_tokenizer *tokenizer);

/* Reads calls, or reasoning, as a parser of vLLM's with this name does, whatever the template says.
 * False: no parser that this build has is called so. */
bool answer_syntax_tools(struct answer_syntax *s, const char *parser);
bool answer_syntax_reasoning(struct answer_syntax *s, const char *parser);

bool answer_template_has(const kvasir_tokenizer *tokenizer, const char *text);
bool answer_is_control(const kvasir_tokenizer *tokenizer, int32_t id);

/* Control tokens that must be visible in the answer's text (kvasir_request.shown_tokens): those of
 * reasoning, and of calls if tools are shown. *ids: free(). False: out of memory. */
bool answer_shown_tokens(const struct answer_syntax *syntax, bool tools,
                         const kvasir_tokenizer *tokenizer, int32_t **ids, size_t *n);

/* The tokens of a chat's prompt. authors (kvasir_chat_render_by): control tokens are what the
 * template wrote and, in an assistant's messages, the markers of reasoning and calls; NULL: all
 * names of control tokens are. limits NULL: none. *ids: kvasir_free. */
kvasir_status answer_tokenize_prompt(const struct answer_syntax *syntax,
                                     const kvasir_tokenizer *tokenizer, const char *prompt,
                                     size_t len, const char *authors,
                                     const kvasir_text_limits *limits, int32_t **ids, size_t *n,
                                     kvasir_error *err);

/* What an answer begins with, by the end of its prompt. */
enum answer_start {
    ANSWER_AT_CONTENT,
    ANSWER_AT_REASONING, /* the prompt opened it */
    ANSWER_AT_HEADER,    /* of harmony: <|start|>assistant */
};
enum answer_start answer_start_of(const struct answer_syntax *syntax, const char *prompt,
                                  size_t len);

/* Whether the answer may begin with reasoning that the prompt has neither opened nor closed. */
bool answer_may_reason(const struct answer_syntax *syntax, const char *prompt, size_t len);

/* ---- text to parts --------------------------------------------------------------------------- */

enum answer_part_kind {
    ANSWER_CONTENT,
    ANSWER_REASONING,
    ANSWER_CALL,      /* begins call `call`: its name in text, its id */
    ANSWER_ARGUMENTS, /* of that call, complete */
};
struct answer_part {
    enum answer_part_kind kind;
    const char *text; /* [len]; UTF-8 if pushes were; names and arguments end with a NUL */
    size_t len;
    uint32_t call;  /* 0, 1, .. in the order of the answer */
    const char *id; /* ANSWER_CALL */
};
/* A part's pointers are valid during the call. False: give up; the parser returns false, too. */
typedef bool answer_part_fn(void *user, const struct answer_part *part);

struct answer_options {
    struct answer_syntax syntax;
    enum answer_start start;
    bool tools;     /* the model was shown tools; otherwise calls are plain text */
    bool single;    /* drop calls after the first ("parallel_tool_calls": false) */
    bool body;      /* after reasoning, what begins with no marker is content to its end, whatever
                       it contains: the answer follows a grammar */
    bool forced;    /* the answer is made of calls, by its grammar */
    bool fences;    /* a block of code that is a call of one of `schema`'s tools counts as one */
    json_t *schema; /* the request's tools, for syntaxes without types; may be NULL */
    uint64_t seed;  /* for the ids of calls (answer_seed) */
    const char *id_prefix; /* of the ids of calls, at most 8 bytes; NULL: "call_" */
};
/* Of choice `choice` of request `id`: the same calls get the same ids. */
uint64_t answer_seed(const char *id, uint32_t choice);

/* One choice's answer; one thread at a time. */
struct answer_parser;
/* What options points to is borrowed. NULL: out of memory. */
struct answer_parser *answer_parser_create(const struct answer_options *options, answer_part_fn *fn,
                                           void *user);
void answer_parser_destroy(struct answer_parser *p);
/* False: out of memory, or fn gave up; the answer ends here. */
bool answer_parser_push(struct answer_parser *p, const char *text, size_t len);
/* The answer is complete: gives what was held back. Nothing may be pushed after this. cut: it was
 * ended by its length, and a call that had a marker and no end is dropped. */
bool answer_parser_finish(struct answer_parser *p, bool cut);
/* Number of calls so far; finish_reason is "tool_calls" if there are any. */
uint32_t answer_parser_calls(const struct answer_parser *p);

/* ---- the text of calls (for answer_parser.c) ------------------------------------------------- */

/* Reads calls from `text`, which is between the markers (`closed`: the end marker was there), into
 * *calls, a new array of {"name", "arguments": {}} and perhaps "id". Returns how many bytes they
 * took: all, or 0 if it is not a call. MISTRAL and LLAMA3, which have no end marker, may leave text
 * after the last call. */
size_t answer_calls_read(enum answer_tools tools, const char *text, size_t len, bool closed,
                         json_t *schema, json_t **calls);
/* The JSON text of arguments, or of a schema; free(). NULL: out of memory. */
char *answer_arguments_text(json_t *arguments);

#endif
