/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged checkpoints: whatever is cut off or flipped, model_open gives a model or one clear error;
 * it never crashes, leaks, reads outside the file or takes much memory. Run under ASan and UBSan;
 * the seed is printed and KVASIR_SEED sets it.
 *
 * Subjects: a tiny GGUF written here, whole and as a part of a split one; a tiny folder of mlx's
 * modules and one of 8-bit floats; stories260K as GGUF, and the tiny llama fixture as a folder.
 * Half of the flips hit the part that is parsed: most of a file is weights, where a flip is just
 * another model.
 *
 * Planted and caught: a header's length not compared with the file's size; offset + bytes summed
 * before they are compared with the end; an array's count multiplied before it is checked; the
 * table of data offsets not freed on an error.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "model_files.h"

enum {
    CUTS = 200,
    FLIPS = 200,
    MEMORY_MAX_MB = 64, /* the subjects have at most 1.7 MB */
};

#define STORIES SHARED_DIR "/models/stories260K/stories260K-f32.gguf"
#define LLAMA   SHARED_DIR "/fixtures/tiny/llama"

/* A reader that trusts a false size in a file allocates more than this limit: ASan reports it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "max_allocation_size_mb=64:allocator_may_return_null=0";
}

/* Without ASan the system refuses such an allocation. The error is then KVASIR_ERR_MEMORY, which
 * fails the test. */
static void limit_memory(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return; /* the sanitizer's shadow memory needs terabytes of addresses */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return;
#endif
#endif
    struct rlimit limit = {.rlim_cur = (rlim_t)MEMORY_MAX_MB << 20, .rlim_max = RLIM_INFINITY};
    if (setrlimit(RLIMIT_DATA, &limit) != 0)
        printf("no memory limit: %s\n", strerror(errno));
}

static struct temp_folder folder;
static uint64_t rng_state;

static uint64_t rng(uint64_t below) { /* splitmix64 */
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

/* ---- trying ---------------------------------------------------------------------------------- */

/* Expects a model or a clear error. True: a model. */
static bool try_open(const char *path) {
    struct model *m;
    kvasir_error err = {0};
    kvasir_status status = model_open(path, &m, &err);
    if (status == KVASIR_OK) {
        model_close(m);
        return true;
    }
    if (status == KVASIR_ERR_MEMORY)
        fail_msg("asks for more than %d MB: %s", MEMORY_MAX_MB, err.text);
    assert_null(m);
    assert_clear_error(&err, status, path);
    return false;
}

static void must_refuse(const char *path, kvasir_status status, const char *words) {
    struct model *m;
    kvasir_error err = {0};
    kvasir_status found = model_open(path, &m, &err);
    if (found == KVASIR_OK) {
        model_close(m);
        fail_msg("opened, should say: %s", words);
    }
    if (found != status || !strstr(err.text, words))
        fail_msg("status %d, text: %s; wanted %d: %s", found, err.text, status, words);
    assert_clear_error(&err, status, path);
}

/* A model on disk that tests damage: `file` is the damaged part, `open` what model_open gets. */
struct subject {
    const char *open;
    char file[192];
    struct text_buf bytes; /* undamaged */
    size_t parsed;         /* bytes before the weights */
};

static void write_at(const struct subject *s, size_t at, const void *data, size_t n) {
    int fd = open(s->file, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, n, (off_t)at), n);
    close(fd);
}

