/* SPDX-License-Identifier: Apache-2.0 */
/* schema_block.c: the block of a state, read and written thread by thread; and whether a container
 * has room for what comes next. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_state.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

bool reading_begin(struct reading *r, const struct schema *s, struct text_span block) {
    ASSERT(block.len >= sizeof r->head);
    r->schema = s;
    memcpy(&r->head, block.data, sizeof r->head);
    r->text = block.data + sizeof r->head;
    r->at = r->text + r->head.text_len;
    r->end = block.data + block.len;
    return true;
}

bool reading_next(struct reading *r, struct thread *t) {
    if (r->at == r->end)
        return false;
    t->bytes = r->at;
    memcpy(&t->head, r->at, sizeof t->head);
    r->at += t->head.size;
    ASSERT(r->at <= r->end);
    if (t->head.levels)
        memcpy(&t->top, t->bytes + t->head.top, sizeof t->top);
    t->plan = t->head.levels ? &r->schema->plans[t->top.plan] : NULL;
    return true;
}

static const char *seen_of(const struct thread *t) {
    return t->bytes + t->head.top + sizeof t->top;
}

bool is_seen(const struct thread *t, uint32_t i) {
    return (uint8_t)seen_of(t)[i / 8] >> i % 8 & 1;
}

/* A copy of the thread, with other heads. */
bool write_thread(struct writing *w, const struct thread *t) {
    const size_t at = w->out->len;
    if (!text_append(w->out, t->bytes, t->head.size))
        return w->failed = true, false;
    memcpy(w->out->data + at, &t->head, sizeof t->head);
    if (t->head.levels)
        memcpy(w->out->data + at + t->head.top, &t->top, sizeof t->top);
    w->n++;
    return true;
}

/* The same with a container more. */
bool write_open(struct writing *w, const struct thread *t, uint32_t plan) {
    struct thread_head head = t->head;
    ASSERT(w->schema->plans[plan].branch.type >= SCHEMA_ARRAY);
    const struct frame frame = {.plan = plan};
    const size_t at = w->out->len, seen = w->schema->plans[plan].words * 8;
    static const char ZEROS[64];
    bool good = text_append(w->out, t->bytes, t->head.size);
    if (good && t->head.levels)
        memcpy(w->out->data + at + t->head.top, &t->top, sizeof t->top);
    head.levels++;
    head.top = head.size;
    head.leaf = LEAF_NONE;
    head.plan = 0;
    head.at = (struct language_at){0};
    head.size += (uint32_t)(sizeof frame + seen);
    good = good && text_append(w->out, (const char *)&frame, sizeof frame);
    for (size_t done = 0; good && done < seen; done += sizeof ZEROS)
        good = text_append(w->out, ZEROS, seen - done < sizeof ZEROS ? seen - done : sizeof ZEROS);
    if (!good)
        return w->failed = true, false;
    memcpy(w->out->data + at, &head, sizeof head);
    w->n++;
    return true;
}

static uint32_t capped(uint32_t count, uint32_t min, uint32_t max) {
    const uint32_t cap = max != SCHEMA_UNBOUNDED && max > min ? max : min;
    return count < cap ? count : cap;
}

/* ---- names of classes ------------------------------------------------------------------------ */

/* Where the hash of the last name is in a frame; the n_names kept ones follow. 0: none. */
static size_t names_at(const struct thread *t) {
    return t->head.top + sizeof t->top + (t->plan->words - t->plan->n_names - 1) * 8;
}

static uint64_t load_name(const char *thread, size_t at, uint32_t i) {
    uint64_t hash;
    memcpy(&hash, thread + at + i * 8, sizeof hash);
    return hash;
}

bool name_matters(const struct thread *t) {
    return t->head.leaf == LEAF_CLASS && t->plan->n_names && t->plan->distinct[t->head.plan] &&
           t->top.count < t->plan->branch.min;
}

bool name_is_kept(const struct thread *t) {
    const size_t at = names_at(t);
    for (uint32_t i = 1; i <= t->plan->n_names; i++)
        if (load_name(t->bytes, at, i) == load_name(t->bytes, at, 0))
            return true;
    return false;
}

/* Names whose hashes collide, 1 pair in 2^64, cannot both come. */
void write_name(struct writing *w, const struct thread *t, size_t at, const char *bytes, size_t n) {
    char *thread = w->out->data + at;
    const uint64_t before = load_name(thread, names_at(t), 0);
    const uint64_t hash = hash_fnv1a_more(before ? before : HASH_FNV1A_START, bytes, n);
    memcpy(thread + names_at(t), &hash, sizeof hash);
}

