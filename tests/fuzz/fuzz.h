/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz/: arbitrary bytes for everything that reads input. One file per target:
 *
 *     gguf.c         a GGUF file or two parts of one: model_open, its tokenizer, its template
 *     safetensors.c  a folder: model.safetensors, its index, generation_config.json ...
 *     config.c       config.json
 *     tokenizer_json.c   tokenizer.json, then a text through it, and a few ids back
 *     template.c     a chat template, then a conversation through it
 *     prompt_file.c  a prompt-cache file of mlx-lm's, written again if it opens
 *     openai.c       a request body of OpenAI's or Anthropic's API; /tokenize and the like
 *     answer_syntax.c    an answer's text, parsed into reasoning, content and calls
 *     tokenize.c     a text through small vocabularies of each kind, and back
 *     grammar.c      a schema, an expression or a grammar, and an answer of it
 *     json.c         a text through the grammar of any JSON object, and the walk without a tree
 *     http.c         a connection's requests, at once and byte by byte
 *     trace.c        recorded requests; if accepted, their yardsticks too
 *
 * Each defines LLVMFuzzerTestOneInput. `make test` replays corpus/TARGET and grown.tar.xz, what
 * fuzzing reached so far, through it (replay.c is then main), under the address and undefined
 * behaviour sanitizers too; `make soak` links the same file with libFuzzer (tools/fuzz.sh). What a
 * soak finds goes into corpus/ with its fix.
 *
 * A target checks more than that nothing crashes:
 *   F1  memory: live bytes stay below a bound that the target derives from the input's size
 *       (measured if a sanitizer's allocator counts them: budget_begin .. budget_end);
 *   F2  a refused input gives an error with a text of one line;
 *   F3  what the target itself describes (round trips).
 */
#ifndef KVASIR_FUZZ_H
#define KVASIR_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "util/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Memory that readers may take. JSON is refused if its tree would be 32 times the text; an id of
 * 65535 in a small file makes tables of half a megabyte. */
enum { FUZZ_TIMES = 40, FUZZ_BYTES = 1 << 20 };
static inline size_t fuzz_budget(size_t size) {
    return FUZZ_BYTES + FUZZ_TIMES * size;
}
void budget_begin(size_t bytes);
void budget_end(void);

/* Ends the process with the text. */
void fuzz_fail(const char *format, ...) PRINTF_LIKE(1, 2) __attribute__((noreturn));
/* F2 */
void check_error(kvasir_status status, const kvasir_error *err);

/* Path of `name` in this process's own folder, which goes away at exit. */
const char *fuzz_path(const char *name);
/* Writes a file there. */
const char *fuzz_write(const char *name, const uint8_t *data, size_t size);

#endif
