/* SPDX-License-Identifier: Apache-2.0 */
/* Small prompt-cache files made by hand, for tests: tensors as a list of words, metadata as JSON
 * members. Follows the README of the forms, not our writer. Include it after model_files.h.
 *
 *     "0.0 BF16 1,2,3,64|0.1 BF16 1,2,3,64|0.2 =3|0.3 none|0.4 $KVCache"
 *
 * Data count upwards; =N is an I32 scalar, $TEXT a string, none is None. The metadata of the newer
 * form for these (2.0 and on) are added by made_032.
 */
#ifndef KVASIR_TEST_PROMPT_MADE_H
#define KVASIR_TEST_PROMPT_MADE_H

#include "model_files.h"
#include "prompt_text.h"
#include "tensors.h"

#define FIXTURES SHARED_DIR "/fixtures/mlx/prompt-cache"

struct made {
    struct safetensors_writer w;
    struct text_buf kinds;
    unsigned n_kinds;
};

static inline void made_kind(struct made *m, const char *name, const char *kind) {
    m->n_kinds++;
    assert_true(text_printf(&m->kinds, ",\"2.%u.0\":\"%s\",\"2.%u.1\":\"%s\"", m->n_kinds, name,
                            m->n_kinds, kind));
}

static inline void made_value(struct made *m, const char *name, const char *what) {
    uint64_t n = strlen(what) - 1;
    if (what[0] == '=') {
        int32_t value = (int32_t)strtol(what + 1, NULL, 10);
        safetensors_add(&m->w, name, "I32", 0, NULL, &value, sizeof value);
        made_kind(m, name, "scalar");
    } else if (what[0] == '$') {
        int32_t codes[64];
        for (uint64_t i = 0; i < n; i++)
            codes[i] = what[1 + i];
        safetensors_add(&m->w, name, "I32", 1, &n, codes, n * sizeof *codes);
        made_kind(m, name, "string");
    } else {
        n = 0;
        safetensors_add(&m->w, name, "F32", 1, &n, "", 0);
        made_kind(m, name, "none");
    }
}

static inline void made_tensor(struct made *m, const char *name, const char *dtype,
                               const char *shape) {
    static uint8_t data[1 << 16];
    uint64_t dims[8];
    uint32_t n_dims = 0;
    size_t bytes = dtype[1] == '1' || dtype[1] == 'F' ? 2 : 4;
    for (const char *at = shape; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        dims[n_dims] = strtoull(at, NULL, 10);
        bytes *= dims[n_dims++];
    }
    assert_true(bytes <= sizeof data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + n_dims + (uint8_t)name[strlen(name) - 1]);
    safetensors_add(&m->w, name, dtype, n_dims, dims, data, bytes);
}

/* metadata: JSON members without braces. */
static inline struct text_buf made_file(const char *tensors, const char *metadata, bool kinds) {
    struct made m = {0};
    char *copy = strdup(tensors), *rest = copy;
    for (char *item; (item = strsep(&rest, "|"));) {
        char *name = strsep(&item, " "), *what = strsep(&item, " ");
        if (item)
            made_tensor(&m, name, what, item);
        else
            made_value(&m, name, what);
    }
    free(copy);
    assert_true(text_printf(&m.w.header, ",\"__metadata__\":{%s%s%s}", metadata,
                            kinds ? ",\"2.0\":\"\"" : "", kinds && m.n_kinds ? m.kinds.data : ""));
    text_free(&m.kinds);
    return safetensors_finish(&m.w);
}

static inline struct text_buf made_032(const char *tensors, const char *metadata) {
    return made_file(tensors, metadata, true);
}
static inline struct text_buf made_legacy(const char *tensors, const char *metadata) {
    return made_file(tensors, metadata, false);
}

/* ---- one file of each class form ------------------------------------------------------------- */

#define Q4(name, rows)                                                                             \
    name ".0 U32 1,2," rows ",8|" name ".1 BF16 1,2," rows ",1|" name ".2 BF16 1,2," rows ",1"
