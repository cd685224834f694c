/* SPDX-License-Identifier: Apache-2.0 */
/* template_internal.h: what the template_*.c files share. Nothing outside src/text includes it.
 *
 *   parse:   source ─ template_lex.c ─▶ tokens ─ template_parse.c, _parse_expr.c ─▶ nodes
 *   render:  nodes, args ─ template_exec.c (statements), _eval.c (expressions) ─▶ text
 *
 *   Each of these rests on those below it; only exec, eval and call call each other.
 *      filters and tests by name    template_names.c, _filters.c, _sequences.c, _tests.c
 *      statements, expressions      template_exec.c, _eval.c, _call.c
 *      methods, global functions    template_methods.c, _globals.c
 *      text operations, formats     template_text.c, _format.c, _strftime.c, _json.c
 *      operators                    template_arith.c, _order.c
 *      arguments                    template_builtin.c
 *      text of values               template_print.c, _number.c
 *      values                       template_dict.c, _value.c
 *      memory, limits, failure      template_limits.c
 *
 * The language is Jinja2 as Hugging Face runs chat templates: an immutable sandbox with
 * trim_blocks, lstrip_blocks, loop controls and {% generation %}, without automatic escaping.
 *
 * Invariants
 * TEMPLATE-1  All memory of one parse or rendering comes from one arena with a limit. Nothing in it
 *             is freed alone. So a failure may leave from any depth with longjmp (tpl_fail):
 *             between the setjmp in template.c and tpl_fail, no code owns anything outside the
 *             arena.
 * TEMPLATE-2  Values never change, except namespaces and cursors (iterators, loops). So they are
 *             shared, not copied. Only a namespace can make a cycle; therefore every walk of a
 *             value counts depth and steps.
 * TEMPLATE-3  Every recursion on source, nodes or values passes tpl_enter and tpl_leave. Every loop
 *             whose length a template can choose passes tpl_charge. So a template cannot overflow
 *             the stack or run forever.
 * TEMPLATE-4  A struct template is never written after template_parse: several threads may render
 *             it.
 * TEMPLATE-5  Strings are valid UTF-8. Lengths and indexes that a template sees count code points.
 * TEMPLATE-6  Every byte of a string has an author. Text of the source (tpl_str_own) and of the
 *             model's own variables is the template's, text of an assistant's message is the
 *             assistant's, everything else is the request's: also numbers, and what an operation
 *             makes without saying whose it is. Operations that move text carry its authors
 *             (tpl_out_str, tpl_out_part, tpl_substr, tpl_str_join2). So an operation that forgets
 *             them can lose a control token of the template, but never give one to the request.
 *             Nothing in the language depends on authors: text is rendered as without them.
 *
 * Differences from Jinja2: integers have 64 bits, and overflow is an error. Case mapping maps one
 * character to one character. Generators are computed when they are made. The statements block,
 * extends, include, import and do are refused by the parser, unknown filters when they are reached.
 * Fractional powers may differ in the last digit.
 */
#ifndef KVASIR_TEMPLATE_INTERNAL_H
#define KVASIR_TEMPLATE_INTERNAL_H

#include <setjmp.h>
#include <string.h>

#include "text/text.h"
#include "text/unicode.h"

/* ---- values ---------------------------------------------------------------------------------- */

enum tpl_type {
    TPL_UNSET, /* a parameter that was not given; a template never sees it */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STR,
    TPL_LIST,
    TPL_TUPLE,
    TPL_DICT,
    TPL_VIEW,     /* dict.keys(), .values(), .items() */
    TPL_CURSOR,   /* a Python iterator or generator, which can be walked once */
    TPL_RANGE,    /* range(...) */
    TPL_SPACE,    /* namespace(...), the only value that can be assigned to */
    TPL_MACRO,    /* {% macro %} or the body of {% call %} */
    TPL_FUNCTION, /* a global function */
    TPL_METHOD,   /* a built-in method bound to its object */
    TPL_LOOP,     /* the variable `loop` */
};

