/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis_seal.c: names of values, and their authentication (tier_redis.h).
 *
 *     kvasir:CONTEXT:ROOT:KEY          each 32 hexadecimal digits
 *
 * There is no hash tag in a name, so a cluster spreads the pages of a conversation over its nodes.
 * With {ROOT} as a tag all pages of a model without salts, which is one root, would be in one slot:
 * one node would hold and serve everything. Nothing is lost by spreading, as commands are batched
 * by node and not by slot, and all nodes are asked at once.
 *
 * Without a secret the three are the tree's own. With one, each is BLAKE2b-128(a letter | it) under
 * a key from the secret: who has not the secret cannot tell the name of any prompt's pages. And a
 * value then is
 *
 *     nonce, 24 random bytes | head, 512 | payload | Poly1305 of head and payload, 16
 *
 * under the one-time key BLAKE2b-256(nonce | name) keyed from the secret. The nonce comes first so
 * that a reader can sum while bytes come in. The name is in the key, so a value moved to another
 * name is a forgery. Nothing is encrypted.
 *
 * Any thread; nothing changes after seal_init.
 */
#include <stdio.h>
#include <string.h>

#include "cache/tier_redis.h"

/* 32 bytes for one purpose. */
static void derive(const uint8_t master[64], const char *purpose, uint8_t out[32]) {
    const int bad = crypto_generichash(out, 32, (const uint8_t *)purpose, strlen(purpose), master,
                                       crypto_generichash_KEYBYTES_MAX);
    ASSERT(bad == 0);
}

void seal_init(struct redis_seal *s, const uint8_t *secret, size_t bytes) {
    *s = (struct redis_seal){.keyed = secret != NULL};
    if (!secret)
        return;
    uint8_t master[64];
    const int bad = crypto_generichash(master, sizeof master, secret, bytes, NULL, 0);
    ASSERT(bad == 0);
    derive(master, "kvasir remote names 1", s->names);
    derive(master, "kvasir remote values 1", s->values);
    sodium_memzero(master, sizeof master);
}

void seal_deinit(struct redis_seal *s) {
    sodium_memzero(s, sizeof *s);
}

/* What stands for a key in names. */
static void name_part(const struct redis_seal *s, char letter, struct tier_key key, char out[33]) {
    uint8_t text[1 + sizeof key];
    if (s->keyed) {
        text[0] = (uint8_t)letter;
        memcpy(text + 1, &key, sizeof key);
        const int bad = crypto_generichash((uint8_t *)&key, sizeof key, text, sizeof text, s->names,
                                           sizeof s->names);
        ASSERT(bad == 0);
    }
    tier_key_text(key, out);
}

void seal_prefix(const struct redis_seal *s, struct tier_key context, const struct tier_key *root,
                 char out[NAME_BYTES]) {
    char context_text[33], root_text[33];
    name_part(s, 'c', context, context_text);
    if (root) {
        name_part(s, 'r', *root, root_text);
        snprintf(out, NAME_BYTES, "kvasir:%s:%s:", context_text, root_text);
    } else {
        snprintf(out, NAME_BYTES, "kvasir:%s:", context_text);
    }
}

void seal_name(const struct redis_seal *s, const struct tier_place *place, struct tier_key key,
               char out[NAME_BYTES]) {
    char text[33];
    seal_prefix(s, place->context, &place->root, out);
    name_part(s, 'k', key, text);
    const size_t len = strlen(out);
    ASSERT(len + sizeof text <= NAME_BYTES);
    memcpy(out + len, text, sizeof text);
}

void seal_begin(const struct redis_seal *s, const uint8_t nonce[NONCE_BYTES], const char *name,
                crypto_onetimeauth_state *state) {
    uint8_t key[crypto_onetimeauth_KEYBYTES];
    crypto_generichash_state hash;
    int bad = crypto_generichash_init(&hash, s->values, sizeof s->values, sizeof key);
    bad |= crypto_generichash_update(&hash, nonce, NONCE_BYTES);
    bad |= crypto_generichash_update(&hash, (const uint8_t *)name, strlen(name));
    bad |= crypto_generichash_final(&hash, key, sizeof key);
    bad |= crypto_onetimeauth_init(state, key);
    ASSERT(bad == 0);
    sodium_memzero(key, sizeof key);
}