static void damage(const struct subject *s) {
    assert_true(try_open(s->open));
    unsigned opened = 0;
    for (unsigned i = 0; i < FLIPS; i++) {
        size_t at = rng(i % 2 ? s->bytes.len : s->parsed);
        char flipped = (char)(s->bytes.data[at] ^ (char)(1 + rng(255)));
        write_at(s, at, &flipped, 1);
        opened += try_open(s->open);
        write_at(s, at, &s->bytes.data[at], 1);
    }
    printf("%u of %d flips still give a model\n", opened, FLIPS);
    assert_true(opened > 0 && opened < FLIPS); /* otherwise the flips hit only one part */

    /* Longest first: each cut truncates further, so that the file is written only once. */
    bool cut[CUTS] = {false};
    size_t points[CUTS];
    for (unsigned i = 0; i < CUTS; i++)
        points[i] = rng(i % 2 ? s->bytes.len : s->parsed);
    for (unsigned i = 0; i < CUTS; i++) {
        unsigned longest = CUTS;
        for (unsigned j = 0; j < CUTS; j++)
            if (!cut[j] && (longest == CUTS || points[j] > points[longest]))
                longest = j;
        cut[longest] = true;
        assert_int_equal(truncate(s->file, (off_t)points[longest]), 0);
        if (try_open(s->open))
            fail_msg("opens with %zu of %zu bytes", points[longest], s->bytes.len);
    }
}

