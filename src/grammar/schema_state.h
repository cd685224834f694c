/* SPDX-License-Identifier: Apache-2.0 */
/* schema_state.h: the block of a state, for schema_block.c, schema_state.c and
 * schema_string.c. */
#ifndef KVASIR_GRAMMAR_SCHEMA_STATE_H
#define KVASIR_GRAMMAR_SCHEMA_STATE_H

#include "grammar/schema.h"

enum phase {
    PHASE_VALUE,
    PHASE_FIRST_ITEM, /* after '[' */
    PHASE_FIRST_KEY,  /* after '{' */
    PHASE_KEY,        /* after ',' of an object */
    PHASE_COLON,
    PHASE_AFTER, /* a value */
    PHASE_END,
    PHASE_STRING,
    PHASE_KEY_TEXT,
    PHASE_NUMBER,
    PHASE_LITERAL,
};
enum escape {
    ESCAPE_NONE,
    ESCAPE_BEGUN,                 /* after '\' */
    ESCAPE_HEX,                   /* + digits so far: 0 to 3 */
    ESCAPE_HIGH = ESCAPE_HEX + 4, /* after a high surrogate: '\' */
    ESCAPE_HIGH_U,
    ESCAPE_LOW, /* + digits so far */
};
/* No padding: blocks are compared byte by byte. */
struct head {
    uint8_t phase, escape, inside; /* inside: bytes of a character that are still to come */
    uint8_t blanks, literal, literal_at;
    uint16_t text_len;
    uint32_t held, high; /* digits of \uXXXX; a high surrogate */
};
enum leaf {
    LEAF_NONE,
    LEAF_STRING, /* of the plan, at `at` */
    LEAF_NUMBER,
    LEAF_LITERAL,
    LEAF_NAMED, /* a key that is named: which, once it is complete */
    LEAF_CLASS, /* a key of class `plan` */
};
struct thread_head {
    uint32_t size, top; /* bytes, this head included; where the top frame is */
    uint16_t levels, leaf;
    uint32_t plan;
    struct language_at at;
};
/* An open container; what it has already follows (schema_plan.words). */
struct frame {
    uint32_t plan, count;
    uint16_t counted[SCHEMA_COUNTED_MAX], pending;
};
_Static_assert(sizeof(struct head) == 16 && sizeof(struct thread_head) == 24 &&
                   sizeof(struct frame) == 16,
               "no padding");

struct thread {
    const char *bytes;
    struct thread_head head;
    struct frame top;
    const struct schema_plan *plan; /* of top */
};
struct reading {
    const struct schema *schema;
    struct head head;
    const char *text, *at, *end;
};
struct writing {
    const struct schema *schema;
    struct text_buf *out;
    struct head head;
    size_t begin; /* of the block in out */
    uint32_t n;   /* threads */
    bool failed;  /* out of memory */
};

bool reading_begin(struct reading *r, const struct schema *s, struct text_span block);
bool reading_next(struct reading *r, struct thread *t);
bool writing_begin(struct writing *w);
/* The block's text, before its threads. */
bool writing_text(struct writing *w, const char *text, size_t len, const char *more, size_t n);
bool writing_end(struct writing *w);
bool write_thread(struct writing *w, const struct thread *t);
/* The top container of the thread that was written to `at` has this name or value from now on. */
void write_seen(struct writing *w, const struct thread *t, size_t at, uint32_t which);
/* The thread that was written to `at` has read n bytes more of a key whose name matters. */
void write_name(struct writing *w, const struct thread *t, size_t at, const char *bytes, size_t n);
/* The value that a thread was reading is complete; a container is open; the top one is closed. */
bool write_done(struct writing *w, const struct thread *t);
bool write_open(struct writing *w, const struct thread *t, uint32_t plan);
bool write_closed(struct writing *w, const struct thread *t);

/* The thread reads a key of a class, and whether the name came before matters; it did. */
bool name_matters(const struct thread *t);
bool name_is_kept(const struct thread *t);
/* The top container has the name, or value, already. */
bool is_seen(const struct thread *t, uint32_t i);
/* Required names that are missing, without one. */
uint32_t missing(const struct thread *t, uint32_t without);
/* Whether the top container can still be completed after one more member, of this name or
 * SCHEMA_UNBOUNDED, or item that meets the choice; or one of several. */
bool choice_fits(const struct thread *t, const struct schema_choice *choice, uint32_t named);
bool fits(const struct thread *t, const struct schema_choices *choices, uint32_t named);

/* Whether a member with this name may come now. */
bool named_fits(const struct thread *t, uint32_t i);
/* Some such name begins with the text, or is it. */
bool some_named(const struct thread *t, const char *text, size_t len, bool whole, uint32_t *which);
const char *literal_text(uint8_t first);

/* schema_string.c */
bool step_string(struct reading *r, struct writing *w, uint8_t byte);
uint64_t schema_text_key(const struct recognizer *r, struct text_span state);
void schema_narrow(const struct recognizer *r, struct text_span state, uint64_t bytes[4]);

#endif
