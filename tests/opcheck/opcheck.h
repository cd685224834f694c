/* SPDX-License-Identifier: Apache-2.0 */
/* opcheck: every operation of every backend's table against the reference: the CPU backend's ref
 * tier on one thread. kcheck does the same for single kernels.
 *
 *     opcheck [--seed=N] [--device=NAME] [--filter=TEXT] [--quick] [--step] [--bench[=PART]]
 *
 *     main.c             options, devices, what is run
 *     support.c          counting, devices, their buffers; tests/support/random_data.c has the
 *                        numbers
 *     scene.c            sequences over pages in the arena
 *     check_rows.c       operations over rows: all but those with pages or states
 *     check_pick.c       tokens from logits
 *     check_pages.c      attention, recurrent layers, the arena
 *     check_encode.c     kv_store, byte for byte
 *     check_whole.c      the same into pages that are encoded when they are full
 *     cuda/              built with KVASIR_CUDA: the CUDA backend against its own arithmetic
 *       check_attention.c  attention
 *       check_product.c    product
 *       check_step.c       a step recorded and replayed for other batches; errors that stick
 *       check_states.c     the same of recurrent layers
 *       bench.c            --bench: times next to the read ceiling of the run
 *
 * Requirements on an operation:
 *   O1  its bytes if bytes are defined (kv_store, copies, embed); else results near the reference.
 *       The tolerance of check_rows.c and check_pages.c is a part of the largest value: they are
 *       about shapes, strides and tables. Bounds that are derived from an arithmetic are
 *       in kcheck and in cuda/.
 *   O2  rows, sequences and outputs are independent: a row has the same bits alone, in any batch,
 *       and however the rows are cut into steps
 *   O3  no byte is written outside: canaries around every output, the arena's other bytes compared
 *   O4  no error of the device; compute-sanitizer's memcheck and racecheck are clean (tools)
 *
 * An operation that a backend lacks is listed as absent.
 */
#ifndef OPCHECK_H
#define OPCHECK_H

#include "backend/backend.h"
#include "random_data.h"

/* The backend under test and the reference; those of the last device_begin. */
extern struct backend *device, *reference;
extern bool quick; /* fewer and smaller cases: under compute-sanitizer */

void check_rows(void);
void check_pick(void);
void check_pages(void);
void check_encode(void);
void check_whole(void);
#ifdef KVASIR_CUDA
void check_cuda_attention(void);
void check_cuda_product(void);
void check_cuda_step(void);
void check_cuda_states(void);
void bench(void);
void bench_step(void);
#endif
/* --bench names this part ("decode", "prefill", "encode", "matmul", "step") or all of them. */
bool bench_wants(const char *part);

/* ---- devices (support.c) --------------------------------------------------------------------- */

struct device_choice {
    const char *name;    /* "avx2", "cuda" */
    bool cuda;           /* else the CPU backend */
    enum cpu_tier tier;  /* of it */
    int threads;         /* of it */
    double rows_near;    /* tolerance of sums in float32 */
    double weights_near; /* and of what is made with rounded activations */
    double halves_near;  /* of 4-bit matrices by f16, from activations of 16 bits; 0: not by f16 */
    double pages_near;   /* of attention, between this backend's arithmetic and the reference's */
};
extern const struct device_choice *choice;
/* The device of all that follows. Creates it once, without buffers; ends the program if it cannot.
 */
void device_choose(const struct device_choice *c);
/* A new device and a new reference, made for these limits: ends the last ones and the case's
 * buffers. */
void device_begin(const struct backend_limits *limits, int act_bits);
/* The same with a reference of other activations. */
void device_begin_beside(const struct backend_limits *limits, int act_bits, int reference_bits);
/* Whether the device multiplies a matrix by f16 (cuda/halves.cuh), from activations of `act_bits`:
 * then its results are near those of 16-bit activations. */
bool by_f16(const struct weight *w, int act_bits);
/* Gives both back. */
void device_end(void);
/* The first error of the device ends the program. */
void device_must_work(void);
/* True if the device has the operation; else counts it as absent. */
#define device_has(operation) (device->ops->operation != NULL)

/* ---- families and cases (support.c) ---------------------------------------------------------- */

/* A family is one line of output: one operation in one format. False: --filter leaves it out. Its
 * end frees the last case's buffers, waits for the device and counts an error of it as a failure;
 * since such errors stick, the run ends there. */
bool family_begin(const char *operation, const char *format, ...) PRINTF_LIKE(2, 3);
void family_end(void);
unsigned families_kept(void); /* by the filter, in this part or another */
int families_checked(void);
int families_failed(void);
/* Ends the program for a reason other than a failed check: no memory, a call that must work. */
_Noreturn void give_up(const char *format, ...) PRINTF_LIKE(1, 2);
/* The same if status is not KVASIR_OK. */
void must(kvasir_status status, const kvasir_error *err, const char *what);
void set_filter(const char *text);
bool filter_keeps(const char *line);
/* Of every n families only number i from 0 on. */
void set_part(unsigned i, unsigned n);
void set_seed(uint64_t seed);

/* Starts a case: frees the last one's buffers. The text is printed when a check of it fails. */
void case_begin(const char *format, ...) PRINTF_LIKE(1, 2);
/* |got - want| <= bound; if want is not finite, got must not be either. Prints the first few
 * failures of a family; the largest |got - want| / bound is part of its line. */
