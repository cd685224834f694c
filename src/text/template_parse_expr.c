/* SPDX-License-Identifier: Apache-2.0 */
/* template_parse_expr.c: tokens to nodes: expressions. Operators from loose to tight, as in Jinja2:
 *
 *     a if c else b      right to left; without else: undefined
 *     or, and, not
 *     == != < <= > >= in  not in      chained: a < b < c
 *     + -
 *     ~                  tighter than +, looser than *
 *     * / // %
 *     **                 left to right, unlike Python's
 *     -a +a              tighter than **: -2 ** 2 is 4
 *     a.b a[b] a(b)      then a | filter, a is test: of all of -a, but only of the b in x + b
 *
 * Binary operators are one loop over a table of levels, so that an open bracket needs few C frames.
 */
#include "text/template_internal.h"

static struct tpl_node *parse_unary(struct tpl_parser *p, bool with_filter);
static struct tpl_node *parse_postfix(struct tpl_parser *p, struct tpl_node *node);

/* ---- literals and names ---------------------------------------------------------------------- */

/* Reads the comma between two items. False if the closing token is next, perhaps after a comma. */
static bool more_items(struct tpl_parser *p, bool first, enum tpl_token_kind close) {
    if (!first && p->tok->kind != close)
        tpl_expect(p, TOK_COMMA);
    return p->tok->kind != close;
}

/* [a, b] or {a: b, c: d}, after the bracket. */
static struct tpl_node *parse_items(struct tpl_parser *p, const struct tpl_token *tok, bool dict) {
    struct tpl_node *node = tpl_node_new(p, dict ? NODE_DICT : NODE_LIST, tok->at);
    const enum tpl_token_kind close = dict ? TOK_RBRACE : TOK_RBRACKET;
    struct tpl_nodes list = {0};
    while (more_items(p, !list.n, close)) {
        tpl_nodes_push(p, &list, tpl_parse_expr(p, true));
        if (dict) {
            tpl_expect(p, TOK_COLON);
            tpl_nodes_push(p, &list, tpl_parse_expr(p, true));
        }
    }
    p->tok++;
    tpl_nodes_finish(p, &list, node);
    return node;
}

static struct tpl_node *constant_node(struct tpl_parser *p, size_t at, tval value) {
    struct tpl_node *node = tpl_node_new(p, NODE_CONST, at);
    if (value.type == TPL_STR) /* without its buffer: renderings must not append (TEMPLATE-4) */
        value = tpl_substr(p->t, value.s, 0, value.s->len);
    node->value = value;
    return node;
}

static struct tpl_node *parse_name(struct tpl_parser *p, const struct tpl_token *tok,
                                   bool with_namespace) {
    if (tpl_tok_is_name(p, tok, "true") || tpl_tok_is_name(p, tok, "True"))
        return constant_node(p, tok->at, tpl_bool(true));
    if (tpl_tok_is_name(p, tok, "false") || tpl_tok_is_name(p, tok, "False"))
        return constant_node(p, tok->at, tpl_bool(false));
    if (tpl_tok_is_name(p, tok, "none") || tpl_tok_is_name(p, tok, "None"))
        return constant_node(p, tok->at, tpl_none());
    struct tpl_node *node = tpl_node_new(p, NODE_NAME, tok->at);
    node->name = tpl_intern(p, p->t->source + tok->at, tok->len);
    p->saw_caller |= node->name == TPL_NAME_CALLER;
    p->saw_varargs |= node->name == TPL_NAME_VARARGS;
    p->saw_kwargs |= node->name == TPL_NAME_KWARGS;
    if (with_namespace && tpl_skip(p, TOK_DOT)) {
        node->kind = NODE_NSREF;
        node->value = tpl_from_str(tpl_token_str(p, tpl_expect(p, TOK_NAME)));
    }
    return node;
}

/* Adjacent string literals are one string. */
static struct tpl_node *parse_string(struct tpl_parser *p, const struct tpl_token *tok) {
    tval value = tok->value;
    for (; p->tok->kind == TOK_STRING; p->tok++)
        value = tpl_str_join2(p->t, value.s, p->tok->value.s);
    return constant_node(p, tok->at, value);
}