struct tpl_value {
    enum tpl_type type;
    union {
        bool b;
        int64_t i;
        double f;
        const struct tpl_str *s;
        const struct tpl_list *list; /* LIST, TUPLE */
        struct tpl_dict *dict;       /* DICT (not written once visible), SPACE (may be written) */
        const struct tpl_view *view;
        struct tpl_cursor *cursor;
        const struct tpl_range *range;
        const struct tpl_undef *undef;
        const struct tpl_macro *macro;
        const struct tpl_builtin *function;
        const struct tpl_method *method;
        struct tpl_loop *loop;
    };
};
typedef struct tpl_value tval;

/* Who wrote the bytes of a text (TEMPLATE-6). Zeros: the request did. */
struct tpl_authors {
    char *each;  /* enum kvasir_author of each byte, in parallel to the text; NULL: all the same */
    uint8_t all; /* that author */
};

/* With `buf`, a + b can extend a in place if nobody has extended it yet, so that building a string
 * piece by piece is linear. */
struct tpl_strbuf {
    char *data;
    size_t used, cap;
    struct tpl_authors by;
};
struct tpl_str {
    const char *data;
    size_t len;   /* bytes */
    size_t chars; /* code points */
    struct tpl_authors by;
    struct tpl_strbuf *buf;
    bool markup; /* made by |safe or |escape: + escapes the other side, as in markupsafe */
};

struct tpl_listbuf {
    tval *items;
    size_t used, cap;
};
struct tpl_list {
    const tval *items;
    size_t n;
    struct tpl_listbuf *buf; /* as in tpl_str; NULL: items cannot be extended */
    bool group;              /* a tuple made by |groupby: has .grouper and .list */
};

/* In order of insertion. `index` (open addressing, entry number + 1, 0 is free) exists above 8
 * entries. */
struct tpl_entry {
    tval key, value;
    uint64_t hash;
};
struct tpl_dict {
    struct tpl_entry *entries;
    size_t n, cap;
    uint32_t *index;
    size_t index_size; /* a power of two */
};

enum tpl_view_kind { TPL_KEYS, TPL_VALUES, TPL_ITEMS };
struct tpl_view {
    enum tpl_view_kind kind;
    struct tpl_dict *dict;
};
struct tpl_cursor {
    const struct tpl_list *list;
    size_t next;
};
struct tpl_range {
    int64_t start, step;
    size_t n;
};

enum tpl_undef_kind {
    TPL_UNDEF_NAME,   /* 'name' is undefined */
    TPL_UNDEF_ATTR,   /* 'owner' has no attribute 'name' */
    TPL_UNDEF_ITEM,   /* owner has no element name */
    TPL_UNDEF_UNSAFE, /* access to attribute 'name' of 'owner' object is unsafe. */
    TPL_UNDEF_HINT,   /* owner is the whole text */
};
struct tpl_undef {
    enum tpl_undef_kind kind;
    const char *owner;
    tval name;
};

struct tpl_macro {
    const struct tpl_node *node; /* NODE_MACRO or NODE_CALL_BLOCK */
    struct tpl_scope *scope;     /* in which it was defined */
};
struct tpl_method {
    tval self;
    const struct tpl_builtin *builtin;
};
struct tpl_loop {
    const struct tpl_node *node;
    struct tpl_scope *scope; /* of the {% for %} */
    const struct tpl_list *items;
    size_t next;                /* the first item that is not fetched yet */
    int64_t index0;             /* -1 before the first pass */
    int64_t passing;            /* items that pass the `if`; -1: not known yet */
    uint32_t nesting;           /* of recursive calls */
    tval prev, current, peeked; /* peeked is UNSET if nothing was fetched ahead */
    tval changed;               /* arguments of the last loop.changed(), first UNSET */
};

/* ---- nodes ----------------------------------------------------------------------------------- */

