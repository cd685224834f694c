/* SPDX-License-Identifier: Apache-2.0 */
/* api_fields.c: one table for all protocols of fields that other servers read: OpenAI's and
 * Anthropic's own, llama.cpp's, vLLM's, mlx-lm's, vllm-mlx's, ollama's, text-generation-webui's.
 *
 * A field that a protocol here wants is that protocol's, so a row may stand for a field that only
 * some of them have. Rows say what is neutral: the value with which the other server gives the
 * answer that it gives without the field. Parameters of a method that is refused (mirostat_tau
 * without mirostat) change nothing and are harmless.
 */
#include "api/api_fields.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_json.h"
#include "util/json.h"
#include "util/near.h"

/* clang-format off */
#define ALIAS(name, ours)       {name, API_FIELD_ALIAS, ours}
#define VARIABLE(name)          {name, API_FIELD_VARIABLE, "chat_template_kwargs"}
#define REFUSED(name, neutral)  {name, API_FIELD_REFUSED, neutral}
#define HARMLESS(name)          {name, API_FIELD_HARMLESS, NULL}
static const struct api_field FIELDS[] = {
    ALIAS("n_predict", "max_tokens"),
    ALIAS("num_predict", "max_tokens"),
    ALIAS("max_new_tokens", "max_tokens"),
    ALIAS("repeat_penalty", "repetition_penalty"),
    ALIAS("repeat_last_n", "repetition_context_size"),
    ALIAS("chat_template_args", "chat_template_kwargs"),
    VARIABLE("enable_thinking"),
    /* OpenAI's */
    REFUSED("best_of", "[1]"),
    REFUSED("modalities", "[[\"text\"]]"),
    REFUSED("audio", NULL),
    REFUSED("functions", "[[]]"),
    REFUSED("function_call", "[\"none\"]"),
    REFUSED("web_search_options", NULL),
    HARMLESS("verbosity"),
    HARMLESS("user"),
    HARMLESS("metadata"),
    HARMLESS("store"),
    HARMLESS("service_tier"),
    HARMLESS("safety_identifier"),
    HARMLESS("prompt_cache_key"),
    HARMLESS("prompt_cache_retention"),
    HARMLESS("prediction"),
    /* Anthropic's */
    REFUSED("container", "[[], {}]"),
    REFUSED("mcp_servers", "[[], {}]"),
    HARMLESS("betas"),
    HARMLESS("inference_geo"),
    HARMLESS("cache_control"),
    /* of other ways to sample */
    REFUSED("typical_p", "[1, 0]"),
    REFUSED("typical", "[1, 0]"),
    REFUSED("mirostat", "[0]"),
    REFUSED("mirostat_mode", "[0]"),
    HARMLESS("mirostat_tau"),
    HARMLESS("mirostat_eta"),
    REFUSED("dry_multiplier", "[0]"),
    HARMLESS("dry_base"),
    HARMLESS("dry_allowed_length"),
    HARMLESS("dry_penalty_last_n"),
    HARMLESS("dry_sequence_breakers"),
    REFUSED("top_n_sigma", "[-1, 0]"),
    REFUSED("dynatemp_range", "[0]"),
    HARMLESS("dynatemp_exponent"),
    REFUSED("dynamic_temperature", "[false]"),
    REFUSED("samplers", "[[], \"\"]"),
    REFUSED("sampler_priority", "[[]]"),
    REFUSED("top_a", "[0]"),
    REFUSED("tfs", "[1]"),
    REFUSED("tfs_z", "[1]"),
    REFUSED("epsilon_cutoff", "[0]"),
    REFUSED("eta_cutoff", "[0]"),
    REFUSED("smoothing_factor", "[0]"),
    REFUSED("adaptive_target", "[-1]"),
    HARMLESS("adaptive_decay"),
    REFUSED("guidance_scale", "[1]"),
    REFUSED("negative_prompt", "[\"\"]"),
    REFUSED("penalty_alpha", "[0]"),
    REFUSED("encoder_repetition_penalty", "[1]"),
    REFUSED("no_repeat_ngram_size", "[0]"),
    REFUSED("length_penalty", "[1]"),
    REFUSED("early_stopping", "[false]"),
    REFUSED("num_beams", "[1]"),
    REFUSED("use_beam_search", "[false]"),
    REFUSED("do_sample", "[true]"),
    HARMLESS("min_keep"),
    /* of what an answer may contain, and of where it ends */
    REFUSED("min_tokens", "[0]"),
    REFUSED("bad_words", "[[]]"),
    REFUSED("allowed_token_ids", NULL),
    REFUSED("logits_processors", NULL),
    REFUSED("include_stop_str_in_output", "[false]"),
    REFUSED("stop_regex", "[\"\", []]"),
    REFUSED("structural_tag", NULL),
    REFUSED("guided_whitespace_pattern", NULL),
    REFUSED("guided_decoding_disable_any_whitespace", "[false]"),
    REFUSED("guided_decoding_disable_additional_properties", "[false]"),
    REFUSED("grammar_lazy", "[false]"),
    REFUSED("grammar_triggers", "[[]]"),
    REFUSED("t_max_predict_ms", "[0, -1]"),
    REFUSED("n_indent", "[0]"),
    REFUSED("thinking_token_budget", "[-1]"),
    REFUSED("thinking_budget_tokens", "[-1]"),
    REFUSED("thinking_budget", "[-1]"),
    REFUSED("reasoning_budget", "[-1]"),
    /* of the model, its prompt and what is shown of its answer */
    REFUSED("lora", "[[]]"),
    REFUSED("lora_request", NULL),
    REFUSED("adapters", NULL),
    REFUSED("role_mapping", NULL),
    REFUSED("chat_template", NULL),
    REFUSED("add_special_tokens", NULL),
    REFUSED("truncate_prompt_tokens", NULL),
    /* of embeddings and reranking */
    REFUSED("normalize", "[true]"),
    REFUSED("normalized", "[true]"),
    REFUSED("embed_dtype", "[\"float32\"]"),
    REFUSED("embedding_type", "[\"float\"]"),
    REFUSED("endianness", "[\"little\", \"native\"]"),
    REFUSED("late_chunking", "[false]"),
    REFUSED("max_tokens_per_doc", NULL),
    REFUSED("max_chunks_per_doc", NULL),
    REFUSED("rank_fields", "[[\"text\"], []]"),
    REFUSED("prompt_embeds", NULL),
    REFUSED("specprefill", "[false]"),
    REFUSED("skip_special_tokens", "[true]"),
    REFUSED("prompt_logprobs", NULL),
    REFUSED("n_probs", "[0]"),
    REFUSED("include_reasoning", "[true]"),
    REFUSED("reasoning_format", "[\"auto\", \"deepseek\"]"),
    REFUSED("reasoning_in_content", "[false]"),
    REFUSED("parse_tool_calls", "[true]"),
    HARMLESS("spaces_between_special_tokens"),
    /* of how an answer is computed, which is the same however it is */
    HARMLESS("cache_prompt"),
    HARMLESS("id_slot"),
    HARMLESS("slot_id"),
    HARMLESS("n_cache_reuse"),
    HARMLESS("n_keep"),
    HARMLESS("n_discard"),
    HARMLESS("backend_sampling"),
    HARMLESS("draft_model"),
    HARMLESS("num_draft_tokens"),
    HARMLESS("keep_alive"),
};
/* clang-format on */