/* Of the thread that was written to `at`, whose member is complete: its name is kept. Once there
 * are enough members, no name matters. */
static void settle_name(struct writing *w, const struct thread *t, size_t at) {
    char *names = w->out->data + at + names_at(t);
    const uint64_t last = load_name(names, 0, 0), none = 0;
    uint32_t free = 1;
    while (free <= t->plan->n_names && load_name(names, 0, free))
        free++;
    if (last && free <= t->plan->n_names)
        memcpy(names + free * 8, &last, sizeof last);
    memcpy(names, &none, sizeof none);
    if (t->top.count >= t->plan->branch.min)
        memset(names, 0, (1 + t->plan->n_names) * 8);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A value of the top container is complete. */
static void count_value(struct thread *t) {
    const struct schema_branch *b = &t->plan->branch;
    const uint32_t least = b->type == SCHEMA_ARRAY && b->n_prefix > b->min ? b->n_prefix : b->min;
    t->top.count = capped(t->top.count + 1, least, b->max);
    for (uint32_t k = 0; k < b->n_counted; k++) /* none if unique */
        if (t->top.pending >> k & 1)
            t->top.counted[k] =
                (uint16_t)capped(t->top.counted[k] + 1u, b->counted[k].min, b->counted[k].max);
    t->top.pending = 0;
}

void write_seen(struct writing *w, const struct thread *t, size_t at, uint32_t which) {
    char *seen = w->out->data + at + t->head.top + sizeof t->top;
    ASSERT(t->head.levels > 0);
    seen[which / 8] = (char)(seen[which / 8] | 1 << which % 8);
}

/* The value that a thread was reading is complete. */
bool write_done(struct writing *w, const struct thread *from) {
    struct thread t = *from;
    t.head.leaf = LEAF_NONE;
    t.head.plan = 0;
    t.head.at = (struct language_at){0};
    if (!t.head.levels)
        return write_thread(w, &t);
    const size_t at = w->out->len;
    const uint32_t which = t.top.pending;
    count_value(&t);
    if (!write_thread(w, &t))
        return false;
    if (t.plan->n_names)
        settle_name(w, &t, at);
    if (t.plan->unique)
        write_seen(w, &t, at, which);
    return true;
}

/* The top container is complete. */
bool write_closed(struct writing *w, const struct thread *from) {
    struct thread t = *from;
    ASSERT(t.head.levels > 0 && t.head.top < t.head.size);
    t.head.size = t.head.top;
    t.head.levels--;
    uint32_t at = sizeof t.head; /* the frame below is found from the bottom */
    for (uint8_t level = 1; level < t.head.levels; level++) {
        struct frame f;
        memcpy(&f, t.bytes + at, sizeof f);
        at += (uint32_t)(sizeof f + w->schema->plans[f.plan].words * 8);
    }
    t.head.top = t.head.levels ? at : 0;
    if (t.head.levels) {
        memcpy(&t.top, t.bytes + at, sizeof t.top);
        t.plan = &w->schema->plans[t.top.plan];
    }
    return write_done(w, &t);
}

/* ---- room ------------------------------------------------------------------------------------ */

uint32_t missing(const struct thread *t, uint32_t without) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->plan->branch.n_named; i++)
        n += i != without && t->plan->branch.named[i].required && !is_seen(t, i);
    return n;
}

/* For a container whose members or items do not count: it was opened only where it could be
 * completed, so that a member is too many only if it takes the place of one that is required. */
static bool number_fits(const struct thread *t, uint32_t named) {
    const struct schema_branch *b = &t->plan->branch;
    return b->type == SCHEMA_ARRAY || b->max == SCHEMA_UNBOUNDED ||
           (uint64_t)t->top.count + 1 + missing(t, named) <= b->max;
}