#define Q8(name, rows)                                                                             \
    name ".0 U32 1,2," rows ",16|" name ".1 F16 1,2," rows ",1|" name ".2 F16 1,2," rows ",1"
#define KV(name, rows) name ".0 F16 1,2," rows ",8|" name ".1 F16 1,2," rows ",4"
/* K of 8 bits, V of 4, 32 values of one head: rows after an exact start, and those of it. */
#define STARTED_ROWS(rows, exact)                                                                  \
    "0.0.0 U32 1,1," rows ",8|0.0.1 F16 1,1," rows ",1|0.0.2 F16 1,1," rows ",1|"                  \
    "0.1.0 U32 1,1," rows ",4|0.1.1 BF16 1,1," rows ",1|0.1.2 BF16 1,1," rows ",1|"                \
    "0.2 F16 1,1," exact ",32|0.3 F16 1,1," exact ",32"
#define STARTED(offset, start)                                                                     \
    "\"0.0.0\":\"" offset "\",\"0.0.1\":\"32\",\"0.0.2\":\"8\",\"0.0.3\":\"32\",\"0.0.4\":\"4\","  \
    "\"0.0.5\":\"" start "\",\"2.0\":\"ExactStartQuantizedKVCache\""
#define STARTED_RING(keep, size, offset, idx, start)                                               \
    "\"0.0.0\":\"" keep "\",\"0.0.1\":\"" size "\",\"0.0.2\":\"" offset "\",\"0.0.3\":\"" idx      \
    "\",\"0.0.4\":\"32\",\"0.0.5\":\"8\",\"0.0.6\":\"32\",\"0.0.7\":\"4\",\"0.0.8\":\"" start      \
    "\",\"2.0\":\"ExactStartQuantizedRotatingKVCache\""

