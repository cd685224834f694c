/* SPDX-License-Identifier: Apache-2.0 */
/* Writing prompt-cache files of mlx-lm, and where a ring has its rows: rings against a model of
 * mlx-lm's own algorithm, rows that the caller supplies, descriptions that are refused, both forms,
 * and the fixtures written again.
 */
#include <dirent.h>

#include "prompt_made.h"

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

static void compare_ring(const struct ring *r) {
    struct prompt_kv kv = {.rows = (uint32_t)r->n,
                           .offset = (uint32_t)r->offset,
                           .keep = (uint32_t)r->keep,
                           .max_size = (uint32_t)r->max_size,
                           .idx = (uint32_t)r->idx};
    for (int row = 0; row < r->n; row++)
        if (r->buf[row] >= 0)
            assert_int_equal(prompt_entry_row(&kv, (uint32_t)r->buf[row]), row);
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
            /* the reader accepts whatever mlx-lm can write */
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
    assert_int_equal(kv->sides[0].dim, 64); /* 8 bits x 64; 4 bits x 128 would look alike */
    assert_int_equal(prompt_entry_settle(kv, 128, 100, &err), KVASIR_ERR_FORMAT);
    assert_non_null(strstr(err.text, "V of"));
    assert_int_equal(prompt_entry_settle(kv, 128, 128, &err), KVASIR_OK);
    assert_int_equal(kv->sides[1].format.bits, 4);
    assert_int_equal(kv->sides[1].format.group, 128);
    assert_false(kv->guessed);
    assert_int_equal(prompt_entry_settle(kv, 64, 64, &err), KVASIR_ERR_FORMAT);
    round_trip(&f);
    prompt_file_close(&f);
    /* the same head size: K has 4 bits in groups of 64, V 4 bits in groups of 32 */
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
        side->parts[0] = prompt_tensor_of(ST_BF16, 4, dims);
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

    /* a write that fails halfway leaves the old file, and no other file with it */
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
    refuse_to_write(&f, "mx.quantize has no format");
    e[1] = streamed_entry(&k, &v);
    f.n_metadata = 2;
    f.metadata = pairs;
    refuse_to_write(&f, "is empty or a duplicate");
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
    refuse_to_write(&f, "cannot hold a state that is None");
}

/* FILE-2, and the header byte for byte (reference 2.3, its minimal file). */
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
    assert_int_equal(a->offset, b->offset);
    for (uint32_t p = 0; p < a->offset; p++) {
        int64_t x = prompt_entry_row(a, p), y = prompt_entry_row(b, p);
        assert_int_equal(x < 0, y < 0);
        for (uint32_t i = 0; x >= 0 && i < 6 * a->heads; i++) {
            const struct prompt_tensor *s = &a->sides[i % 2].parts[i / 2 % 3],
                                       *t = &b->sides[i % 2].parts[i / 2 % 3];
            if (!s->present)
                continue;
            size_t row = s->dims[3] * st_dtype_bytes(s->dtype), head = i / 6;
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rings),    cmocka_unit_test(test_settle),
        cmocka_unit_test(test_streamed), cmocka_unit_test(test_refused_writes),
        cmocka_unit_test(test_forms),    cmocka_unit_test(test_rewritten),
    };
    run_prompt_tests(tests);
}
