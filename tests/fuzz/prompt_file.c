/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary prompt-cache file of mlx-lm's form. One that opens is written again and must open as
 * the same (F3); every row that it claims to have can be read. */
#include "../support/prompt_text.h"
#include "fuzz.h"

enum { DIM_MAX = 1 << 16 };

static void read_side(const struct prompt_side *side, uint32_t exact, uint32_t head, uint32_t row) {
    static uint8_t codes[DIM_MAX];
    static float x[DIM_MAX], scales[DIM_MAX], biases[DIM_MAX];
    if (!side->parts[0].present || side->dim > DIM_MAX)
        return;
    if (row < exact)
        prompt_start_get_values(side, head, row, x);
    else if (side->format.group)
        prompt_side_get_row(side, head, row - exact, codes, scales, biases);
    else
        prompt_side_get_values(side, head, row, x);
}

static void read_rows(const struct prompt_kv *kv) {
    /* there may be any number of rows without bytes */
    if (kv->rows > DIM_MAX || kv->heads > DIM_MAX)
        return;
    if (!prompt_rows_consistent(kv))
        fuzz_fail("rows and positions disagree");
    for (uint32_t row = 0; row < kv->rows; row += 1 + kv->rows / 8)
        for (int i = 0; i < 2; i++)
            read_side(&kv->sides[i], kv->exact, kv->heads - 1, row);
}

static void read_entries(const struct prompt_entry *e, uint32_t n) {
    for (uint32_t i = 0; i < n; i++, e++)
        if (prompt_class_is_kv(e->class))
            read_rows(&e->kv);
        else if (e->class == PROMPT_LIST)
            read_entries(e->list.children, e->list.n);
}

/* Settles a guessed format at what was guessed, so that it can be written. */
static void settle(struct prompt_entry *e, uint32_t n) {
    kvasir_error err;
    for (uint32_t i = 0; i < n; i++, e++)
        if (e->class == PROMPT_LIST)
            settle(e->list.children, e->list.n);
        else if (prompt_class_is_kv(e->class) &&
                 prompt_entry_settle(&e->kv, e->kv.sides[0].dim, e->kv.sides[1].dim, &err))
            fuzz_fail("%s", err.text);
}

static void write_again(struct prompt_file *f) {
    struct prompt_file same;
    kvasir_error err;
    settle(f->entries, f->n_entries);
    const char *path = fuzz_path("again.safetensors");
    if (prompt_file_write(path, f, &err) != KVASIR_OK)
        fuzz_fail("opens, but: %s", err.text);
    if (prompt_file_open(path, &same, &err) != KVASIR_OK)
        fuzz_fail("written, but: %s", err.text);
    if (!prompt_files_same(f, &same))
        fuzz_fail("comes back as another");
    prompt_file_close(&same);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct prompt_file f;
    kvasir_error err;
    const char *path = fuzz_write("cache.safetensors", data, size);
    budget_begin(fuzz_budget(size));
    kvasir_status status = prompt_file_open(path, &f, &err);
    budget_end();
    check_error(status, &err);
    if (status == KVASIR_OK) {
        read_entries(f.entries, f.n_entries);
        write_again(&f);
    }
    prompt_file_close(&f);
    return 0;
}
