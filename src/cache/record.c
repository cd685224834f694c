/* SPDX-License-Identifier: Apache-2.0 */
/* record.c: names of records, their heads, and the one check of what a tier returns (tier.h). */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "cache/tier.h"
#ifdef KVASIR_XXHASH_DISPATCH
#include <xxh_x86dispatch.h> /* the same sums with this processor's instructions: 3 x as fast */
#endif

/* ---- keys ------------------------------------------------------------------------------------ */

/* BLAKE2b-128 of two parts. A key of no bytes and fixed lengths: it cannot fail. */
static struct tier_key hash_parts(const void *a, size_t a_len, const void *b, size_t b_len) {
    struct tier_key key;
    crypto_generichash_state state;
    int bad = crypto_generichash_init(&state, NULL, 0, sizeof key);
    bad |= crypto_generichash_update(&state, a, a_len);
    bad |= crypto_generichash_update(&state, b, b_len);
    bad |= crypto_generichash_final(&state, (unsigned char *)&key, sizeof key);
    ASSERT(bad == 0);
    return key;
}

void tier_key_text(struct tier_key key, char out[33]) {
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, __builtin_bswap64(key.word[0]),
             __builtin_bswap64(key.word[1])); /* in the order of the bytes */
}

struct tier_key chain_root(struct tier_key context, const void *salt, size_t salt_len) {
    struct {
        char name[16];
        struct tier_key context;
    } first = {"kvasir root 1", context};
    return hash_parts(&first, sizeof first, salt, salt_len);
}

struct tier_key chain_next(struct tier_key before, const int32_t tokens[TILE_TOKENS]) {
    return hash_parts(&before, sizeof before, tokens, TILE_TOKENS * sizeof *tokens);
}

struct tier_key record_key(const struct record_head *head) {
    const struct {
        uint32_t kind, group;
        struct kv_format k, v;
    } what = {head->kind, head->group, head->k, head->v};
    return hash_parts(&head->chain, sizeof head->chain, &what, sizeof what);
}

/* ---- heads ----------------------------------------------------------------------------------- */

static void store_sum(uint64_t out[2], XXH128_hash_t sum) {
    out[0] = sum.low64;
    out[1] = sum.high64;
}

static bool same_sum(const uint64_t a[2], XXH128_hash_t sum) {
    return a[0] == sum.low64 && a[1] == sum.high64;
}

static XXH128_hash_t sum_of_head(const struct record_head *head) {
    return XXH3_128bits(head, offsetof(struct record_head, head_sum));
}

void record_seal(struct record_head *head, const void *payload) {
    memcpy(head->magic, RECORD_MAGIC, sizeof head->magic);
    head->key = record_key(head);
    store_sum(head->payload_sum, XXH3_128bits(payload, head->bytes));
    store_sum(head->head_sum, sum_of_head(head));
}

bool record_head_is_valid(const struct record_head *head, uint64_t most) {
    return memcmp(head->magic, RECORD_MAGIC, sizeof head->magic) == 0 &&
           same_sum(head->head_sum, sum_of_head(head)) && head->bytes <= most;
}

bool record_is(const struct record_head *head, const struct record_head *wanted, uint64_t now) {
    return head->kind == wanted->kind && head->group == wanted->group &&
           head->number == wanted->number && head->bytes == wanted->bytes &&
           tier_key_equal(head->chain, wanted->chain) &&
           tier_key_equal(head->parent, wanted->parent) &&
           tier_key_equal(head->root, wanted->root) &&
           tier_key_equal(head->context, wanted->context) && kv_format_equal(head->k, wanted->k) &&
           kv_format_equal(head->v, wanted->v) &&
           memcmp(head->tokens, wanted->tokens, sizeof head->tokens) == 0 &&
           (head->expires == 0 || now < head->expires);
}

/* ---- reading --------------------------------------------------------------------------------- */

bool record_begin(struct tier_read *r, const struct record_head *head) {
    r->head = *head;
    r->result = TIER_OK;
    if (!r->unchecked && (!record_head_is_valid(head, r->bytes) || head->bytes != r->bytes ||
                          !tier_key_equal(head->key, r->key)))
        r->result = TIER_DAMAGED;
    if (r->sum)
        XXH3_128bits_reset(r->sum);
    return r->result == TIER_OK;
}

void record_piece(struct tier_read *r, const void *at, size_t bytes) {
    XXH3_128bits_update(r->sum, at, bytes);
}

bool record_end(struct tier_read *r) {
    if (!r->unchecked && !same_sum(r->head.payload_sum, XXH3_128bits_digest(r->sum)))
        r->result = TIER_DAMAGED;
    return r->result == TIER_OK;
}
