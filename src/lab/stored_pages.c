/* SPDX-License-Identifier: Apache-2.0 */
/* stored_pages.c: what is in a folder of stored pages (cache/tier.h), by context and salt. One
 * thread. Only heads are believed whose sums agree; numbers in them are bounded here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/cache.h"
#include "lab/lab.h"

enum { PLACES_MOST = 1000 };

/* A group under construction. */
struct group {
    lab_cache_group shown;
    struct tier_key context, root;
    struct kv_format k, v;
    bool has_format;
    uint64_t pages_of[CACHE_GROUPS_MAX];
};

struct reading {
    lab_cache_folder *out;
    struct group *groups; /* [n] */
    size_t n, cap;
    size_t *slots; /* [n_slots], a power of two: index + 1 by context and root; 0: free */
    size_t n_slots;
    size_t places_cap;
    bool no_memory;
    kvasir_progress_fn *on_progress;
    void *user;
};

/* ---- groups ---------------------------------------------------------------------------------- */

static size_t *slot_of(const struct reading *r, struct tier_key context, struct tier_key root) {
    size_t i = mix_bits(context.word[0] ^ mix_bits(root.word[0])) & (r->n_slots - 1);
    for (; r->slots[i]; i = (i + 1) & (r->n_slots - 1)) {
        const struct group *g = &r->groups[r->slots[i] - 1];
        if (tier_key_equal(g->context, context) && tier_key_equal(g->root, root))
            break;
    }
    return &r->slots[i];
}

static bool grow_slots(struct reading *r) {
    size_t *old = r->slots;
    const size_t n = r->n_slots ? 2 * r->n_slots : 64;
    size_t *slots = mem_calloc(n, sizeof *slots);
    if (!slots)
        return false;
    r->slots = slots;
    r->n_slots = n;
    for (size_t i = 0; i < r->n; i++)
        *slot_of(r, r->groups[i].context, r->groups[i].root) = i + 1;
    mem_free(old);
    return true;
}

static struct group *find_group(struct reading *r, const struct record_head *head) {
    if (2 * (r->n + 1) > r->n_slots && !grow_slots(r))
        return NULL;
    size_t *slot = slot_of(r, head->context, head->root);
    if (*slot)
        return &r->groups[*slot - 1];
    if (!ARRAY_GROW(r->groups, r->cap, r->n + 1))
        return NULL;
    struct group *g = &r->groups[r->n++];
    *g = (struct group){.context = head->context, .root = head->root};
    tier_key_text(g->context, g->shown.context);
    tier_key_text(g->root, g->shown.root);
    *slot = r->n;
    return g;
}

/* The newest comes first. */
static void note_formats(struct group *g, const struct record_head *head) {
    char k[24], v[24];
    const size_t len = strlen(g->shown.formats);
    if (!g->has_format) {
        g->k = head->k;
        g->v = head->v;
        g->has_format = true;
        snprintf(g->shown.formats, sizeof g->shown.formats, "K %s, V %s",
                 kv_format_name(head->k, k), kv_format_name(head->v, v));
    } else if (len > 3 && strcmp(g->shown.formats + len - 3, "...") != 0 &&
               !(kv_format_equal(g->k, head->k) && kv_format_equal(g->v, head->v))) {
        snprintf(g->shown.formats + len, sizeof g->shown.formats - len, " ...");
    }
}

static void add_record(struct reading *r, const struct tier_folder_item *item) {
    const struct record_head *head = item->head;
    struct group *g = find_group(r, head);
    if (!g) {
        r->no_memory = true;
        return;
    }
    lab_cache_group *shown = &g->shown;
    shown->bytes += item->bytes;
    if (head->written > shown->last_written)
        shown->last_written = head->written;
    if (head->kind == RECORD_STATE) {
        shown->states++;
        return;
    }
    shown->pages++;
    note_formats(g, head);
    if (head->group < CACHE_GROUPS_MAX) {
        const uint64_t tokens = TILE_TOKENS * ++g->pages_of[head->group];
        shown->tokens = tokens > shown->tokens ? tokens : shown->tokens;
    }
}

