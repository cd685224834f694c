/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_worlds.h"

#include <stdio.h>
#include <string.h>

#include "cache/tree_internal.h"
#include "random_programs.h"

static const char *const SHAPES[SIM_SHAPES] = {"plain",     "rotating, keeps", "rotating",
                                               "window",    "attention sinks", "shared KV",
                                               "recurrent", "experts"};
static const char *const FORMATS[SIM_FORMATS] = {"f16", "8",    "8,4", "centred", "4,2",
                                                 "3",   "r8,4", "t4",  "other"};
static const char *const ROTATIONS[SIM_ROTATIONS] = {"none", "keeps", "keeps none"};
static const char *const BITS[SIM_FORMATS] = {"f16", "8", "8,4", "8,4", "4,2", "3", "r8,4", "t4"};
static const char *const OTHERS[] = {"4",   "2",  "6,5",  "5,f16", "bf16,8", "bf16",
                                     "f32", "r4", "t5,4", "t3,2",  "t2"};

static bool can_be_centred(const struct sim_models *s, uint32_t model) {
    return s->centres[model][0] != 0;
}

struct sim_world sim_world_make(const struct sim_models *s, uint64_t seed,
                                kvasir_context_options *o) {
    const uint64_t round = seed / SIM_N_MODELS;
    struct sim_world w = {.model = (uint32_t)(seed % SIM_N_MODELS)};
    random_state = seed * 0x9e3779b97f4a7c15u + 3;
    w.format = (enum sim_format)((w.model + round) % SIM_FORMATS);
    w.rotation = (enum sim_rotation)((w.model + 2 * round) % SIM_ROTATIONS);
    const bool can = can_be_centred(s, w.model);
    if (w.format == FORMAT_8_4_CENTRED && !can)
        w.format = FORMAT_OTHER;
    o->kv_bits = w.format == FORMAT_OTHER ? OTHERS[random_below(sizeof OTHERS / sizeof *OTHERS)]
                                          : BITS[w.format];
    const bool centred =
        w.format == FORMAT_8_4_CENTRED || (can && w.format != FORMAT_8_4 && random_below(2));
    o->key_centre = centred ? s->centres[w.model] : "off";
    o->kv_exact_tail = strchr("rt", o->kv_bits[0]) ? TILE_TOKENS * random_below(4) : 0;
    o->max_kv_size = o->kv_keep = 0;
    if (w.rotation == ROTATION_NONE)
        return w;
    o->max_kv_size = random_below(2) ? 128 : 2 + random_below(150);
    if (w.rotation == ROTATION_KEEPING)
        o->kv_keep =
            o->max_kv_size > 4 && random_below(3) ? 4 : 1 + random_below(o->max_kv_size - 1);
    return w;
}

const char *sim_tier_draw(uint32_t (*below)(uint32_t)) {
    enum cpu_tier tier = (enum cpu_tier)below(CPU_TIER_COUNT);
    return cpu_tier_have(tier) ? cpu_tier_name(tier) : "auto";
}

/* ---- the ladder ------------------------------------------------------------------------------ */

bool sim_all_is_down(const struct prefix_tree *t) {
    const struct kv_cache *c = t->cache;
    for (uint32_t x = 0; x < t->n_made; x++)
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const struct kv_page *page = node_page(t, x, g);
            if (t->nodes[x].to == TILE_TOKENS && !t->nodes[x].queued && page->addr != NO_ADDR &&
                !page_is_live(c->pool, page->addr) &&
                ladder_rank(c, g, page->layout) < kv_cache_rungs(c))
                return false;
        }
    return true;
}

/* ---- what was tried -------------------------------------------------------------------------- */

/* A bit for each shape but the rotating ones. */
static uint32_t shapes_of(const struct sim_models *s, uint32_t model) {
    const struct model_config *c = model_config(s->models[model]->model);
    uint32_t shapes = c->moe.n ? 1u << SHAPE_EXPERTS : 0;
    if (strcmp(c->arch, "gpt_oss") == 0)
        shapes |= 1u << SHAPE_SINKS;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kind != LAYER_ATTENTION)
            shapes |= 1u << SHAPE_RECURRENT;
        else if (l->kv_from != i)
            shapes |= 1u << SHAPE_SHARED;
        if (l->window)
            shapes |= 1u << SHAPE_WINDOW;
    }
    return shapes ? shapes : 1u << SHAPE_PLAIN;
}