/* The meaning of the fields of a node. Blocks (*) may be NULL (empty). */
enum tpl_node_kind {
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_TUPLE,   /* list[n] */
    NODE_LIST,    /* list[n] */
    NODE_DICT,    /* list[2n'] = key, value, ...; n = 2n' */
    NODE_ATTR,    /* a . value(str) */
    NODE_ITEM,    /* a [ b ] */
    NODE_SLICE,   /* a [ list[0] : list[1] : list[2] ], each may be NULL */
    NODE_CALL,    /* a ( args ) */
    NODE_FILTER,  /* a | value(str)( args ), builtin; a NULL: captured text */
    NODE_TEST,    /* a is value(str)( args ), builtin */
    NODE_NOT,     /* a */
    NODE_NEG,     /* a */
    NODE_POS,     /* a */
    NODE_AND,     /* a, b */
    NODE_OR,      /* a, b */
    NODE_COND,    /* b if a else c; c may be NULL */
    NODE_COMPARE, /* list[0] ops[0] list[1] ops[1] ... list[n-1] */
    NODE_BINARY,  /* a op b */
    NODE_CONCAT,  /* list[n] joined by ~ */
    NODE_NSREF,   /* target only: name . value(str) */
    /* statements */
    NODE_BLOCK,     /* list[n] */
    NODE_DATA,      /* value(str) */
    NODE_OUTPUT,    /* a */
    NODE_IF,        /* list[n] = test, block, test, block ...; c: else* */
    NODE_FOR,       /* a: target, b: iterable, test or NULL in d, body, c: else*; flag: recursive */
    NODE_SET,       /* a: target, b: value */
    NODE_SET_BLOCK, /* a: target, b: filters or NULL, body */
    NODE_MACRO,     /* name, params, body */
    NODE_CALL_BLOCK,   /* a: NODE_CALL, params, body */
    NODE_FILTER_BLOCK, /* b: filters, body */
    NODE_WITH,         /* list[n] = target, value, ...; body */
    NODE_SCOPE,        /* body ({% generation %}) */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum tpl_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct tpl_args { /* of a call, filter or test, not evaluated */
    struct tpl_node **pos;
    size_t n_pos;
    struct tpl_keyword {
        const struct tpl_str *name;
        struct tpl_node *value;
    } * kw;
    size_t n_kw;
    struct tpl_node *star, *star_star; /* *x, **x or NULL */
};

struct tpl_params { /* of a macro */
    int32_t *names;
    struct tpl_node **defaults; /* [n], NULL if there is none */
    size_t n;
    bool uses_caller, uses_varargs, uses_kwargs;
};

struct tpl_node {
    enum tpl_node_kind kind;
    uint32_t at;  /* byte offset in the source */
    int32_t name; /* number of an interned name */
    uint32_t n;
    bool flag;
    enum tpl_op op;
    struct tpl_node *a, *b, *c, *d, *body;
    struct tpl_node **list;
    const enum tpl_op *ops;
    const struct tpl_args *args;
    const struct tpl_params *params;
    const struct tpl_builtin
        *builtin; /* NULL: no such filter or test, which fails when it is reached */
    tval value;
};

/* ---- one parse or rendering ------------------------------------------------------------------ */

struct tpl_chunk;
struct tpl_arena {
    struct tpl_chunk *newest;
    size_t taken, limit; /* bytes */
};

/* Names that the language itself binds have fixed numbers. */
enum { TPL_NAME_LOOP, TPL_NAME_CALLER, TPL_NAME_VARARGS, TPL_NAME_KWARGS, TPL_NAMES_FIXED };

struct template {
    struct tpl_arena arena;
    const char *source; /* with \n for line ends, without the last one */
    size_t source_len;
    const struct tpl_str **names; /* [n_names] */
    size_t n_names;
    struct tpl_node *body;
};

/* Text being written: to the arena (captured blocks, strings) or, outside of any block, directly to
 * the caller's buffer. */
struct tpl_out {
    char *data;
    size_t len, cap;
    struct text_buf
        *direct; /* NULL: data[cap] is in the arena; else only len is kept, for the limit */
    struct text_buf *direct_authors; /* with direct: enum kvasir_author of its bytes; or NULL */
    struct tpl_authors by;
};

/* Variables of one block. A name is looked up here, in the outer scopes, in the arguments, in the
 * globals. */
struct tpl_scope {
    struct tpl_scope *outer;
    struct tpl_var {
        int32_t name;
        tval value;
    } * vars;
    size_t n, cap;
    bool kept; /* a macro refers to it: it cannot be reused */
};

struct tpl {
    struct tpl_arena *arena;
    const char *source;
    size_t source_len;
    size_t at; /* the place that an error would name now */
    kvasir_error *err;
    kvasir_status status;
    jmp_buf failed;
    uint32_t depth, depth_limit;
    /* for rendering only */
    const struct template *tmpl;
    uint64_t steps, steps_limit;
    uint64_t next_look; /* at that step, `stop` is asked */
    bool (*stop)(void *user);
    void *stop_user;
    size_t output_limit;
    struct tpl_dict *args;
    struct tpl_out *out;
    tval captured; /* input of a filter node that has none */
    int64_t now;
    /* tpl_get_attr and tpl_get_item, for str.format, which is in a lower layer. */
    tval (*get_attr)(struct tpl *t, tval v, tval name);
    tval (*get_item)(struct tpl *t, tval v, tval key);
};

/* ---- limits and failure (template_limits.c) -------------------------------------------------- */

_Noreturn void tpl_fail(struct tpl *t, const char *format, ...) PRINTF_LIKE(2, 3);
void *tpl_alloc(struct tpl *t, size_t count, size_t size) __attribute__((malloc)); /* zeroed */
void *tpl_arena_take(struct tpl *t, struct tpl_arena *arena, size_t bytes);
void tpl_arena_release(struct tpl_arena *arena);
/* Makes room for one more item in items[n], which has room for cap: copies a full array to one of
 * twice the size, with zeros at its end. */
#define TPL_GROW(t, arena, items, n, cap, first)                                                   \
    do {                                                                                           \
        if ((n) == (cap))                                                                          \
            (items) = tpl_grow_array(t, arena, items, n, &(cap), first, sizeof(*(items)));         \
    } while (0)
void *tpl_grow_array(struct tpl *t, struct tpl_arena *arena, const void *items, size_t n,
                     size_t *cap, size_t first, size_t size);
void tpl_enter_deep(struct tpl *t);
static inline void tpl_enter(struct tpl *t) {
    if (++t->depth > t->depth_limit)
        tpl_enter_deep(t);
}
static inline void tpl_leave(struct tpl *t) {
    DEBUG_ASSERT(t->depth > 0);
    t->depth--;
}
void tpl_charge(struct tpl *t, uint64_t steps);
/* For work on that many bytes: one step per 64. */
static inline void tpl_charge_bytes(struct tpl *t, size_t bytes) {
    tpl_charge(t, 1 + bytes / 64);
}
/* Notes who wrote the next len bytes of a text of `used` bytes with room for `cap`. */
void tpl_note_authors(struct tpl *t, struct tpl_authors *into, size_t used, size_t cap,
                      struct tpl_authors by, size_t len);
void tpl_out_by(struct tpl *t, struct tpl_out *out, const char *data, size_t len,
                struct tpl_authors by);
/* A string, or the bytes [from, to) of one, with their authors. */
static inline struct tpl_authors tpl_authors_from(const struct tpl_str *s, size_t from) {
    return (struct tpl_authors){s->by.each ? s->by.each + from : NULL, s->by.all};
}
static inline void tpl_out_part(struct tpl *t, struct tpl_out *out, const struct tpl_str *s,
                                size_t from, size_t to) {
    DEBUG_ASSERT(from <= to && to <= s->len);
    tpl_out_by(t, out, s->data + from, to - from, tpl_authors_from(s, from));
}
static inline void tpl_out_str(struct tpl *t, struct tpl_out *out, const struct tpl_str *s) {
    tpl_out_by(t, out, s->data, s->len, s->by);
}
/* Text whose author is not known, which counts as the request's. */
static inline void tpl_out_put(struct tpl *t, struct tpl_out *out, const char *data, size_t len) {
    tpl_out_by(t, out, data, len, (struct tpl_authors){0});
}
#define tpl_out_lit(t, out, lit) tpl_out_put(t, out, "" lit, sizeof(lit) - 1)
void tpl_out_printf(struct tpl *t, struct tpl_out *out, const char *format, ...) PRINTF_LIKE(3, 4);

/* ---- lexer (template_lex.c) ------------------------------------------------------------------ */

enum tpl_token_kind {
    TOK_END,
    TOK_DATA,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_PRINT_BEGIN,
    TOK_PRINT_END,
    TOK_NAME,
    TOK_STRING,
    TOK_INT,
    TOK_FLOAT,
    TOK_ADD,
    TOK_SUB,
    TOK_MUL,
    TOK_DIV,
    TOK_FLOORDIV,
    TOK_MOD,
    TOK_POW,
    TOK_TILDE,
    TOK_LBRACKET,
    TOK_RBRACKET,
    TOK_LPAREN,
    TOK_RPAREN,
    TOK_LBRACE,
    TOK_RBRACE,
    TOK_EQ,
    TOK_NE,
    TOK_LT,
    TOK_LE,
    TOK_GT,
    TOK_GE,
    TOK_ASSIGN,
    TOK_DOT,
    TOK_COLON,
    TOK_PIPE,
    TOK_COMMA,
    TOK_SEMICOLON,
};
struct tpl_token {
    enum tpl_token_kind kind;
    size_t at, len; /* in the source; of TOK_DATA, what is left after stripping */
    tval value;     /* TOK_STRING, TOK_INT, TOK_FLOAT */
};
/* The tokens are in `scratch` and end with TOK_END. */
const struct tpl_token *tpl_lex(struct tpl *t, struct tpl_arena *scratch);
const char *tpl_token_name(enum tpl_token_kind kind);

/* ---- parser (template_parse.c: statements, template_parse_expr.c: expressions) --------------- */

struct tpl_parser {
    struct tpl *t;
    struct template *tmpl;
    struct tpl_arena *scratch;
    const struct tpl_token *tok;
    size_t names_cap;
    struct tpl_dict *name_numbers;
    int loops; /* {% for %} statements around this place in the current function */
    bool saw_caller, saw_varargs, saw_kwargs;
};
/* For every recursion of the parser: an error names the current token. */
static inline void tpl_parse_enter(struct tpl_parser *p) {
    p->t->at = p->tok->at;
    tpl_enter(p->t);
}
struct tpl_nodes { /* a list being collected, in scratch */
    struct tpl_node **items;
    size_t n, cap;
};
void tpl_parse(struct tpl_parser *p);
struct tpl_node *tpl_node_new(struct tpl_parser *p, enum tpl_node_kind kind, size_t at);
void tpl_nodes_push(struct tpl_parser *p, struct tpl_nodes *list, struct tpl_node *node);
struct tpl_node **tpl_nodes_keep(struct tpl_parser *p, const struct tpl_nodes *list);
void tpl_nodes_finish(struct tpl_parser *p, const struct tpl_nodes *list, struct tpl_node *into);
int32_t tpl_intern(struct tpl_parser *p, const char *text, size_t len);
bool tpl_tok_is_name(const struct tpl_parser *p, const struct tpl_token *tok, const char *name);
bool tpl_skip(struct tpl_parser *p, enum tpl_token_kind kind);
bool tpl_skip_name(struct tpl_parser *p, const char *name);
const struct tpl_token *tpl_expect(struct tpl_parser *p, enum tpl_token_kind kind);
_Noreturn void tpl_unexpected(struct tpl_parser *p, const char *wanted);
const struct tpl_str *tpl_token_str(struct tpl_parser *p, const struct tpl_token *tok);
struct tpl_node *tpl_parse_expr(struct tpl_parser *p, bool with_cond);
/* An expression or, with commas, a tuple. `end_name`, if not NULL, is a name that may follow the
 * last comma. */
struct tpl_node *tpl_parse_tuple(struct tpl_parser *p, bool with_cond, bool parens,
                                 const char *end_name);
struct tpl_node *tpl_parse_target(struct tpl_parser *p, bool with_namespace, const char *end_name);
struct tpl_node *tpl_parse_filters(struct tpl_parser *p, struct tpl_node *input, bool inline_start);

/* ---- making and reading values (template_value.c) -------------------------------------------- */

#define tpl_lit(t, text) tpl_str_borrow(t, "" text, sizeof(text) - 1)

static inline tval tpl_none(void) {
    return (tval){.type = TPL_NONE};
}
static inline tval tpl_unset(void) {
    return (tval){.type = TPL_UNSET};
}
static inline tval tpl_bool(bool b) {
    return (tval){.type = TPL_BOOL, .b = b};
}
static inline tval tpl_int(int64_t i) {
    return (tval){.type = TPL_INT, .i = i};
}
static inline tval tpl_float(double f) {
    return (tval){.type = TPL_FLOAT, .f = f};
}
static inline tval tpl_from_str(const struct tpl_str *s) {
    return (tval){.type = TPL_STR, .s = s};
}
static inline bool tpl_is_number(tval v) {
    return v.type == TPL_BOOL || v.type == TPL_INT || v.type == TPL_FLOAT;
}
static inline bool tpl_is_missing(tval v) {
    return v.type == TPL_UNSET || v.type == TPL_UNDEFINED;
}
static inline bool tpl_is_given(tval v) { /* an optional argument */
    return v.type != TPL_UNSET && v.type != TPL_NONE;
}
/* str.isspace() of one character. */
static inline bool tpl_is_space(uint32_t c) {
    return is_space(c) || (c >= 0x1c && c <= 0x1f);
}
/* Text of the template's source, which stays where it is. */
tval tpl_str_own(struct tpl *t, const char *data, size_t len);
/* Any other text that stays where it is (arguments). */
tval tpl_str_by(struct tpl *t, const char *data, size_t len, enum kvasir_author author);
/* The request's text: that stays where it is (arguments, literals of the language); copied. */
tval tpl_str_borrow(struct tpl *t, const char *data, size_t len);
tval tpl_str_copy(struct tpl *t, const char *data, size_t len);
tval tpl_str_join2(struct tpl *t, const struct tpl_str *a, const struct tpl_str *b);
tval tpl_str_from_out(struct tpl *t, const struct tpl_out *out); /* takes over the buffer */
tval tpl_substr(struct tpl *t, const struct tpl_str *s, size_t from, size_t to); /* bytes */
tval tpl_str_marked(struct tpl *t, const struct tpl_str *s, bool markup);
tval tpl_str_like(struct tpl *t, tval v, const struct tpl_str *model); /* copies the markup mark */
bool tpl_str_is(tval v, const char *text);
bool tpl_str_equal(const struct tpl_str *a, const struct tpl_str *b);
size_t tpl_str_offset(const struct tpl_str *s, size_t chars); /* byte offset of a code point */
/* The first place of needle in [from, to) of hay, in bytes; SIZE_MAX if there is none. */
size_t tpl_find(const char *hay, size_t from, size_t to, const char *needle, size_t len);
/* An excerpt for one error message: at most 60 bytes, without line ends. */
const char *tpl_excerpt(struct tpl *t, const struct tpl_str *s);

tval tpl_list_of(struct tpl *t, enum tpl_type type, const tval *items, size_t n); /* copies */
tval tpl_list_join2(struct tpl *t, tval a, tval b);
struct tpl_items { /* a list being collected */
    tval *items;
    size_t n, cap;
};
void tpl_items_push(struct tpl *t, struct tpl_items *into, tval v);
tval tpl_items_finish(struct tpl *t, const struct tpl_items *items,
                      enum tpl_type type);    /* or a CURSOR */
tval tpl_pair(struct tpl *t, tval a, tval b); /* a tuple */

tval tpl_undef(struct tpl *t, enum tpl_undef_kind kind, const char *owner, tval name);
tval tpl_undef_name(struct tpl *t, const struct tpl_str *name);
tval tpl_undef_hint(struct tpl *t, const char *text);
tval tpl_undef_attr(struct tpl *t, tval owner, tval name);

const char *tpl_type_name(tval v);
bool tpl_truth(tval v);
size_t tpl_length(struct tpl *t, tval v); /* len(v) */
bool tpl_has_length(tval v);
tval tpl_item(struct tpl *t, tval v,
              size_t i);               /* i < tpl_length; of a list, tuple, range or string */
bool tpl_as_int(tval v, int64_t *out); /* bool and int */
double tpl_as_double(tval v);          /* of a number */

struct tpl_iter {
    tval of;
    size_t next; /* index of the element; byte offset in a string */
};
bool tpl_is_iterable(tval v);
struct tpl_iter tpl_iter_begin(struct tpl *t, tval v); /* fails: '...' object is not iterable */
bool tpl_iter_next(struct tpl *t, struct tpl_iter *it, tval *out);
const struct tpl_list *tpl_to_list(struct tpl *t,
                                   tval v); /* all items; a list is returned itself */

/* ---- equality, dictionaries (template_dict.c) ------------------------------------------------ */

bool tpl_equal(struct tpl *t, tval a, tval b);
int tpl_order_numbers(tval a, tval b); /* -1, 0, 1; 2 if one is NaN */
struct tpl_dict *tpl_dict_new(struct tpl *t);
void tpl_dict_set(struct tpl *t, struct tpl_dict *d, tval key, tval value);
const tval *tpl_dict_get(struct tpl *t, const struct tpl_dict *d, tval key); /* NULL: no such key */
bool tpl_is_hashable(struct tpl *t, tval v);

/* ---- order (template_order.c), arithmetic (template_arith.c) --------------------------------- */

/* Python's a < b. Fails for types without an order; `op` is for that message. */
bool tpl_less(struct tpl *t, tval a, tval b, const char *op);
tval tpl_arith(struct tpl *t, enum tpl_op op, tval a, tval b);
bool tpl_compare(struct tpl *t, enum tpl_op op, tval a, tval b);
/* Stable; keys[i] belongs to items[i]. */
void tpl_sort(struct tpl *t, tval *keys, tval *items, size_t n, bool reverse);

/* ---- text of values (template_print.c, _number.c, _json.c, _format.c, _strftime.c) ----------- */

/* Fails because an Undefined was used. */
_Noreturn void tpl_fail_undefined(struct tpl *t, tval v);
static inline void tpl_need_defined(struct tpl *t, tval v) {
    if (v.type == TPL_UNDEFINED)
        tpl_fail_undefined(t, v);
}
void tpl_put_str(struct tpl *t, struct tpl_out *out, tval v);  /* Python's str() */
void tpl_put_repr(struct tpl *t, struct tpl_out *out, tval v); /* Python's repr() */
const struct tpl_str *tpl_to_str(struct tpl *t, tval v);
struct tpl_json_style {
    bool ascii, sort, indented;
    const struct tpl_str *indent, *item_sep, *key_sep;
};
void tpl_put_json(struct tpl *t, struct tpl_out *out, tval v, const struct tpl_json_style *style);
void tpl_put_escaped(struct tpl *t, struct tpl_out *out, const struct tpl_str *s); /* HTML */
/* Decimal text to double and back, in any locale. */
bool tpl_parse_double(const char *text, size_t len, double *out);
#define TPL_FLOAT_CHARS 40
void tpl_put_number(struct tpl *t, struct tpl_out *out, tval v); /* INT or FLOAT */
size_t tpl_print_double(char *to, double value); /* repr(); room for TPL_FLOAT_CHARS */
/* printf's %.<precision><conversion> of a double, with '.' as decimal point in any locale. */
#define TPL_PRECISION_MAX 400 /* digits after the point */
void tpl_put_double(struct tpl *t, struct tpl_out *out, double value, char conversion,
                    int precision, bool alternate);
tval tpl_format_percent(struct tpl *t, const struct tpl_str *format, tval args);
struct tpl_call;
tval tpl_format_braces(struct tpl *t, const struct tpl_str *format, const struct tpl_call *call);
tval tpl_strftime(struct tpl *t, const struct tpl_str *format);

/* ---- callables ------------------------------------------------------------------------------- */

struct tpl_call { /* evaluated arguments */
    const tval *pos;
    size_t n_pos;
    struct tpl_named {
        const struct tpl_str *name;
        tval value;
    } * kw;
    size_t n_kw;
};

/* p: the arguments of the parameters in `params`, UNSET if not given; NULL if params is NULL. */
typedef tval tpl_fn(struct tpl *t, tval self, const tval *p, const struct tpl_call *call);
struct tpl_builtin {
    const char *name;
    const char *params; /* "a b? c?": names, ? marks optional ones; NULL: fn reads `call` itself */
    tpl_fn *fn;
};
#define TPL_MAX_PARAMS 5
struct tpl_table {
    const struct tpl_builtin *builtins;
    size_t n;
};
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define TPL_TABLE(array)                                                                           \
    { array, COUNT(array) }
/* TPL_FN begins the definition of a tpl_fn. TPL_EXPR defines one that is an expression. */
#define TPL_FN(name)                                                                               \
    static tval name(TPL_UNUSED struct tpl *t, TPL_UNUSED tval self, TPL_UNUSED const tval *p,     \
                     TPL_UNUSED const struct tpl_call *call)
#define TPL_EXPR(name, expr)                                                                       \
    TPL_FN(name) {                                                                                 \
        return expr;                                                                               \
    }
#define TPL_UNUSED __attribute__((unused))

/* template_builtin.c */
const struct tpl_builtin *tpl_search(const struct tpl_table *table, const char *name, size_t len);
tval tpl_invoke(struct tpl *t, const struct tpl_builtin *b, tval self, const struct tpl_call *call);
tval tpl_method_of(struct tpl *t, tval self, const struct tpl_builtin *b);
int64_t tpl_need_int(struct tpl *t, tval v, const char *what);
const struct tpl_str *tpl_need_str(struct tpl *t, tval v, const char *what);
int64_t tpl_int_or(struct tpl *t, tval v, int64_t otherwise, const char *what); /* if UNSET */

/* Finds one by name; NULL if there is none (template_names.c, template_globals.c). */
const struct tpl_builtin *tpl_filter_find(const char *name, size_t len);
const struct tpl_builtin *tpl_test_find(const char *name, size_t len);
const struct tpl_builtin *tpl_global_find(const char *name, size_t len);
extern const struct tpl_table tpl_value_filters, tpl_sequence_filters, tpl_value_tests;
/* The value at an attribute path. `otherwise`, if not UNSET, replaces an undefined value. */
tval tpl_follow(struct tpl *t, tval v, tval path, tval otherwise);
/* The method `name` of a value; NULL if there is none. *unsafe: it exists, but would change its
 * object. */
const struct tpl_builtin *tpl_method_find(tval self, const struct tpl_str *name, bool *unsafe);
const struct tpl_builtin *tpl_str_method_find(const char *name, size_t len);

/* shared by methods and filters (template_text.c) */
tval tpl_strip(struct tpl *t, const struct tpl_str *s, tval chars, bool left, bool right);
enum tpl_case {
    CASE_UPPER,
    CASE_LOWER,
    CASE_CAPITALIZE,
    CASE_TITLE_METHOD,
    CASE_TITLE_FILTER,
    CASE_SWAP
};
tval tpl_change_case(struct tpl *t, const struct tpl_str *s, enum tpl_case how);
tval tpl_replace(struct tpl *t, const struct tpl_str *s, const struct tpl_str *from,
                 const struct tpl_str *to, int64_t count);
tval tpl_split_lines(struct tpl *t, const struct tpl_str *s, bool keep_ends);
bool tpl_is_cased(uint32_t c, bool *upper);
tval tpl_center(struct tpl *t, const struct tpl_str *s, int64_t width, const struct tpl_str *fill,
                int where); /* where: -1 left, 0 centre, 1 right */

/* ---- evaluation (template_eval.c, template_exec.c) ------------------------------------------- */

tval tpl_eval(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node);
tval tpl_get_attr(struct tpl *t, tval v, tval name); /* v.name */
tval tpl_get_item(struct tpl *t, tval v, tval key);  /* v[key] */
tval tpl_call_value(struct tpl *t, tval callee, const struct tpl_call *call);

enum tpl_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
enum tpl_flow tpl_exec(struct tpl *t, struct tpl_scope *scope, const struct tpl_node *node);
struct tpl_scope *tpl_scope_new(struct tpl *t, struct tpl_scope *outer);
const tval *tpl_scope_find(struct tpl *t, const struct tpl_scope *scope, int32_t name);
void tpl_scope_set(struct tpl *t, struct tpl_scope *scope, int32_t name, tval value);
tval tpl_loop_attr(struct tpl *t, struct tpl_loop *loop, const struct tpl_str *name);
tval tpl_loop_recurse(struct tpl *t, struct tpl_loop *loop, const struct tpl_call *call);

#endif
