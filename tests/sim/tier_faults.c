/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of disks, of networks and of whoever has the other end, each in a record that is then
 * read: no logit is wrong, and every fault is counted.
 *
 *     sim_tier_faults [--faults=N] [--seed=N] [--class=NAME] [--unchecked]
 *
 * A round answers a prompt, whose pages the tiers get, ends the server, plants one fault, starts
 * another server over the same folder or Redis and asks again. The tiers are the real ones: the
 * disk tier on faulty_files.h, the remote tier on lying_redis.h, each alone and in front of the
 * other. --faults=N: rounds of each class whose fault was read (4). The table at the end has
 *
 *     planted   rounds with a fault; in the first line, rounds without one
 *     read      rounds in which the request read the record that has it, or asked for it where the
 *               fault is that it was not stored or is another model's
 *     counted   of these, rounds in which a figure of the tiers says so
 *     wrong     rows of logits that are not those of a run without tiers
 *
 * The exit code is 1 if a class has fewer faults read than asked for, one that was not counted, or
 * a wrong row. With --unchecked what tiers return is believed, and pages are named alike whatever
 * they depend on: the control, whose exit code must be 1. It is 2 if a class that could give wrong
 * logits gave none: then its faults prove nothing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>

#include "cache/tier_segment.h"
#include "centres.h"
#include "random_programs.h"
#include "restarts.h"

enum { BLOCK = BLOCK_BYTES, HEAD = RECORD_HEAD_BYTES };

/* ---- models ---------------------------------------------------------------------------------- */

enum model_name {
    PLAIN,
    RECURRENT, /* its records are pages and states */
    OTHER_WEIGHTS,
    OTHER_ROPE,
    OTHER_BITS,  /* of K and V */
    QUANTIZED,   /* its weights are, so that rounding of activations matters */
    OTHER_ROUND, /* of QUANTIZED: pages of the same size and format */
    CENTRED,
    OTHER_CENTRES,
    OTHER_TIER,
    MODELS
};
static struct restarts_model models[MODELS];
static struct sim_models sim;
static kvasir_model *changed[2]; /* PLAIN with other weights, with another rope */

static void need(kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK) {
        printf("FAILED: %s\n", err->text);
        exit(1);
    }
}

static kvasir_model *open_model(const char *path) {
    kvasir_model *model;
    kvasir_error err;
    need(kvasir_model_open(path, &model, &err), &err);
    return model;
}

/* A copy of PLAIN's checkpoint whose config or weights are changed. */
static kvasir_model *open_changed(struct temp_folder *t, bool weights) {
    const char *name = weights ? "weights" : "rope";
    char folder[128], path[160];
    char *config, *data, *theta;
    size_t size, bytes;
    kvasir_error err;
    snprintf(folder, sizeof folder, "%s/%s", t->path, name);
    if (mkdir(folder, 0700) != 0)
        abort();
    need(
        file_read_all(SHARED_DIR "/fixtures/tiny/llama/config.json", 1 << 20, &config, &size, &err),
        &err);
    need(file_read_all(SHARED_DIR "/fixtures/tiny/llama/model.safetensors", 1 << 26, &data, &bytes,
                       &err),
         &err);
    if (!weights && (theta = memmem(config, size, "500000.0", 8)) != NULL)
        *theta = '4';
    for (size_t at = bytes / 2; weights && at < bytes / 2 + 40000; at += 2)
        data[at] ^= 0x1f; /* low bits of many weights, no exponent */
    snprintf(path, sizeof path, "%s/config.json", name);
    temp_write(t, path, config, size);
    snprintf(path, sizeof path, "%s/model.safetensors", name);
    temp_write(t, path, data, bytes);
    mem_free(config);
    mem_free(data);
    return open_model(folder);
}

/* The best instruction set that has other bits; the best one if there is no other. */
static const char *other_tier(const struct restarts_model *m) {
    for (int tier = CPU_TIER_COUNT - 1; tier > 0; tier--)
        if (cpu_tier_have((enum cpu_tier)tier) &&
            strcmp(cpu_tier_of_bits(cpu_tier_name((enum cpu_tier)tier)),
                   cpu_tier_of_bits(m->ctx->device.tier)) != 0)
            return cpu_tier_name((enum cpu_tier)tier);
    return "ref";
}

