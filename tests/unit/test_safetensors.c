/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of safetensors: what must be read (one file, shards, the fixtures) and every rule of the
 * format broken once. Random damage: test_bad_models.c.
 */
#include "model_files.h"

static struct temp_folder folder;

static void write_model(const char *header, size_t data) {
    struct text_buf b = safetensors_bytes(header, data);
    temp_write(&folder, "model.safetensors", b.data, b.len);
    text_free(&b);
}

static struct checkpoint *opened(void) {
    struct checkpoint *c;
    kvasir_error err = {0};
    if (checkpoint_open(folder.path, &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return c;
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"

static void test_single(void **state) {
    (void)state;
    write_model("{\"__metadata__\":{\"format\":\"pt\"}," B "," A
                ",\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[24,24]},"
                "\"one\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[32,34]}}",
                34);
    struct checkpoint *c = opened();
    assert_string_equal(checkpoint_format(c), "safetensors");
    assert_string_equal(checkpoint_config(c)->name, folder.path + 5); /* after "/tmp/" */
    assert_int_equal(checkpoint_tensor_count(c), 4);
    assert_null(checkpoint_tokenizer(c));
    assert_null(checkpoint_chat_template(c));
    const struct checkpoint_tensor *t = checkpoint_find(c, "a");
    assert_non_null(t);
    assert_int_equal(t->type, WEIGHT_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 2);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->bytes, 24);
    assert_int_equal(*(const uint8_t *)t->data, 0);
    t = checkpoint_find(c, "b");
    assert_int_equal(t->type, WEIGHT_BF16);
    assert_int_equal(*(const uint8_t *)t->data, 24);
    assert_int_equal(checkpoint_find(c, "none")->bytes, 0);
    assert_int_equal(checkpoint_find(c, "one")->bytes, 2);
    checkpoint_close(c);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"{" A "," B "}", 33, KVASIR_ERR_FORMAT, "1 bytes after the last tensor's data"},
        {"{" A "," B "}", 31, KVASIR_ERR_FORMAT, "tensor b: data_offsets end at 32, the file has"},
        {"{" B "}", 32, KVASIR_ERR_FORMAT, "tensor b: data_offsets leave a hole before it"},
        {"{" A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[20,28]}}", 28,
         KVASIR_ERR_FORMAT, "tensor b: data_offsets overlap"},
        {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24,
         KVASIR_ERR_FORMAT, "data_offsets overlap"},
        {"{" A "," A "}", 24, KVASIR_ERR_FORMAT, "duplicate"},
        {"{}", 0, KVASIR_ERR_FORMAT, "holds no tensors"},
        {"{}", 8, KVASIR_ERR_FORMAT, "8 bytes after"},
        {"[" A "]", 24, KVASIR_ERR_FORMAT, "does not begin with '{'"},
        {" {" A "}", 24, KVASIR_ERR_FORMAT, "does not begin with '{'"},
        {"{" A, 24, KVASIR_ERR_FORMAT, "JSON does not parse"},
        {"{\"a\":3}", 0, KVASIR_ERR_FORMAT, "tensor a must be an object"},
        {"{\"\":{}}", 0, KVASIR_ERR_FORMAT, "a tensor's name is empty"},
        {"{\"a\\nb\":{}}", 0, KVASIR_ERR_FORMAT, "control characters"},
        {"{\"a\":{}}", 0, KVASIR_ERR_FORMAT, "tensor a: field dtype must be a string"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         KVASIR_ERR_UNSUPPORTED, "tensor a has dtype I8"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: field shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         KVASIR_ERR_FORMAT, "tensor a: field shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         KVASIR_ERR_UNSUPPORTED, "tensor a has 5 dims, supported are 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: field shape[0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: field shape[0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: its shape needs 8 bytes, data_offsets give 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]}}", 4,
         KVASIR_ERR_FORMAT, "tensor a: the product of its shape overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         KVASIR_ERR_FORMAT, "tensor a: the product of its shape overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4,
         KVASIR_ERR_FORMAT, "too big integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: field data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: field data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, KVASIR_ERR_FORMAT,
         "tensor a: field data_offsets"},
        {"{\"__metadata__\":{\"k\":1}," A "}", 24, KVASIR_ERR_FORMAT, "field __metadata__.k"},
        {"{\"__metadata__\":[]," A "}", 24, KVASIR_ERR_FORMAT, "field __metadata__ must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_model(cases[i].header, cases[i].data);
        assert_refused(folder.path, cases[i].status, cases[i].words);
    }
}

static void test_header_length(void **state) {
    (void)state;
    static const uint64_t lengths[] = {0, 1, 1000, UINT64_MAX, UINT64_MAX - 7, 1ull << 62};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct text_buf b = safetensors_bytes("{" A "}", 24);
        overwrite(&b, 0, &lengths[i], 8);
        temp_write(&folder, "model.safetensors", b.data, b.len);
        text_free(&b);
        assert_refused(folder.path, KVASIR_ERR_FORMAT, i == 1 ? "JSON" : "header");
    }
    temp_write(&folder, "model.safetensors", "1234567", 7);
    assert_refused(folder.path, KVASIR_ERR_FORMAT, "inside the header's length");
    temp_write(&folder, "model.safetensors", "", 0);
    assert_refused(folder.path, KVASIR_ERR_FORMAT, "empty");
}

