/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_api.c: from an engine's options to the tiers below its prefix tree, and their figures.
 *
 *     the folder's lock -> the checkpoint's identity (kept in the folder) -> the context's
 *
 * The host tier ends with the engine: alone it needs no identity, and is not written at the end.
 *
 * The context's identity covers all that changes a bit of a page. Stored prefixes in other formats
 * are the exception to "same tokens, same bits", so they are part of it here: pages that were
 * computed after such a prefix are found by engines with the same exception only.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/engine_internal.h"

/* By a thread of the tiers. */
static void wake_engine(void *user) {
    engine_wake(user);
}

static void note(void *user, const char *line) {
    const struct kvasir_engine *e = user;
    if (e->on_note)
        e->on_note(e->note_user, line);
}

/* Before each write, by the writers: whether the weights are those that the identity is of. */
static bool weights_are_unchanged(void *user) {
    const struct kvasir_engine *e = user;
    kvasir_error err;
    return kvasir_model_verify(e->model, &err) == KVASIR_OK;
}

static kvasir_status open_host(struct kvasir_engine *e, const kvasir_engine_options *o,
                               struct tier **out, kvasir_error *err) {
    static const char FIELD[] = "engine.cache_host_bytes";
    const uint64_t available = memory_available_bytes();
    struct tier_memory_options host = {.limit_bytes = o->cache_host_bytes,
                                       .backend = e->ctx->backend,
                                       .complain = note,
                                       .user = e};
    uint64_t page;
    host.block_bytes = tiers_block_bytes(e->ctx->cache, &page);
    if (host.backend->ops->arena_host)
        return fail_field(err, KVASIR_ERR_ARGUMENT, FIELD,
                          "is for models on a GPU: on the CPU the cache is in the host's memory "
                          "already, so give it more of that instead");
    if (o->cache_host_bytes < 2 * page + (1 << 20))
        return fail_field(err, KVASIR_ERR_ARGUMENT, FIELD,
                          "is too little: a page of this model takes up to %" PRIu64 " bytes",
                          page);
    if (available && o->cache_host_bytes > available)
        return fail_field(err, KVASIR_ERR_MEMORY, FIELD,
                          "is more than the %" PRIu64 " MiB of the host's memory that are free",
                          available >> 20);
    return fail_of_field(tier_memory_create(&host, out, err), err, FIELD);
}

static kvasir_status open_disk(struct kvasir_engine *e, const kvasir_engine_options *o,
                               struct tier **out, kvasir_error *err) {
    const struct tier_disk_options disk = {.dir = o->cache_dir,
                                           .limit_bytes = o->cache_disk_bytes,
                                           .floor_bytes = TIER_DISK_FLOOR,
                                           .complain = note,
                                           .user = e};
    if (o->cache_disk_bytes < TIER_DISK_LEAST)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "engine.cache_disk_bytes",
                          "must be at least 16 MiB");
    return fail_of_field(tier_disk_create(&disk, out, err), err, "engine.cache_dir");
}

static kvasir_status open_remote(struct kvasir_engine *e, const kvasir_engine_options *o,
                                 struct tier **out, kvasir_error *err) {
    enum { SECRET_MAX = 4096 };
    char *secret = NULL;
    size_t bytes = 0;
    if (o->cache_remote_secret_file)
        TRY(fail_of_field(
            file_read_input(o->cache_remote_secret_file, SECRET_MAX, &secret, &bytes, err), err,
            "engine.cache_remote_secret_file"));
    const struct tier_redis_options remote = {.url = o->cache_remote,
                                              .secret = (const uint8_t *)secret,
                                              .secret_bytes = bytes,
                                              .ttl_seconds = o->cache_remote_ttl_seconds,
                                              .connect_seconds = 0.5,
                                              .exchange_seconds = 5,
                                              .connections = 4,
                                              .root_limit_bytes = o->cache_remote_tenant_bytes,
                                              .complain = note,
                                              .user = e};
    const kvasir_status status = tier_redis_create(&remote, out, err);
    const bool short_secret = secret && bytes < TIER_SECRET_LEAST;
    mem_free(secret);
    return fail_of_field(status, err,
                         short_secret ? "engine.cache_remote_secret_file" : "engine.cache_remote");
}