static kvasir_model *model_called(const char *name) {
    for (int i = 0; i < SIM_N_MODELS; i++)
        if (strcmp(SIM_MODELS[i], name) == 0)
            return sim.models[i];
    abort();
}

static const kvasir_model *checkpoint_of(enum model_name m) {
    switch (m) {
    case RECURRENT:
        return model_called("lfm2");
    case QUANTIZED:
    case OTHER_ROUND:
        return model_called("blocks");
    case OTHER_WEIGHTS:
        return changed[0];
    case OTHER_ROPE:
        return changed[1];
    default:
        return model_called("llama");
    }
}

static void write_centres(struct temp_folder *t, uint64_t seed, char path[192]) {
    struct text_buf file = random_centres(checkpoint_of(PLAIN), 20, seed);
    char name[32];
    snprintf(name, sizeof name, "centres%d", (int)seed);
    snprintf(path, 192, "%s", temp_write(t, name, file.data, file.len));
    text_free(&file);
}

static void open_models(void) {
    struct temp_folder t;
    char centres[2][192];
    sim_models_open(&sim);
    temp_folder_make(&t);
    changed[0] = open_changed(&t, true);
    changed[1] = open_changed(&t, false);
    for (int i = 0; i < 2; i++)
        write_centres(&t, (uint64_t)i, centres[i]);
    for (int m = 0; m < MODELS; m++) {
        kvasir_context_options o = kvasir_context_defaults();
        o.kv_bits = m == OTHER_BITS ? "4,8" : "8,4";
        o.act_bits = m == OTHER_ROUND ? 16 : 8;
        o.key_centre = m == CENTRED ? centres[0] : m == OTHER_CENTRES ? centres[1] : "off";
        o.cpu_tier = m == OTHER_TIER ? other_tier(&models[PLAIN]) : "auto";
        o.threads = 1;
        o.ctx = 2 * RESTARTS_LENGTH;
        o.cache_bytes = 64 << 20;
        restarts_model_make(&models[m], checkpoint_of((enum model_name)m), &o);
    }
    temp_folder_remove(&t);
}

