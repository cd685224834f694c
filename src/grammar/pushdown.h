/* SPDX-License-Identifier: Apache-2.0 */
/* pushdown.h: the recognizer of context-free grammars. gbnf.c fills the tables, pushdown_check.c
 * looks at them as a whole, pushdown.c reads text.
 *
 *     root ::= "a" list "b"        elements   0 'a'  1 list  2 'b'  3 end   4 [0-9]  5 list  6 end
 *     list ::= [0-9] list | ""                7 end
 *                                  rules      root: alternative 0    list: alternatives 4, 7
 *
 * A state is a set of stacks. A stack is where a reader could be: the element that comes next,
 * below it the element that comes when the rule around it has ended, and so on.
 *
 *     after "a1"   [2 4]  a digit, then 2      [2]  'b'
 *
 * A call at the end of an alternative leaves nothing on the stack, so repetitions (which are rules
 * that end with themselves) do not make it grow.
 */
#ifndef KVASIR_GRAMMAR_PUSHDOWN_H
#define KVASIR_GRAMMAR_PUSHDOWN_H

#include "grammar/recognizer.h"

enum {
    PUSHDOWN_DEPTH_MAX = 1024,   /* of a stack */
    PUSHDOWN_STACKS_MAX = 4096,  /* looked at for one byte, else STEP_LIMIT */
    PUSHDOWN_WORK_MAX = 4 << 20, /* their bytes */
    PUSHDOWN_NEVER = UINT32_MAX, /* pushdown_rule.need: no text ends it */
    PUSHDOWN_VALUE_MAX = 1 << 29,
};

enum pushdown_kind {
    PUSHDOWN_END,   /* of an alternative */
    PUSHDOWN_CHAR,  /* a code point */
    PUSHDOWN_CLASS, /* one of a class */
    PUSHDOWN_BYTE,  /* of a control token */
    PUSHDOWN_RULE,
    PUSHDOWN_EMBED, /* a text of another recognizer */
};
struct pushdown_element {
    uint32_t kind : 3, value : 29;
};
struct pushdown_alternative {
    uint32_t at, need; /* its first element */
};
struct pushdown_rule {
    struct text_span name; /* of the rule that was written; borrowed while compiling */
    uint32_t first, n;     /* alternatives */
    uint32_t need;         /* the fewest frames on the stack that a text of it needs */
    bool nullable, defined;
};
struct code_range {
    uint32_t from, to;
};
struct pushdown_class {
    uint32_t first, n; /* ranges, in order */
};

struct pushdown {
    struct recognizer base;
    struct pushdown_element *elements;
    struct pushdown_alternative *alternatives;
    struct pushdown_rule *rules; /* 0: the root */
    struct pushdown_class *classes;
    struct code_range *ranges;
    struct recognizer **embeds; /* owned */
    bool *embed_nullable;       /* they may be empty */
    uint32_t n_elements, n_alternatives, n_rules, n_classes, n_ranges, n_embeds;
    uint32_t elements_cap, alternatives_cap, rules_cap, classes_cap, ranges_cap, embeds_cap,
        embed_nullable_cap;
};

/* Empty tables with the recognizer's functions. NULL: out of memory. */
struct pushdown *pushdown_create(void) MUST_CHECK;
void pushdown_destroy(struct pushdown *p);
/* Fills `need` and `nullable`; refuses a root that no text ends, and left recursion. */
kvasir_status pushdown_check(struct pushdown *p, struct grammar_budget *b,
                             kvasir_error *err) MUST_CHECK;

#endif
