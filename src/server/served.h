/* SPDX-License-Identifier: Apache-2.0 */
/* served.h: a model with all that requests to it need, and how a request gets one (served.c).
 *
 *     server_create        one model, s->one, from the start to the end
 *     server_create_many   a set of them (model_set.h): a request picks one by its body's "model",
 *                          waits until that is loaded, and has a lease on it to its end
 *
 * Both look the same to requests. With one model a lease costs nothing.
 */
#ifndef SERVER_SERVED_H
#define SERVER_SERVED_H

#include "api/api.h"
#include "http/http.h"
#include "server/metrics.h"
#include "server/model_set.h"
#include "server/server.h"
#include "server/work.h"

struct server;

struct served {
    struct server *server;
    size_t index;                         /* of the set's models; 0 */
    struct server_loaded loaded;          /* what it is made of; borrowed */
    const struct server_options *options; /* defaults of its requests */
    const kvasir_model *model;
    kvasir_engine *engine;
    struct answer_syntax syntax; /* of the model's answers */
    struct api_setup setup;
    struct grammar_cache *grammars;
    struct server_metrics *metrics; /* borrowed: it outlives what is loaded */
    uint32_t most_prompt_tokens;    /* 0: any number */
};

/* The models of a server that has several. */
struct served_set {
    struct server_models models;     /* a copy of the struct, not of what it points to */
    struct model_spec *specs;        /* [models.n] */
    struct server_metrics **metrics; /* [models.n] */
    struct model_set *set;
};

/* Exactly one of the two, s->one or s->many. */
kvasir_status served_open_one(struct server *s, const kvasir_model *model, kvasir_engine *engine,
                              kvasir_error *err);
kvasir_status served_open_many(struct server *s, const struct server_models *models,
                               kvasir_error *err);
void served_close(struct server *s); /* there are no leases */
/* Whether the parsers of the options are known (server_check_parsers). NULL: they are; else the one
 * that is not. */
const char *served_set_parsers(const struct server_options *o, struct answer_syntax *syntax);

/* ---- a request's model ----------------------------------------------------------------------- */

/* Zero-initialised; part of what has the work. */
struct model_pick {
    struct model_wait wait; /* first */
    struct server *server;
    struct work *work;
    bool (*over)(struct model_pick *p); /* whether nobody waits for the result any more */
    bool asked;
};
enum pick {
    PICKED,      /* *out is the model, with a lease */
    PICK_WAITS,  /* the work runs again, on a worker, once it is there; it may do so already */
    PICK_REFUSED /* *err says why */
};
/* On a worker, in p->work: by name, or if that is NULL by the body's "model", else that of the
 * response of `key` which it continues, else the default. */
enum pick served_pick(struct model_pick *p, struct http_exchange *exchange, const char *key,
                      const char *name, struct served **out, struct api_error *err);
/* A lease if the model is loaded; NULL: it is not. */
struct served *served_peek(struct server *s, size_t index);
/* The same by name; NULL: the default, or another if only that is loaded. *name: as clients see it.
 * False: there is no such model. With one model it is that, whatever the name. */
bool served_peek_name(struct server *s, const char *wanted, struct served **out, const char **name);
/* One more lease; the end of one, NULL is allowed. */
void served_again(struct served *m);
void served_give(struct served *m);
/* How many models there are. */
size_t served_count(const struct server *s);
/* "model "x" not found, ...": 404. Returns false. */
bool served_unknown(const struct server *s, const char *name, struct api_error *err);

#endif
