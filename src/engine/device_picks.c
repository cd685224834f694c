/* SPDX-License-Identifier: Apache-2.0 */
/* device_picks.c: what a device is told of a step's picks, and what becomes of its answers, for
 * engines (picks.c), sequences and batches. Where the device does not pick, nothing is told and
 * nothing allocated. */
#include "engine/engine.h"
#include "engine/sampler.h"

/* Edits of all picks of a step: half a hundred for each, but all that one may have. */
static uint32_t edits_of(uint32_t picks) {
    return PICK_EDITS_MAX + 64 * picks;
}

uint64_t device_picks_bytes(const struct kvasir_context *c, uint32_t most) {
    const uint64_t each = sizeof(struct pick) + sizeof(struct picked);
    return step_can_pick(c) ? most * each + edits_of(most) * (uint64_t)sizeof(struct pick_edit) : 0;
}

kvasir_status device_picks_reserve(const struct kvasir_context *c, struct device_picks *p,
                                   uint32_t most, kvasir_error *err) {
    if (!step_can_pick(c) || most <= p->cap)
        return KVASIR_OK;
    device_picks_deinit(p);
    p->step.list = mem_calloc(most, sizeof *p->step.list);
    p->step.out = mem_calloc(most, sizeof *p->step.out);
    p->edits = mem_calloc(edits_of(most), sizeof *p->edits);
    if (!p->step.list || !p->step.out || !p->edits) {
        device_picks_deinit(p);
        return fail(err, KVASIR_ERR_MEMORY, "picks of %u rows: out of memory", most);
    }
    p->cap = most;
    return KVASIR_OK;
}

void device_picks_deinit(struct device_picks *p) {
    mem_free(p->step.list);
    mem_free(p->step.out);
    mem_free(p->edits);
    *p = (struct device_picks){0};
}

void device_picks_clear(struct device_picks *p) {
    p->step.n = p->taken = p->n_edits = 0;
}

bool device_picks_add(const struct kvasir_context *c, struct device_picks *p,
                      const struct kvasir_sampler *sampler, uint32_t row, int32_t n_top) {
    if (!step_can_pick(c) || edits_of(p->cap) - p->n_edits < PICK_EDITS_MAX)
        return false;
    ASSERT(p->step.n < p->cap);
    struct pick *to = &p->step.list[p->step.n];
    if (!sampler_describe(sampler, p->edits + p->n_edits, to))
        return false;
    to->row = row;
    to->n_top = n_top;
    p->n_edits += to->n_edits;
    p->step.n++;
    return true;
}

const struct picked *device_picks_take(struct device_picks *p, struct kvasir_sampler *sampler) {
    ASSERT(p->taken < p->step.n);
    const struct picked *made = &p->step.out[p->taken++];
    if (made->token < 0)
        return NULL;
    sampler_picked(sampler);
    return made;
}