static struct tpl_node *parse_primary(struct tpl_parser *p, bool with_namespace) {
    const struct tpl_token *tok = p->tok;
    struct tpl_node *node = NULL;
    p->tok++;
    switch (tok->kind) {
    case TOK_NAME:
        node = parse_name(p, tok, with_namespace);
        break;
    case TOK_STRING:
        node = parse_string(p, tok);
        break;
    case TOK_INT:
    case TOK_FLOAT:
        node = constant_node(p, tok->at, tok->value);
        break;
    case TOK_LPAREN:
        node = tpl_parse_tuple(p, true, true, NULL);
        tpl_expect(p, TOK_RPAREN);
        break;
    case TOK_LBRACKET:
    case TOK_LBRACE:
        node = parse_items(p, tok, tok->kind == TOK_LBRACE);
        break;
    default:
        p->tok = tok;
        tpl_unexpected(p, "an expression");
    }
    return node;
}

/* ---- what follows an operand ----------------------------------------------------------------- */

static const struct tpl_args *parse_args(struct tpl_parser *p) {
    struct tpl_args *args = tpl_alloc(p->t, 1, sizeof *args);
    struct tpl_nodes pos = {0}, kw = {0}, names = {0};
    size_t at = tpl_expect(p, TOK_LPAREN)->at;
    for (bool first = true; more_items(p, first, TOK_RPAREN); first = false) {
        bool ordered = !args->star_star;
        if (tpl_skip(p, TOK_MUL)) {
            ordered = ordered && !args->star;
            args->star = tpl_parse_expr(p, true);
        } else if (tpl_skip(p, TOK_POW)) {
            args->star_star = tpl_parse_expr(p, true);
        } else if (p->tok->kind == TOK_NAME && p->tok[1].kind == TOK_ASSIGN) {
            tpl_nodes_push(p, &names,
                           constant_node(p, p->tok->at, tpl_from_str(tpl_token_str(p, p->tok))));
            p->tok += 2;
            tpl_nodes_push(p, &kw, tpl_parse_expr(p, true));
        } else {
            ordered = ordered && !args->star && !kw.n;
            tpl_nodes_push(p, &pos, tpl_parse_expr(p, true));
        }
        p->t->at = at;
        if (!ordered)
            tpl_fail(p->t, "the arguments of the call are in the wrong order");
    }
    tpl_expect(p, TOK_RPAREN);
    args->n_pos = pos.n;
    args->pos = tpl_alloc(p->t, pos.n, sizeof *args->pos);
    for (size_t i = 0; i < pos.n; i++)
        args->pos[i] = pos.items[i];
    args->n_kw = kw.n;
    args->kw = tpl_alloc(p->t, kw.n, sizeof *args->kw);
    for (size_t i = 0; i < kw.n; i++)
        args->kw[i] = (struct tpl_keyword){names.items[i]->value.s, kw.items[i]};
    return args;
}

/* One bound of a slice; NULL before ':' and ']'. */
static struct tpl_node *parse_bound(struct tpl_parser *p) {
    enum tpl_token_kind kind = p->tok->kind;
    return kind == TOK_COLON || kind == TOK_RBRACKET ? NULL : tpl_parse_expr(p, true);
}

static struct tpl_node *parse_subscript(struct tpl_parser *p, struct tpl_node *of,
                                        const struct tpl_token *tok) {
    struct tpl_node *node = tpl_node_new(p, NODE_ITEM, tok->at), *bounds[3] = {0};
    node->a = of;
    bounds[0] = parse_bound(p);
    if (p->tok->kind != TOK_COLON) {
        if (!bounds[0])
            tpl_unexpected(p, "an index");
        node->b = bounds[0];
        if (p->tok->kind == TOK_COMMA) { /* a[1, 2] is a[(1, 2)] */
            struct tpl_nodes list = {0};
            tpl_nodes_push(p, &list, bounds[0]);
            while (tpl_skip(p, TOK_COMMA))
                tpl_nodes_push(p, &list, tpl_parse_expr(p, true));
            node->b = tpl_node_new(p, NODE_TUPLE, tok->at);
            tpl_nodes_finish(p, &list, node->b);
        }
    } else {
        for (int i = 1; i < 3 && tpl_skip(p, TOK_COLON); i++)
            bounds[i] = parse_bound(p);
        node->kind = NODE_SLICE;
        node->n = 3;
        node->list = tpl_alloc(p->t, 3, sizeof(*node->list));
        for (int i = 0; i < 3; i++)
            node->list[i] = bounds[i];
    }
    tpl_expect(p, TOK_RBRACKET);
    return node;
}

