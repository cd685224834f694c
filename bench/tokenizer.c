/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer alone, for tools/tokenizer_peer.py, which compares it with the PyPI package:
 *
 *     bench_tokenizer FILE --speed TEXT    opens FILE and encodes TEXT; prints the best of several
 *                                          times as one line of JSON
 *     bench_tokenizer FILE --lines         reads one JSON string a line from standard input; prints
 *                                          {"ids", "ids_plain", "ids_special", "decoded",
 *                                          "skipped"} for each
 *
 * FILE is a tokenizer.json, its folder or a GGUF model.
 */
#include "bench.h"

#include "model/model.h"
#include "text/text.h"

static void die(const char *what) {
    fprintf(stderr, "bench_tokenizer: %s\n", what);
    exit(1);
}

static struct tokenizer *open_tokenizer(const char *path) {
    struct tokenizer *t = NULL;
    struct checkpoint *c;
    if (checkpoint_open_text(path, &c, &err) != KVASIR_OK ||
        tokenizer_create(checkpoint_tokenizer(c), &t, &err) != KVASIR_OK)
        die(err.text);
    checkpoint_close(c);
    return t;
}

static int32_t *encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                       size_t *n) {
    int32_t *ids;
    if (tokenizer_encode(t, text, len, flags, &ids, n, &err) != KVASIR_OK)
        die(err.text);
    return ids;
}

/* ---- --speed --------------------------------------------------------------------------------- */

/* Peak memory of this process. getrusage would include its parent's. */
static double peak_megabytes(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    double kilobytes = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kilobytes = strtod(line + 6, NULL);
    if (f)
        fclose(f);
    return kilobytes / 1000;
}

static void speed(const char *path, const char *text_path) {
    struct file_map text;
    if (file_map_open(&text, text_path, &err) != KVASIR_OK)
        die(err.text);
    double open_best = 1e9, encode_best = 1e9;
    size_t n = 0;
    struct tokenizer *t = NULL;
    for (int round = 0; round < 3; round++) {
        tokenizer_destroy(t);
        double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        t = open_tokenizer(path);
        double took = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start;
        open_best = took < open_best ? took : open_best;
    }
    for (int round = 0; round < 5; round++) {
        double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        mem_free(encode(t, (const char *)text.data, text.size, TOKENIZE_PARSE_SPECIAL, &n));
        double took = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start;
        encode_best = took < encode_best ? took : encode_best;
    }
    printf("{\"name\": \"%s\", \"open_s\": %.3f, \"encode_mb_s\": %.2f, \"tokens\": %zu, "
           "\"peak_mb\": %.0f}\n",
           tokenizer_name(t), open_best, (double)text.size / encode_best / 1e6, n,
           peak_megabytes());
    tokenizer_destroy(t);
    file_map_close(&text);
}

/* ---- --lines --------------------------------------------------------------------------------- */

static json_t *id_array(const int32_t *ids, size_t n) {
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static json_t *decoded(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags) {
    struct text_buf out = {0};
    if (!text_append(&out, "", 0) || tokenizer_decode(t, ids, n, flags, &out, &err) != KVASIR_OK)
        die(err.text);
    json_t *text = json_stringn(out.data, out.len);
    text_free(&out);
    return text;
}

static void one_line(const struct tokenizer *t, const char *line) {
    json_error_t why;
    json_t *text = json_loads(line, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why), *out = json_object();
    if (!json_is_string(text))
        die("a line that is not a JSON string");
    const char *data = json_string_value(text);
    size_t len = json_string_length(text), n;
    const unsigned flags = TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL;
    int32_t *ids = encode(t, data, len, TOKENIZE_PARSE_SPECIAL, &n);
    json_object_set_new(out, "ids", id_array(ids, n));
    mem_free(ids);
    ids = encode(t, data, len, 0, &n);
    json_object_set_new(out, "ids_plain", id_array(ids, n));
    mem_free(ids);
    ids = encode(t, data, len, flags, &n);
    json_object_set_new(out, "ids_special", id_array(ids, n));
    json_object_set_new(out, "decoded", decoded(t, ids, n, 0));
    json_object_set_new(out, "skipped", decoded(t, ids, n, DETOKENIZE_SKIP_SPECIAL));
    mem_free(ids);
    char *dump = json_dumps(out, JSON_COMPACT);
    puts(dump);
    free(dump);
    json_decref(out);
    json_decref(text);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[2], "--speed") == 0) {
        speed(argv[1], argv[3]);
        return 0;
    }
    if (argc != 3 || strcmp(argv[2], "--lines") != 0)
        die("usage: bench_tokenizer FILE --speed TEXT | --lines");
    struct tokenizer *t = open_tokenizer(argv[1]);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) >= 0)
        one_line(t, line);
    free(line);
    tokenizer_destroy(t);
    return 0;
}
