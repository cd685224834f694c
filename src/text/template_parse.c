/* SPDX-License-Identifier: Apache-2.0 */
/* template_parse.c: tokens to nodes: statements. Expressions are in template_parse_expr.c.
 *
 * The parser is recursive descent. A block is everything up to one of its end tags. parse_block
 * returns when the name of the end tag is the current token and its "{%" is already read.
 */
#include "text/template_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

static int32_t expect_name(struct tpl_parser *p) {
    const struct tpl_token *tok = tpl_expect(p, TOK_NAME);
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < COUNT(constants); i++)
        if (tpl_tok_is_name(p, tok, constants[i])) {
            p->t->at = tok->at;
            tpl_fail(p->t, "cannot assign to '%s'", constants[i]);
        }
    return tpl_intern(p, p->t->source + tok->at, tok->len);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static struct tpl_node *parse_statement(struct tpl_parser *p);

struct end_tags {
    const char *a, *b, *c; /* b and c may be NULL */
};

static bool is_end_tag(const struct tpl_parser *p, const struct end_tags *ends) {
    return ends && (tpl_tok_is_name(p, p->tok, ends->a) ||
                    (ends->b && tpl_tok_is_name(p, p->tok, ends->b)) ||
                    (ends->c && tpl_tok_is_name(p, p->tok, ends->c)));
}

static struct tpl_node *parse_print(struct tpl_parser *p) {
    struct tpl_node *node = tpl_node_new(p, NODE_OUTPUT, p->tok[-1].at);
    node->a = tpl_parse_tuple(p, true, false, NULL);
    tpl_expect(p, TOK_PRINT_END);
    return node;
}

/* Text and tags up to an end tag, or up to the end of the template if `ends` is NULL. */
static struct tpl_node *parse_block(struct tpl_parser *p, const struct end_tags *ends) {
    struct tpl_nodes list = {0};
    struct tpl_node *block = tpl_node_new(p, NODE_BLOCK, p->tok->at);
    tpl_parse_enter(p);
    for (;;) {
        const struct tpl_token *tok = p->tok;
        if (tok->kind == TOK_END) {
            if (!ends)
                break;
            p->t->at = tok->at;
            size_t line = 1;
            for (size_t i = 0; i < block->at; i++)
                line += p->t->source[i] == '\n';
            tpl_fail(p->t, "unexpected end of template: the block of line %zu has no {%% %s %%}",
                     line,
                     ends->c   ? ends->c
                     : ends->b ? ends->b
                               : ends->a);
        }
        p->tok++;
        if (tok->kind == TOK_DATA) {
            struct tpl_node *data = tpl_node_new(p, NODE_DATA, tok->at);
            data->value = tpl_from_str(tpl_token_str(p, tok));
            tpl_nodes_push(p, &list, data);
        } else if (tok->kind == TOK_PRINT_BEGIN) {
            tpl_nodes_push(p, &list, parse_print(p));
        } else { /* between tags the lexer gives nothing else */
            if (is_end_tag(p, ends))
                break;
            tpl_nodes_push(p, &list, parse_statement(p));
            tpl_expect(p, TOK_BLOCK_END);
        }
    }
    tpl_leave(p->t);
    tpl_nodes_finish(p, &list, block);
    return block;
}

/* The rest of an opening tag and the block after it. The current token is then the end tag's name.
 */
static struct tpl_node *parse_body(struct tpl_parser *p, const struct end_tags *ends) {
    tpl_skip(p, TOK_COLON);
    tpl_expect(p, TOK_BLOCK_END);
    return parse_block(p, ends);
}

static struct tpl_node *parse_simple_body(struct tpl_parser *p, const char *end) {
    struct tpl_node *body = parse_body(p, &(struct end_tags){.a = end});
    p->tok++;
    return body;
}

/* The body of what Jinja2 compiles to a function: loops around it do not extend into it. */
static struct tpl_node *parse_function_body(struct tpl_parser *p, const char *end) {
    int loops = p->loops;
    p->loops = 0;
    struct tpl_node *body = parse_simple_body(p, end);
    p->loops = loops;
    return body;
}

/* ---- statements; p->tok is after the tag's name ---------------------------------------------- */