/* The same, with the world's rotation. */
static uint32_t shapes_in(const struct sim_models *s, const struct sim_world *w) {
    static const enum sim_shape plain[SIM_ROTATIONS] = {SHAPE_PLAIN, SHAPE_KEEPING, SHAPE_ROTATING};
    const uint32_t shapes = shapes_of(s, w->model);
    return shapes == 1u << SHAPE_PLAIN ? 1u << plain[w->rotation] : shapes;
}

struct sched_options sim_sched_draw(uint32_t (*below)(uint32_t), uint32_t step_rows,
                                    uint32_t bits) {
    const uint32_t running = 1 + below(8), every = below(2) ? 0 : TILE_TOKENS * (1 + below(3));
    return (struct sched_options){.max_running = min_u32(running, step_rows),
                                  .step_rows = step_rows,
                                  .snapshot_tokens = every,
                                  .points_near_ends = every > TILE_TOKENS,
                                  .policy = (bits & 3) % POLICY_KINDS,
                                  .step_seconds = bits & 4 ? 0.01 : 0};
}

void sim_coverage_add(struct sim_coverage *c, const struct sim_models *s, const struct sim_world *w,
                      uint64_t rows) {
    const uint32_t shapes = shapes_in(s, w);
    for (uint32_t shape = 0; shape < SIM_SHAPES; shape++)
        if (shapes >> shape & 1) {
            c->formats[shape][w->format] += rows;
            c->rotations[shape][w->rotation] += rows;
        }
}

/* Whether one of the models has this shape in a world like that. */
static bool possible(const struct sim_models *s, enum sim_shape shape, struct sim_world w) {
    for (w.model = 0; w.model < SIM_N_MODELS; w.model++)
        if (shapes_in(s, &w) >> shape & 1 &&
            (w.format != FORMAT_8_4_CENTRED || can_be_centred(s, w.model)))
            return true;
    return false;
}

static bool whole_shape(const struct sim_coverage *c, const struct sim_models *s,
                        enum sim_shape shape) {
    bool whole = true;
    for (int r = 0; r < SIM_ROTATIONS; r++) {
        struct sim_world w = {.rotation = (enum sim_rotation)r};
        if (!c->rotations[shape][r] && possible(s, shape, w)) {
            printf("not tried: %s with rotation %s\n", SHAPES[shape], ROTATIONS[r]);
            whole = false;
        }
        for (int f = 0; f < FORMAT_OTHER; f++) {
            w.format = (enum sim_format)f;
            if (!c->formats[shape][f] && possible(s, shape, w)) {
                printf("not tried: %s in format %s\n", SHAPES[shape], FORMATS[f]);
                whole = false;
            }
        }
    }
    return whole;
}

bool sim_coverage_whole(const struct sim_coverage *c, const struct sim_models *s) {
    bool whole = true;
    printf("%-16s", "rows compared");
    for (int f = 0; f < SIM_FORMATS; f++)
        printf("%9s", FORMATS[f]);
    for (int r = 0; r < SIM_ROTATIONS; r++)
        printf(" %s%s", r ? "" : "| rotation ", ROTATIONS[r]);
    printf("\n");
    for (int shape = 0; shape < SIM_SHAPES; shape++) {
        printf("%-16s", SHAPES[shape]);
        for (int f = 0; f < SIM_FORMATS; f++)
            printf("%9llu", (unsigned long long)c->formats[shape][f]);
        printf(" |");
        for (int r = 0; r < SIM_ROTATIONS; r++)
            printf("%9llu", (unsigned long long)c->rotations[shape][r]);
        printf("\n");
    }
    for (int shape = 0; shape < SIM_SHAPES; shape++)
        whole &= whole_shape(c, s, (enum sim_shape)shape);
    return whole;
}
