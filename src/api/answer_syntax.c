/* SPDX-License-Identifier: Apache-2.0 */
/* answer_syntax.c: which syntax a model's answers have.
 *
 * A chat template writes earlier answers back into the prompt, or tells the model how to write
 * them, so it contains the markers (mlx-lm looks for them there, too). LFM2's does not, but its
 * vocabulary has them. The first row that matches counts, so specific rows come before general
 * ones.
 */
#include "api/answer_syntax.h"

#include <stdlib.h>
#include <string.h>

#include "util/util.h"

/* ---- templates ------------------------------------------------------------------------------- */

static const struct {
    const char *needs[2]; /* texts that the template contains */
    struct answer_syntax syntax;
} CALLS[] = {
    {{"<|channel|>", "<|message|>"}, {.tools = ANSWER_HARMONY}},
    {{"<|tool_call>", "<tool_call|>"}, {ANSWER_GEMMA4, "<|tool_call>", "<tool_call|>", NULL, NULL}},
    {{"<start_function_call>", "<end_function_call>"},
     {ANSWER_FUNCTION_GEMMA, "<start_function_call>", "<end_function_call>", NULL, NULL}},
    {{"<|tool_list_start|>", "<|tool_list_end|>"},
     {ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>", NULL, NULL}},
    {{"<function=", "<parameter="}, {ANSWER_QWEN_CODER, "<tool_call>", "</tool_call>", NULL, NULL}},
    {{"<tool_call>", "</tool_call>"}, {ANSWER_HERMES, "<tool_call>", "</tool_call>", NULL, NULL}},
    {{"[TOOL_CALLS]", ""}, {ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, NULL, NULL}},
    {{"<|start_header_id|>", "\"parameters\": "},
     {ANSWER_LLAMA3, "<|python_tag|>", NULL, NULL, NULL}},
    {{"<|python_tag|>", ""}, {ANSWER_LLAMA3, "<|python_tag|>", NULL, NULL, NULL}},
    {{"```tool_code", ""}, {ANSWER_TOOL_CODE, "```tool_code", "```", NULL, NULL}},
};

/* needs: what the template contains. */
static const struct {
    const char *open, *close, *needs;
} THINKING[] = {
    {"<|channel>thought", "<channel|>", "<channel|>"},
    {"[THINK]", "[/THINK]", "[/THINK]"},
    {"<think>", "</think>", "</think>"},
    {"<think>", "</think>", "<think>"},
};

static bool contains(const char *text, size_t len, const char *part) {
    size_t n = strlen(part);
    for (; len >= n; text++, len--)
        if (memcmp(text, part, n) == 0)
            return true;
    return false;
}

bool answer_template_has(const kvasir_tokenizer *tokenizer, const char *text) {
    size_t len;
    const char *template = kvasir_chat_template(tokenizer, &len);
    return template && contains(template, len, text);
}

/* It has a name, which is left out of plain text. */
bool answer_is_control(const kvasir_tokenizer *t, int32_t id) {
    char *shown, *hidden;
    size_t n_shown, n_hidden;
    if (kvasir_detokenize(t, &id, 1, 0, &shown, &n_shown, NULL))
        return false;
    kvasir_free(shown);
    if (kvasir_detokenize(t, &id, 1, KVASIR_DETOKENIZE_SKIP_SPECIAL, &hidden, &n_hidden, NULL))
        return false;
    kvasir_free(hidden);
    return n_shown > 0 && n_hidden == 0;
}

static bool has_token(const kvasir_tokenizer *t, const char *name) {
    int32_t *ids;
    size_t n;
    if (kvasir_tokenize(t, name, strlen(name), KVASIR_TOKENIZE_PARSE_SPECIAL, &ids, &n, NULL))
        return false;
    kvasir_free(ids);
    return n == 1;
}

struct answer_syntax answer_syntax_of(const kvasir_tokenizer *tokenizer) {
    struct answer_syntax s = {0};
    size_t len;
    const char *text = kvasir_chat_template(tokenizer, &len);
    if (!text)
        return s;
    for (size_t i = 0; !s.tools && i < sizeof CALLS / sizeof *CALLS; i++)
        if (contains(text, len, CALLS[i].needs[0]) && contains(text, len, CALLS[i].needs[1]))
            s = CALLS[i].syntax;
    if (!s.tools && contains(text, len, "tools") && has_token(tokenizer, "<|tool_call_start|>"))
        s = (struct answer_syntax){ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>",
                                   NULL, NULL};
    if (s.tools == ANSWER_HARMONY)
        return s;
    for (size_t i = 0; !s.think_open && i < sizeof THINKING / sizeof *THINKING; i++)
        if (contains(text, len, THINKING[i].needs)) {
            s.think_open = THINKING[i].open;
            s.think_close = THINKING[i].close;
        }
    return s;
}

/* ---- control tokens -------------------------------------------------------------------------- */

/* Further texts whose control tokens are syntax, ending with NULL. */
static const char *const *more_texts(enum answer_tools tools) {
    static const char *const harmony[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                          "<|message|>", "<|end|>",     "<|call|>",
                                          "<|return|>",  NULL};
    static const char *const gemma4[] = {"<|\"|>", NULL};
    static const char *const function_gemma[] = {"<escape>", NULL};
    static const char *const mistral[] = {"[ARGS]", "[CALL_ID]", NULL};
    static const char *const none[] = {NULL};
    switch (tools) {
    case ANSWER_HARMONY:
        return harmony;
    case ANSWER_GEMMA4:
        return gemma4;
    case ANSWER_FUNCTION_GEMMA:
        return function_gemma;
    case ANSWER_MISTRAL:
        return mistral;
    default:
        return none;
    }
}

enum { SHOWN_MAX = 16 };

static bool add_shown(const kvasir_tokenizer *t, const char *text, int32_t *ids, size_t *n) {
    int32_t *made;
    size_t n_made;
    kvasir_error err;
    if (!text)
        return true;
    if (kvasir_tokenize(t, text, strlen(text), KVASIR_TOKENIZE_PARSE_SPECIAL, &made, &n_made, &err))
        return err.code != KVASIR_ERR_MEMORY; /* without a tokenizer there is no text at all */
    for (size_t i = 0; i < n_made && *n < SHOWN_MAX; i++)
        if (answer_is_control(t, made[i]))
            ids[(*n)++] = made[i];
    kvasir_free(made);
    return true;
}

bool answer_shown_tokens(const struct answer_syntax *syntax, bool tools,
                         const kvasir_tokenizer *tokenizer, int32_t **ids, size_t *n) {
    int32_t *made = malloc(SHOWN_MAX * sizeof *made);
    size_t count = 0;
    bool good = made && add_shown(tokenizer, syntax->think_open, made, &count) &&
                add_shown(tokenizer, syntax->think_close, made, &count);
    if (tools)
        good = good && add_shown(tokenizer, syntax->call_open, made, &count) &&
               add_shown(tokenizer, syntax->call_close, made, &count);
    if (tools || syntax->tools == ANSWER_HARMONY)
        for (const char *const *text = more_texts(syntax->tools); good && *text; text++)
            good = add_shown(tokenizer, *text, made, &count);
    if (!good) {
        free(made);
        return false;
    }
    ASSERT(count <= SHOWN_MAX);
    *ids = made;
    *n = count;
    return true;
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Harmony's markers also end a turn and name the author of the next. Its template takes an
 * assistant's reasoning and calls apart and writes the markers itself, so none are left to others.
 */
kvasir_status answer_tokenize_prompt(const struct answer_syntax *syntax,
                                     const kvasir_tokenizer *tokenizer, const char *prompt,
                                     size_t len, const char *authors,
                                     const kvasir_text_limits *limits, int32_t **ids, size_t *n,
                                     kvasir_error *err) {
    int32_t *markers = NULL;
    kvasir_authors by = {.each = authors};
    if (authors && syntax && syntax->tools != ANSWER_HARMONY &&
        !answer_shown_tokens(syntax, true, tokenizer, &markers, &by.n_markers))
        by.n_markers = 0; /* out of memory, as the next allocation is going to find */
    by.markers = markers;
    kvasir_status status = kvasir_tokenize_by(tokenizer, prompt, len, KVASIR_TOKENIZE_PARSE_SPECIAL,
                                              authors ? &by : NULL, limits, ids, n, err);
    free(markers);
    return status;
}

static bool ends_with(const char *text, size_t len, const char *end) {
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0;
}

bool answer_may_reason(const struct answer_syntax *syntax, const char *prompt, size_t len) {
    while (len && strchr(" \n\r\t", prompt[len - 1]) && prompt[len - 1])
        len--;
    return syntax->think_open &&
           !(syntax->think_close && ends_with(prompt, len, syntax->think_close));
}

enum answer_start answer_start_of(const struct answer_syntax *syntax, const char *prompt,
                                  size_t len) {
    while (len && strchr(" \n\r\t", prompt[len - 1]) && prompt[len - 1])
        len--;
    if (syntax->tools == ANSWER_HARMONY) {
        if (ends_with(prompt, len, "<|start|>assistant"))
            return ANSWER_AT_HEADER;
        return ends_with(prompt, len, "<|channel|>analysis<|message|>") ? ANSWER_AT_REASONING
                                                                        : ANSWER_AT_CONTENT;
    }
    return syntax->think_open && ends_with(prompt, len, syntax->think_open) ? ANSWER_AT_REASONING
                                                                            : ANSWER_AT_CONTENT;
}

/* ---- names of other servers ------------------------------------------------------------------ */

/* vLLM's and vllm-mlx's parsers that read the same. */
static const struct {
    const char *name;
    enum answer_tools tools;
} TOOL_PARSERS[] = {
    {"hermes", ANSWER_HERMES},          {"qwen", ANSWER_HERMES},
    {"qwen3_coder", ANSWER_QWEN_CODER}, {"qwen3_xml", ANSWER_QWEN_CODER},
    {"llama3_json", ANSWER_LLAMA3},     {"llama4_json", ANSWER_LLAMA3},
    {"llama", ANSWER_LLAMA3},           {"mistral", ANSWER_MISTRAL},
    {"gemma4", ANSWER_GEMMA4},          {"functiongemma", ANSWER_FUNCTION_GEMMA},
    {"lfm2", ANSWER_PYTHONIC},          {"openai", ANSWER_HARMONY},
    {"gpt_oss", ANSWER_HARMONY},
};
/* open: of the row of THINKING; NULL: harmony, which has no markers. */
static const struct {
    const char *name, *open;
} REASONING_PARSERS[] = {
    {"qwen3", "<think>"},   {"deepseek_r1", "<think>"},      {"glm45", "<think>"},
    {"mistral", "[THINK]"}, {"gemma4", "<|channel>thought"}, {"openai_gptoss", NULL},
    {"gpt_oss", NULL},
};

bool answer_syntax_tools(struct answer_syntax *s, const char *parser) {
    for (size_t i = 0; i < sizeof TOOL_PARSERS / sizeof *TOOL_PARSERS; i++)
        for (size_t k = 0; k < sizeof CALLS / sizeof *CALLS; k++) {
            const struct answer_syntax *calls = &CALLS[k].syntax;
            if (strcmp(parser, TOOL_PARSERS[i].name) != 0 || calls->tools != TOOL_PARSERS[i].tools)
                continue;
            s->tools = calls->tools;
            s->call_open = calls->call_open;
            s->call_close = calls->call_close;
            return true;
        }
    return false;
}

bool answer_syntax_reasoning(struct answer_syntax *s, const char *parser) {
    for (size_t i = 0; i < sizeof REASONING_PARSERS / sizeof *REASONING_PARSERS; i++) {
        const char *open = REASONING_PARSERS[i].open;
        if (strcmp(parser, REASONING_PARSERS[i].name) != 0)
            continue;
        for (size_t k = 0; open && k < sizeof THINKING / sizeof *THINKING; k++)
            if (strcmp(THINKING[k].open, open) == 0) {
                s->think_open = THINKING[k].open;
                s->think_close = THINKING[k].close;
            }
        return true;
    }
    return false;
}