/* ---- the walk -------------------------------------------------------------------------------- */

static void add_place(struct reading *r, const struct tier_folder_item *item) {
    lab_cache_folder *out = r->out;
    const bool torn = item->state == FOLDER_TORN;
    out->torn += torn;
    out->damaged += !torn;
    if (out->n_places == PLACES_MOST)
        return;
    if (!ARRAY_GROW(out->places, r->places_cap, out->n_places + 1)) {
        r->no_memory = true;
        return;
    }
    lab_cache_damage *place = &out->places[out->n_places++];
    *place = (lab_cache_damage){.offset = item->offset, .bytes = item->bytes, .torn = torn};
    snprintf(place->file, sizeof place->file, "%s", item->file);
}

static void waste(lab_cache_waste *w, const struct tier_folder_item *item) {
    w->records++;
    w->bytes += item->bytes;
}

static void on_item(void *user, const struct tier_folder_item *item) {
    struct reading *r = user;
    switch (item->state) {
    case FOLDER_RECORD:
        add_record(r, item);
        break;
    case FOLDER_OLDER:
        waste(&r->out->older, item);
        break;
    case FOLDER_EXPIRED:
        waste(&r->out->expired, item);
        break;
    case FOLDER_FORGOTTEN:
        waste(&r->out->forgotten, item);
        break;
    case FOLDER_DAMAGED:
    case FOLDER_TORN:
        add_place(r, item);
        break;
    case FOLDER_FORGET:
    case FOLDER_STATES:
        break;
    }
}

static bool on_progress(void *user, uint64_t done, uint64_t all) {
    const struct reading *r = user;
    return !r->on_progress || r->on_progress(r->user, done, all);
}

static int newest_first(const void *x, const void *y) {
    const lab_cache_group *a = x, *b = y;
    return (a->last_written < b->last_written) - (a->last_written > b->last_written);
}

/* Groups as the caller gets them. */
static bool show_groups(struct reading *r) {
    lab_cache_folder *out = r->out;
    out->groups = mem_calloc(r->n + 1, sizeof *out->groups);
    if (!out->groups)
        return false;
    for (size_t i = 0; i < r->n; i++)
        out->groups[i] = r->groups[i].shown;
    out->n_groups = r->n;
    if (r->n > 0)
        qsort(out->groups, r->n, sizeof *out->groups, newest_first);
    return true;
}

kvasir_status lab_cache_folder_read(const char *dir, bool payloads, kvasir_progress_fn *progress,
                                    void *user, lab_cache_folder *out, kvasir_error *err) {
    struct reading r = {.out = out, .on_progress = progress, .user = user};
    struct tier_folder_walk walk = {
        .dir = dir, .payloads = payloads, .item = on_item, .progress = on_progress, .user = &r};
    *out = (lab_cache_folder){0};
    kvasir_status status = tier_folder_walk(&walk, err);
    out->files = walk.segments;
    out->bytes = walk.bytes;
    if (status == KVASIR_OK && (r.no_memory || !show_groups(&r)))
        status = fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", dir);
    mem_free(r.groups);
    mem_free(r.slots);
    if (status != KVASIR_OK)
        lab_cache_folder_free(out);
    return status;
}

void lab_cache_folder_free(lab_cache_folder *folder) {
    mem_free(folder->groups);
    mem_free(folder->places);
    *folder = (lab_cache_folder){0};
}

kvasir_status lab_cache_folder_compact(const char *dir, uint64_t limit_bytes, uint64_t *before,
                                       uint64_t *after, kvasir_error *err) {
    return tier_folder_compact(dir, limit_bytes, NULL, before, after, err);
}

kvasir_status lab_cache_folder_clear(const char *dir, uint64_t *removed, kvasir_error *err) {
    return tier_folder_clear(dir, NULL, removed, err);
}