bool choice_fits(const struct thread *t, const struct schema_choice *choice, uint32_t named) {
    const struct schema_branch *b = &t->plan->branch;
    struct schema_room r = {.plan = t->plan,
                            .reach = SCHEMA_LEVELS_MAX - t->head.levels,
                            .count = t->top.count + 1,
                            .seen = (const uint8_t *)seen_of(t),
                            .name = named};
    ASSERT(t->head.levels <= SCHEMA_LEVELS_MAX);
    if (choice->height > r.reach)
        return false;
    if (b->n_counted == 0)
        return number_fits(t, named);
    for (uint32_t k = 0; k < b->n_counted; k++) {
        const struct schema_counted *c = &b->counted[k];
        r.counted[k] = t->top.counted[k] + (choice->counts >> k & 1u);
        if (r.counted[k] > c->max)
            return false;
        if (c->max == SCHEMA_UNBOUNDED)
            r.counted[k] = min_u32(r.counted[k], c->min);
    }
    return schema_has_room(&r);
}

bool fits(const struct thread *t, const struct schema_choices *choices, uint32_t named) {
    for (uint32_t i = 0; i < choices->n; i++)
        if (choice_fits(t, &choices->all[i], named))
            return true;
    return false;
}

bool named_fits(const struct thread *t, uint32_t i) {
    return !is_seen(t, i) && fits(t, &t->plan->named[i], i);
}

bool some_named(const struct thread *t, const char *text, size_t len, bool whole, uint32_t *which) {
    const struct schema_branch *b = &t->plan->branch;
    uint32_t low = 0, high = b->n_named;
    while (low < high) { /* the first that is not below the text */
        const uint32_t middle = (low + high) / 2;
        const struct text_span name = b->named[middle].name;
        const int order = memcmp(name.data, text, name.len < len ? name.len : len);
        *(order < 0 || (order == 0 && name.len < len) ? &low : &high) =
            order < 0 || (order == 0 && name.len < len) ? middle + 1 : middle;
    }
    for (uint32_t i = low; i < b->n_named; i++) {
        const struct text_span name = b->named[i].name;
        if (name.len < len || memcmp(name.data, text, len) != 0)
            return false;
        if (whole && name.len > len)
            return false;
        if (named_fits(t, i)) {
            *which = i;
            return true;
        }
    }
    return false;
}

/* ---- whole blocks ---------------------------------------------------------------------------- */

bool writing_begin(struct writing *w) {
    w->begin = w->out->len;
    w->head.text_len = 0;
    return text_append(w->out, (const char *)&w->head, sizeof w->head) || (w->failed = true, false);
}

bool writing_text(struct writing *w, const char *text, size_t len, const char *more, size_t n) {
    ASSERT(w->n == 0);
    if (len + n > UINT16_MAX)
        return true; /* no name and no number is as long */
    w->head.text_len = (uint16_t)(len + n);
    return (text_append(w->out, text, len) && text_append(w->out, more, n)) ||
           (w->failed = true, false);
}

static int compare_threads(const void *x, const void *y) {
    const struct text_span *a = x, *b = y;
    const int order = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Sorts the threads of a block; each is kept once. */
static bool sort_threads(struct writing *w) {
    enum { FEW = 16 };
    struct text_span few[FEW], *all = w->n <= FEW ? few : mem_calloc(w->n, sizeof *all);
    const size_t first = w->begin + sizeof w->head + w->head.text_len, len = w->out->len - first;
    char *copy = mem_alloc(len + 1);
    bool good = all && copy;
    if (good) {
        memcpy(copy, w->out->data + first, len);
        const char *at = copy;
        for (uint32_t i = 0; i < w->n; i++) {
            struct thread_head head;
            memcpy(&head, at, sizeof head);
            all[i] = (struct text_span){at, head.size};
            at += head.size;
        }
        qsort(all, w->n, sizeof *all, compare_threads);
        w->out->len = first;
        for (uint32_t i = 0; good && i < w->n; i++)
            if (i == 0 || compare_threads(&all[i - 1], &all[i]) != 0)
                good = text_append(w->out, all[i].data, all[i].len);
    }
    if (all != few)
        mem_free(all);
    mem_free(copy);
    return good;
}

bool writing_end(struct writing *w) {
    if (w->failed)
        return false;
    struct thread_head head;
    const size_t first = w->begin + sizeof w->head + w->head.text_len;
    if (w->n && w->head.phase == PHASE_AFTER) {
        memcpy(&head, w->out->data + first, sizeof head);
        if (head.levels == 0)
            w->head.phase = PHASE_END;
    }
    memcpy(w->out->data + w->begin, &w->head, sizeof w->head);
    return w->n < 2 || sort_threads(w);
}

const char *literal_text(uint8_t first) {
    return first == 't' ? "true" : first == 'f' ? "false" : "null";
}
