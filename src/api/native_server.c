/* SPDX-License-Identifier: Apache-2.0 */
/* native_server.c: /props and /slots. A slot is one of the requests that may run at once; which of
 * them a request is in means nothing here, since prefixes are found by all. */
#include "api/native.h"

static json_t *slot_json(const struct api_model *m, size_t i, const struct native_slot *busy) {
    const json_int_t task = busy ? (json_int_t)busy->task : -1;
    json_t *made =
        json_pack("{s:I, s:I, s:I, s:b, s:b}", "id", (json_int_t)i, "id_task", task, "n_ctx",
                  (json_int_t)m->setup->ctx, "speculative", 0, "is_processing", busy != NULL);
    if (made && busy &&
        json_object_set_new(made, "next_token",
                            json_pack("[{s:b, s:I}]", "has_next_token", 1, "n_decoded",
                                      (json_int_t)busy->completion_tokens)) == 0 &&
        json_object_set_new(made, "n_prompt_tokens", json_integer(busy->prompt_tokens)) == 0 &&
        json_object_set_new(made, "n_prompt_tokens_processed", json_integer(busy->prompt_done)) ==
            0)
        return made;
    if (!busy)
        return made;
    json_decref(made);
    return NULL;
}

json_t *native_slots(const struct api_model *m, const struct native_slot *busy, size_t n) {
    json_t *list = json_array();
    bool good = list != NULL;
    ASSERT(n <= m->setup->max_choices);
    for (size_t i = 0; good && i < m->setup->max_choices; i++)
        good = json_array_append_new(list, slot_json(m, i, i < n ? &busy[i] : NULL)) == 0;
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

json_t *native_props(const struct api_model *m) {
    const struct api_setup *s = m->setup;
    size_t len = 0;
    const char *template = kvasir_chat_template(s->tokenizer, &len);
    json_t *slot = slot_json(m, 0, NULL);
    if (slot &&
        json_object_set_new(slot, "params", native_settings(&s->sampling, s->max_tokens)) != 0) {
        json_decref(slot);
        slot = NULL;
    }
    return json_pack(
        "{s:o, s:I, s:s, s:s, s:s%, s:I, s:{s:b, s:b}, s:s+}", "default_generation_settings", slot,
        "total_slots", (json_int_t)s->max_choices, "model_path", s->model, "model_alias", s->model,
        "chat_template", template ? template : "", template ? len : 0, "n_ctx", (json_int_t)s->ctx,
        "modalities", "vision", 0, "audio", 0, "build_info", "kvasir-", kvasir_version());
}