static struct tpl_node *parse_if(struct tpl_parser *p, struct tpl_node *node) {
    static const struct end_tags ends = {"elif", "else", "endif"};
    struct tpl_nodes list = {0};
    do {
        tpl_nodes_push(p, &list, tpl_parse_tuple(p, false, false, NULL));
        tpl_nodes_push(p, &list, parse_body(p, &ends));
    } while (tpl_skip_name(p, "elif"));
    if (tpl_skip_name(p, "else"))
        node->c = parse_simple_body(p, "endif");
    else
        p->tok++;
    tpl_nodes_finish(p, &list, node);
    return node;
}

static struct tpl_node *parse_for(struct tpl_parser *p, struct tpl_node *node) {
    static const struct end_tags ends = {"else", "endfor", NULL};
    p->loops++;
    node->a = tpl_parse_target(p, false, "in");
    if (!tpl_skip_name(p, "in"))
        tpl_unexpected(p, "'in'");
    node->b = tpl_parse_tuple(p, false, false, "recursive");
    if (tpl_skip_name(p, "if"))
        node->d = tpl_parse_expr(p, true);
    node->flag = tpl_skip_name(p, "recursive");
    node->body = parse_body(p, &ends);
    ASSERT(p->loops > 0);
    p->loops--;
    if (tpl_skip_name(p, "else"))
        node->c = parse_simple_body(p, "endfor");
    else
        p->tok++;
    return node;
}