static struct text_buf read_whole(const char *path) {
    struct text_buf b = {0};
    kvasir_error err = {0};
    if (file_read_all(path, 64 << 20, &b.data, &b.len, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return b;
}

static void damage_gguf(struct text_buf bytes, const char *last_name) {
    struct subject s = {.bytes = bytes, .parsed = behind(&bytes, last_name) + 24};
    temp_write(&folder, "damaged.gguf", bytes.data, bytes.len);
    snprintf(s.file, sizeof s.file, "%s", folder.file);
    s.open = s.file;
    damage(&s);
    text_free(&bytes);
}

static void test_tiny_gguf(void **state) {
    (void)state;
    damage_gguf(tiny_gguf("llama"), "blk.1.ffn_down.weight");
    damage_gguf(tiny_gguf("qwen2"), "blk.1.ffn_down.weight");
    damage_gguf(tiny_gguf("qwen3"), "blk.1.ffn_down.weight");
}

/* Damages the second of two parts. */
static void test_split_gguf(void **state) {
    (void)state;
    struct gguf_writer first = {0}, second = {0};
    for (uint32_t no = 0; no < 2; no++) {
        struct gguf_writer *w = no ? &second : &first;
        gguf_u32(w, "split.no", no);
        gguf_u32(w, "split.count", 2);
        gguf_u32(w, "split.tensors.count", 20);
    }
    tiny_values(&first, "llama");
    gguf_matrix(&first, "token_embd.weight", WEIGHT_Q8_0, 8, 64);
    gguf_vector(&first, "output_norm.weight", 64);
    tiny_layer(&second, "llama", 0);
    tiny_layer(&second, "llama", 1);
    struct text_buf b = gguf_finish(&first, 32);
    temp_write(&folder, "split-00001-of-00002.gguf", b.data, b.len);
    text_free(&b);
    struct subject s = {.bytes = gguf_finish(&second, 32), .open = s.file};
    s.parsed = behind(&s.bytes, "blk.1.ffn_down.weight") + 24;
    temp_write(&folder, "split-00002-of-00002.gguf", s.bytes.data, s.bytes.len);
    snprintf(s.file, sizeof s.file, "%s", folder.file);
    damage(&s);
    text_free(&s.bytes);
}

static void damage_folder(const char *config, bool f8) {
    struct subject s = {.open = folder.path};
    s.bytes = tiny_folder_tensors(f8);
    uint64_t header;
    memcpy(&header, s.bytes.data, sizeof header);
    s.parsed = sizeof header + header;
    temp_write(&folder, "config.json", config, strlen(config));
    temp_write(&folder, "model.safetensors", s.bytes.data, s.bytes.len);
    snprintf(s.file, sizeof s.file, "%s", folder.file);
    damage(&s);
    temp_write(&folder, "model.safetensors", s.bytes.data, s.bytes.len);
    text_free(&s.bytes);
    put(&s.bytes, config, strlen(config));
    s.parsed = s.bytes.len;
    temp_write(&folder, "config.json", config, strlen(config));
    snprintf(s.file, sizeof s.file, "%s", folder.file);
    damage(&s);
    text_free(&s.bytes);
}

static void test_mlx_folder(void **state) {
    (void)state;
    damage_folder(TINY_MLX_CONFIG, false);
}

static void test_f8_folder(void **state) {
    (void)state;
    damage_folder(TINY_F8_CONFIG, true);
}

/* JSON that would take 70 times its size in memory. */
static void test_greedy_json(void **state) {
    (void)state;
    enum { SIZE = 3 << 20 };
    static const char *const files[] = {"config.json", "generation_config.json",
                                        "tokenizer_config.json", "model.safetensors"};
    char *text = mem_alloc(SIZE);
    assert_non_null(text);
    for (size_t i = 0; i < SIZE; i++)
        text[i] = "{},"[i % 3];
    memcpy(text, "{\"a\":[", 6);
    for (size_t i = 0; i < 4; i++) {
        struct text_buf b = tiny_folder_tensors(false);
        temp_write(&folder, "config.json", TINY_MLX_CONFIG, strlen(TINY_MLX_CONFIG));
        temp_write(&folder, "model.safetensors", b.data, b.len);
        text_free(&b);
        uint64_t len = SIZE;
        if (i == 3)
            put(&b, &len, sizeof len);
        put(&b, text, SIZE);
        temp_write(&folder, files[i], b.data, b.len);
        text_free(&b);
        must_refuse(folder.path, i ? KVASIR_ERR_FORMAT : KVASIR_ERR_IO,
                    i ? "more than 32 times its size" : "config.json: larger than 1048576 bytes");
        assert_int_equal(unlink(folder.file), 0);
    }
    mem_free(text);
}

static void test_stories_gguf(void **state) {
    (void)state;
    damage_gguf(read_whole(STORIES), "output_norm.weight");
}

static void copy_llama(struct subject *s, const char *name) {
    char path[256];
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", LLAMA, files[i]);
        struct text_buf b = read_whole(path);
        temp_write(&folder, files[i], b.data, b.len);
        if (strcmp(files[i], name) == 0) {
            s->bytes = b;
            snprintf(s->file, sizeof s->file, "%s", folder.file);
        } else {
            text_free(&b);
        }
    }
    s->open = folder.path;
}

static void test_safetensors(void **state) {
    (void)state;
    struct subject s;
    copy_llama(&s, "model.safetensors");
    uint64_t header;
    memcpy(&header, s.bytes.data, sizeof header);
    s.parsed = sizeof header + header;
    damage(&s);
    text_free(&s.bytes);
}

static void test_header_length(void **state) {
    (void)state;
    struct subject s;
    copy_llama(&s, "model.safetensors");
    const uint64_t lengths[] = {0,        s.bytes.len - 7, s.bytes.len,
                                99999999, 1ull << 40,      UINT64_MAX - 7 /* + 8 overflows to 0 */};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        write_at(&s, 0, &lengths[i], sizeof lengths[i]);
        must_refuse(s.open, KVASIR_ERR_FORMAT, "model.safetensors: the header");
    }
    text_free(&s.bytes);
}

static void test_config_json(void **state) {
    (void)state;
    struct subject s;
    copy_llama(&s, "config.json");
    s.parsed = s.bytes.len;
    while (s.bytes.data[s.bytes.len - 1] != '}') /* a cut after the document would lose nothing */
        s.bytes.len--;
    s.parsed = s.bytes.len;
    damage(&s);
    text_free(&s.bytes);
}

/* ---- chosen damage --------------------------------------------------------------------------- */

