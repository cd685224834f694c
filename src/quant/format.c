/* SPDX-License-Identifier: Apache-2.0 */
/* format.c: names of cache formats, and which of them fit a head size.
 *
 *     text      bits  scalar        group
 *     "f32"      32   F32           0
 *     "f16"      16   F16           0
 *     "bf16"     16   BF16          0
 *     "8".."2"    b   F16 at first  settled later: one of 32, 64, 128 that divides head_dim
 *     "q8_0" ...  b   likewise      llama.cpp's names for as many bits
 *     "r8,4"      b   likewise      rotated: KV_ROTATED for K and for V
 *     "t4"        b   F16           0: KV_TILE, likewise
 *
 * The group is settled apart from parsing because the flag is read before the model, whose head
 * size decides.
 */
#include <stdio.h>
#include <string.h>

#include "quant/quant.h"

static const struct {
    const char *text;
    struct kv_format format;
} NAMES[] = {
    /* bits, scalar, group, kind */
    {"f32", {32, SCALAR_F32, 0, KV_ROWS}},   {"f16", {16, SCALAR_F16, 0, KV_ROWS}},
    {"bf16", {16, SCALAR_BF16, 0, KV_ROWS}}, {"8", {8, SCALAR_F16, 0, KV_ROWS}},
    {"6", {6, SCALAR_F16, 0, KV_ROWS}},      {"5", {5, SCALAR_F16, 0, KV_ROWS}},
    {"4", {4, SCALAR_F16, 0, KV_ROWS}},      {"3", {3, SCALAR_F16, 0, KV_ROWS}},
    {"2", {2, SCALAR_F16, 0, KV_ROWS}},      {"q8_0", {8, SCALAR_F16, 0, KV_ROWS}},
    {"q5_0", {5, SCALAR_F16, 0, KV_ROWS}},   {"q5_1", {5, SCALAR_F16, 0, KV_ROWS}},
    {"q4_0", {4, SCALAR_F16, 0, KV_ROWS}},   {"q4_1", {4, SCALAR_F16, 0, KV_ROWS}},
    {"iq4_nl", {4, SCALAR_F16, 0, KV_ROWS}},
};

bool kv_format_equal(struct kv_format a, struct kv_format b) {
    return a.bits == b.bits && a.scalar == b.scalar && a.group == b.group && a.kind == b.kind;
}

static bool parse_one(const char *text, size_t n, struct kv_format *f) {
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strlen(NAMES[i].text) == n && memcmp(NAMES[i].text, text, n) == 0) {
            *f = NAMES[i].format;
            return true;
        }
    return false;
}

/* A number of bits alone, with "r" or "t" before the pair. */
static bool parse_bits(const char *text, size_t n, enum kv_kind kind, struct kv_format *f) {
    if (n != 1 || !parse_one(text, n, f))
        return false;
    f->kind = (uint8_t)kind;
    return true;
}

kvasir_status kv_format_parse_pair(const char *text, struct kv_format *k, struct kv_format *v,
                                   kvasir_error *err) {
    const enum kv_kind kind = text[0] == 'r' ? KV_ROTATED : text[0] == 't' ? KV_TILE : KV_ROWS;
    const char *k_text = kind == KV_ROWS ? text : text + 1, *comma = strchr(k_text, ',');
    const char *v_text = comma ? comma + 1 : k_text;
    const size_t k_len = comma ? (size_t)(comma - k_text) : strlen(k_text);
    struct kv_format parsed_k, parsed_v;
    if (kind == KV_ROWS
            ? !parse_one(k_text, k_len, &parsed_k) || !parse_one(v_text, strlen(v_text), &parsed_v)
            : !parse_bits(k_text, k_len, kind, &parsed_k) ||
                  !parse_bits(v_text, strlen(v_text), kind, &parsed_v))
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "unknown KV format \"%.40s\": it is one of f32, f16, bf16, 8, 6, 5, 4, 3, 2, "
                    "or two of them as K,V; or r or t and one or two numbers of bits, as r8,4 or "
                    "t4",
                    text);
    *k = parsed_k;
    *v = parsed_v;
    return KVASIR_OK;
}

/* "32, 64" into buf (at least 16 bytes); "" when no group divides head_dim. */
static char *fitting_groups(uint32_t head_dim, char *buf) {
    size_t n = 0;
    buf[0] = '\0';
    for (uint32_t g = 32; g <= 128; g *= 2)
        if (head_dim % g == 0)
            n += (size_t)snprintf(buf + n, 16 - n, "%s%u", n ? ", " : "", g);
    return buf;
}

kvasir_status kv_format_settle(struct kv_format *f, uint32_t head_dim, uint32_t group,
                               kvasir_error *err) {
    if (kv_format_exact(*f)) {
        if (head_dim == 0 || head_dim % 4 != 0)
            return fail(err, KVASIR_ERR_UNSUPPORTED, "head size %u is not a multiple of 4",
                        head_dim);
        f->group = 0;
        return KVASIR_OK;
    }
    if (head_dim == 0 || head_dim % 32 != 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "no group (32, 64, 128) divides head size %u: use f16, bf16 or f32", head_dim);
    if (f->kind == KV_TILE) {
        f->group = 0;
        return KVASIR_OK;
    }
    if (group == 0)
        group = head_dim % 64 == 0 ? 64 : 32;
    if ((group != 32 && group != 64 && group != 128) || head_dim % group != 0) {
        char fitting[16];
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "group %u does not fit head size %u: it can be one of %s", group, head_dim,
                    fitting_groups(head_dim, fitting));
    }
    f->group = (uint8_t)group;
    return KVASIR_OK;
}

char *kv_format_name(struct kv_format f, char *buf) {
    static const char *const SCALARS[] = {
        [SCALAR_F16] = "f16", [SCALAR_BF16] = "bf16", [SCALAR_F32] = "f32"};
    const char *scalar = f.scalar <= SCALAR_F32 ? SCALARS[f.scalar] : "?";
    if (kv_format_exact(f))
        snprintf(buf, 24, "%s", scalar);
    else if (f.kind == KV_TILE)
        snprintf(buf, 24, "t%u", f.bits);
    else
        snprintf(buf, 24, "%s%u g%u%s%s", f.kind == KV_ROTATED ? "r" : "", f.bits, f.group,
                 f.scalar == SCALAR_F16 ? "" : " ", f.scalar == SCALAR_F16 ? "" : scalar);
    return buf;
}