/* mx.save_safetensors pads nothing: an odd header moves all data to odd addresses. */
static void test_odd_addresses(void **state) {
    (void)state;
    static const char odd[] =
        "{\"__metadata__\":null,\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    struct text_buf b = {0};
    size_t pad = 1 - (sizeof odd - 1) % 2;
    put_u64(&b, sizeof odd - 1 + pad);
    put(&b, odd, sizeof odd - 1);
    put(&b, " ", pad);
    put(&b, &(float){2.5f}, 4);
    temp_write(&folder, "model.safetensors", b.data, b.len);
    text_free(&b);
    struct checkpoint *c = opened();
    struct weight w = checkpoint_weight(checkpoint_find(c, "b"));
    float value;
    assert_int_equal((uintptr_t)w.data % 2, 1);
    weight_traits_of(w.type)->decode(&w, 0, &value);
    assert_true(value == 2.5f);
    checkpoint_close(c);
}

/* ---- shards ---------------------------------------------------------------------------------- */

static const char index_name[] = "model.safetensors.index.json";

static void write_shards(const char *weight_map) {
    struct text_buf b = safetensors_bytes("{" A "}", 24);
    temp_write(&folder, "s1.safetensors", b.data, b.len);
    text_free(&b);
    b = safetensors_bytes("{\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2);
    temp_write(&folder, "s2.safetensors", b.data, b.len);
    text_free(&b);
    b = safetensors_bytes("{" A "}", 24);
    temp_write(&folder, "s3.safetensors", b.data, b.len);
    text_free(&b);
    char text[512];
    int n = snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":26},\"weight_map\":%s}",
                     weight_map);
    temp_write(&folder, index_name, text, (size_t)n);
}

static void test_shards(void **state) {
    (void)state;
    unlink(temp_file(&folder, "model.safetensors"));
    write_shards("{\"b\":\"s2.safetensors\",\"a\":\"s1.safetensors\"}");
    struct checkpoint *c = opened();
    assert_int_equal(checkpoint_tensor_count(c), 2);
    assert_int_equal(checkpoint_find(c, "a")->bytes, 24);
    assert_int_equal(checkpoint_find(c, "b")->bytes, 2);
    checkpoint_close(c);

    static const struct {
        const char *map;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}", KVASIR_ERR_FORMAT,
         "field weight_map.a: s2.safetensors has no tensor"},
        {"{\"a\":\"s1.safetensors\",\"c\":\"s1.safetensors\"}", KVASIR_ERR_FORMAT,
         "field weight_map.c: s1.safetensors has no tensor"},
        {"{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}", KVASIR_ERR_FORMAT,
         "duplicate tensor a"},
        {"{\"a\":\"../s1.safetensors\"}", KVASIR_ERR_FORMAT, "of the same folder"},
        {"{\"a\":\"/etc/passwd\"}", KVASIR_ERR_FORMAT, "of the same folder"},
        {"{\"a\":\"..safetensors\"}", KVASIR_ERR_FORMAT, "of the same folder"},
        {"{\"a\":5}", KVASIR_ERR_FORMAT, "of the same folder"},
        {"{\"a\":\"gone.safetensors\"}", KVASIR_ERR_IO, "gone.safetensors"},
        {"{}", KVASIR_ERR_FORMAT, "holds no tensors"},
        {"[]", KVASIR_ERR_FORMAT, "field weight_map must be an object"},
        {"{", KVASIR_ERR_FORMAT, "JSON does not parse"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_shards(cases[i].map);
        assert_refused(folder.path, cases[i].status, cases[i].words);
    }
    unlink(temp_file(&folder, index_name));
    assert_refused(folder.path, KVASIR_ERR_IO, "neither model.safetensors nor");
}

static void test_folder(void **state) {
    (void)state;
    struct temp_folder empty;
    temp_folder_make(&empty);
    assert_refused(empty.path, KVASIR_ERR_IO, "the folder holds no config.json");
    temp_write(&empty, "m.gguf", "x", 1);
    assert_refused(empty.path, KVASIR_ERR_IO, "for GGUF give the file");
    temp_write(&empty, "config.json", "", 0);
    assert_refused(empty.path, KVASIR_ERR_FORMAT, "config.json: JSON does not parse");
    temp_write(&empty, "config.json", "{}", 2);
    assert_refused(empty.path, KVASIR_ERR_FORMAT, "config.json: field architectures");
    unlink(temp_file(&empty, "config.json"));
    assert_int_equal(mkdir(empty.file, 0700), 0);
    assert_refused(empty.path, KVASIR_ERR_IO, "is a folder");
    temp_folder_remove(&empty);
}

/* ---- fixtures -------------------------------------------------------------------------------- */

static void test_fixtures(void **state) {
    (void)state;
    static const char *const names[] = {"llama", "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < 4; i++) {
        char path[256];
        struct model *m;
        kvasir_error err = {0};
        snprintf(path, sizeof path, SHARED_DIR "/fixtures/tiny/%s", names[i]);
        if (model_open(path, &m, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        assert_string_equal(model_config(m)->name, names[i]);
        assert_int_equal(model_matrix(m, m->embed)->type, WEIGHT_BF16);
        assert_int_equal(model_matrix(m, m->embed)->n, 512);
        assert_int_equal(model_matrix(m, m->head)->data == model_matrix(m, m->embed)->data, i != 1);
        assert_int_equal(m->layers[3].k_bias != 0, i == 2);
        assert_int_equal(m->layers[3].k_norm != 0, i == 3);
        model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_header_length), cmocka_unit_test(test_odd_addresses),
        cmocka_unit_test(test_shards),        cmocka_unit_test(test_folder),
    };
    const struct CMUnitTest fixtures[] = {cmocka_unit_test(test_fixtures)};
    temp_folder_make(&folder);
    temp_write(&folder, "config.json", TINY_CONFIG, strlen(TINY_CONFIG));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    if (access(SHARED_DIR "/fixtures/tiny/llama/config.json", R_OK) != 0) {
        printf("not there: " SHARED_DIR "/fixtures/tiny\n");
        return failed ? failed : 77;
    }
    return failed + cmocka_run_group_tests(fixtures, NULL, NULL);
}
