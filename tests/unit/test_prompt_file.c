/* SPDX-License-Identifier: Apache-2.0 */
/* Reading prompt-cache files of mlx-lm: every fixture of both forms against its expected.jsonl,
 * every corrupt fixture refused, each form of each class made by hand, each rule broken once, and
 * random damage (the seed is printed; KVASIR_SEED sets it). Writing: test_prompt_write.c.
 *
 * KVASIR_CORPUS=DIR writes the small files made by hand there: tests/fuzz/corpus/prompt_file.
 */
#include "prompt_made.h"

enum { CUTS = 500, FLIPS = 500 };

/* ---- trying ---------------------------------------------------------------------------------- */

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

/* The tensor that a file names LAYER.REST. Numbers and None are tensors too, as the newer form has
 * them. */
static struct prompt_tensor tensor_named(const struct prompt_entry *e, bool legacy,
                                         const char *rest) {
    const struct prompt_tensor scalar = prompt_tensor_of(ST_I32, 0, NULL);
    const struct prompt_tensor none = prompt_tensor_of(ST_F32, 1, &(uint32_t){0});
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
        assert_string_equal(mlx_dtype(st_dtype_name(t.dtype)),
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

/* Checks the format that a fixture's name states: q8g64_70, rot64k4_100, kv_70. */
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

/* mlx quantized the rows of one cache. Quantizing the rows of its 16-bit file gives the same
 * bits. */
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
        {"shape-overflow", "tensor 0.0.0: the product of its shape overflows"},
        {"shape-overflow-zero", "tensor 0.0.0: the product of its shape overflows"},
        {"shape-negative", "tensor 0.0.0: field shape"},
        {"shape-size-mismatch", "tensor 0.0.0: its shape needs"},
        {"offsets-past-end", "data_offsets end at"},
        {"offsets-reversed", "tensor 0.0.0: field data_offsets"},
        {"offsets-overlap", "overlap another tensor's"},
        {"metadata-missing", "__metadata__"},
        {"metadata-not-strings", "must be a string"},
        {"class-unknown", "class NoSuchCache is not supported"},
        {"class-missing", "does not belong to a layer"},
        {"tensor-missing", "tensor 1.1.2 is missing"},
        {"offset-too-large", "layer 0: offset 257 is past the 256 rows"},
        {"offset-negative", "tensor 0.2 (offset) is -1"},
        {"offset-differs", "layer 1: offset 70, the layers before it have 69"},
        {"bits-wrong", "tensor 0.0.0 has shape"},
        {"group-wrong", "tensor 0.0.0 has shape"},
        {"group-zero", "tensor 0.3: group size 0"},
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
        assert_int_equal(n, i ? 24 : 30); /* all that cases.md lists, except `good` */
        struct prompt_file f;
        snprintf(path, sizeof path, FIXTURES "/corrupt/%s/good.safetensors", forms[i]);
        must_open(path, &f);
        assert_int_equal(f.n_entries, 2);
        prompt_file_close(&f);
    }
}