static void test_chosen(void **state) {
    (void)state;
    static const struct {
        const char *behind; /* the text after which to write, `at` bytes further */
        size_t at;
        const char *bytes;
        size_t n;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"general.architecture", 12, "mamba", 5, KVASIR_ERR_UNSUPPORTED, "general.architecture"},
        {"llama.vocab_size", 4, "\x9", 1, KVASIR_ERR_FORMAT, "llama.vocab_size is 9"},
        {"token_embd.weight", 12, "\x7", 1, KVASIR_ERR_FORMAT,
         "tensor model.embed_tokens.weight has shape [7, 64], expected [8, 64]"},
        {"blk.0.ffn_up.weight", 20, "\x10", 1, KVASIR_ERR_UNSUPPORTED, "has type IQ2_XXS (16)"},
        {"blk.0.ffn_up.weight", 4, "\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x10", 16, KVASIR_ERR_FORMAT,
         "its shape overflows"},
        {"blk.0.ffn_up.weight", 24, "\0\0\0\0\0\0\0", 8, KVASIR_ERR_FORMAT, "overlap"},
        {"blk.0.ffn_up.weight", 24, "\xe0\xff\xff\xff\xff\xff\xff\xff", 8, KVASIR_ERR_FORMAT,
         "pass the file's end"},
        {"blk.0.ffn_up", (size_t)-1, "q", 1, KVASIR_ERR_FORMAT, "mlp.up_proj.weight is missing"},
        {"tokenizer.ggml.token_type", 8, "\0\0\0\0\0\0\0\x40", 8, KVASIR_ERR_FORMAT,
         "does not fit"}, /* count * 4 bytes overflows to 0 */
        {"tokenizer.chat_template", 4, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, KVASIR_ERR_FORMAT,
         "the file ends inside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_buf b = tiny_gguf("llama");
        overwrite(&b, behind(&b, cases[i].behind) + cases[i].at, cases[i].bytes, cases[i].n);
        must_refuse(temp_write(&folder, "chosen.gguf", b.data, b.len), cases[i].status,
                    cases[i].words);
        text_free(&b);
    }
}

static void test_not_files(void **state) {
    (void)state;
    must_refuse(temp_write(&folder, "empty.gguf", "", 0), KVASIR_ERR_FORMAT, "empty");
    must_refuse(temp_file(&folder, "gone.gguf"), KVASIR_ERR_IO, "No such file");
    must_refuse(temp_file(&folder, "empty.gguf/x"), KVASIR_ERR_IO, "Not a directory");
    temp_write(&folder, "locked.gguf", "GGUF", 4);
    assert_int_equal(chmod(folder.file, 0), 0);
    if (access(folder.file, R_OK) != 0) /* root can read it anyway */
        must_refuse(folder.file, KVASIR_ERR_IO, "Permission denied");
    assert_int_equal(mkdir(temp_file(&folder, "folder"), 0700), 0);
    must_refuse(folder.file, KVASIR_ERR_IO, "holds no config.json");
    struct model *m;
    assert_int_equal(model_open(temp_file(&folder, "gone"), &m, NULL), KVASIR_ERR_IO);
}

int main(void) {
    const struct CMUnitTest own[] = {
        cmocka_unit_test(test_tiny_gguf),   cmocka_unit_test(test_split_gguf),
        cmocka_unit_test(test_mlx_folder),  cmocka_unit_test(test_f8_folder),
        cmocka_unit_test(test_greedy_json), cmocka_unit_test(test_chosen),
        cmocka_unit_test(test_not_files),
    };
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(test_stories_gguf),
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_config_json),
    };
    const char *seed = getenv("KVASIR_SEED");
    rng_state = seed ? strtoull(seed, NULL, 10) : 20260901;
    printf("KVASIR_SEED=%llu\n", (unsigned long long)rng_state);
    limit_memory();
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(own, NULL, NULL);
    bool missing = access(STORIES, R_OK) != 0 || access(LLAMA "/config.json", R_OK) != 0;
    if (missing)
        printf("not there: " STORIES " or " LLAMA "\n");
    else
        failed += cmocka_run_group_tests(shared, NULL, NULL);
    temp_folder_remove(&folder);
    return failed ? failed : missing ? 77 : 0;
}