const struct api_field *api_field_find(const char *name, size_t len) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (json_name_is(name, len, FIELDS[i].name))
            return &FIELDS[i];
    return NULL;
}

/* ---- other names ----------------------------------------------------------------------------- */

static bool is_renamed(const struct api_field *f) {
    return f->kind == API_FIELD_ALIAS || f->kind == API_FIELD_VARIABLE;
}

static bool differs(const struct api_field *f, const char *with, struct api_error *err) {
    return api_refuse(err, f->name, "\"%s\" means the same and has another value: send one of them",
                      with);
}

static bool set_variable(json_t *members, const struct api_field *f, json_t *value,
                         struct api_error *err) {
    json_t *given = api_get(members, f->with), *same = json_object_get(given, f->name);
    if (!json_is_boolean(value))
        return api_wrong_type(err, f->name, value, "true or false");
    if (given && !json_is_object(given))
        return api_wrong_type(err, f->with, given, "an object");
    if (same && !json_equal(same, value))
        return differs(f, api_member(f->with, f->name).text, err);
    json_t *object = given ? json_copy(given) : json_object();
    if (json_object_set(object, f->name, value) == 0 &&
        json_object_set_new(members, f->with, object) == 0)
        return true;
    return api_no_memory(err);
}

static bool set_alias(json_t *members, const struct api_field *f, json_t *value,
                      struct api_error *err) {
    json_t *same = api_get(members, f->with);
    if (same && !json_equal(same, value))
        return differs(f, f->with, err);
    return json_object_set(members, f->with, value) == 0 || api_no_memory(err);
}

bool api_fields_settle(json_t *members, struct api_error *err) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const struct api_field *f = &FIELDS[i];
        json_t *value = is_renamed(f) ? api_get(members, f->name) : NULL;
        if (value &&
            !(f->kind == API_FIELD_ALIAS ? set_alias : set_variable)(members, f, value, err))
            return false;
    }
    return true;
}

void api_fields_rename(const struct api_body *body, struct api_error *err) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (FIELDS[i].kind == API_FIELD_ALIAS && api_get(body->members, FIELDS[i].name) &&
            api_rename(err, FIELDS[i].with, FIELDS[i].name))
            return;
}