/* ---- each class form by hand ----------------------------------------------------------------- */

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
        {true, kv, "\"1.0\":\"KVCache\",\"1.2\":\"KVCache\"",
         "metadata key 1.2 is not expected here"},
        {true, kv, "\"1.0\":\"KVCache\",\"3.0\":\"x\"", "metadata key 3.0 is not expected here"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.7\"", "metadata key 2.2.0: tensor 0.7"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.2\"", "0.2 is missing or named twice"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.1\",\"2.2.1\":\"scalar\"", "2.2.1 is scalar"},
        {true, kv, "\"1.0\":\"KVCache\",\"2.2.0\":\"0.1\",\"2.2.1\":\"odd\"", "2.2.1 is odd"},
        {true, kv, "\"1.0\":\"KVCache\",\"1.1\":\"KVCache\"", "tensor 1.0 is missing"},
        {true, KV("0", "5") "|0.2 I32 1", "\"1.0\":\"KVCache\"", "(offset) must be a scalar"},
        {true, KV("0", "5") "|0.2 =6", "\"1.0\":\"KVCache\"", "offset 6 is past the 5 rows"},
        {true, KV("0", "5") "|0.2 =3|0.3 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.3 does not belong to"},
        {true, "0.0 F16 1,2,5,8|0.1 none|0.2 =3", "\"1.0\":\"KVCache\"", "tensor 0.1 is missing"},
        {true, "0.0 none|0.1 none|0.2 =3", "\"1.0\":\"KVCache\"", "offset 3"},
        {true, "0.0 F16 2,2,5,8|0.1 F16 2,2,5,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.0 has shape [2, 2, 5, 8]"},
        {true, "0.0 F16 1,2,5,8|0.1 F16 1,2,4,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.1 has shape"},
        {true, "0.0 F16 1,2,5,8|0.1 F16 1,3,5,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.1 has shape"},
        {true, "0.0 F16 5,8|0.1 F16 5,8|0.2 =3", "\"1.0\":\"KVCache\"",
         "tensor 0.0 must have four dims"},
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
        {true, "5.0 F32 1", "\"1.0\":\"CacheList\"", "does not belong to a layer"},
        {false, KV("0", "3"), "\"0.0\":\"\"", "metadata key 2.0 is missing"},
        {false, KV("0", "3"), "\"0.0\":\"x\",\"2.0\":\"KVCache\"",
         "metadata key 0.0 must be empty"},
        {false, KV("0", "3"), "\"2.0\":\"KVCache\"", "metadata key 0.0 is missing"},
        {false, KV("0", "3"), "\"0.0.0\":\"3\",\"2.0\":\"KVCache\"", "1 numbers are not a KVCache"},
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
         "\"0.0.0\":\"3\",\"0.0.1\":\"64\",\"2.0\":\"QuantizedKVCache\"", "2 numbers are not a"},
        {false, KV("0", "8"),
         "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"7\",\"0.0.3\":\"7\","
         "\"2.0\":\"RotatingKVCache\"",
         "offset 7, its tensors have 8 rows"},
        {false, KV("0", "8") "|1 F32 1",
         "\"0.0.0\":\"0\",\"0.0.1\":\"8\",\"0.0.2\":\"8\",\"0.0.3\":\"8\",\"0.0.4\":\"8\","
         "\"2.0\":\"RotatingKVCache\"",
         "5 numbers are not a RotatingKVCache"},
        /* an exact start that is not what the numbers say */
        {false, STARTED_ROWS("3", "63"), STARTED("67", "64"),
         "offset 67, its tensors have 66 rows"},
        {false, STARTED_ROWS("4", "63"), STARTED("67", "64"),
         "63 rows are those of an exact start, but 64 have positions below 64"},
        {false, STARTED_ROWS("2", "65"), STARTED("67", "64"),
         "65 rows are those of an exact start, but 64 have positions below 64"},
        {false, STARTED_ROWS("3", "64"), STARTED("67", "128"),
         "64 rows are those of an exact start, but 67 have positions below 128"},
        {false, STARTED_ROWS("67", "0"), STARTED("67", "0"), "an exact start of 0 tokens"},
        {false, STARTED_ROWS("3", "64"), STARTED("67", "65"), "an exact start of 65 tokens"},
        {false, STARTED_ROWS("3", "64"), STARTED("67", "64 "), "metadata key 0.0.5 is 64 "},
        {false, STARTED_ROWS("3", "64"), STARTED("67", "64") ",\"0.0.6\":\"0\"",
         "7 numbers are not a ExactStartQuantizedKVCache"},
        {false, STARTED_ROWS("3", "6") "|0.4 F16 1,1,6,32", STARTED("9", "64"),
         "tensor 0.4 does not belong to"},
        {false, "0.2 F16 1,1,64,32|0.3 F16 1,1,64,32", STARTED("64", "64"),
         "tensor 0.0.0 is missing"},
        {false, STARTED_ROWS("2", "5"), STARTED_RING("2", "8", "66", "8", "64"),
         "layer 0: offset 66 in 7 rows"},
        {false, STARTED_ROWS("3", "5"), STARTED_RING("2", "8", "66", "8", "64"),
         "5 rows are those of an exact start, but 6 have positions below 64"},
        {false, STARTED_ROWS("2", "6"), STARTED_RING("2", "8", "66", "5", "64"),
         "rows of an exact start must be in order"},
        {true, STARTED_ROWS("3", "64"), "\"1.0\":\"ExactStartQuantizedKVCache\"",
         "is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_buf b = made_file(cases[i].tensors, cases[i].metadata, cases[i].newer);
        must_refuse(temp_write(&folder, "made.safetensors", b.data, b.len), cases[i].words);
        text_free(&b);
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Opening gives a description (true) or a clear error (false). */
static bool try_open(const struct text_buf *b, size_t size) {
    struct prompt_file f;
    kvasir_error err = {0};
    unlink(temp_file(&folder, "damaged.safetensors")); /* overwriting it would wait for the disk */
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
        cmocka_unit_test(test_fixtures), cmocka_unit_test(test_rows),
        cmocka_unit_test(test_corrupt),  cmocka_unit_test(test_made),
        cmocka_unit_test(test_rules),    cmocka_unit_test(test_damage),
    };
    run_prompt_tests(tests);
}