static void close_models(void) {
    for (int m = 0; m < MODELS; m++)
        restarts_model_end(&models[m]);
    for (int i = 0; i < 2; i++)
        kvasir_model_close(changed[i]);
    sim_models_close(&sim);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

enum phase {
    WRITING, /* a server is about to store the prompt */
    AT_REST, /* no server runs */
    READING, /* another one has started and knows what is there */
    AFTER    /* it has answered */
};
enum figure {
    FOUND = 1, /* all of it came from the tier: there was no fault */
    DAMAGED = 2,
    MISSING = 4,
    FAILED = 8,
    LATE = 16,
    UNWRITTEN = 32, /* the tier did not take it */
    UNFOUND = 64    /* nothing is known by these names */
};

struct round;
struct class {
    const char *name;
    enum { DISK, REMOTE, EITHER } store;
    uint32_t counted;                      /* figures: one of them counts the fault */
    bool lies;                             /* believed, it gives wrong logits */
    bool by_layer;                         /* the fault happens when the tier calls */
    bool beside;                           /* another prompt is stored, too */
    bool killed;                           /* in one round of three the first server is killed */
    enum { NO_SECRET = 1, SECRET } secret; /* 0: by turns */
    double late_seconds, exchange_seconds; /* 0: the usual ones */
    uint64_t segment_bytes;                /* so small that a segment has one page of PLAIN */
    enum model_name first, second;         /* second: not PLAIN: the second server has it */
    bool (*plant)(struct round *r, enum phase phase); /* whether it did */
    uint32_t n_planted, n_read, n_counted, n_wrong, n_rows;
};

struct round {
    struct class *class;
    struct restarts *w;
    const struct restarts_model *model;
    unsigned long number;
    char salt[40];
    uint32_t text, prompt, pages;
    uint32_t object; /* which of the prompt's records, in the order in which they are read */
    bool killed, planted;
};
static const char BESIDE[] = "beside";
static bool unchecked;

static bool is_state(const struct round *r) {
    return r->object == r->pages;
}

static uint64_t object_bytes(const struct round *r) {
    return is_state(r) ? r->model->state_bytes : r->model->page_bytes;
}

/* ---- records in files ------------------------------------------------------------------------ */

struct place {
    struct tier_key root; /* looked for */
    uint32_t number, kind;
    const char *dir;
    char path[128];
    uint64_t at;
    struct record_head head;
};

static void note_place(void *user, const struct tier_folder_item *item) {
    struct place *p = user;
    if (item->state != FOLDER_RECORD || !tier_key_equal(item->head->root, p->root) ||
        item->head->number != p->number || item->head->kind != p->kind)
        return;
    snprintf(p->path, sizeof p->path, "%s/%s", p->dir, item->file);
    p->at = item->offset;
    p->head = *item->head;
}

/* The round's record under a salt. False: it is in no file. */
static bool find_place(const struct round *r, const char *salt, struct place *p) {
    kvasir_error err;
    *p = (struct place){.root = chain_root(r->model->identity, salt, strlen(salt)),
                        .number = is_state(r) ? r->pages - 1 : r->object,
                        .kind = is_state(r) ? RECORD_STATE : RECORD_PAGE,
                        .dir = r->w->dir};
    struct tier_folder_walk walk = {.dir = p->dir, .item = note_place, .user = p};
    need(tier_folder_walk(&walk, &err), &err);
    return p->path[0] != 0;
}

static bool get(const struct place *p, uint64_t at, void *data, size_t bytes) {
    const int fd = open(p->path, O_RDONLY);
    const bool good = pread(fd, data, bytes, (off_t)at) == (ssize_t)bytes;
    close(fd);
    return good;
}

static bool set(const struct place *p, uint64_t at, const void *data, size_t bytes) {
    const int fd = open(p->path, O_WRONLY);
    const bool good = pwrite(fd, data, bytes, (off_t)at) == (ssize_t)bytes;
    close(fd);
    return good;
}

/* A record with its head's block; mem_free. */
static uint8_t *get_record(const struct place *p) {
    uint8_t *data = mem_alloc(BLOCK + p->head.bytes);
    if (!data || !get(p, p->at, data, BLOCK + p->head.bytes))
        abort();
    return data;
}

/* Where a record's byte may flip: one in four in the head, of which only what is used counts. */
static uint64_t draw_byte(const struct round *r) {
    return random_below(4) == 0 && !r->killed ? random_below(HEAD)
                                              : BLOCK + random_below((uint32_t)object_bytes(r));
}

/* By turns before the second server starts and after. */
static bool is_turn(const struct round *r, enum phase phase) {
    return phase == (r->number % 2 ? AT_REST : READING);
}

/* ---- classes: the disk ----------------------------------------------------------------------- */

static bool plant_nothing(struct round *r, enum phase phase) {
    (void)r;
    return phase == READING;
}

static bool plant_flip(struct round *r, enum phase phase) {
    struct place p;
    uint8_t byte;
    if (!is_turn(r, phase) || !find_place(r, r->salt, &p))
        return false;
    const uint64_t at = p.at + draw_byte(r);
    if (!get(&p, at, &byte, 1))
        return false;
    byte ^= (uint8_t)(1 << random_below(8));
    return set(&p, at, &byte, 1);
}

/* Between the disk and us. */
static bool plant_flip_on_the_way(struct round *r, enum phase phase) {
    if (phase != READING)
        return false;
    r->w->files.flip_bit =
        8 * (r->object * (BLOCK + r->model->page_bytes) + draw_byte(r)) + random_below(8);
    return true;
}

static bool plant_cut(struct round *r, enum phase phase) {
    struct place p;
    return phase == READING && find_place(r, r->salt, &p) &&
           truncate(p.path, (off_t)(p.at + random_below((uint32_t)(BLOCK + p.head.bytes)))) == 0;
}

/* Only a beginning of what was said to be written is there. The segment's head was written before
 * the records. */
static bool plant_torn_write(struct round *r, enum phase phase) {
    if (phase != WRITING)
        return false;
    atomic_store(&r->w->files.sound_writes, 1 + r->object);
    r->w->files.tear_at = random_below((uint32_t)(BLOCK + object_bytes(r) / 4));
    return true;
}

static bool exchange(const struct place *p, uint64_t i, const struct place *q, uint64_t k) {
    uint8_t a[BLOCK], b[BLOCK];
    return get(p, p->at + i * BLOCK, a, BLOCK) && get(q, q->at + k * BLOCK, b, BLOCK) &&
           memcmp(a, b, BLOCK) != 0 && set(p, p->at + i * BLOCK, b, BLOCK) &&
           set(q, q->at + k * BLOCK, a, BLOCK);
}

/* Some blocks of the record are where others belong, or have not arrived while later ones have. */
static bool plant_reordered_writes(struct round *r, enum phase phase) {
    static const uint8_t zeros[BLOCK];
    struct place p, q;
    uint8_t before[BLOCK];
    if (phase != AT_REST || !find_place(r, r->salt, &p) || !find_place(r, BESIDE, &q))
        return false;
    const uint32_t blocks = (uint32_t)(p.head.bytes / BLOCK);
    const uint64_t i = 1 + random_below(blocks), k = random_below(blocks + 1);
    if (r->number % 3 == 0)
        return exchange(&p, i, &p, k);
    if (r->number % 3 == 1)
        return exchange(&p, i, &q, 1 + random_below(blocks));
    return get(&p, p.at + i * BLOCK, before, BLOCK) && memcmp(before, zeros, BLOCK) != 0 &&
           set(&p, p.at + i * BLOCK, zeros, BLOCK);
}

/* The tier renames no file: a segment's name is made once, with O_EXCL, and removed once. What a
 * lost rename does to others, a lost name does here: the index has a segment whose name is gone
 * from the folder, or now is that of another segment. */
static bool plant_lost_name(struct round *r, enum phase phase) {
    struct place p, q;
    char third[160];
    if (phase != READING || !find_place(r, r->salt, &p) || !find_place(r, BESIDE, &q) ||
        strcmp(p.path, q.path) == 0)
        return false;
    if (r->number % 2)
        return unlink(p.path) == 0;
    snprintf(third, sizeof third, "%s/third", r->w->folder.path);
    return rename(p.path, third) == 0 && rename(q.path, p.path) == 0 && rename(third, q.path) == 0;
}

/* A footer with valid sums, of another moment: it has the record where another one is. */
static bool plant_stale_index(struct round *r, enum phase phase) {
    struct place p, q;
    struct segment_content c;
    struct segment_row *a = NULL, *b = NULL;
    if (phase != AT_REST || !find_place(r, r->salt, &p) || !find_place(r, BESIDE, &q) ||
        strcmp(p.path, q.path) != 0)
        return false;
    const uint64_t number = segment_number(strrchr(p.path, '/') + 1);
    const int fd = open(p.path, O_RDWR);
    if (segment_load(&TIER_REAL_FILES, fd, number, &c) != 0)
        abort();
    for (size_t i = 0; i < c.n; i++) {
        a = c.rows[i].block * (uint64_t)BLOCK == p.at ? &c.rows[i] : a;
        b = c.rows[i].block * (uint64_t)BLOCK == q.at ? &c.rows[i] : b;
    }
    if (!a || !b || a == b)
        abort();
    const uint32_t block = a->block;
    a->block = b->block;
    b->block = block;
    const int error = segment_write_footer(&TIER_REAL_FILES, fd, number, c.rows, c.n, c.end);
    segment_content_free(&c);
    close(fd);
    return error == 0;
}

/* A whole and valid record, of another key, in the record's place. (Without a footer a start would
 * find that one and know nothing of ours, so the first server is not killed.) */
static bool plant_other_record(struct round *r, enum phase phase) {
    struct place p, q;
    if (!is_turn(r, phase) || !find_place(r, r->salt, &p) || !find_place(r, BESIDE, &q))
        return false;
    uint8_t *data = get_record(&q);
    const bool good = set(&p, p.at, data, BLOCK + p.head.bytes);
    mem_free(data);
    return good;
}

/* Under the right key and valid sums another payload: of other tokens, another page, another
 * conversation or another model. */
static bool plant_forged_head(struct round *r, enum phase phase) {
    struct place p, q;
    if (!is_turn(r, phase) || !find_place(r, r->salt, &p) || !find_place(r, BESIDE, &q))
        return false;
    uint8_t *data = get_record(&q);
    struct record_head head = p.head;
    if (r->number % 4 == 0)
        head.tokens[random_below(TILE_TOKENS)] ^= 1;
    else if (r->number % 4 == 1)
        head.number++;
    else if (r->number % 4 == 2)
        head.root = q.head.root;
    else
        head.context = models[OTHER_WEIGHTS].identity;
    record_seal(&head, data + BLOCK);
    memcpy(data, &head, sizeof head);
    const bool good = set(&p, p.at, data, BLOCK + p.head.bytes);
    mem_free(data);
    return good;
}

static bool plant_read_error(struct round *r, enum phase phase) {
    if (phase != READING)
        return false;
    atomic_store(&r->w->files.sound_reads, r->object);
    r->w->files.read_error = EIO;
    return true;
}

static bool plant_write_error(struct round *r, enum phase phase) {
    if (phase != WRITING)
        return false;
    atomic_store(&r->w->files.sound_writes, 1 + r->object);
    r->w->files.write_error = EIO;
    return true;
}

static bool plant_full_disk(struct round *r, enum phase phase) {
    if (phase != WRITING)
        return false;
    r->w->files.room = BLOCK + r->object * (BLOCK + r->model->page_bytes) +
                       random_below((uint32_t)(BLOCK + object_bytes(r)));
    return true;
}

/* Longer than a load is waited for. */
static bool plant_slow_read(struct round *r, enum phase phase) {
    if (phase != READING)
        return false;
    atomic_store(&r->w->files.sound_reads, r->object);
    r->w->files.read_seconds = 50 * r->class->late_seconds;
    return true;
}

/* Until the answer is there. */
static bool plant_hung_read(struct round *r, enum phase phase) {
    if (phase == READING)
        atomic_store(&r->w->files.sound_reads, r->object);
    atomic_store(&r->w->files.hang, phase == READING);
    return phase == READING;
}

/* ---- classes: the Redis ---------------------------------------------------------------------- */

static bool plant_lie(struct round *r, enum phase phase, const enum lie *lies, size_t n) {
    if (phase != READING)
        return false;
    atomic_store(&r->w->redis.seed, random_state);
    atomic_store(&r->w->redis.sound, r->object);
    atomic_store(&r->w->redis.lie, lies[r->number % n]);
    return true;
}

#define LIES_OF(name, ...)                                                                         \
    static bool plant_##name(struct round *r, enum phase phase) {                                  \
        static const enum lie lies[] = {__VA_ARGS__};                                              \
        return plant_lie(r, phase, lies, sizeof lies / sizeof *lies);                              \
    }
