/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt-cache files of mlx-lm: every fixture of both forms against its expected.jsonl, every
 * corrupt one refused, each class form made by hand, rings against a model of mlx-lm's own
 * algorithm, round trips, and damage (the seed is printed; KVASIR_SEED sets it).
 *
 * KVASIR_CORPUS=DIR writes the files made by hand there: tests/fuzz/corpus/prompt_file.
 */
#include <dirent.h>

#include "prompt_made.h"
#include "prompt_text.h"
#include "tensors.h"

#define FIXTURES SHARED_DIR "/fixtures/mlx/prompt-cache"
enum { CUTS = 500, FLIPS = 500 };

static struct temp_folder folder;

/* ---- trying ---------------------------------------------------------------------------------- */

static void must_open(const char *path, struct prompt_file *f) {
    kvasir_error err = {0};
    if (prompt_file_open(path, f, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
}

static void must_refuse(const char *path, const char *words) {
    struct prompt_file f;
    kvasir_error err = {0};
    kvasir_status status = prompt_file_open(path, &f, &err);
    if (status == KVASIR_OK)
        fail_msg("%s opens, should say: %s", path, words);
    if (!strstr(err.text, words))
        fail_msg("says: %s\nshould say: %s", err.text, words);
    assert_true(status == KVASIR_ERR_FORMAT || status == KVASIR_ERR_UNSUPPORTED);
    assert_int_equal(err.code, status);
    assert_memory_equal(err.text, path, strlen(path));
    assert_null(strchr(err.text, '\n'));
    assert_null(f.entries);
}

static void must_write(const char *path, const struct prompt_file *f) {
    kvasir_error err = {0};
    if (prompt_file_write(path, f, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
}

static bool skip_fixtures(void) {
    if (path_exists(FIXTURES))
        return false;
    printf("skipped: " FIXTURES " is missing\n");
    return true;
}

/* Every row can be read; ends the test where rows and positions disagree. */
static void walk(const struct prompt_entry *e, uint32_t n) {
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
                    if (side->format.group)
                        prompt_side_get_row(side, head, row, codes, x, y);
                    else
                        prompt_side_get_values(side, head, row, x);
        }
    }
}

/* ---- fixtures -------------------------------------------------------------------------------- */

static const char *mlx_dtype(const char *ours) {
    static const char *const names[][2] = {{"F32", "float32"},
                                           {"F16", "float16"},
                                           {"BF16", "bfloat16"},
                                           {"U32", "uint32"},
                                           {"I32", "int32"}};
    for (size_t i = 0; i < 5; i++)
        if (strcmp(ours, names[i][0]) == 0)
            return names[i][1];
    return "?";
}

/* The tensor that a file names LAYER.REST; a number or None as the newer form has them. */
static struct prompt_tensor tensor_named(const struct prompt_entry *e, bool legacy,
                                         const char *rest) {
    const struct prompt_tensor scalar = prompt_tensor_of(PROMPT_I32, 0, NULL);
    const struct prompt_tensor none = prompt_tensor_of(PROMPT_F32, 1, &(uint32_t){0});
    uint32_t first = (uint32_t)(rest[0] - '0'), second = rest[1] ? (uint32_t)(rest[2] - '0') : 0;
    if (e->class == PROMPT_ARRAYS && legacy)
        return e->arrays.states[first];
    if (e->class == PROMPT_ARRAYS)
        return first == 0 ? e->arrays.states[second] : none;
    return first < 2 ? e->kv.sides[first].parts[second] : scalar;
}

static void check_tensors(const struct prompt_file *f, json_t *tensors) {
    const char *name;
    json_t *value, *dim;
    size_t i;
    assert_true(json_object_size(tensors) > 0);
    json_object_foreach(tensors, name, value) {
        const struct prompt_entry *e = &f->entries[strtoul(name, NULL, 10)];
        struct prompt_tensor t =
            tensor_named(e, f->form == PROMPT_FORM_LEGACY, strchr(name, '.') + 1);
        assert_true(t.present);
        assert_string_equal(mlx_dtype(prompt_dtype_name(t.dtype)),
                            json_string_value(json_array_get(value, 0)));
        json_t *shape = json_array_get(value, 1);
        assert_int_equal(t.n_dims, json_array_size(shape));
        json_array_foreach(shape, i, dim) assert_int_equal(t.dims[i], json_integer_value(dim));
    }
}

static const char *metadata_of(const struct prompt_file *f, const char *key) {
    for (uint32_t i = 0; i < f->n_metadata; i++)
        if (strcmp(f->metadata[i].key, key) == 0)
            return f->metadata[i].value;
    return "";
}

/* What a file's name says of its format: q8g64_70, rot64k4_100, kv_70. */
static void check_name(const struct prompt_file *f, const char *name) {
    unsigned a, b;
    for (uint32_t i = 0; i < f->n_entries; i++) {
        const struct prompt_entry *e = &f->entries[i];
        if (sscanf(name, "q%ug%u", &a, &b) == 2) {
            assert_int_equal(e->class, PROMPT_QUANTIZED);
            for (int s = 0; s < 2; s++) {
                assert_int_equal(e->kv.sides[s].format.bits, a);
                assert_int_equal(e->kv.sides[s].format.group, b);
            }
        } else if (sscanf(name, "rot%uk%u", &a, &b) == 2) {
            assert_int_equal(e->class, PROMPT_ROTATING);
            assert_int_equal(e->kv.max_size, a);
            assert_int_equal(e->kv.keep, b);
        }
    }
}

static void compare_expected(const char *form, json_t *expected) {
    char path[512];
    struct prompt_file f;
    const char *file = json_string_value(json_object_get(expected, "file"));
    json_t *classes = json_object_get(expected, "classes");
    snprintf(path, sizeof path, "%s/%s", FIXTURES, file);
    must_open(path, &f);
    assert_int_equal(f.form, strncmp(form, "legacy", 6) == 0);
    assert_int_equal(f.n_entries, json_array_size(classes));
    assert_int_equal(f.map.size, json_integer_value(json_object_get(expected, "bytes")));
    assert_string_equal(metadata_of(&f, "model"),
                        json_string_value(json_object_get(expected, "model")));
    for (uint32_t i = 0; i < f.n_entries; i++) {
        assert_string_equal(prompt_class_name(f.entries[i].class),
                            json_string_value(json_array_get(classes, i)));
        if (prompt_class_is_kv(f.entries[i].class))
            assert_int_equal(f.entries[i].kv.offset,
                             json_array_size(json_object_get(expected, "prompt_ids")));
    }
    check_tensors(&f, json_object_get(expected, "tensors"));
    check_name(&f, strrchr(file, '/') + 1);
    walk(f.entries, f.n_entries);
    prompt_file_close(&f);
}

static unsigned check_form(const char *form) {
    char path[512];
    char *line = NULL;
    size_t cap = 0;
    unsigned n = 0;
    snprintf(path, sizeof path, "%s/%s/expected.jsonl", FIXTURES, form);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    for (; getline(&line, &cap, in) > 0; n++) {
        json_t *expected = json_loads(line, 0, NULL);
        assert_non_null(expected);
        compare_expected(form, expected);
        json_decref(expected);
    }
    free(line);
    fclose(in);
    return n;
}

static void test_fixtures(void **state) {
    (void)state;
    if (skip_fixtures())
        skip();
    assert_int_equal(check_form("mlx-lm-0.32.2"), 21);
    assert_int_equal(check_form("legacy-0.31.3"), 9);
}

/* mlx quantized the rows of one cache; from its 16-bit file we get the same bits. */
static void compare_quantized(const char *exact_path, const char *affine_path) {
    enum { DIM = 64 };
    struct prompt_file exact, affine;
    must_open(exact_path, &exact);
    must_open(affine_path, &affine);
    for (uint32_t i = 0; i < exact.n_entries; i++)
        for (uint32_t n = 0; n < 2 * exact.entries[i].kv.heads * exact.entries[i].kv.offset; n++) {
            float x[DIM], scales[2][4], biases[2][4];
            uint8_t codes[2][DIM];
            uint32_t heads = exact.entries[i].kv.heads, head = n / 2 % heads, row = n / 2 / heads;
            const struct prompt_side *side = &affine.entries[i].kv.sides[n % 2];
            struct kv_format f = side->format;
            assert_int_equal(side->dim, DIM);
            prompt_side_get_values(&exact.entries[i].kv.sides[n % 2], head, row, x);
            prompt_side_get_row(side, head, row, codes[0], scales[0], biases[0]);
            affine_quantize(x, DIM, f.bits, f.group, f.scalar, codes[1], scales[1], biases[1]);
            assert_memory_equal(codes[0], codes[1], DIM);
            assert_memory_equal(scales[0], scales[1], DIM / f.group * sizeof(float));
            assert_memory_equal(biases[0], biases[1], DIM / f.group * sizeof(float));
        }
    prompt_file_close(&exact);
    prompt_file_close(&affine);
}

static void test_rows(void **state) {
    (void)state;
    if (skip_fixtures())
        skip();
    static const char new_kv[] = FIXTURES "/mlx-lm-0.32.2/tiny-qwen3/kv_70.safetensors";
    static const char old_kv[] = FIXTURES "/legacy-0.31.3/tiny-qwen3/kv_70.safetensors";
    static const char *const names[] = {"q8g64_70", "q4g64_70", "q4g32_70", "q6g32_70", "q3g64_70"};
    char path[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, FIXTURES "/mlx-lm-0.32.2/tiny-qwen3/%s.safetensors", names[i]);
        compare_quantized(new_kv, path);
        snprintf(path, sizeof path, FIXTURES "/legacy-0.31.3/tiny-qwen3/%s.safetensors", names[i]);
        if (i < 3)
            compare_quantized(old_kv, path);
    }
    compare_quantized(FIXTURES "/mlx-lm-0.32.2/smollm2/kv_70.safetensors",
                      FIXTURES "/mlx-lm-0.32.2/smollm2/q4g32_70.safetensors");
}

static void test_corrupt(void **state) {
    (void)state;
    static const struct {
        const char *name, *words;
    } cases[] = {
        {"truncated-data", "data_offsets end at"},
        {"truncated-header", "header's length"},
        {"truncated-length", "header's length"},
        {"empty", "the file is empty"},
        {"header-past-end", "header's length"},
        {"header-huge", "header's length"},
        {"header-zero", "does not begin"},
        {"header-not-json", "does not begin"},
        {"header-deep", "nested deeper"},
        {"wrong-dtype-name", "tensor 0.0.0 has dtype U33"},
        {"wrong-dtype", "tensor 0.0.0 has dtype F32, must be U32"},
        {"scales-wrong-dtype", "tensor 0.0.1 has dtype I16"},
        {"shape-overflow", "tensor 0.0.0: field shape"},
        {"shape-overflow-zero", "tensor 0.0.0: field shape"},
        {"shape-negative", "tensor 0.0.0: field shape"},
        {"shape-size-mismatch", "tensor 0.0.0: its shape needs"},
        {"offsets-past-end", "data_offsets end at"},
        {"offsets-reversed", "tensor 0.0.0: field data_offsets"},
        {"offsets-overlap", "overlap another tensor's"},
        {"metadata-missing", "__metadata__"},
        {"metadata-not-strings", "must be a string"},
        {"class-unknown", "class NoSuchCache is not supported"},
        {"class-missing", "belongs to no layer"},
        {"tensor-missing", "tensor 1.1.2 is missing"},
        {"offset-too-large", "layer 0: offset 257 is past the 256 rows"},
        {"offset-negative", "tensor 0.2 (offset) is -1"},
        {"offset-differs", "layer 1: offset 70, the layers before it have 69"},
        {"bits-wrong", "tensor 0.0.0 has shape"},
        {"group-wrong", "tensor 0.0.0 has shape"},
        {"group-zero", "0.3: group size 0"},
    };
    if (skip_fixtures())
        skip();
    static const char *const forms[] = {"mlx-lm-0.32.2", "legacy-0.31.3"};
    for (int i = 0; i < 2; i++) {
        char path[512];
        unsigned n = 0;
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
            snprintf(path, sizeof path, FIXTURES "/corrupt/%s/%s.safetensors", forms[i],
                     cases[j].name);
            if (!path_exists(path))
                continue;
            n++;
            must_refuse(path, cases[j].words);
        }
        assert_int_equal(n, i ? 24 : 30); /* all that cases.md lists but good */
        struct prompt_file f;
        snprintf(path, sizeof path, FIXTURES "/corrupt/%s/good.safetensors", forms[i]);
        must_open(path, &f);
        assert_int_equal(f.n_entries, 2);
        prompt_file_close(&f);
    }
}