static struct tpl_node *parse_set(struct tpl_parser *p, struct tpl_node *node) {
    node->a = tpl_parse_target(p, true, NULL);
    if (tpl_skip(p, TOK_ASSIGN)) {
        node->b = tpl_parse_tuple(p, true, false, NULL);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    node->b = tpl_parse_filters(p, NULL, false);
    node->body = parse_simple_body(p, "endset");
    return node;
}

/* Collects a name in a list of nodes. */
static void push_name(struct tpl_parser *p, struct tpl_nodes *names, int32_t name) {
    struct tpl_node *holder = tpl_node_new(p, NODE_NAME, p->tok->at);
    holder->name = name;
    tpl_nodes_push(p, names, holder);
}

static void parse_signature(struct tpl_parser *p, struct tpl_params *params) {
    struct tpl_nodes names = {0}, defaults = {0};
    tpl_expect(p, TOK_LPAREN);
    while (p->tok->kind != TOK_RPAREN) {
        if (names.n)
            tpl_expect(p, TOK_COMMA);
        push_name(p, &names, expect_name(p));
        struct tpl_node *value = NULL;
        if (tpl_skip(p, TOK_ASSIGN))
            value = tpl_parse_expr(p, true);
        else if (defaults.n && defaults.items[defaults.n - 1])
            tpl_unexpected(p, "a default value, as the parameter before has one,");
        tpl_nodes_push(p, &defaults, value);
    }
    p->tok++;
    params->n = names.n;
    params->defaults = tpl_nodes_keep(p, &defaults);
    params->names = tpl_alloc(p->t, params->n, sizeof *params->names);
    for (size_t i = 0; i < names.n; i++)
        params->names[i] = names.items[i]->name;
}

/* A body that may use caller, varargs and kwargs. Notes their use in params and for the outer body.
 */
static struct tpl_node *parse_macro_body(struct tpl_parser *p, struct tpl_params *params,
                                         const char *end) {
    bool caller = p->saw_caller, varargs = p->saw_varargs, kwargs = p->saw_kwargs;
    p->saw_caller = p->saw_varargs = p->saw_kwargs = false;
    struct tpl_node *body = parse_function_body(p, end);
    params->uses_caller = p->saw_caller;
    params->uses_varargs = p->saw_varargs;
    params->uses_kwargs = p->saw_kwargs;
    p->saw_caller |= caller;
    p->saw_varargs |= varargs;
    p->saw_kwargs |= kwargs;
    return body;
}

static struct tpl_node *parse_macro(struct tpl_parser *p, struct tpl_node *node) {
    struct tpl_params *params = tpl_alloc(p->t, 1, sizeof *params);
    node->name = expect_name(p);
    node->params = params;
    parse_signature(p, params);
    node->body = parse_macro_body(p, params, "endmacro");
    return node;
}

static struct tpl_node *parse_call_block(struct tpl_parser *p, struct tpl_node *node) {
    struct tpl_params *params = tpl_alloc(p->t, 1, sizeof *params);
    node->params = params;
    node->name = TPL_NAME_CALLER;
    if (p->tok->kind == TOK_LPAREN)
        parse_signature(p, params);
    node->a = tpl_parse_expr(p, true);
    if (node->a->kind != NODE_CALL) {
        p->t->at = node->a->at;
        tpl_fail(p->t, "{%% call %%} needs a call");
    }
    node->body = parse_macro_body(p, params, "endcall");
    return node;
}

static struct tpl_node *parse_filter_block(struct tpl_parser *p, struct tpl_node *node) {
    node->b = tpl_parse_filters(p, NULL, true);
    node->body = parse_simple_body(p, "endfilter");
    return node;
}

static struct tpl_node *parse_with(struct tpl_parser *p, struct tpl_node *node) {
    struct tpl_nodes list = {0};
    while (p->tok->kind != TOK_BLOCK_END) {
        if (list.n)
            tpl_expect(p, TOK_COMMA);
        tpl_nodes_push(p, &list, tpl_parse_target(p, false, NULL));
        tpl_expect(p, TOK_ASSIGN);
        tpl_nodes_push(p, &list, tpl_parse_expr(p, true));
    }
    tpl_nodes_finish(p, &list, node);
    node->body = parse_simple_body(p, "endwith");
    return node;
}

static struct tpl_node *parse_generation(struct tpl_parser *p, struct tpl_node *node) {
    node->body = parse_function_body(p, "endgeneration");
    return node;
}

static struct tpl_node *parse_print_statement(struct tpl_parser *p, struct tpl_node *node) {
    struct tpl_nodes list = {0};
    while (p->tok->kind != TOK_BLOCK_END) {
        if (list.n)
            tpl_expect(p, TOK_COMMA);
        struct tpl_node *item = tpl_node_new(p, NODE_OUTPUT, p->tok->at);
        item->a = tpl_parse_expr(p, true);
        tpl_nodes_push(p, &list, item);
    }
    tpl_nodes_finish(p, &list, node);
    return node;
}

static struct tpl_node *parse_jump(struct tpl_parser *p, struct tpl_node *node) {
    if (!p->loops) {
        p->t->at = node->at;
        tpl_fail(p->t, "{%% %s %%} outside of a loop",
                 node->kind == NODE_BREAK ? "break" : "continue");
    }
    return node;
}

static const struct statement {
    const char *name;
    enum tpl_node_kind kind;
    struct tpl_node *(*parse)(struct tpl_parser *, struct tpl_node *);
} statements[] = {
    {"if", NODE_IF, parse_if},
    {"for", NODE_FOR, parse_for},
    {"set", NODE_SET, parse_set},
    {"macro", NODE_MACRO, parse_macro},
    {"call", NODE_CALL_BLOCK, parse_call_block},
    {"filter", NODE_FILTER_BLOCK, parse_filter_block},
    {"with", NODE_WITH, parse_with},
    {"generation", NODE_SCOPE, parse_generation},
    {"print", NODE_BLOCK, parse_print_statement},
    {"break", NODE_BREAK, parse_jump},
    {"continue", NODE_CONTINUE, parse_jump},
};

static struct tpl_node *parse_statement(struct tpl_parser *p) {
    const struct tpl_token *tok = p->tok;
    if (tok->kind != TOK_NAME)
        tpl_unexpected(p, "the name of a statement");
    p->tok++;
    for (size_t i = 0; i < COUNT(statements); i++)
        if (tpl_tok_is_name(p, tok, statements[i].name))
            return statements[i].parse(p, tpl_node_new(p, statements[i].kind, tok->at));
    static const char *const refused[] = {"block", "extends",    "include", "import",    "from",
                                          "do",    "autoescape", "trans",   "pluralize", "debug"};
    p->t->at = tok->at;
    for (size_t i = 0; i < COUNT(refused); i++)
        if (tpl_tok_is_name(p, tok, refused[i]))
            tpl_fail(p->t, "the statement '%s' is not supported in a chat template", refused[i]);
    tpl_fail(p->t, "unknown statement '%s'", tpl_excerpt(p->t, tpl_token_str(p, tok)));
}

void tpl_parse(struct tpl_parser *p) {
    static const char *const fixed[TPL_NAMES_FIXED] = {"loop", "caller", "varargs", "kwargs"};
    p->name_numbers = tpl_dict_new(p->t);
    for (size_t i = 0; i < TPL_NAMES_FIXED; i++)
        (void)tpl_intern(p, fixed[i], strlen(fixed[i]));
    ASSERT(p->tmpl->n_names == TPL_NAMES_FIXED);
    p->tmpl->body = parse_block(p, NULL);
}