static const struct {
    const char *name;
    bool newer;
    const char *tensors, *metadata, *text;
} made_cases[] = {
    {"kv", true, KV("0", "5") "|0.2 =3", "\"0.a.b\":\"x\\\"\\u00e9\",\"1.0\":\"KVCache\"",
     "032 {a.b=x\"\xc3\xa9} | KVCache offset 3 heads 2 rows 5 K f16 dim 8 V f16 dim 4"},
    {"kv-none", true, "0.0 none|0.1 none|0.2 =0", "\"1.0\":\"KVCache\"",
     "032 {} | KVCache offset 0 heads 0 rows 0 K none dim 0 V none dim 0"},
    {"quantized", true, Q4("0.0", "3") "|" Q4("0.1", "3") "|0.2 =2|0.3 =64|0.4 =4",
     "\"1.0\":\"QuantizedKVCache\"",
     "032 {} | QuantizedKVCache offset 2 heads 2 rows 3 K 4g64bf16 dim 64 V 4g64bf16 dim 64"},
    {"quantized-none", true, "0.0 none|0.1 none|0.2 =0|0.3 =32|0.4 =3",
     "\"1.0\":\"QuantizedKVCache\"",
     "032 {} | QuantizedKVCache offset 0 heads 0 rows 0 K 3g32none dim 0 V 3g32none dim 0"},
    {"rotating", true, KV("0", "8") "|0.2 =11|0.3 =2|0.4 =8|0.5 =5", "\"1.0\":\"RotatingKVCache\"",
     "032 {} | RotatingKVCache offset 11 keep 2 max 8 idx 5 heads 2 rows 8 K f16 dim 8 V f16 dim "
     "4"},
    {"arrays", true, "0.0.0 F32 1,3,4|0.0.1 none|0.0.2 I32 1|0.1 I32 1|0.2 none",
     "\"1.0\":\"ArraysCache\"",
     "032 {} | ArraysCache F32(1,3,4) none I32(1) padding I32(1) lengths none"},
    {"list", true,
     "0.0.0.0 none|0.0.0.1 none|0.0.0.2 =0|0.0.1 $KVCache|0.1.0.0.0 F32 1,2|0.1.0.1 none|0.1.0.2 "
     "none|0.1.1 $ArraysCache|0.2.0.0.0.0 none|0.2.0.0.0.1 none|0.2.0.0.0.2 =0|0.2.0.0.1 "
     "$KVCache|0.2.1 $CacheList",
     "\"1.0\":\"CacheList\"",
     "032 {} | CacheList [KVCache offset 0 heads 0 rows 0 K none dim 0 V none dim 0 | ArraysCache "
     "F32(1,2) padding none lengths none | CacheList [KVCache offset 0 heads 0 rows 0 K none dim 0 "
     "V none dim 0]]"},
    {"old-kv", false, KV("0", "3"), "\"0.0\":\"\",\"1.m\":\"q\",\"2.0\":\"KVCache\"",
     "legacy {m=q} | KVCache offset 3 heads 2 rows 3 K f16 dim 8 V f16 dim 4"},
    {"old-3-fields", false, Q4("0.0", "3") "|" Q8("0.1", "3"),
     "\"0.0.0\":\"3\",\"0.0.1\":\"64\",\"0.0.2\":\"4\",\"2.0\":\"QuantizedKVCache\"", NULL},
    {"old-1074", false, Q8("0.0", "3") "|" Q4("0.1", "3"),
     "\"0.0.0\":\"3\",\"0.0.1\":\"64\",\"0.0.2\":\"8\",\"0.0.3\":\"64\",\"0.0.4\":\"4\",\"2.0\":"
     "\"QuantizedKVCache\"",
     "legacy {} | QuantizedKVCache offset 3 heads 2 rows 3 K 8g64f16 dim 64 V 4g64bf16 dim 64"},
    {"old-1074-offset-2", false, Q8("0.0", "2") "|" Q4("0.1", "2"),
     "\"0.0.0\":\"2\",\"0.0.1\":\"64\",\"0.0.2\":\"8\",\"0.0.3\":\"64\",\"0.0.4\":\"4\",\"2.0\":"
     "\"QuantizedKVCache\"",
     "legacy {} | QuantizedKVCache offset 2 heads 2 rows 2 K 8g64f16 dim 64 V 4g64bf16 dim 64"},
    {"old-1074-same", false, Q4("0.0", "3") "|" Q4("0.1", "3"),
     "\"0.0.0\":\"3\",\"0.0.1\":\"64\",\"0.0.2\":\"4\",\"0.0.3\":\"64\",\"0.0.4\":\"4\",\"2.0\":"
     "\"QuantizedKVCache\"",
     "legacy {} | QuantizedKVCache offset 3 heads 2 rows 3 K 4g64bf16 dim 64 V 4g64bf16 dim 64"},
    {"old-1550", false, Q8("0.0", "3") "|" Q4("0.1", "3"),
     "\"0.0.0\":\"2\",\"0.0.1\":\"3\",\"0.0.2\":\"64\",\"0.0.3\":\"8\",\"0.0.4\":\"4\",\"2.0\":"
     "\"QuantizedKVCache\"",
     "legacy {} | QuantizedKVCache offset 3 heads 2 rows 3 K 8g64f16 dim 64 V 4g64bf16 dim 64"},
    {"old-1550-64", false, Q8("0.0", "64") "|" Q4("0.1", "64"),
     "\"0.0.0\":\"2\",\"0.0.1\":\"64\",\"0.0.2\":\"64\",\"0.0.3\":\"8\",\"0.0.4\":\"4\",\"2.0\":"
     "\"QuantizedKVCache\"",
     "legacy {} | QuantizedKVCache offset 64 heads 2 rows 64 K 8g64f16 dim 64 V 4g64bf16 dim 64"},
    {"old-rotating", false, KV("0", "8"),
     "\"0.0.0\":\"2\",\"0.0.1\":\"8\",\"0.0.2\":\"26\",\"0.0.3\":\"8\",\"2.0\":\"RotatingKVCache\"",
     "legacy {} | RotatingKVCache offset 26 keep 2 max 8 idx 8 heads 2 rows 8 K f16 dim 8 V f16 "
     "dim "
     "4"},
    {"old-ring-8", false, Q8("0.0", "8") "|" Q4("0.1", "8"),
     "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"20\",\"0.0.3\":\"1\",\"0.0.4\":\"64\",\"0.0.5\":"
     "\"8\",\"0.0.6\":\"64\",\"0.0.7\":\"4\",\"2.0\":\"QuantizedRotatingKVCache\"",
     "legacy {} | QuantizedRotatingKVCache offset 20 keep 0 max 8 idx 1 heads 2 rows 8 K 8g64f16 "
     "dim 64 V 4g64bf16 dim 64"},
    {"old-ring-4", false, Q8("0.0", "3") "|" Q4("0.1", "3"),
     "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"3\",\"0.0.3\":\"3\",\"2.0\":"
     "\"QuantizedRotatingKVCache\"",
     "legacy {} | QuantizedRotatingKVCache offset 3 keep 0 max 8 idx 3 guessed heads 2 rows 3 K "
     "8g64f16 dim 64 V 4g64bf16 dim 64"},
    {"old-arrays", false, "0.0 F32 1,3,4|0.1 F32 1,2,2,2", "\"0.0\":\"\",\"2.0\":\"ArraysCache\"",
     "legacy {} | ArraysCache F32(1,3,4) F32(1,2,2,2) padding none lengths none"},
    {"old-arrays-nested", false, "0.0.0 F32 1,3,4|0.0.1 F32 1,2,2,2|0.1 F32 0|0.2 I32 1",
     "\"0.0\":\"\",\"2.0\":\"ArraysCache\"",
     "legacy {} | ArraysCache F32(1,3,4) F32(1,2,2,2) padding none lengths I32(1)"},
    {"old-list", false, "0.0.0 F32 1,3|" KV("0.1", "3") "|" KV("1", "3"),
     "\"0.0.0.0\":\"ArraysCache\",\"0.0.0.1\":\"KVCache\",\"0.0.1.0\":\"\",\"0.0.1.1\":\"\","
     "\"0.1\":\"\",\"2.0\":\"CacheList\",\"2.1\":\"KVCache\"",
     "legacy {} | CacheList [ArraysCache F32(1,3) padding none lengths none | KVCache offset 3 "
     "heads 2 rows 3 K f16 dim 8 V f16 dim 4] | KVCache offset 3 heads 2 rows 3 K f16 dim 8 V f16 "
     "dim 4"},
    {"old-list-ring", false, KV("0.0", "8") "|" Q8("0.1.0", "8") "|" Q4("0.1.1", "8"),
     "\"0.0.0.0\":\"RotatingKVCache\",\"0.0.0.1\":\"QuantizedRotatingKVCache\","
     "\"0.0.1.0.0\":\"0\",\"0.0.1.0.1\":\"8\",\"0.0.1.0.2\":\"9\",\"0.0.1.0.3\":\"1\","
     "\"0.0.1.1.0\":\"4\",\"0.0.1.1.1\":\"8\",\"0.0.1.1.2\":\"9\",\"0.0.1.1.3\":\"5\","
     "\"0.0.1.1.4\":\"64\",\"0.0.1.1.5\":\"8\",\"0.0.1.1.6\":\"64\",\"0.0.1.1.7\":\"4\","
     "\"2.0\":\"CacheList\"",
     "legacy {} | CacheList [RotatingKVCache offset 9 keep 0 max 8 idx 1 heads 2 rows 8 K f16 dim "
     "8 "
     "V f16 dim 4 | QuantizedRotatingKVCache offset 9 keep 4 max 8 idx 5 heads 2 rows 8 K 8g64f16 "
     "dim 64 V 4g64bf16 dim 64]"},
    {"start", false, STARTED_ROWS("3", "64"), STARTED("67", "64"),
     "legacy {} | ExactStartQuantizedKVCache offset 67 heads 1 rows 67 start 64 exact 64 K 8g32f16 "
     "dim 32 V 4g32bf16 dim 32"},
    {"start-all", false, STARTED_ROWS("0", "3"), STARTED("3", "128"),
     "legacy {} | ExactStartQuantizedKVCache offset 3 heads 1 rows 3 start 128 exact 3 K 8g32f16 "
     "dim 32 V 4g32bf16 dim 32"},
    {"start-ring", false, STARTED_ROWS("2", "6"), STARTED_RING("2", "8", "66", "8", "64"),
     "legacy {} | ExactStartQuantizedRotatingKVCache offset 66 keep 2 max 8 idx 8 heads 1 rows 8 "
     "start 64 exact 6 K 8g32f16 dim 32 V 4g32bf16 dim 32"},
    {"start-ring-past", false, STARTED_ROWS("6", "2"), STARTED_RING("2", "8", "100", "8", "64"),
     "legacy {} | ExactStartQuantizedRotatingKVCache offset 100 keep 2 max 8 idx 8 heads 1 rows 8 "
     "start 64 exact 2 K 8g32f16 dim 32 V 4g32bf16 dim 32"},
};
enum { MADE = sizeof made_cases / sizeof *made_cases };

