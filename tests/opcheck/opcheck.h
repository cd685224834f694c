/* SPDX-License-Identifier: Apache-2.0 */
/* opcheck: the CUDA twin of kcheck. Every operation of src/backend/cuda against the reference on
 * the CPU, in double, and against itself.
 *
 *     opcheck [--seed=N] [--filter=TEXT] [--quick] [--step] [--bench[=PART]]
 *
 *     main.c             options, what is run
 *     support.c          counting, device buffers; tests/support/random_data.c has the numbers
 *     scene.c            sequences over pages in the arena: what check_attention and bench read
 *     check_encode.c     cuda_kv_store
 *     check_attention.c  cuda_attention
 *     check_product.c    cuda_product
 *     check_step.c       a step as a graph, replayed for other batches
 *     bench.c            --bench: attention, encode, products beside the read ceiling of the run
 *
 * What is asked of an operation:
 *   O1  its bytes where bytes are defined (encode); else |got - ref| <= bound * sum|terms|, the
 *       worst that the arithmetic allows, derived beside each check
 *   O2  rows, sequences and outputs do not see each other: the bits of a row alone, in any batch,
 *       cut into steps anyhow, in the decode and in the prefill kernel
 *   O3  not a byte written outside: canaries around every output, the arena's other bytes compared
 *   O4  no error of the device; compute-sanitizer's memcheck and racecheck are clean (tools)
 */
#ifndef OPCHECK_H
#define OPCHECK_H

#include "backend/cuda/cuda.h"
#include "random_data.h"

extern struct cuda_backend *device;
extern bool quick; /* fewer and smaller cases: under compute-sanitizer */

void check_encode(void);
void check_attention(void);
void check_product(void);
void check_step(void);
void bench(void);
void bench_step(void);
/* --bench names this part ("decode", "prefill", "encode", "product", "step") or all of them. */
bool bench_wants(const char *part);

/* ---- families and cases (support.c) ---------------------------------------------------------- */

/* A family is one line of output: one operation in one format. False: --filter leaves it out. Its
 * end frees the last case's buffers, waits for the device and counts an error of it as a failure;
 * since such errors stick, the run ends there. */
bool family_begin(const char *operation, const char *format, ...) PRINTF_LIKE(2, 3);
void family_end(void);
int families_checked(void);
int families_failed(void);
/* Ends the program over something that is no check: no memory, a call that must work. */
_Noreturn void give_up(const char *format, ...) PRINTF_LIKE(1, 2);
void set_filter(const char *text);
bool filter_keeps(const char *line);
void set_seed(uint64_t seed);

/* Starts a case: frees the last one's buffers. The text is printed when a check of it fails. */
void case_begin(const char *format, ...) PRINTF_LIKE(1, 2);
/* |got - want| <= bound; where want is not finite, got must not be either. Prints the first few
 * failures of a family; the largest |got - want| / bound is part of its line. */
void check_near(const char *what, size_t i, size_t j, double got, double want, double bound);
void check_that(bool holds, const char *format, ...) PRINTF_LIKE(2, 3);

/* ---- buffers (support.c) --------------------------------------------------------------------- */

/* Device memory until the next case_begin, `bytes` bytes of 0xff between canaries that case_begin
 * and family_end look at. */
void *device_buffer(size_t bytes);
/* The same, holding a copy of host memory. */
void *device_copy(const void *host, size_t bytes);
/* Host memory until the next case_begin, zeroed. */
void *plain(size_t bytes);
/* A host copy of device memory; waits. Until the next case_begin. */
void *from_device(const void *device, size_t bytes);

/* ---- sequences over pages (scene.c) ---------------------------------------------------------- */

/* One layer group with sequences whose pages lie in random order in the arena, on the device and,
 * where it is small enough to be checked, on the host as well. */
struct scene_seq {
    uint32_t length;     /* tokens that pages hold after the step */
    uint32_t rows;       /* of the step: positions [length - rows, length) */
    uint32_t keep, span; /* visibility */
    uint32_t switch_at;  /* pages before this one have layouts[0], the others layouts[1] */
};
struct scene {
    struct page_layout layouts[2];
    uint32_t heads, kv_heads, head_dim, layers;
    uint32_t n_seqs;
    struct scene_seq *seqs;
    uint32_t prefill_rows; /* of the limits */
    /* made by scene_build */
    uint8_t *arena, *host_arena; /* device; host_arena is NULL where `host` was false */
    size_t arena_bytes;
    struct kv_page *pages; /* [n_seqs][max_pages] */
    uint32_t max_pages;
    struct batch batch;
    struct kv_view *views;      /* [n_seqs] what the device sees */
    struct kv_view *host_views; /* [n_seqs] the same over host_arena */
};
/* Takes layouts, heads, kv_heads, head_dim, layers, n_seqs, seqs and prefill_rows; makes the rest.
 * A layouts[1] with page_bytes 0 becomes a copy of layouts[0]. Where `host`, tokens below length
 * hold random values, encoded by the definition in quant/, and slots behind, gaps between pages and
 * the ends of pages hold garbage: random codes, NaN, infinities. Where not, all slots hold random
 * codes and plausible scales: a few pages made here, copied over the arena in random order.
 *
 * Pages that no row sees are dropped from the tables, as cache/ would. device is reserved for the
 * batch, which has one layer group; no step begins. */
void scene_build(struct scene *s, bool host);
void scene_free(struct scene *s);

#endif
