/* SPDX-License-Identifier: Apache-2.0 */
/* policy.c: the rules of policy.h. */
#include "engine/policy.h"

const char *policy_name(enum policy p) {
    static const char *const NAMES[POLICY_KINDS] = {"shortest", "equal", "fcfs"};
    ASSERT(p < POLICY_KINDS);
    return NAMES[p];
}

uint64_t policy_rank(enum policy p, int32_t priority, uint32_t tokens) {
    const uint64_t class = (uint64_t)((int64_t)priority - INT32_MIN);
    if (p != POLICY_SHORTEST)
        return RANK_FIRST;
    return class << 32 | (tokens ? tokens : 1);
}

bool policy_is_aged_turn(enum policy p, uint32_t since) {
    return p == POLICY_SHORTEST && since >= AGED_EACH - 1;
}

uint32_t policy_aged_rows(enum policy p, uint32_t rows) {
    return p == POLICY_SHORTEST ? (rows + AGED_EACH - 1) / AGED_EACH : 0;
}

bool policy_holds(enum policy p, uint32_t passed, bool preempted) {
    return p != POLICY_SHORTEST || preempted || passed >= PASSES;
}

/* A step takes a + b * rows seconds, so rows * target / seconds comes closer to the target from
 * either side. One slow step at most halves the rows; they grow by a quarter at a time. */
void pace_note(struct pace *p, uint32_t rows, double seconds) {
    const double low = 0.5, high = 1.25;
    if (!(p->seconds > 0 && seconds > 0) || (rows < p->rows && seconds <= p->seconds))
        return;
    double factor = p->seconds / seconds;
    factor = factor < low ? low : factor > high ? high : factor;
    const double next = (double)rows * factor;
    p->rows = next >= p->most ? p->most : next > 1 ? (uint32_t)(next + 0.5) : 1;
}

uint32_t pace_prompt_rows(const struct pace *p, uint32_t generating, uint32_t left) {
    if (!(p->seconds > 0) || !generating)
        return left;
    const uint32_t fit = p->rows > generating ? p->rows - generating : 0,
                   rows = max_u32(fit, max_u32(p->most / PACE_LEAST, 1));
    return rows < left ? rows : left;
}