LIES_OF(flipped_value, LIE_FLIP)
LIES_OF(cut_value, LIE_SHORT, LIE_LONG, LIE_LENGTH, LIE_CUT)
LIES_OF(other_value, LIE_OTHER)
LIES_OF(forged_value, LIE_FORGE)
LIES_OF(forged_claim, LIE_CLAIM)
LIES_OF(lost_value, LIE_MISS)
LIES_OF(refusal, LIE_CLOSE, LIE_TYPE, LIE_LOADING, LIE_ERROR, LIE_MOVED, LIE_ASK, LIE_MOVED_BAD)
LIES_OF(nonsense, LIE_HUGE, LIE_NEGATIVE, LIE_ARRAY, LIE_NESTED, LIE_INTEGER, LIE_STATUS, LIE_LINE,
        LIE_NOISE)
LIES_OF(slow_value, LIE_DRIP)
LIES_OF(hung_value, LIE_HANG, LIE_STALL)

static bool plant_full_redis(struct round *r, enum phase phase) {
    if (phase != WRITING)
        return false;
    atomic_store(&r->w->redis.sound, r->object);
    atomic_store(&r->w->redis.full, true);
    return true;
}

/* ---- the list -------------------------------------------------------------------------------- */

#define DISK_CLASS(title, function, figures, ...)                                                  \
    {                                                                                              \
        .name = "disk: " title, .store = DISK, .plant = (function), .counted = (figures),          \
        __VA_ARGS__                                                                                \
    }
