/* SPDX-License-Identifier: Apache-2.0 */
/* llama_options.h: llama.cpp's names of sampling and limits, which llama-server's bodies have among
 * their members and ollama's as "options", as OpenAI's fields, so that openai_read checks them. */
#ifndef API_LLAMA_OPTIONS_H
#define API_LLAMA_OPTIONS_H

#include "api/api_json.h"

struct llama_options {
    json_t *from;     /* object with the options; NULL: none */
    const char *at;   /* where it is in the body, "options"; NULL: it is the body */
    json_t *out;      /* object: OpenAI's body */
    json_t *warnings; /* array of texts: what was read and changes nothing */
    bool unlimited;   /* set: the answer may be as long as there is room */
    bool nothing;     /* set: there is to be no answer */
    struct api_error *err;
};
/* False with *err. */
bool llama_options_read(struct llama_options *o);
/* Whether it is the name of an option, also of one that is refused; *known: as we spell it. */
bool llama_options_wants(const char *name, size_t len, const char **known);
/* An error of openai_read, by the option's name; whether it was about one. */
bool llama_options_rename(const struct llama_options *o);

bool llama_options_warn(struct llama_options *o, const char *name, const char *why);

#endif