static struct tpl_node *parse_dot(struct tpl_parser *p, struct tpl_node *of,
                                  const struct tpl_token *tok) {
    const struct tpl_token *name = p->tok++;
    struct tpl_node *node = tpl_node_new(p, NODE_ATTR, tok->at);
    node->a = of;
    if (name->kind == TOK_NAME) {
        node->value = tpl_from_str(tpl_token_str(p, name));
    } else if (name->kind == TOK_INT) {
        node->kind = NODE_ITEM;
        node->b = constant_node(p, name->at, name->value);
    } else {
        p->tok = name;
        tpl_unexpected(p, "a name or number after '.'");
    }
    return node;
}

static struct tpl_node *parse_call(struct tpl_parser *p, struct tpl_node *of) {
    struct tpl_node *node = tpl_node_new(p, NODE_CALL, p->tok->at);
    node->a = of;
    node->args = parse_args(p);
    return node;
}

static struct tpl_node *parse_postfix(struct tpl_parser *p, struct tpl_node *node) {
    for (;;) {
        const struct tpl_token *tok = p->tok;
        if (tpl_skip(p, TOK_DOT))
            node = parse_dot(p, node, tok);
        else if (tpl_skip(p, TOK_LBRACKET))
            node = parse_subscript(p, node, tok);
        else if (tok->kind == TOK_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

/* The name of a filter or test. It may contain dots, although no name we know does. */
static tval dotted_name(struct tpl_parser *p) {
    const struct tpl_token *first = tpl_expect(p, TOK_NAME), *last = first;
    while (tpl_skip(p, TOK_DOT))
        last = tpl_expect(p, TOK_NAME);
    return tpl_str_own(p->t, p->t->source + first->at, last->at + last->len - first->at);
}

struct tpl_node *tpl_parse_filters(struct tpl_parser *p, struct tpl_node *input,
                                   bool inline_start) {
    static const struct tpl_args no_args;
    while (inline_start || tpl_skip(p, TOK_PIPE)) {
        struct tpl_node *node = tpl_node_new(p, NODE_FILTER, p->tok->at);
        inline_start = false;
        node->a = input;
        node->value = dotted_name(p);
        node->builtin = tpl_filter_find(node->value.s->data, node->value.s->len);
        node->args = p->tok->kind == TOK_LPAREN ? parse_args(p) : &no_args;
        input = node;
    }
    return input;
}

/* After "is": [not] name, then arguments in brackets or one operand without brackets. */
static struct tpl_node *parse_test(struct tpl_parser *p, struct tpl_node *of, size_t at) {
    struct tpl_node *node = tpl_node_new(p, NODE_TEST, at);
    bool negated = tpl_skip_name(p, "not");
    struct tpl_args *args = tpl_alloc(p->t, 1, sizeof *args);
    node->a = of;
    node->value = dotted_name(p);
    node->builtin = tpl_test_find(node->value.s->data, node->value.s->len);
    node->args = args;
    enum tpl_token_kind k = p->tok->kind;
    bool operand = k == TOK_NAME || k == TOK_STRING || k == TOK_INT || k == TOK_FLOAT ||
                   k == TOK_LBRACKET || k == TOK_LBRACE;
    if (k == TOK_LPAREN) {
        node->args = parse_args(p);
    } else if (operand && !tpl_tok_is_name(p, p->tok, "else") &&
               !tpl_tok_is_name(p, p->tok, "or") && !tpl_tok_is_name(p, p->tok, "and")) {
        if (tpl_tok_is_name(p, p->tok, "is"))
            tpl_unexpected(p, "no second 'is'");
        args->pos = tpl_alloc(p->t, 1, sizeof *args->pos);
        args->pos[args->n_pos++] = parse_postfix(p, parse_primary(p, false));
    }
    if (!negated)
        return node;
    struct tpl_node *not_node = tpl_node_new(p, NODE_NOT, at);
    not_node->a = node;
    return not_node;
}

static struct tpl_node *parse_filters_tests(struct tpl_parser *p, struct tpl_node *node) {
    for (;;) {
        const struct tpl_token *tok = p->tok;
        if (tok->kind == TOK_PIPE)
            node = tpl_parse_filters(p, node, false);
        else if (tpl_skip_name(p, "is"))
            node = parse_test(p, node, tok->at);
        else if (tok->kind == TOK_LPAREN)
            node = parse_call(p, node);
        else
            return node;
    }
}

/* ---- operators ------------------------------------------------------------------------------- */

static struct tpl_node *parse_unary(struct tpl_parser *p, bool with_filter) {
    const struct tpl_token *tok = p->tok;
    struct tpl_node *node;
    if (tok->kind == TOK_SUB || tok->kind == TOK_ADD) {
        tpl_parse_enter(p);
        p->tok++;
        node = tpl_node_new(p, tok->kind == TOK_SUB ? NODE_NEG : NODE_POS, tok->at);
        node->a = parse_unary(p, false);
        tpl_leave(p->t);
    } else {
        node = parse_primary(p, false);
    }
    node = parse_postfix(p, node);
    return with_filter ? parse_filters_tests(p, node) : node;
}

/* Levels of binary operators, from loose to tight. */
enum { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVELS };

static bool binary_op(enum tpl_token_kind kind, int *level, enum tpl_op *op) {
    static const struct {
        enum tpl_token_kind kind;
        int level;
        enum tpl_op op;
    } table[] = {
        {TOK_ADD, LEVEL_SUM, OP_ADD},      {TOK_SUB, LEVEL_SUM, OP_SUB},
        {TOK_TILDE, LEVEL_CONCAT, OP_ADD}, {TOK_MUL, LEVEL_PRODUCT, OP_MUL},
        {TOK_DIV, LEVEL_PRODUCT, OP_DIV},  {TOK_FLOORDIV, LEVEL_PRODUCT, OP_FLOORDIV},
        {TOK_MOD, LEVEL_PRODUCT, OP_MOD},  {TOK_POW, LEVEL_POWER, OP_POW},
    };
    for (size_t i = 0; i < COUNT(table); i++)
        if (table[i].kind == kind) {
            *level = table[i].level;
            *op = table[i].op;
            return true;
        }
    return false;
}

/* Operators of level `least` and tighter, left to right. */
static struct tpl_node *parse_binary(struct tpl_parser *p, int least) {
    struct tpl_node *left = parse_unary(p, true);
    int level;
    enum tpl_op op;
    while (binary_op(p->tok->kind, &level, &op) && level >= least) {
        struct tpl_node *node =
            tpl_node_new(p, level == LEVEL_CONCAT ? NODE_CONCAT : NODE_BINARY, p->tok->at);
        if (level == LEVEL_CONCAT) { /* a ~ b ~ c is one node */
            struct tpl_nodes list = {0};
            tpl_nodes_push(p, &list, left);
            while (tpl_skip(p, TOK_TILDE))
                tpl_nodes_push(p, &list, parse_binary(p, LEVEL_CONCAT + 1));
            tpl_nodes_finish(p, &list, node);
        } else {
            p->tok++;
            node->op = op;
            node->a = left;
            node->b = parse_binary(p, level + 1);
        }
        left = node;
    }
    return left;
}

static bool compare_op(struct tpl_parser *p, enum tpl_op *op) {
    _Static_assert(TOK_GE - TOK_EQ == OP_GE - OP_EQ, "tokens and operators are in one order");
    enum tpl_token_kind kind = p->tok->kind;
    if (kind >= TOK_EQ && kind <= TOK_GE) {
        *op = (enum tpl_op)(OP_EQ + (int)(kind - TOK_EQ));
        p->tok++;
        return true;
    }
    if (tpl_skip_name(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (tpl_tok_is_name(p, p->tok, "not") && tpl_tok_is_name(p, p->tok + 1, "in")) {
        *op = OP_NOT_IN;
        p->tok += 2;
        return true;
    }
    return false;
}

static struct tpl_node *parse_compare(struct tpl_parser *p) {
    struct tpl_node *left = parse_binary(p, LEVEL_SUM);
    struct tpl_nodes list = {0}, ops = {0};
    enum tpl_op op;
    size_t at = p->tok->at;
    while (compare_op(p, &op)) {
        if (!list.n)
            tpl_nodes_push(p, &list, left);
        struct tpl_node *holder = tpl_node_new(p, NODE_CONST, at);
        holder->op = op;
        tpl_nodes_push(p, &ops, holder);
        tpl_nodes_push(p, &list, parse_binary(p, LEVEL_SUM));
    }
    if (!list.n)
        return left;
    struct tpl_node *node = tpl_node_new(p, NODE_COMPARE, at);
    enum tpl_op *kept = tpl_alloc(p->t, ops.n, sizeof *kept);
    for (size_t i = 0; i < ops.n; i++)
        kept[i] = ops.items[i]->op;
    node->ops = kept;
    tpl_nodes_finish(p, &list, node);
    return node;
}

static struct tpl_node *parse_not(struct tpl_parser *p) {
    const struct tpl_token *tok = p->tok;
    if (!tpl_skip_name(p, "not"))
        return parse_compare(p);
    struct tpl_node *node = tpl_node_new(p, NODE_NOT, tok->at);
    tpl_parse_enter(p);
    node->a = parse_not(p);
    tpl_leave(p->t);
    return node;
}

/* a WORD b WORD c, left to right. */
static struct tpl_node *parse_chain(struct tpl_parser *p, const char *word, enum tpl_node_kind kind,
                                    struct tpl_node *(*operand)(struct tpl_parser *)) {
    struct tpl_node *left = operand(p);
    for (const struct tpl_token *tok = p->tok; tpl_skip_name(p, word); tok = p->tok) {
        struct tpl_node *node = tpl_node_new(p, kind, tok->at);
        node->a = left;
        node->b = operand(p);
        left = node;
    }
    return left;
}

static struct tpl_node *parse_and(struct tpl_parser *p) {
    return parse_chain(p, "and", NODE_AND, parse_not);
}

static struct tpl_node *parse_or(struct tpl_parser *p) {
    return parse_chain(p, "or", NODE_OR, parse_and);
}

/* Every bracket is parsed through here, so here its depth is counted. */
struct tpl_node *tpl_parse_expr(struct tpl_parser *p, bool with_cond) {
    tpl_parse_enter(p);
    struct tpl_node *value = parse_or(p);
    const struct tpl_token *tok = p->tok;
    while (with_cond && tpl_skip_name(p, "if")) {
        struct tpl_node *node = tpl_node_new(p, NODE_COND, tok->at);
        node->b = value;
        node->a = parse_or(p);
        if (tpl_skip_name(p, "else"))
            node->c = tpl_parse_expr(p, true);
        value = node;
        tok = p->tok;
    }
    tpl_leave(p->t);
    return value;
}

/* ---- tuples and targets ---------------------------------------------------------------------- */

static bool tuple_ends(const struct tpl_parser *p, const char *end_name) {
    enum tpl_token_kind kind = p->tok->kind;
    return kind == TOK_PRINT_END || kind == TOK_BLOCK_END || kind == TOK_RPAREN ||
           (end_name && tpl_tok_is_name(p, p->tok, end_name));
}

/* One item or, with commas, a tuple; NULL if there is none. */
static struct tpl_node *parse_commas(struct tpl_parser *p, const char *end_name, bool target,
                                     bool option) {
    struct tpl_nodes list = {0};
    size_t at = p->tok->at;
    bool comma = false;
    while (!tuple_ends(p, end_name)) {
        tpl_nodes_push(p, &list, target ? parse_primary(p, option) : tpl_parse_expr(p, option));
        if (!tpl_skip(p, TOK_COMMA))
            break;
        comma = true;
    }
    if (!comma)
        return list.n ? list.items[0] : NULL;
    struct tpl_node *node = tpl_node_new(p, NODE_TUPLE, at);
    tpl_nodes_finish(p, &list, node);
    return node;
}

struct tpl_node *tpl_parse_tuple(struct tpl_parser *p, bool with_cond, bool parens,
                                 const char *end_name) {
    size_t at = p->tok->at;
    struct tpl_node *node = parse_commas(p, end_name, false, with_cond);
    if (!node && !parens)
        tpl_unexpected(p, "an expression");
    return node ? node : tpl_node_new(p, NODE_TUPLE, at);
}

static void check_target(struct tpl_parser *p, const struct tpl_node *node) {
    p->t->at = node->at;
    bool tuple = node->kind == NODE_TUPLE;
    if (!tuple && node->kind != NODE_NAME && node->kind != NODE_NSREF)
        tpl_fail(p->t, "cannot assign to this expression");
    if (p->loops && node->kind == NODE_NAME && node->name == TPL_NAME_LOOP)
        tpl_fail(p->t, "cannot assign to 'loop' in a loop");
    tpl_parse_enter(p);
    for (uint32_t i = 0; tuple && i < node->n; i++)
        check_target(p, node->list[i]);
    tpl_leave(p->t);
}

/* a   a, b   (a, b), c   ns.a */
struct tpl_node *tpl_parse_target(struct tpl_parser *p, bool with_namespace, const char *end_name) {
    struct tpl_node *node = parse_commas(p, end_name, true, with_namespace);
    if (!node)
        tpl_unexpected(p, "a name to assign to");
    check_target(p, node);
    return node;
}
