/* SPDX-License-Identifier: Apache-2.0 */
/* template_nodes.c: what the parsers of statements and of expressions share: nodes, lists of nodes,
 * names, and the walk over the tokens.
 *
 * Names are interned: after parsing, a variable is a number. Lists are collected in the scratch
 * arena and copied once to the template's.
 */
#include "text/template_internal.h"

struct tpl_node *tpl_node_new(struct tpl_parser *p, enum tpl_node_kind kind, size_t at) {
    struct tpl_node *node = tpl_alloc(p->t, 1, sizeof *node);
    node->kind = kind;
    node->at = (uint32_t)at;
    return node;
}

void tpl_nodes_push(struct tpl_parser *p, struct tpl_nodes *list, struct tpl_node *node) {
    TPL_GROW(p->t, p->scratch, list->items, list->n, list->cap, 8);
    list->items[list->n++] = node;
}

struct tpl_node **tpl_nodes_keep(struct tpl_parser *p, const struct tpl_nodes *list) {
    struct tpl_node **kept = tpl_alloc(p->t, list->n, sizeof(*kept));
    if (list->n)
        memcpy(kept, list->items, list->n * sizeof(*kept));
    return kept;
}

void tpl_nodes_finish(struct tpl_parser *p, const struct tpl_nodes *list, struct tpl_node *into) {
    ASSERT(list->n <= UINT32_MAX);
    into->list = tpl_nodes_keep(p, list);
    into->n = (uint32_t)list->n;
}

int32_t tpl_intern(struct tpl_parser *p, const char *text, size_t len) {
    struct template *tmpl = p->tmpl;
    tval name = tpl_str_own(p->t, text, len);
    const tval *known = tpl_dict_get(p->t, p->name_numbers, name);
    if (known)
        return (int32_t)known->i;
    TPL_GROW(p->t, p->t->arena, tmpl->names, tmpl->n_names, p->names_cap, 64);
    tpl_dict_set(p->t, p->name_numbers, name, tpl_int((int64_t)tmpl->n_names));
    tmpl->names[tmpl->n_names] = name.s;
    return (int32_t)tmpl->n_names++;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

bool tpl_tok_is_name(const struct tpl_parser *p, const struct tpl_token *tok, const char *name) {
    return tok->kind == TOK_NAME && tok->len == strlen(name) &&
           memcmp(p->t->source + tok->at, name, tok->len) == 0;
}

bool tpl_skip(struct tpl_parser *p, enum tpl_token_kind kind) {
    if (p->tok->kind != kind)
        return false;
    p->tok++;
    return true;
}

bool tpl_skip_name(struct tpl_parser *p, const char *name) {
    if (!tpl_tok_is_name(p, p->tok, name))
        return false;
    p->tok++;
    return true;
}

_Noreturn void tpl_unexpected(struct tpl_parser *p, const char *wanted) {
    const struct tpl_token *tok = p->tok;
    p->t->at = tok->at;
    if (tok->kind == TOK_END)
        tpl_fail(p->t, "unexpected end of template, expected %s", wanted);
    if (tok->kind == TOK_NAME)
        tpl_fail(p->t, "expected %s, got '%s'", wanted, tpl_excerpt(p->t, tpl_token_str(p, tok)));
    tpl_fail(p->t, "expected %s, got '%s'", wanted, tpl_token_name(tok->kind));
}

const struct tpl_token *tpl_expect(struct tpl_parser *p, enum tpl_token_kind kind) {
    if (p->tok->kind != kind) {
        char wanted[32] = "'";
        strncat(wanted, tpl_token_name(kind), 24);
        strcat(wanted, "'");
        tpl_unexpected(p, wanted);
    }
    return p->tok++;
}

const struct tpl_str *tpl_token_str(struct tpl_parser *p, const struct tpl_token *tok) {
    return tpl_str_own(p->t, p->t->source + tok->at, tok->len).s;
}