#define REMOTE_CLASS(title, function, figures, ...)                                                \
    {                                                                                              \
        .name = "remote: " title, .store = REMOTE, .plant = (function), .counted = (figures),      \
        .by_layer = true, __VA_ARGS__                                                              \
    }
#define OTHER_CLASS(title, ...)                                                                    \
    {                                                                                              \
        .name = "other " title, .store = EITHER, .plant = plant_nothing, .counted = UNFOUND,       \
        .lies = true, __VA_ARGS__                                                                  \
    }

static struct class classes[] = {
    {.name = "no fault", .store = EITHER, .plant = plant_nothing, .counted = FOUND},
    DISK_CLASS("flipped bit", plant_flip, DAMAGED, .lies = true, .killed = true),
    DISK_CLASS("bit flipped on the way", plant_flip_on_the_way, DAMAGED, .lies = true,
               .by_layer = true),
    DISK_CLASS("truncation", plant_cut, DAMAGED, .killed = true),
    DISK_CLASS("torn write", plant_torn_write, DAMAGED, .lies = true, .by_layer = true),
    DISK_CLASS("reordered writes", plant_reordered_writes, DAMAGED, .lies = true, .beside = true,
               .killed = true),
    DISK_CLASS("lost name", plant_lost_name, MISSING | DAMAGED, .lies = true, .beside = true,
               .segment_bytes = 64 << 10),
    DISK_CLASS("stale index", plant_stale_index, DAMAGED, .lies = true, .beside = true),
    DISK_CLASS("other record", plant_other_record, DAMAGED, .lies = true, .beside = true),
    DISK_CLASS("forged head", plant_forged_head, DAMAGED, .lies = true, .beside = true,
               .killed = true),
    DISK_CLASS("EIO while reading", plant_read_error, FAILED, .by_layer = true),
    DISK_CLASS("EIO while writing", plant_write_error, UNWRITTEN, .by_layer = true),
    DISK_CLASS("full disk", plant_full_disk, UNWRITTEN, .by_layer = true),
    DISK_CLASS("slow read", plant_slow_read, LATE | FAILED, .by_layer = true,
               .late_seconds = 0.0005),
    DISK_CLASS("hung read", plant_hung_read, LATE, .by_layer = true, .late_seconds = 0.0005),
    REMOTE_CLASS("flipped bit", plant_flipped_value, DAMAGED, .lies = true),
    REMOTE_CLASS("truncation", plant_cut_value, DAMAGED | FAILED),
    REMOTE_CLASS("other value", plant_other_value, DAMAGED, .lies = true, .beside = true),
    REMOTE_CLASS("forged sums", plant_forged_value, DAMAGED, .lies = true, .secret = SECRET),
    REMOTE_CLASS("forged tokens", plant_forged_claim, DAMAGED, .lies = true, .beside = true,
                 .secret = NO_SECRET),
    REMOTE_CLASS("lost value", plant_lost_value, MISSING),
    REMOTE_CLASS("refusal", plant_refusal, FAILED | DAMAGED),
    REMOTE_CLASS("nonsense", plant_nonsense, FAILED | DAMAGED),
    REMOTE_CLASS("slow value", plant_slow_value, FAILED | LATE, .exchange_seconds = 0.05),
    REMOTE_CLASS("hung value", plant_hung_value, FAILED | LATE, .exchange_seconds = 0.05),
    REMOTE_CLASS("full", plant_full_redis, UNWRITTEN),
    OTHER_CLASS("weights", .second = OTHER_WEIGHTS),
    OTHER_CLASS("rope", .second = OTHER_ROPE),
    OTHER_CLASS("bits of activations", .first = QUANTIZED, .second = OTHER_ROUND),
    OTHER_CLASS("bits of K and V", .second = OTHER_BITS),
    OTHER_CLASS("centres", .first = CENTRED, .second = OTHER_CENTRES),
    OTHER_CLASS("instruction set", .second = OTHER_TIER),
};
enum { CLASSES = sizeof classes / sizeof *classes };

