/* SPDX-License-Identifier: Apache-2.0 */
/* schema_room.c: whether a container can still be completed, so that there are no dead ends: with
 * goals that do not need more levels than are left, members or items enough and not too many, and
 * for each constraint that counts as many as it needs and allows.
 *
 * Without such constraints, that is a matter of numbers. With them it is a search over *sets of
 * counts*: which counts the constraints may have after so many more members or items. A count that
 * has no maximum stops at what is needed, so that sets are small.
 */
#include <string.h>

#include "grammar/schema.h"

enum { SETS = 512, STEPS = 255 };

/* Bit x: the counts may be x, a number with a digit for each constraint. */
struct set {
    uint64_t bits[SETS / 64];
};

static uint32_t cap_of(const struct schema_counted *k) {
    return k->max != SCHEMA_UNBOUNDED ? k->max : k->min;
}

static uint64_t sets_of(const struct schema_branch *b) {
    uint64_t n = 1;
    for (uint32_t k = 0; k < b->n_counted; k++)
        n = n > SETS ? n : n * ((uint64_t)cap_of(&b->counted[k]) + 1);
    return n;
}

static uint64_t needed_members(const struct schema_branch *b) {
    uint64_t n = b->min;
    for (uint32_t k = 0; k < b->n_counted; k++)
        n += b->counted[k].min;
    for (uint32_t i = 0; i < b->n_named; i++)
        n += b->named[i].required;
    return n;
}

bool schema_counts_are_few(const struct schema_branch *b) {
    return b->n_counted == 0 ||
           (sets_of(b) <= SETS && (b->type == SCHEMA_ARRAY || needed_members(b) <= STEPS));
}

/* ---- sets of counts -------------------------------------------------------------------------- */

static void add(struct set *s, uint32_t x) {
    s->bits[x / 64] |= (uint64_t)1 << x % 64;
}

static bool has(const struct set *s, uint32_t x) {
    return s->bits[x / 64] >> x % 64 & 1;
}

static bool join(struct set *to, const struct set *from) {
    uint64_t more = 0;
    for (size_t i = 0; i < SETS / 64; i++) {
        more |= from->bits[i] & ~to->bits[i];
        to->bits[i] |= from->bits[i];
    }
    return more != 0;
}

/* *x after one more that counts for these constraints; false: too many. */
static bool count(const struct schema_branch *b, uint32_t counts, uint32_t *x) {
    uint32_t scale = 1;
    for (uint32_t k = 0; k < b->n_counted; k++) {
        const uint32_t cap = cap_of(&b->counted[k]), have = *x / scale % (cap + 1);
        if (counts >> k & 1 && have < cap)
            *x += scale;
        else if (counts >> k & 1 && b->counted[k].max != SCHEMA_UNBOUNDED)
            return false;
        scale *= cap + 1;
    }
    return true;
}

static bool is_enough(const struct schema_branch *b, uint32_t x) {
    for (uint32_t k = 0; k < b->n_counted; k++) {
        const uint32_t cap = cap_of(&b->counted[k]);
        if (x % (cap + 1) < b->counted[k].min)
            return false;
        x /= cap + 1;
    }
    return true;
}

static bool some_enough(const struct schema_branch *b, const struct set *s) {
    const uint64_t n = sets_of(b);
    for (uint32_t x = 0; x < n; x++)
        if (has(s, x) && is_enough(b, x))
            return true;
    return false;
}

/* Sets of constraints that one more may count for, as bits: those of choices that can be met. */
static uint32_t patterns(const struct schema_choices *choices, uint32_t reach) {
    uint32_t all = 0;
    for (uint32_t i = 0; i < choices->n; i++)
        if (choices->all[i].height <= reach)
            all |= 1u << choices->all[i].counts;
    return all;
}

/* The counts after one more. */
static struct set after_one(const struct schema_branch *b, const struct set *s, uint32_t patterns) {
    const uint64_t n = patterns ? sets_of(b) : 0;
    struct set out = {0};
    for (uint32_t x = 0; x < n; x++)
        for (uint32_t counts = 0; has(s, x) && counts < 1u << SCHEMA_COUNTED_MAX; counts++) {
            uint32_t to = x;
            if (patterns >> counts & 1 && count(b, counts, &to))
                add(&out, to);
        }
    return out;
}

static struct set counts_now(const struct schema_room *r) {
    const struct schema_branch *b = &r->plan->branch;
    struct set s = {0};
    uint32_t x = 0, scale = 1;
    for (uint32_t k = 0; k < b->n_counted; k++) {
        x += r->counted[k] * scale;
        scale *= cap_of(&b->counted[k]) + 1;
    }
    ASSERT(x < sets_of(b));
    add(&s, x);
    return s;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static uint32_t number_that_fit(const struct schema_choices *choices, uint32_t reach) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < choices->n; i++)
        n += choices->all[i].height <= reach;
    return n;
}

static bool any_fits(const struct schema_choices *choices, uint32_t reach) {
    return number_that_fit(choices, reach) > 0;
}

uint32_t schema_items_max(const struct schema_plan *p, uint32_t reach) {
    const struct schema_branch *b = &p->branch;
    if (p->unique)
        return min_u32(b->max, number_that_fit(&p->rest, reach));
    for (uint32_t i = 0; i < b->n_prefix && i < b->max; i++)
        if (!any_fits(&p->prefix[i], reach))
            return i;
    return any_fits(&p->rest, reach) ? b->max : min_u32(b->max, b->n_prefix);
}