/* ---- what the tests share -------------------------------------------------------------------- */

static struct temp_folder folder;

static inline bool skip_fixtures(void) {
    if (path_exists(FIXTURES))
        return false;
    printf("skipped: " FIXTURES " is missing\n");
    return true;
}

static uint64_t rng_state;

static inline uint64_t rng(uint64_t below) { /* splitmix64 */
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static inline void must_open(const char *path, struct prompt_file *f) {
    kvasir_error err = {0};
    if (prompt_file_open(path, f, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
}

static inline void must_write(const char *path, const struct prompt_file *f) {
    kvasir_error err = {0};
    if (prompt_file_write(path, f, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* Reads every row; ends the test if rows and positions disagree. */
static inline void walk(const struct prompt_entry *e, uint32_t n) {
    for (uint32_t i = 0; i < n; i++, e++) {
        if (e->class == PROMPT_LIST)
            walk(e->list.children, e->list.n);
        if (!prompt_class_is_kv(e->class) || e->kv.rows > 4096 || e->kv.heads > 64)
            continue;
        assert_true(prompt_rows_consistent(&e->kv));
        for (int s = 0; s < 2; s++) {
            static uint8_t codes[1 << 16];
            static float x[1 << 16], y[1 << 16];
            const struct prompt_side *side = &e->kv.sides[s];
            if (!side->parts[0].present || side->dim > 1 << 16)
                continue;
            for (uint32_t row = 0; row < e->kv.rows; row++)
                for (uint32_t head = 0; head < e->kv.heads; head++)
                    if (row < e->kv.exact)
                        prompt_start_get_values(side, head, row, x);
                    else if (side->format.group)
                        prompt_side_get_row(side, head, row - e->kv.exact, codes, x, y);
                    else
                        prompt_side_get_values(side, head, row, x);
        }
    }
}

/* A guessed format counts as settled here, so that it can be written. */
static inline void round_trip(struct prompt_file *f) {
    char path[256];
    struct prompt_file again;
    snprintf(path, sizeof path, "%s/again.safetensors", folder.path);
    for (uint32_t i = 0; i < f->n_entries; i++)
        if (prompt_class_is_kv(f->entries[i].class))
            f->entries[i].kv.guessed = false;
    must_write(path, f);
    must_open(path, &again);
    assert_true(prompt_files_same(f, &again));
    /* over its own file, while that is open */
    must_write(path, &again);
    struct prompt_file third;
    must_open(path, &third);
    assert_true(prompt_files_same(&again, &third));
    prompt_file_close(&third);
    prompt_file_close(&again);
}

/* Runs the tests in a folder of their own; the seed is KVASIR_SEED's. */
#define run_prompt_tests(tests)                                                                    \
    do {                                                                                           \
        const char *seed_ = getenv("KVASIR_SEED");                                                 \
        rng_state = seed_ ? strtoull(seed_, NULL, 0) : 20250211;                                   \
        printf("KVASIR_SEED=%llu\n", (unsigned long long)rng_state);                               \
        temp_folder_make(&folder);                                                                 \
        int failed_ = cmocka_run_group_tests(tests, NULL, NULL);                                   \
        temp_folder_remove(&folder);                                                               \
        return failed_;                                                                            \
    } while (0)

#endif