/* ---- what is refused ------------------------------------------------------------------------- */

static bool same_value(json_t *a, json_t *b) {
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b);
}

static bool check(const struct api_field *f, json_t *value, struct api_error *err) {
    json_t *neutral = f->with ? json_loads(f->with, 0, NULL) : json_array(), *one;
    size_t i;
    bool good = false;
    if (!neutral)
        return api_no_memory(err);
    json_array_foreach(neutral, i, one) {
        good |= same_value(value, one);
    }
    if (!good) {
        char *only =
            json_dumps(json_array_get(neutral, 0), JSON_ENCODE_ANY | JSON_COMPACT); /* or NULL */
        (void)(only ? api_refuse(err, f->name, "is not supported, only %s is", only)
                    : api_refuse(err, f->name, "is not supported"));
        free(only);
    }
    json_decref(neutral);
    return good;
}

bool api_fields_check(json_t *members, const char *but, struct api_error *err) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const struct api_field *f = &FIELDS[i];
        json_t *value = f->kind == API_FIELD_REFUSED ? api_get(members, f->name) : NULL;
        if (value && !(but && strcmp(but, f->name) == 0) && !check(f, value, err))
            return false;
    }
    return true;
}

/* ---- unknown fields -------------------------------------------------------------------------- */

/* Names that are often mistyped; what the protocol does not want is not offered. */
static const char *const OFTEN[] = {
    "model",
    "messages",
    "prompt",
    "input",
    "system",
    "instructions",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "repetition_context_size",
    "xtc_probability",
    "xtc_threshold",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "ignore_eos",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "reasoning",
    "thinking",
    "output_config",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "cache_salt",
    "priority",
    "previous_response_id",
    "truncation",
    "session",
    "dimensions",
    "encoding_format",
    "query",
    "documents",
    "top_n",
    "return_documents",
};

/* As many bytes of valid UTF-8 as there is room for, at a character's end. */
static void cut_name(char *out, size_t room, const char *name, size_t len) {
    size_t n = len < room ? len : room - 1;
    while (n && n < len && ((unsigned char)name[n] & 0xc0) == 0x80)
        n--;
    memcpy(out, name, n);
    out[n] = 0;
}

void api_field_note(struct api_unknown *unknown, const char *name, size_t len, api_want_fn *wants) {
    const size_t i = unknown->n++;
    if (i >= API_UNKNOWN_MAX)
        return;
    struct near near = {0};
    const char *known;
    for (size_t k = 0; k < sizeof OFTEN / sizeof *OFTEN; k++)
        if (wants(OFTEN[k], strlen(OFTEN[k]), &known) != API_SKIP)
            near_try(&near, name, len, OFTEN[k]);
    cut_name(unknown->fields[i].name, API_UNKNOWN_BYTES, name, len);
    unknown->fields[i].near = near.best;
    ASSERT(strlen(unknown->fields[i].name) <= len);
}

bool api_fields_warn(const struct api_setup *setup, const struct api_body *body,
                     struct api_request *r, struct api_error *err) {
    const struct api_unknown *u = &body->unknown;
    for (size_t i = 0; i < u->n && i < API_UNKNOWN_MAX; i++) {
        const char *name = u->fields[i].name, *near = u->fields[i].near;
        char text[160], meant[80] = "";
        if (near)
            snprintf(meant, sizeof meant, "; did you mean \"%s\"?", near);
        if (setup->strict_fields)
            return api_refuse(err, name, "unknown field%s", meant);
        snprintf(text, sizeof text, "%s: unknown field, ignored%s", name, meant);
        if (!r->warnings)
            r->warnings = json_array();
        if (json_array_append_new(r->warnings, json_string(text)) != 0)
            return api_no_memory(err);
    }
    if (u->n > API_UNKNOWN_MAX &&
        json_array_append_new(r->warnings, json_sprintf("%zu more unknown fields, ignored",
                                                        u->n - API_UNKNOWN_MAX)) != 0)
        return api_no_memory(err);
    return true;
}

char *api_fields_unknown(const struct api_body *body) {
    const struct api_unknown *u = &body->unknown;
    struct text_buf b = {0};
    bool good = u->n > 0;
    for (size_t i = 0; good && i < u->n && i < API_UNKNOWN_MAX; i++)
        good = (!i || text_puts(&b, ",")) && text_puts(&b, u->fields[i].name);
    for (size_t i = 0; good && i < b.len; i++)
        if (!isalnum((unsigned char)b.data[i]) && !strchr("_-.,", b.data[i]))
            b.data[i] = '?';
    char *names = good ? mem_strndup(b.data, b.len) : NULL;
    text_free(&b);
    return names;
}