/* ---- each class form by hand ----------------------------------------------------------------- */

#define Q4(name, rows)                                                                             \
    name ".0 U32 1,2," rows ",8|" name ".1 BF16 1,2," rows ",1|" name ".2 BF16 1,2," rows ",1"
#define Q8(name, rows)                                                                             \
    name ".0 U32 1,2," rows ",16|" name ".1 F16 1,2," rows ",1|" name ".2 F16 1,2," rows ",1"
#define KV(name, rows) name ".0 F16 1,2," rows ",8|" name ".1 F16 1,2," rows ",4"

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
};
enum { MADE = sizeof made_cases / sizeof *made_cases };

static const char *write_made(size_t i) {
    struct text_buf b =
        made_file(made_cases[i].tensors, made_cases[i].metadata, made_cases[i].newer);
    temp_write(&folder, "made.safetensors", b.data, b.len);
    const char *corpus = getenv("KVASIR_CORPUS");
    if (corpus && b.len < 4096) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", corpus, made_cases[i].name);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(b.data, 1, b.len, out), b.len);
        fclose(out);
    }
    text_free(&b);
    return folder.file;
}

static void assert_text(const struct prompt_file *f, const char *expected) {
    struct text_buf text = prompt_text(f);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

/* settled: a guess is written as what was guessed. */
static void round_trip(struct prompt_file *f) {
    char path[256];
    struct prompt_file again;
    snprintf(path, sizeof path, "%s/again.safetensors", folder.path);
    for (uint32_t i = 0; i < f->n_entries; i++)
        if (prompt_class_is_kv(f->entries[i].class))
            f->entries[i].kv.guessed = false;
    must_write(path, f);
    must_open(path, &again);
    assert_true(prompt_files_same(f, &again));
    /* over itself, while it is open */
    must_write(path, &again);
    struct prompt_file third;
    must_open(path, &third);
    assert_true(prompt_files_same(&again, &third));
    prompt_file_close(&third);
    prompt_file_close(&again);
}

static void test_made(void **state) {
    (void)state;
    for (size_t i = 0; i < MADE; i++) {
        struct prompt_file f;
        const char *path = write_made(i);
        if (!made_cases[i].text) {
            must_refuse(path, "tensor 0.1.0 has shape");
            continue;
        }
        must_open(path, &f);
        assert_text(&f, made_cases[i].text);
        walk(f.entries, f.n_entries);
        round_trip(&f);
        prompt_file_close(&f);
    }
}

/* Each rule that the corrupt fixtures do not break. */
static void test_rules(void **state) {
    (void)state;
    static const char kv[] = KV("0", "5") "|0.2 =3";
    static const char *const ring = "\"1.0\":\"RotatingKVCache\"";
    static const struct {
        bool newer;
        const char *tensors, *metadata, *words;
    } cases[] = {
        {true, kv, "\"1.0\":\"QuantizedRotatingKVCache\"", "is not supported"},
        {true, kv, "\"1.0\":\"ChunkedKVCache\"", "metadata key 1.0: class ChunkedKVCache"},
        {true, kv, "\"1.1\":\"KVCache\"", "metadata key 1.0 is missing"},
        {true, kv, "\"1.0\":\"KVCache\",\"1.2\":\"KVCache\"", "metadata key 1.2 has no place"},
        {true, kv, "\"1.0\":\"KVCache\",\"3.0\":\"x\"", "metadata key 3.0 has no place"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.7\"", "metadata key 2.2.0: tensor 0.7"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.2\"", "0.2 is missing or named twice"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.1\",\"2.2.1\":\"scalar\"", "2.2.1 is scalar"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.1\",\"2.2.1\":\"odd\"", "2.2.1 is odd"},
        {true, kv, "\"1.0\":\"KVCache\",\"1.1\":\"KVCache\"", "tensor 1.0 is missing"},
        {true, KV("0", "5") "|0.2 I32 1", "\"1.0\":\"KVCache\"", "(offset) must be a scalar"},
        {true, KV("0", "5") "|0.2 =6", "\"1.0\":\"KVCache\"", "offset 6 is past the 5 rows"},
        {true, KV("0", "5") "|0.2 =3|0.3 =3", "\"1.0\":\"KVCache\"", "tensor 0.3 belongs to no"},
        {true, "0.0 F16 1,2,5,8|0.1 none|0.2 =3", "\"1.0\":\"KVCache\"", "tensor 0.1 is missing"},
        {true, "0.0 none|0.1 none|0.2 =3", "\"1.0\":\"KVCache\"", "offset 3"},
        {true, "0.0 F16 2,2,5,8|0.1 F16 2,2,5,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.0 has shape [2, 2, 5, 8]"},
        {true, "0.0 F16 1,2,5,8|0.1 F16 1,2,4,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.1 has shape"},
        {true, "0.0 F16 1,2,5,8|0.1 F16 1,3,5,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.1 has shape"},
        {true, "0.0 F16 5,8|0.1 F16 5,8|0.2 =3", "\"1.0\":\"KVCache\"", "tensor 0.0 has no heads"},
        {true, "0.0 U32 1,2,5,8|0.1 F16 1,2,5,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.0 has dtype U32"},
        {true, Q4("0.0", "3") "|" Q4("0.1", "3") "|0.2 =2|0.3 =64|0.4 =7",
         "\"1.0\":\"QuantizedKVCache\"", "group size 64 and 7 bits"},
        {true, Q4("0.0", "3") "|" Q8("0.1", "3") "|0.2 =2|0.3 =64|0.4 =4",
         "\"1.0\":\"QuantizedKVCache\"", "tensor 0.1.0 has shape"},
        {true, KV("0", "8") "|0.2 =11|0.3 =8|0.4 =8|0.5 =8", ring, "keep 8 must be below"},
        {true, KV("0", "8") "|0.2 =11|0.3 =2|0.4 =8|0.5 =1", ring, "idx 1 must be from 2 to 8"},
        {true, KV("0", "8") "|0.2 =11|0.3 =2|0.4 =8|0.5 =9", ring, "idx 9 must be from 2 to 8"},
        {true, KV("0", "8") "|0.2 =7|0.3 =2|0.4 =8|0.5 =6", ring, "idx 6 must be the offset 7"},
        {true, KV("0", "9") "|0.2 =11|0.3 =2|0.4 =8|0.5 =8", ring, "idx 8 must be from 9 to 9"},
        {true, KV("0", "7") "|0.2 =11|0.3 =2|0.4 =8|0.5 =7", ring, "has room for 8"},
        {true, KV("0", "8") "|0.2 =11|0.3 =2|0.4 =8|0.5 =-2", ring, "tensor 0.5 (idx) is -2"},
        {true, "0.0.0 F32 2,3|0.1 none|0.2 none", "\"1.0\":\"ArraysCache\"", "must begin with 1"},
        {true, "0.0.0 F32 1,3|0.1 F32 1|0.2 none", "\"1.0\":\"ArraysCache\"",
         "tensor 0.1 must be I32"},
        {true, "0.1 none|0.2 none", "\"1.0\":\"ArraysCache\"", "tensor 0.0.0 is missing"},
        {true, "0.0.1 $NoCache", "\"1.0\":\"CacheList\"", "0.0.1: class NoCache"},
        {true, "0.0.1 F32 1", "\"1.0\":\"CacheList\"", "tensor 0.0.1 must be a class"},
        {true, "5.0 F32 1", "\"1.0\":\"CacheList\"", "belongs to no layer"},
        {false, KV("0", "3"), "\"0.0\":\"\"", "metadata key 2.0 is missing"},
        {false, KV("0", "3"), "\"0.0\":\"x\",\"2.0\":\"KVCache\"",
         "metadata key 0.0 must be empty"},
        {false, KV("0", "3"), "\"2.0\":\"KVCache\"", "metadata key 0.0 is missing"},
        {false, KV("0", "3"), "\"0.0.0\":\"3\",\"2.0\":\"KVCache\"", "1 numbers are no KVCache"},
        {false, Q4("0.0", "3") "|" Q4("0.1", "3"),
         "\"0.0.0\":\"4\",\"0.0.1\":\"64\",\"0.0.2\":\"4\",\"2.0\":\"QuantizedKVCache\"",
         "offset 4, its tensors have 3 rows"},
        {false, Q4("0.0", "3") "|" Q4("0.1", "3"),
         "\"0.0.0\":\"-3\",\"0.0.1\":\"64\",\"0.0.2\":\"4\",\"2.0\":\"QuantizedKVCache\"",
         "metadata key 0.0.0 is -3"},
        {false, Q4("0.0", "3") "|" Q4("0.1", "3"),
         "\"0.0.0\":\"2147483648\",\"0.0.1\":\"64\",\"0.0.2\":\"4\",\"2.0\":\"QuantizedKVCache\"",
         "metadata key 0.0.0 is 2147483648"},
        {false, Q4("0.0", "3") "|" Q4("0.1", "3"),
         "\"0.0.0\":\"3\",\"0.0.1\":\"64\",\"2.0\":\"QuantizedKVCache\"", "2 numbers are no"},
        {false, KV("0", "8"),
         "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"7\",\"0.0.3\":\"7\","
         "\"2.0\":\"RotatingKVCache\"",
         "offset 7, its tensors have 8 rows"},
        {false, KV("0", "8") "|1 F32 1",
         "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"8\",\"0.0.3\":\"8\",\"0.0.4\":\"8\","
         "\"2.0\":\"RotatingKVCache\"",
         "5 numbers are no RotatingKVCache"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_buf b = made_file(cases[i].tensors, cases[i].metadata, cases[i].newer);
        must_refuse(temp_write(&folder, "made.safetensors", b.data, b.len), cases[i].words);
        text_free(&b);
    }
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* mlx-lm's RotatingKVCache on token numbers (reference 1.5, line by line); -1 is a zero row. */
enum { RING_MAX = 512 };
struct ring {
    int buf[RING_MAX], n, keep, max_size, offset, idx;
};

static void ring_drop(struct ring *r, int trim) {
    if (trim <= 0)
        return;
    memmove(r->buf + r->keep, r->buf + r->keep + trim,
            (size_t)(r->n - r->keep - trim) * sizeof *r->buf);
    r->n -= trim;
}

static void ring_order(struct ring *r) {
    int out[RING_MAX], n = 0;
    if (r->idx == r->n)
        return;
    if (r->idx >= r->offset) {
        r->n = r->idx;
        return;
    }
    for (int i = 0; i < r->keep; i++)
        out[n++] = r->buf[i];
    for (int i = r->idx; i < r->n; i++)
        out[n++] = r->buf[i];
    for (int i = r->keep; i < r->idx; i++)
        out[n++] = r->buf[i];
    memcpy(r->buf, out, sizeof out);
}

static void ring_chunk(struct ring *r, int n) {
    if (r->n) {
        ring_order(r);
        r->idx = r->n;
        ring_drop(r, r->idx - r->max_size + 1);
    }
    for (int i = 0; i < n; i++)
        r->buf[r->n++] = r->offset + i;
    r->offset += n;
    r->idx = r->n;
}

static void ring_single(struct ring *r) {
    if (r->n == 0 || (r->offset >= r->n && r->n < r->max_size)) {
        int grow = r->max_size - r->offset < 6 ? r->max_size - r->offset : 6; /* mlx: 256 */
        for (int i = 0; i < grow; i++)
            r->buf[r->n++] = -1;
        r->idx = r->offset;
    }
    if (r->n > r->max_size) {
        ring_drop(r, r->n - r->max_size);
        r->idx = r->max_size;
    }
    if (r->idx == r->max_size)
        r->idx = r->keep;
    r->buf[r->idx++] = r->offset++;
}

static uint64_t rng_state;

static uint64_t rng(uint64_t below) { /* splitmix64 */
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static void compare_ring(const struct ring *r) {
    struct prompt_kv kv = {.rows = (uint32_t)r->n,
                           .offset = (uint32_t)r->offset,
                           .keep = (uint32_t)r->keep,
                           .max_size = (uint32_t)r->max_size,
                           .idx = (uint32_t)r->idx};
    for (int row = 0; row < r->n; row++)
        assert_int_equal(prompt_entry_position(&kv, (uint32_t)row), r->buf[row]);
    assert_true(prompt_rows_consistent(&kv));
    for (int position = 0; position < r->offset; position++) {
        int64_t row = prompt_entry_row(&kv, (uint32_t)position);
        assert_true(row < r->n && (row < 0 || r->buf[row] == position));
    }
}

static void test_rings(void **state) {
    (void)state;
    for (int program = 0; program < 2000; program++) {
        struct ring r = {.max_size = 2 + (int)rng(20)};
        r.keep = (int)rng((uint64_t)r.max_size);
        for (int step = 0; step < 12; step++) {
            if (rng(3) == 0)
                ring_chunk(&r, 2 + (int)rng(rng(4) ? 6 : 30));
            else
                for (uint64_t n = rng(20) + 1; n > 0; n--)
                    ring_single(&r);
            compare_ring(&r);
            /* the reader takes whatever mlx-lm can write */
            char tensors[256];
            snprintf(tensors, sizeof tensors,
                     "0.0 F16 1,1,%d,1|0.1 F16 1,1,%d,1|0.2 =%d|0.3 =%d|0.4 =%d|0.5 =%d", r.n, r.n,
                     r.offset, r.keep, r.max_size, r.idx);
            if (program % 20)
                continue;
            struct text_buf b = made_032(tensors, "\"1.0\":\"RotatingKVCache\"");
            struct prompt_file f;
            must_open(temp_write(&folder, "ring.safetensors", b.data, b.len), &f);
            prompt_file_close(&f);
            text_free(&b);
        }
    }
}

/* ---- guesses --------------------------------------------------------------------------------- */

static void test_settle(void **state) {
    (void)state;
    static const char *const metas = "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"3\",\"0.0.3\":"
                                     "\"3\",\"2.0\":\"QuantizedRotatingKVCache\"";
    struct text_buf b = made_legacy(Q8("0.0", "3") "|" Q8("0.1", "3"), metas);
    struct prompt_file f;
    kvasir_error err;
    must_open(temp_write(&folder, "guess.safetensors", b.data, b.len), &f);
    text_free(&b);
    struct prompt_kv *kv = &f.entries[0].kv;
    assert_int_equal(kv->sides[0].dim, 64); /* 8 bits of 64; 4 of 128 would look alike */
    assert_int_equal(prompt_entry_settle(kv, 128, 100, &err), KVASIR_ERR_FORMAT);
    assert_non_null(strstr(err.text, "V of"));
    assert_int_equal(prompt_entry_settle(kv, 128, 128, &err), KVASIR_OK);
    assert_int_equal(kv->sides[1].format.bits, 4);
    assert_int_equal(kv->sides[1].format.group, 128);
    assert_false(kv->guessed);
    assert_int_equal(prompt_entry_settle(kv, 64, 64, &err), KVASIR_ERR_FORMAT);
    round_trip(&f);
    prompt_file_close(&f);
    /* heads of one size: 4 bits of group 64 beside 4 of 32 */
    b = made_legacy(Q4("0.0", "3") "|0.1.0 U32 1,2,3,8|0.1.1 F16 1,2,3,2|0.1.2 F16 1,2,3,2", metas);
    must_open(temp_write(&folder, "guess.safetensors", b.data, b.len), &f);
    text_free(&b);
    kv = &f.entries[0].kv;
    assert_int_equal(kv->sides[0].dim, kv->sides[1].dim);
    assert_int_equal(kv->sides[1].format.group, 32);
    prompt_file_close(&f);
}

/* ---- writing --------------------------------------------------------------------------------- */

struct source {
    uint32_t rows, width, next;
    bool fails;
};

/* Rows of 16-bit numbers: block * 1000 + row. */
static kvasir_status count_rows(void *ctx, uint32_t block, uint32_t row, uint32_t n, void *out,
                                kvasir_error *err) {
    struct source *s = ctx;
    uint16_t *at = out;
    assert_int_equal(block * s->rows + row, s->next); /* each once, in order */
    s->next += n;
    if (s->fails && row > 0)
        return (fail)(err, KVASIR_ERR_CANCELLED, "no more rows");
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < s->width; j++)
            *at++ = (uint16_t)(1000 * block + row + i);
    return KVASIR_OK;
}

static struct prompt_entry streamed_entry(struct source *k, struct source *v) {
    struct prompt_entry e = {.class = PROMPT_KV, .kv = {.heads = 3, .rows = k->rows}};
    struct source *const sources[] = {k, v};
    for (int i = 0; i < 2; i++) {
        struct prompt_side *side = &e.kv.sides[i];
        const uint32_t dims[] = {1, 3, k->rows, sources[i]->width};
        side->format = (struct kv_format){.bits = 16, .scalar = SCALAR_BF16};
        side->dim = sources[i]->width;
        side->parts[0] = prompt_tensor_of(PROMPT_BF16, 4, dims);
        side->parts[0].rows = count_rows;
        side->parts[0].ctx = sources[i];
    }
    e.kv.offset = k->rows;
    return e;
}

static unsigned files_in_folder(void) {
    unsigned n = 0;
    DIR *dir = opendir(folder.path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void test_streamed(void **state) {
    (void)state;
    char path[256];
    kvasir_error err;
    struct source k = {.rows = 700, .width = 64}, v = {.rows = 700, .width = 40000};
    struct prompt_entry e = streamed_entry(&k, &v);
    struct prompt_pair pair = {"model", "m\n\xc3\xa9\""};
    struct prompt_file f = {.n_metadata = 1, .metadata = &pair, .n_entries = 1, .entries = &e},
                       again;
    snprintf(path, sizeof path, "%s/streamed.safetensors", folder.path);
    must_write(path, &f);
    assert_int_equal(k.next, 2100);
    assert_int_equal(v.next, 2100);
    must_open(path, &again);
    assert_string_equal(again.metadata[0].value, pair.value);
    for (uint32_t i = 0; i < 2100; i++)
        for (int s = 0; s < 2; s++) {
            uint32_t width = s ? v.width : k.width;
            const uint8_t *row = again.entries[0].kv.sides[s].parts[0].data + (size_t)2 * i * width;
            uint16_t first, last;
            memcpy(&first, row, 2);
            memcpy(&last, row + 2 * (width - 1), 2);
            assert_int_equal(first, 1000 * (i / 700) + i % 700);
            assert_int_equal(last, first);
        }
    prompt_file_close(&again);

    /* what fails in the middle leaves the old file, and nothing beside it */
    unsigned files = files_in_folder();
    k.next = v.next = 0;
    v.fails = true;
    assert_int_equal(prompt_file_write(path, &f, &err), KVASIR_ERR_CANCELLED);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(files_in_folder(), files);
    must_open(path, &again);
    prompt_file_close(&again);
    snprintf(path, sizeof path, "%s/no/such.safetensors", folder.path);
    assert_int_equal(prompt_file_write(path, &f, &err), KVASIR_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(prompt_file_write(folder.path, &f, &err), KVASIR_ERR_IO);
}

static void refuse_to_write(const struct prompt_file *f, const char *words) {
    kvasir_error err = {0};
    const char *path = temp_file(&folder, "refused.safetensors");
    assert_int_equal(prompt_file_write(path, f, &err), KVASIR_ERR_ARGUMENT);
    if (!strstr(err.text, words) || !strstr(err.text, path))
        fail_msg("says: %s\nshould say: %s", err.text, words);
    assert_false(path_exists(path));
}

static void test_refused_writes(void **state) {
    (void)state;
    struct source k = {.rows = 7, .width = 8}, v = {.rows = 7, .width = 4};
    struct prompt_entry e[2] = {streamed_entry(&k, &v), streamed_entry(&k, &v)};
    struct prompt_pair pairs[2] = {{"a", "1"}, {"a", "2"}};
    struct prompt_file f = {.n_entries = 0, .entries = e};
    refuse_to_write(&f, "no layers");
    f.n_entries = 2;
    e[1].kv.offset = 6;
    refuse_to_write(&f, "layer 1: offset 6");
    e[0].kv.offset = 8;
    refuse_to_write(&f, "layer 0: offset 8 is past");
    e[0].kv.offset = e[1].kv.offset = 7;
    e[1].kv.sides[0].parts[0].dims[2] = 6;
    refuse_to_write(&f, "tensor 1.0 has shape");
    e[1] = streamed_entry(&k, &v);
    e[1].kv.sides[1].parts[0].rows = NULL;
    refuse_to_write(&f, "tensor 1.1: its shape");
    e[1] = streamed_entry(&k, &v);
    e[1].kv.sides[1].parts[0].bytes--;
    refuse_to_write(&f, "tensor 1.1: its shape");
    e[1] = streamed_entry(&k, &v);
    e[1].kv.keep = 1;
    refuse_to_write(&f, "has no keep");
    e[1].class = PROMPT_QUANTIZED;
    refuse_to_write(&f, "no format of mx.quantize");
    e[1] = streamed_entry(&k, &v);
    f.n_metadata = 2;
    f.metadata = pairs;
    refuse_to_write(&f, "stands there twice");
    pairs[1].key = "";
    refuse_to_write(&f, "is empty");
    pairs[1].key = "\xff";
    refuse_to_write(&f, "UTF-8");
    f.n_metadata = 0;
    f.form = PROMPT_FORM_LEGACY;
    e[0].kv = e[1].kv = (struct prompt_kv){0};
    refuse_to_write(&f, "the older form has no empty KVCache");
    struct prompt_tensor none = {0};
    e[0] = (struct prompt_entry){.class = PROMPT_ARRAYS, .arrays = {.n = 1, .states = &none}};
    refuse_to_write(&f, "has no place for a state that is None");
}

/* P2, and the header to the byte (reference 2.3, its minimal file). */
static void test_forms(void **state) {
    (void)state;
    static const char header[] =
        "{\"0.0\":{\"data_offsets\":[0,32],\"dtype\":\"F32\",\"shape\":[1,1,2,4]},"
        "\"0.1\":{\"data_offsets\":[32,64],\"dtype\":\"F32\",\"shape\":[1,1,2,4]},"
        "\"1.0\":{\"data_offsets\":[64,96],\"dtype\":\"F32\",\"shape\":[1,1,2,4]},"
        "\"1.1\":{\"data_offsets\":[96,128],\"dtype\":\"F32\",\"shape\":[1,1,2,4]},"
        "\"__metadata__\":{\"0.0\":\"\",\"0.1\":\"\",\"2.0\":\"KVCache\",\"2.1\":\"KVCache\"}}";
    struct text_buf b = made_032("0.0 F32 1,1,3,4|0.1 F32 1,1,3,4|0.2 =2|"
                                 "1.0 F32 1,1,3,4|1.1 F32 1,1,3,4|1.2 =2",
                                 "\"1.0\":\"KVCache\",\"1.1\":\"KVCache\"");
    struct prompt_file f;
    must_open(temp_write(&folder, "new.safetensors", b.data, b.len), &f);
    text_free(&b);
    f.form = PROMPT_FORM_LEGACY;
    char path[256], *bytes;
    size_t size;
    kvasir_error err;
    snprintf(path, sizeof path, "%s/old.safetensors", folder.path);
    must_write(path, &f);
    assert_int_equal(file_read_all(path, 4096, &bytes, &size, &err), KVASIR_OK);
    assert_int_equal(size, 8 + 320 + 128);
    assert_int_equal(bytes[0], 0x40);
    assert_memory_equal(bytes + 8, header, 320);
    for (int i = 0; i < 4; i++)
        assert_memory_equal(bytes + 328 + 32 * i, f.entries[i / 2].kv.sides[i % 2].parts[0].data,
                            32);
    mem_free(bytes);
    prompt_file_close(&f);

    b = made_legacy(Q8("0.0", "3") "|" Q4("0.1", "3") "|" KV("1", "3"),
                    "\"0.0.0\":\"3\",\"0.0.1\":\"64\",\"0.0.2\":\"8\",\"0.0.3\":\"64\",\"0.0.4\":"
                    "\"4\",\"0.1\":\"\",\"2.0\":\"QuantizedKVCache\",\"2.1\":\"KVCache\"");
    must_open(temp_write(&folder, "mixed.safetensors", b.data, b.len), &f);
    text_free(&b);
    f.form = PROMPT_FORM_032;
    assert_int_equal(prompt_file_form(&f), PROMPT_FORM_LEGACY);
    f.entries++, f.n_entries--; /* without the layer that only the older form holds */
    assert_int_equal(prompt_file_form(&f), PROMPT_FORM_032);
    f.entries--, f.n_entries++;
    prompt_file_close(&f);
}

/* ---- fixtures, written again ----------------------------------------------------------------- */

/* The same tokens have the same bytes. */
static void compare_held(const struct prompt_kv *a, const struct prompt_kv *b) {
    assert_int_equal(prompt_entry_held(a), prompt_entry_held(b));
    for (uint32_t p = 0; p < a->offset; p++) {
        int64_t x = prompt_entry_row(a, p), y = prompt_entry_row(b, p);
        assert_int_equal(x < 0, y < 0);
        for (uint32_t i = 0; x >= 0 && i < 6 * a->heads; i++) {
            const struct prompt_tensor *s = &a->sides[i % 2].parts[i / 2 % 3],
                                       *t = &b->sides[i % 2].parts[i / 2 % 3];
            if (!s->present)
                continue;
            size_t row = s->dims[3] * prompt_dtype_bytes(s->dtype), head = i / 6;
            assert_memory_equal(s->data + (head * s->dims[2] + (size_t)x) * row,
                                t->data + (head * t->dims[2] + (size_t)y) * row, row);
        }
    }
}

static void rewrite(const char *path) {
    struct prompt_file f, other;
    char out[256];
    must_open(path, &f);
    round_trip(&f);
    snprintf(out, sizeof out, "%s/other.safetensors", folder.path);
    f.form = !f.form;
    must_write(out, &f);
    must_open(out, &other);
    assert_int_equal(f.form, other.form);
    assert_int_equal(f.n_entries, other.n_entries);
    for (uint32_t i = 0; i < f.n_entries; i++)
        if (prompt_class_is_kv(f.entries[i].class))
            compare_held(&f.entries[i].kv, &other.entries[i].kv);
        else
            assert_true(prompt_data_same(&f.entries[i], &other.entries[i], 1));
    prompt_file_close(&other);
    prompt_file_close(&f);
}

static void test_rewritten(void **state) {
    (void)state;
    if (skip_fixtures())
        skip();
    static const char *const files[] = {
        "mlx-lm-0.32.2/tiny-gemma3/mixed_100",     "mlx-lm-0.32.2/tiny-gemma3/mixed_30",
        "mlx-lm-0.32.2/tiny-llama/q8g32_70",       "mlx-lm-0.32.2/tiny-llama/rot64k4_100",
        "mlx-lm-0.32.2/tiny-llama/rot64k4_40",     "mlx-lm-0.32.2/tiny-qwen3/kv_70",
        "mlx-lm-0.32.2/tiny-qwen3/q3g64_70",       "mlx-lm-0.32.2/tiny-qwen3/rot64k4_100_oversize",
        "mlx-lm-0.32.2/tiny-qwen3_next/arrays_70", "mlx-lm-0.32.2/tiny-qwen3_next/arrays_q8g64_70",
        "legacy-0.31.3/smollm2/q4g64_70",          "legacy-0.31.3/tiny-gemma3/mixed_100",
        "legacy-0.31.3/tiny-llama/rot64k4_100",    "legacy-0.31.3/tiny-qwen3/kv_70",
        "legacy-0.31.3/tiny-qwen3_next/arrays_70",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        snprintf(path, sizeof path, FIXTURES "/%s.safetensors", files[i]);
        rewrite(path);
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* A description or a clear error; true for a description. */
static bool try_open(const struct text_buf *b, size_t size) {
    struct prompt_file f;
    kvasir_error err = {0};
    const char *path = temp_write(&folder, "damaged.safetensors", b->data, size);
    kvasir_status status = prompt_file_open(path, &f, &err);
    if (status == KVASIR_OK) {
        walk(f.entries, f.n_entries);
        prompt_file_close(&f);
        return true;
    }
    assert_true(status == KVASIR_ERR_FORMAT || status == KVASIR_ERR_UNSUPPORTED);
    assert_memory_equal(err.text, path, strlen(path));
    assert_true(strlen(err.text) > strlen(path) + 2);
    return false;
}

static void damage(struct text_buf *b) {
    uint64_t header;
    unsigned opened = 0;
    memcpy(&header, b->data, sizeof header);
    assert_true(try_open(b, b->len));
    for (unsigned i = 0; i < CUTS; i++)
        assert_false(try_open(b, rng(i % 2 ? b->len : 8 + header)));
    for (unsigned i = 0; i < FLIPS; i++) {
        size_t at = rng(i % 2 ? b->len : 8 + header);
        char kept = b->data[at];
        b->data[at] ^= (char)(1 + rng(255));
        opened += try_open(b, b->len);
        b->data[at] = kept;
    }
    printf("%u of %d flips still give a description\n", opened, FLIPS);
    assert_true(opened < FLIPS);
    text_free(b);
}

static void test_damage(void **state) {
    (void)state;
    for (size_t i = 0; i < MADE; i++)
        if (made_cases[i].text) {
            struct text_buf b =
                made_file(made_cases[i].tensors, made_cases[i].metadata, made_cases[i].newer);
            damage(&b);
        }
    static const char *const files[] = {"corrupt/mlx-lm-0.32.2/good", "corrupt/legacy-0.31.3/good",
                                        "legacy-0.31.3/tiny-qwen3_next/arrays_70"};
    for (size_t i = 0; i < 3 && path_exists(FIXTURES); i++) {
        char path[512];
        struct text_buf b = {0};
        kvasir_error err = {0};
        snprintf(path, sizeof path, FIXTURES "/%s.safetensors", files[i]);
        if (file_read_all(path, 64 << 20, &b.data, &b.len, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        damage(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),       cmocka_unit_test(test_rows),
        cmocka_unit_test(test_corrupt),        cmocka_unit_test(test_made),
        cmocka_unit_test(test_rules),          cmocka_unit_test(test_rings),
        cmocka_unit_test(test_settle),         cmocka_unit_test(test_streamed),
        cmocka_unit_test(test_refused_writes), cmocka_unit_test(test_forms),
        cmocka_unit_test(test_rewritten),      cmocka_unit_test(test_damage),
    };
    const char *seed = getenv("KVASIR_SEED");
    rng_state = seed ? strtoull(seed, NULL, 0) : 20250211;
    printf("KVASIR_SEED=%llu\n", (unsigned long long)rng_state);
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