/* Formats are part of each record's key, too, so that even the control finds nothing of these. Two
 * instruction sets may round alike. */
static void settle_classes(void) {
    const size_t bytes = (size_t)RESTARTS_LENGTH * SIM_VOCAB * sizeof(float);
    for (int i = 0; i < CLASSES; i++) {
        struct class *c = &classes[i];
        if (c->second == OTHER_BITS ||
            (c->second &&
             memcmp(models[c->first].logits[0], models[c->second].logits[0], bytes) == 0))
            c->lies = false;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static void choose_round(struct round *r, struct class *c, struct restarts *w,
                         unsigned long number) {
    const bool recurrent = number % 4 == 3 && !c->second && !c->segment_bytes;
    restarts_empty(w);
    *r = (struct round){.class = c, .w = w, .number = number};
    snprintf(r->salt, sizeof r->salt, "%lu", number);
    r->model = &models[recurrent ? RECURRENT : c->first];
    r->text = random_below(RESTARTS_TEXTS);
    r->pages = 2 + random_below(RESTARTS_PAGES - 1);
    r->prompt = r->pages * TILE_TOKENS + 1 + random_below(TILE_TOKENS - RESTARTS_ANSWER - 2);
    r->object = random_below(r->pages + recurrent);
    r->killed = c->killed && number % 3 == 0;
    const bool remote = c->store == EITHER ? random_below(2) : c->store == REMOTE;
    const bool both = random_below(4) == 0;
    w->disk = both || !remote;
    w->remote = both || remote;
    w->remote_first = remote;
    w->secret = c->secret ? c->secret == SECRET : random_below(2);
    w->unchecked = unchecked;
    w->late_seconds = c->late_seconds > 0 ? c->late_seconds : w->late_seconds;
    w->exchange_seconds = c->exchange_seconds > 0 ? c->exchange_seconds : w->exchange_seconds;
    w->segment_bytes = c->segment_bytes ? c->segment_bytes : w->segment_bytes;
}

static const struct tier_stats *stats_of(const struct restarts *w) {
    return w->remote_first ? &w->remote_stats : &w->disk_stats;
}

static uint32_t figures_of(const struct round *r, uint32_t hit) {
    const struct restarts *w = r->w;
    const struct tier_stats *s = stats_of(w);
    const uint32_t all = r->pages + (r->model->state_bytes != 0);
    return (s->reads == all && hit == r->pages * TILE_TOKENS ? FOUND : 0) |
           (s->damaged ? DAMAGED : 0) | (s->missing ? MISSING : 0) | (s->failed ? FAILED : 0) |
           (w->loads.loads_late ? LATE : 0) | (w->loads.loads == 0 && hit == 0 ? UNFOUND : 0);
}

/* Whether the second request met the fault. */
static bool was_met(const struct round *r, const struct tier_stats *first, uint32_t figures) {
    const struct tier_stats *s = stats_of(r->w);
    if (!r->planted || (r->class->by_layer && !r->w->faults))
        return false;
    if (r->class->counted & LATE && figures & FOUND)
        return false; /* on a busy machine it came before anybody saw that it was late */
    if (r->class->counted & (UNWRITTEN | UNFOUND))
        return first->writes + first->write_failures >= r->pages;
    return s->reads + s->missing + s->damaged + s->failed > r->object || figures & LATE;
}

static void plant(struct round *r, enum phase phase) {
    r->planted |= r->class->plant(r, phase);
}

static void run_round(struct restarts *w, struct class *c, unsigned long number) {
    struct round r;
    choose_round(&r, c, w, number);
    const struct restarts_model *second = c->second ? &models[c->second] : r.model;
    restarts_start(w, r.model, r.model->identity);
    plant(&r, WRITING);
    (void)restarts_answer(w, r.text, r.prompt, r.salt);
    if (c->beside)
        (void)restarts_answer(w, 1 - r.text, r.prompt, BESIDE);
    restarts_settle(w);
    restarts_stop(w, r.killed);
    const struct tier_stats first = *stats_of(w);
    c->n_wrong += w->wrong;
    c->n_rows += w->rows;
    restarts_clear(w);
    plant(&r, AT_REST);
    restarts_start(w, second, unchecked ? r.model->identity : second->identity);
    plant(&r, READING);
    const uint32_t hit = restarts_answer(w, r.text, r.prompt, r.salt);
    plant(&r, AFTER);
    restarts_stop(w, false);
    const uint32_t figures = figures_of(&r, hit) | (first.write_failures ? UNWRITTEN : 0);
    const bool met = was_met(&r, &first, figures);
    c->n_wrong += w->wrong;
    c->n_rows += w->rows;
    c->n_planted += r.planted;
    c->n_read += met;
    c->n_counted += met && figures & c->counted;
}

static void run_class(struct restarts *w, struct class *c, unsigned long faults, uint64_t seed) {
    const unsigned long most = 2 * faults + 20; /* on a busy machine some are met by nobody */
    for (unsigned long i = 0; i < most && c->n_read < faults; i++) {
        random_state = mix_bits(seed ^ mix_bits((uint64_t)(c - classes) << 32 | i));
        run_round(w, c, i);
    }
}

/* The exit code. */
static int report(unsigned long faults, double seconds) {
    uint64_t planted = 0, met = 0, counted = 0, wrong = 0, rows = 0;
    bool good = true, control = true;
    printf("%-32s %8s %8s %8s %8s\n", "", "planted", "read", "counted", "wrong");
    for (int i = 0; i < CLASSES; i++) {
        const struct class *c = &classes[i];
        if (c->n_rows == 0) /* not chosen */
            continue;
        const bool few = c->n_read < faults, missed = c->n_counted < c->n_read;
        printf("%-32s %8u %8u %8u %8u%s%s%s\n", c->name, c->n_planted, c->n_read, c->n_counted,
               c->n_wrong, few ? "  TOO FEW" : "", missed ? "  NOT COUNTED" : "",
               c->n_wrong             ? "  WRONG"
               : unchecked && c->lies ? "  NEVER WRONG"
                                      : "");
        good = good && !few && !missed && !c->n_wrong;
        control = control && (!c->lies || c->n_wrong);
        planted += c->n_planted;
        met += c->n_read;
        counted += c->n_counted;
        wrong += c->n_wrong;
        rows += c->n_rows;
    }
    printf("%-32s %8llu %8llu %8llu %8llu\n", "all", (unsigned long long)planted,
           (unsigned long long)met, (unsigned long long)counted, (unsigned long long)wrong);
    printf("%llu rows of logits compared in %.0f s%s\n", (unsigned long long)rows, seconds,
           unchecked ? "; nothing was checked" : "");
    if (unchecked && control)
        printf("the control: each class of lies was believed at least once\n");
    return good && rows ? 0 : unchecked && !control ? 2 : 1;
}

int main(int argc, char **argv) {
    unsigned long faults = 4;
    uint64_t seed = 20261125;
    const char *only = "";
    random_arguments(argc, argv, &faults, &seed);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--faults=", 9) == 0)
            faults = strtoul(argv[i] + 9, NULL, 10);
        else if (strncmp(argv[i], "--class=", 8) == 0)
            only = argv[i] + 8;
        unchecked |= strcmp(argv[i], "--unchecked") == 0;
    }
    struct restarts w;
    const double begin = clock_seconds();
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_models();
    settle_classes();
    restarts_make(&w);
    for (int i = 0; i < CLASSES; i++)
        if (strstr(classes[i].name, only))
            run_class(&w, &classes[i], faults, seed);
    restarts_end(&w);
    close_models();
    return report(faults, clock_seconds() - begin);
}
