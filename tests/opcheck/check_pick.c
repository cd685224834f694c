/* SPDX-License-Identifier: Apache-2.0 */
/* check_pick.c: tokens and log-probabilities that the device picks, bit for bit those of
 * tests/support/pick_reference.c, which unit.device_picks holds against engine/sampler.c; and
 * logits that stay as they were. */
#include <math.h>
#include <string.h>

#include "opcheck.h"
#include "pick_reference.h"

enum { ROWS_MAX = 64, EDITS_MAX = 100, VOCAB_MAX = 151936 };

static struct pick picks[ROWS_MAX];
static struct pick_edit edits[ROWS_MAX][PICK_EDITS_MAX];

static void any_edits(struct pick *p, uint32_t vocab, struct pick_edit *list) {
    const uint32_t most = random_below(20) ? EDITS_MAX : PICK_EDITS_MAX, near = random_below(vocab);
    p->n_edits = random_below(most + 1);
    p->edits = list;
    for (uint32_t i = 0; i < p->n_edits; i++) {
        const bool repeated = random_below(2);
        /* few different tokens: some have several */
        list[i] = (struct pick_edit){.id = (near + random_below(40)) % vocab,
                                     .repeated = repeated,
                                     .value = repeated ? 1.3f : random_normal() * 4};
    }
}

/* What logits of a large vocabulary are drawn by: no device gives such a pick back. */
static struct pick common_pick(uint32_t vocab) {
    static const float TEMPS[] = {0, 1, 0.7f}, TOP_PS[] = {0.9f, 0.5f}, MIN_PS[] = {0, 0.05f};
    const bool filtered = random_below(3) != 0;
    return (struct pick){.at = (double)random_bits() * 0x1p-32,
                         .temp = random_of(TEMPS, 3),
                         .top_p = filtered ? random_of(TOP_PS, 2) : 0,
                         .min_p = filtered ? random_of(MIN_PS, 2) : 0,
                         .top_k = filtered && random_below(2) && vocab > 40 ? 40 : 0,
                         .at_least = 1};
}

static struct pick any_pick(uint32_t vocab) {
    static const float TEMPS[] = {0, 1, 0.7f, 1e-3f, 1e-35f, 5},
                       TOP_PS[] = {0, 0, 1, 0.9f, 0.2f, 1e-4f}, MIN_PS[] = {0, 0, 0, 0.05f, 0.9f};
    return (struct pick){.at = random_below(10) ? (double)random_bits() * 0x1p-32 : 0,
                         .temp = random_of(TEMPS, 6),
                         .top_p = random_of(TOP_PS, 6),
                         .min_p = random_of(MIN_PS, 5),
                         .top_k = random_below(2) ? 0 : random_below(vocab + 1),
                         .at_least = random_below(min_u32(vocab, 30) + 1)};
}

/* As those of a model: ten likely tokens, and thousands not far below them. */
static void common_logits(float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = random_normal() * 2;
    for (uint32_t i = 0; i < 10; i++)
        x[random_below(n)] = 15 + random_normal() * 2;
}

static void compare(const struct pick *p, const struct picked *got, const float *row,
                    uint32_t vocab, bool common) {
    struct picked want;
    if (got->token < 0) {
        check_that(vocab > 2048 && !common, "a pick of row %u is given back", p->row);
        return;
    }
    pick_reference(row, vocab, p, &want);
    check_that(got->token == want.token, "token %d, not %d", got->token, want.token);
    if (p->n_top < 0)
        return;
    check_that(memcmp(&got->logs.value, &want.logs.value, sizeof(float)) == 0 &&
                   got->logs.max == want.logs.max && got->logs.sum == want.logs.sum,
               "logit %.9g, largest %.9g, sum %.17g, not %.9g, %.9g, %.17g",
               (double)got->logs.value, (double)got->logs.max, got->logs.sum,
               (double)want.logs.value, (double)want.logs.max, want.logs.sum);
    for (int32_t i = 0; i < p->n_top; i++)
        check_that(got->logs.ids[i] == want.logs.ids[i] &&
                       got->logs.values[i] == want.logs.values[i],
                   "place %d: token %d, not %d", i, got->logs.ids[i], want.logs.ids[i]);
}

static void check_case(uint32_t vocab, bool common) {
    const struct backend_limits limits = {.rows = ROWS_MAX,
                                          .seqs = 1,
                                          .dim = 64,
                                          .head_dim = 64,
                                          .vocab = vocab,
                                          .pages = 4,
                                          .groups = 1,
                                          .group = {{1, 1, 64, false}}};
    const uint32_t rows = 1 + random_below(vocab > 10000 ? 8 : ROWS_MAX);
    const size_t bytes = (size_t)rows * vocab * sizeof(float);
    struct picked got[ROWS_MAX];
    uint32_t n = 0;
    kvasir_error err;
    case_begin("%u rows of %u%s", rows, vocab, common ? ", as a model's" : "");
    device_begin(&limits, 8);
    float *x = plain(bytes);
    for (uint32_t r = 0; r < rows; r++) {
        (common ? common_logits : pick_fill_logits)(x + (size_t)r * vocab, vocab);
        if (random_below(8) == 0)
            continue; /* a row that nobody picks from */
        picks[n] = common ? common_pick(vocab) : any_pick(vocab);
        picks[n].row = r;
        if (random_below(2))
            any_edits(&picks[n], vocab, edits[n]);
        picks[n].n_top =
            random_below(2) ? -1 : (int32_t)random_below(min_u32(vocab, PICK_TOP_MAX) + 1);
        n++;
    }
    float *logits = device_copy(x, bytes);
    must(backend_pick(device, logits, picks, n, got, &err), &err, "pick");
    for (uint32_t i = 0; i < n; i++)
        compare(&picks[i], &got[i], x + (size_t)picks[i].row * vocab, vocab, common);
    check_that(memcmp(from_device(logits, bytes), x, bytes) == 0, "other logits afterwards");
}

void check_pick(void) {
    static const uint32_t VOCABS[] = {1, 2, 40, 256, 257, 1023, 1024, 2048, 2600, 49152, VOCAB_MAX};
    enum { N_VOCABS = sizeof VOCABS / sizeof *VOCABS };
    if (!device_has(pick) || !family_begin("pick", "vocabularies up to %d", VOCAB_MAX))
        return;
    for (uint32_t i = 0; i < (quick ? 2 : 12) * N_VOCABS; i++)
        check_case(VOCABS[i % N_VOCABS], i / N_VOCABS % 2 && VOCABS[i % N_VOCABS] > 10000);
    family_end();
}