/* Lengthens `context` by the formats of stored prefixes. */
static struct tier_key with_stored_formats(struct tier_key context,
                                           const kvasir_engine_options *o) {
    struct text_buf b = {0};
    if (!o->stored_kv_bits)
        return context;
    const bool good = text_printf(&b, "stored %s %s %u", o->stored_kv_bits,
                                  o->stored_kv_group_size ? o->stored_kv_group_size : "-",
                                  o->min_quantize_tokens);
    const struct tier_key key = chain_root(context, b.data, good ? b.len : 0);
    text_free(&b);
    return key;
}

static kvasir_status find_context(const struct kvasir_engine *e, const kvasir_engine_options *o,
                                  struct tier_key *out, kvasir_error *err) {
    struct text_buf path = {0};
    struct tier_key checkpoint;
    if (o->cache_dir && !text_printf(&path, "%s/" TIER_DISK_IDENTITIES, o->cache_dir))
        return fail(err, KVASIR_ERR_MEMORY, "tiers: out of memory");
    kvasir_status status = checkpoint_identity(e->model, path.data, NULL, NULL, &checkpoint, err);
    if (status == KVASIR_OK)
        status = context_identity(e->ctx, checkpoint, out, err);
    text_free(&path);
    *out = with_stored_formats(*out, o);
    return status;
}

/* The stores that the options name, in the order in which they are asked. */
static kvasir_status open_stores(struct kvasir_engine *e, const kvasir_engine_options *o,
                                 struct tiers_options *t, kvasir_error *err) {
    if (o->cache_host_bytes) {
        TRY(open_host(e, o, &t->tiers[t->n], err));
        t->n++;
    }
    if (o->cache_dir) {
        TRY(open_disk(e, o, &t->tiers[t->n], err));
        t->n++;
    }
    if (o->cache_remote) {
        TRY(open_remote(e, o, &t->tiers[t->n], err));
        t->n++;
    }
    if (!o->cache_dir && !o->cache_remote)
        return KVASIR_OK;
    t->may_write = weights_are_unchanged;
    e->flush_seconds = o->cache_flush_seconds;
    return find_context(e, o, &t->context, err);
}

/* The member that names the first store; NULL: none does. */
static const char *store_field(const kvasir_engine_options *o) {
    return o->cache_host_bytes ? "engine.cache_host_bytes"
           : o->cache_dir      ? "engine.cache_dir"
           : o->cache_remote   ? "engine.cache_remote"
                               : NULL;
}

kvasir_status engine_open_tiers(struct kvasir_engine *e, const kvasir_engine_options *o,
                                kvasir_error *err) {
    struct tiers_options t = e->given_tiers;
    kvasir_status status = KVASIR_OK;
    e->given_tiers.n = 0;
    if (!e->tree && !t.n)
        return store_field(o) ? fail_field(err, KVASIR_ERR_ARGUMENT, store_field(o),
                                           "needs stored prefixes, which are off")
                              : KVASIR_OK;
    if (e->tiers_given)
        e->flush_seconds = o->cache_flush_seconds;
    else
        status = open_stores(e, o, &t, err);
    if (status != KVASIR_OK || !t.n) {
        for (uint32_t i = 0; i < t.n; i++)
            t.tiers[i]->ops->destroy(t.tiers[i]);
        return status;
    }
    t.wake = wake_engine;
    t.complain = note;
    t.user = e;
    return tiers_create(e->tree, &t, &e->tiers, err);
}

size_t kvasir_engine_get_tiers(kvasir_engine *e, kvasir_tier_stats *tiers, size_t cap) {
    struct tier_stats s;
    const char *name;
    size_t n = 0;
    for (; e->tiers && (name = tiers_get_tier(e->tiers, (uint32_t)n, &s)) != NULL; n++)
        if (n < cap)
            tiers[n] = (kvasir_tier_stats){.name = name,
                                           .records = s.records,
                                           .bytes = s.bytes,
                                           .limit_bytes = s.limit_bytes,
                                           .reads = s.reads,
                                           .read_bytes = s.read_bytes,
                                           .writes = s.writes,
                                           .write_bytes = s.write_bytes,
                                           .missing = s.missing,
                                           .damaged = s.damaged,
                                           .failed = s.failed,
                                           .write_failures = s.write_failures,
                                           .dropped = s.dropped,
                                           .read_seconds = s.read_seconds,
                                           .down = s.down,
                                           .hit_pages = s.hit_pages,
                                           .loads = s.loads,
                                           .loads_late = s.loads_late,
                                           .loads_slow = s.loads_slow};
    return n;
}