void check_near(const char *what, size_t i, size_t j, double got, double want, double bound);
void check_that(bool holds, const char *format, ...) PRINTF_LIKE(2, 3);
/* Each of `rows` rows of `dim` values within `tolerance` times the largest of all; 0: the same
 * bits. */
void check_rows_near(const char *what, const float *got, const float *want, size_t rows, size_t dim,
                     double tolerance);

/* ---- buffers (support.c) --------------------------------------------------------------------- */

/* Device memory until the next case_begin: `bytes` bytes of 0xff between canaries, which case_begin
 * and family_end check. */
void *device_buffer(size_t bytes);
/* The same, holding a copy of host memory. */
void *device_copy(const void *host, size_t bytes);
/* Host memory until the next case_begin, zeroed. The reference's buffers are such. */
void *plain(size_t bytes);
/* n normal numbers in such memory. */
float *plain_floats(size_t n);
/* A host copy of device memory; waits. Until the next case_begin. */
void *from_device(const void *device, size_t bytes);

/* ---- sequences over pages (scene.c) ---------------------------------------------------------- */

/* One layer group with sequences whose pages lie in random order in the arena. */
struct scene_seq {
    uint32_t length;     /* tokens that pages hold after the step */
    uint32_t rows;       /* of the step: positions [length - rows, length) */
    uint32_t keep, span; /* visibility */
    uint32_t switch_at;  /* pages before this one have layouts[0], the others layouts[1] */
};
enum { SCENE_LAYOUTS = 4 }; /* layouts[2 + i]: of the shadows of layouts[i] */
struct scene {
    struct page_layout layouts[SCENE_LAYOUTS];
    const struct key_basis *basis; /* of balanced keys, or NULL */
    uint32_t heads, kv_heads, head_dim, layers;
    bool softcap_or_sinks; /* that attention is called with */
    uint32_t n_seqs;
    struct scene_seq *seqs;
    uint32_t tail_pages; /* of the exact tail (struct kv_view) */
    bool turned_start;   /* layouts[0], which is exact, is in the basis of layouts[1] */
    /* made by scene_plan */
    size_t arena_bytes;
    uint8_t *image; /* what the arena holds, if the scene is small enough to be checked */
    struct place *places;
    uint32_t n_pages;
    struct kv_page *pages;   /* [n_seqs][max_pages] */
    struct kv_page *shadows; /* [n_seqs][max_pages] */
    uint32_t max_pages;
    struct batch batch;
    /* made by scene_attach */
    struct backend_arena *arena, *reference_arena;
    struct kv_view *views;           /* [n_seqs] what the device sees; batch.views */
    struct kv_view *reference_views; /* [n_seqs] the same over the reference's arena */
};
/* Formats that are encoded when a page is full. */
static inline struct kv_format rotated_format(uint8_t bits) {
    return (struct kv_format){bits, SCALAR_F16, 64, KV_ROTATED};
}
static inline struct kv_format tile_format(uint8_t bits) {
    return (struct kv_format){bits, SCALAR_F16, 0, KV_TILE};
}

/* Takes layouts, heads, kv_heads, head_dim, layers, n_seqs, seqs and the next two; makes the rest
 * but for the arenas and the layouts of shadows. A layouts[1] with page_bytes 0 becomes a copy of
 * layouts[0]. If `checked`, tokens below length hold random values, encoded by the definition in
 * quant/, and slots after them, gaps between pages and the ends of pages hold garbage: random
 * codes, NaN, infinities. If not, all slots hold random codes and plausible scales: a few pages
 * made by scene_attach, copied over the arena in random order.
 *
 * Of formats that are encoded when a page is full, pages that the step's rows are stored into and
 * those of its exact tail have shadows, with values of their own: a kernel that reads one for the
 * other shows.
 *
 * Pages that no row sees are dropped from the tables, as cache/ would. */
void scene_plan(struct scene *s, bool checked);
/* Before it: sets the bases of layouts that are encoded when a page is full. balanced: those of
 * tile formats get random matrices, which last until the next case. */
void scene_set_bases(struct scene *s, bool balanced);
/* Gives heads up to per_head of so many rotary pairs a centre: the first has all, the second none.
 * After scene_build. */
void scene_set_centre(struct scene *s, uint32_t pairs, uint32_t per_head);
/* What a step of the scene needs; one layer group. */
struct backend_limits scene_limits(const struct scene *s);
/* Arenas on device and reference, with the scene's pages; no step begins. The device is one whose
 * limits hold the scene. */
void scene_attach(struct scene *s);
/* The arena's bytes as scene_attach left them. */
void scene_reset(const struct scene *s);
void scene_detach(struct scene *s);
/* scene_plan, device_begin for this scene alone, scene_attach. */
void scene_build(struct scene *s, bool checked);
void scene_free(struct scene *s); /* detaches, too */
/* The batch, over the reference's views. */
struct batch scene_reference_batch(const struct scene *s);
/* Page `number` of sequence s as position p sees it. */
const struct kv_page *scene_page_seen(const struct scene *c, uint32_t s, uint32_t number,
                                      uint32_t p);
/* Rows [first, first + rows) of sequence s as a batch of its own, without tokens. */
struct batch scene_part(const struct scene *c, uint32_t s, uint32_t first, uint32_t rows,
                        struct batch_seq *seq);

#endif