/* Item by item; after those of the prefix all are alike, and the set soon stays as it is. */
static bool items_can_end(const struct schema_room *r, uint32_t max) {
    const struct schema_branch *b = &r->plan->branch;
    struct set s = counts_now(r);
    const struct set none = {0};
    for (uint32_t n = r->count, alike = 0;; n++) {
        if (n >= b->min && some_enough(b, &s))
            return true;
        if (n >= max || memcmp(&s, &none, sizeof s) == 0 || alike > 2 * SETS)
            return false;
        const bool rest = n >= b->n_prefix;
        const struct set next =
            after_one(b, &s, patterns(rest ? &r->plan->rest : &r->plan->prefix[n], r->reach));
        const bool same = rest && memcmp(&s, &next, sizeof s) == 0;
        if (same && n >= b->min)
            return false;
        if (same)
            n = min_u32(b->min, max) - 1;
        alike += rest;
        s = next;
    }
}

static bool array_has_room(const struct schema_room *r) {
    const struct schema_branch *b = &r->plan->branch;
    const uint32_t max = schema_items_max(r->plan, r->reach);
    return b->min <= max && r->count <= max && (b->n_counted == 0 || items_can_end(r, max));
}

/* ---- objects --------------------------------------------------------------------------------- */

static bool is_taken(const struct schema_room *r, uint32_t name) {
    return name == r->name || (r->seen && r->seen[name / 8] >> name % 8 & 1);
}

/* Members that must still come; how many more can. False: one of those cannot. */
static bool members_left(const struct schema_room *r, uint32_t *required, uint32_t *possible) {
    const struct schema_branch *b = &r->plan->branch;
    *required = *possible = 0;
    for (uint32_t i = 0; i < b->n_named; i++) {
        if (is_taken(r, i))
            continue;
        const bool fits = any_fits(&r->plan->named[i], r->reach);
        if (b->named[i].required && !fits)
            return false;
        *required += b->named[i].required;
        *possible += fits;
    }
    for (uint32_t i = 0; i < b->n_classes; i++)
        if (any_fits(&r->plan->classes[i], r->reach))
            *possible = SCHEMA_UNBOUNDED;
    return true;
}

/* What the search for members knows: sets[m], the counts that m more of them may give. The last is
 * for that many or more, unless `bounded`. */
struct members {
    const struct schema_room *r;
    uint32_t last;
    bool bounded;
    struct set sets[STEPS + 1];
};

static void add_name(struct members *m, uint32_t i) {
    const struct schema_branch *b = &m->r->plan->branch;
    const uint32_t all = patterns(&m->r->plan->named[i], m->r->reach);
    for (uint32_t n = m->last + 1; n-- > 0;) {
        struct set s = {0};
        if (n > 0)
            s = after_one(b, &m->sets[n - 1], all);
        if (n == m->last && !m->bounded) {
            const struct set more = after_one(b, &m->sets[n], all);
            join(&s, &more);
        }
        if (!b->named[i].required)
            join(&s, &m->sets[n]);
        m->sets[n] = s;
    }
}

/* Any number of members whose names are in classes. */
static void add_classes(struct members *m) {
    const struct schema_branch *b = &m->r->plan->branch;
    uint32_t all = 0;
    for (uint32_t i = 0; i < b->n_classes; i++)
        all |= patterns(&m->r->plan->classes[i], m->r->reach);
    for (uint32_t n = 1; n <= m->last; n++) {
        const struct set s = after_one(b, &m->sets[n - 1], all);
        join(&m->sets[n], &s);
    }
    for (bool more = !m->bounded; more;) {
        const struct set s = after_one(b, &m->sets[m->last], all);
        more = join(&m->sets[m->last], &s);
    }
}

static bool members_can_end(const struct schema_room *r) {
    const struct schema_branch *b = &r->plan->branch;
    const uint32_t least = b->min > r->count ? b->min - r->count : 0;
    const uint64_t left = (uint64_t)b->max - r->count, needed = needed_members(b);
    struct members m = {.r = r, .last = least};
    /* more than are needed need never come */
    m.bounded = b->max != SCHEMA_UNBOUNDED && left < needed;
    if (m.bounded)
        m.last = (uint32_t)left;
    ASSERT(m.last <= STEPS);
    m.sets[0] = counts_now(r);
    for (uint32_t i = 0; i < b->n_named; i++)
        if (!is_taken(r, i))
            add_name(&m, i);
    add_classes(&m);
    for (uint32_t n = least; n <= m.last; n++)
        if (some_enough(b, &m.sets[n]))
            return true;
    return false;
}

static bool object_has_room(const struct schema_room *r) {
    const struct schema_branch *b = &r->plan->branch;
    uint32_t required, possible;
    if (!members_left(r, &required, &possible))
        return false;
    if (r->count > b->max || required > b->max - r->count)
        return false;
    if (possible != SCHEMA_UNBOUNDED && (uint64_t)r->count + possible < b->min)
        return false;
    return b->n_counted == 0 || members_can_end(r);
}

bool schema_has_room(const struct schema_room *r) {
    return r->plan->branch.type == SCHEMA_OBJECT ? object_has_room(r) : array_has_room(r);
}
