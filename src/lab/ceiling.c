/* SPDX-License-Identifier: Apache-2.0 */
/* ceiling.c: what the machine can do at most: bytes that threads read from memory, and
 * multiply-adds of a CPU tier's fastest instruction.
 *
 *     read       a block several times the size of the last cache, in huge pages where the system
 *                allows it; each thread sums stretches of its own
 *     multiply   instructions on registers: sums that do not depend on each other, as many as the
 *                instruction's latency needs
 *
 *     tier          8-bit codes                                        floats
 *     avx2          vpmaddubsw, vpaddw: 32 (as the products of that    vfmadd: 8
 *                   tier have them)
 *     avx512        the same: 64                                       16
 *     avx512vnni    vpdpbusd: 64                                       16
 *     amx           tdpbssd of whole tiles: 16,384                     16
 *     neon          smlal, smlal2: 16                                  fmla: 4
 *     neondot       sdot: 16                                           4
 *
 * The best of three passes counts. All passes take some tens of milliseconds: long enough that a
 * thread which starts late does not matter, short enough to be measured again beside every run.
 * Attention multiplies words in some tiers, which is half as fast: it cannot reach this peak. On
 * amx products cannot either: floats after each 32 inputs take longer than the tiles.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lab/lab.h"
#include "util/util.h"

#define BLOCK_BYTES_USUAL ((size_t)256 << 20) /* if nobody says how large the cache is */
#define BLOCK_BYTES_MAX   ((size_t)4 << 30)
enum { STRETCH_BYTES = 1 << 20, CACHES = 4, PASSES = 3, BLOCKS = 1 << 12, ITEMS_A_THREAD = 16 };

/* Runs so many blocks; how many multiply-adds that were. */
typedef double multiply_fn(uint32_t blocks);

struct lab_ceiling {
    struct thread_pool *pool;
    int threads;
    multiply_fn *multiply; /* NULL: not known */
    bool wide_loads;
    uint8_t *block; /* [bytes] */
    size_t bytes;
    uint64_t *sums;  /* [threads * SUM_STRIDE] so that nothing is left out */
    double *results; /* likewise */
};
enum { SUM_STRIDE = 8 }; /* a cache line */

/* Others can only slow a pass down. */
static double best_of(lab_ceiling *c, double (*once)(lab_ceiling *c)) {
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        const double speed = once(c);
        best = speed > best ? speed : best;
    }
    ASSERT(best > 0);
    return best;
}

/* ---- multiply -------------------------------------------------------------------------------- */

/* Blocks of assembly: compilers keep an array of sums in memory, or see that nothing changes. All
 * registers are zeros, so nothing overflows. */
#define REPEATS    32
#define TEXT_OF(x) #x
#define REPEAT(n)  ".rept " TEXT_OF(n) "\n"
#define TWELVE(op, end, r)                                                                         \
    op("0", "1", "2", r, end) op("0", "1", "3", r, end) op("0", "1", "4", r, end)                  \
        op("0", "1", "5", r, end) op("0", "1", "6", r, end) op("0", "1", "7", r, end)              \
            op("0", "1", "8", r, end) op("0", "1", "9", r, end) op("0", "1", "10", r, end)         \
                op("0", "1", "11", r, end) op("0", "1", "12", r, end) op("0", "1", "13", r, end)

#if defined(__x86_64__)
#define THREE(a, b, c, r, name) name " %%" r a ",%%" r b ",%%" r c "\n"
/* Products go to a register of their own, then to a sum: six of each. */
#define PAIR(product, sum, r)                                                                      \
    "vpmaddubsw %%" r "0,%%" r "1,%%" r product "\nvpaddw %%" r product ",%%" r sum ",%%" r sum "\n"
#define SIX_PAIRS(r)                                                                               \
    PAIR("2", "8", r)                                                                              \
    PAIR("3", "9", r) PAIR("4", "10", r) PAIR("5", "11", r) PAIR("6", "12", r) PAIR("7", "13", r)
#define SAME(a, b, c, r, name) "vpxor %%xmm" c ",%%xmm" c ",%%xmm" c "\n"
#define BLOCK(body)                                                                                \
    __asm__ volatile("vpxor %%xmm0,%%xmm0,%%xmm0\nvpxor %%xmm1,%%xmm1,%%xmm1\n" TWELVE(            \
                         SAME, "", "") REPEAT(REPEATS) body ".endr\nvzeroupper\n" ::               \
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
                           "xmm9", "xmm10", "xmm11", "xmm12", "xmm13")
#define MULTIPLY(name, body, each)                                                                 \
    static double name(uint32_t blocks) {                                                          \
        for (uint32_t i = 0; i < blocks; i++)                                                      \
            BLOCK(body);                                                                           \
        return (double)(each)*REPEATS * blocks;                                                    \
    }
MULTIPLY(codes_avx2, SIX_PAIRS("ymm"), 6 * 32)
MULTIPLY(floats_avx2, TWELVE(THREE, "vfmadd231ps", "ymm"), 12 * 8)
MULTIPLY(codes_avx512, SIX_PAIRS("zmm"), 6 * 64)
MULTIPLY(codes_vnni, TWELVE(THREE, "vpdpbusd", "zmm"), 12 * 64)
MULTIPLY(floats_avx512, TWELVE(THREE, "vfmadd231ps", "zmm"), 12 * 16)

/* Four tiles of sums; tiles 6 and 7 are multiplied. */
static double codes_amx(uint32_t blocks) {
    enum { ROWS = 16, BYTES = 64, TILES = 8, SUMS = 4 };
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1};
    for (int t = 0; t < TILES; t++)
        shapes.rows[t] = ROWS, shapes.bytes[t] = BYTES;
    __asm__ volatile("ldtilecfg %0\ntilezero %%tmm6\ntilezero %%tmm7\n" ::"m"(shapes));
    for (uint32_t i = 0; i < blocks; i++)
        __asm__ volatile(REPEAT(REPEATS) "tdpbssd %%tmm7,%%tmm6,%%tmm0\ntdpbssd %%tmm7,%%tmm6,"
                                         "%%tmm1\ntdpbssd %%tmm7,%%tmm6,%%tmm2\n"
                                         "tdpbssd %%tmm7,%%tmm6,%%tmm3\n.endr\n" ::);
    __asm__ volatile("tilerelease" ::);
    return (double)ROWS * ROWS * BYTES * SUMS * REPEATS * blocks;
}

static multiply_fn *multiply_of(enum cpu_tier tier, bool floats) {
    switch (tier) {
    case CPU_TIER_AVX2:
        return floats ? floats_avx2 : codes_avx2;
    case CPU_TIER_AVX512:
        return floats ? floats_avx512 : codes_avx512;
    case CPU_TIER_AVX512VNNI:
        return floats ? floats_avx512 : codes_vnni;
    case CPU_TIER_AMX:
        return floats ? floats_avx512 : codes_amx;
    default:
        return NULL;
    }
}
#elif defined(__aarch64__)
#define WORDS(a, b, c, r, name)                                                                    \
    "smlal v" c ".8h, v" a ".8b, v" b ".8b\nsmlal2 v" c ".8h, v" a ".16b, v" b ".16b\n"
#define DOT(a, b, c, r, name)    "sdot v" c ".4s, v" a ".16b, v" b ".16b\n"
#define FLOATS(a, b, c, r, name) "fmla v" c ".4s, v" a ".4s, v" b ".4s\n"
#define SAME(a, b, c, r, name)   "movi v" c ".4s, #0\n"
#define BLOCK(body)                                                                                \
    __asm__ volatile("movi v0.4s, #0\nmovi v1.4s, #0\n" TWELVE(SAME, "", "") REPEAT(REPEATS) body  \
                     ".endr\n" ::                                                                  \
                         : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10",      \
                           "v11", "v12", "v13")
#define MULTIPLY(name, body, each)                                                                 \
    static double name(uint32_t blocks) {                                                          \
        for (uint32_t i = 0; i < blocks; i++)                                                      \
            BLOCK(body);                                                                           \
        return (double)(each)*REPEATS * blocks;                                                    \
    }
MULTIPLY(codes_neon, TWELVE(WORDS, "", ""), 12 * 16)
__attribute__((target("arch=armv8.2-a+dotprod"))) MULTIPLY(codes_dot, TWELVE(DOT, "", ""), 12 * 16)
    MULTIPLY(floats_neon, TWELVE(FLOATS, "", ""), 12 * 4)

        static multiply_fn *multiply_of(enum cpu_tier tier, bool floats) {
    if (tier != CPU_TIER_NEON && tier != CPU_TIER_NEONDOT)
        return NULL;
    return floats ? floats_neon : tier == CPU_TIER_NEONDOT ? codes_dot : codes_neon;
}
#else
static multiply_fn *multiply_of(enum cpu_tier tier, bool floats) {
    (void)tier;
    (void)floats;
    return NULL;
}
#endif

static void multiply_item(void *user, size_t item, int worker) {
    lab_ceiling *c = user;
    (void)item;
    c->results[worker * SUM_STRIDE] += c->multiply(BLOCKS);
}

static double multiply_once(lab_ceiling *c) {
    memset(c->results, 0, (size_t)c->threads * SUM_STRIDE * sizeof *c->results);
    const double start = clock_seconds();
    thread_pool_run(c->pool, (size_t)c->threads * ITEMS_A_THREAD, multiply_item, c);
    const double seconds = clock_seconds() - start;
    double all = 0;
    for (int i = 0; i < c->threads; i++)
        all += c->results[i * SUM_STRIDE];
    return all / seconds;
}

double lab_ceiling_multiply(lab_ceiling *c) {
    return c->multiply ? best_of(c, multiply_once) : 0;
}

/* ---- read ------------------------------------------------------------------------------------ */

/* Loads of 32 bytes: on some machines those of 16 reach two thirds of the bandwidth. */
typedef uint64_t wide __attribute__((vector_size(32)));
#if defined(__x86_64__)
#define WIDE_LOADS __attribute__((target("avx2")))
#else
#define WIDE_LOADS
#endif

WIDE_LOADS static uint64_t sum_wide(const wide *p, size_t n) {
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < n; i += 4) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
    }
    a += b + c + d;
    return a[0] + a[1] + a[2] + a[3];
}

static uint64_t sum_words(const uint64_t *p, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += p[i];
    return sum;
}

static void read_item(void *user, size_t item, int worker) {
    lab_ceiling *c = user;
    const void *p = c->block + item * STRETCH_BYTES;
    ASSERT((item + 1) * STRETCH_BYTES <= c->bytes);
    c->sums[worker * SUM_STRIDE] += c->wide_loads ? sum_wide(p, STRETCH_BYTES / sizeof(wide))
                                                  : sum_words(p, STRETCH_BYTES / sizeof(uint64_t));
}

static double read_once(lab_ceiling *c) {
    const double start = clock_seconds();
    thread_pool_run(c->pool, c->bytes / STRETCH_BYTES, read_item, c);
    return (double)c->bytes / (clock_seconds() - start);
}

double lab_ceiling_read(lab_ceiling *c) {
    return best_of(c, read_once);
}

static void write_item(void *user, size_t item, int worker) {
    lab_ceiling *c = user;
    (void)worker;
    memset(c->block + item * STRETCH_BYTES, 1, STRETCH_BYTES);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Several times the last cache, as far as the free memory allows. */
static size_t block_bytes(void) {
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = cache > 0 ? (size_t)cache * CACHES : BLOCK_BYTES_USUAL;
    bytes = bytes > BLOCK_BYTES_MAX ? BLOCK_BYTES_MAX : bytes;
    const uint64_t available = memory_available_bytes() / CACHES;
    bytes = available && available < bytes ? (size_t)available : bytes;
    return round_up(bytes, STRETCH_BYTES);
}

static enum cpu_tier tier_named(const char *name) {
    int tier = 0;
    while (tier < CPU_TIER_COUNT && strcmp(cpu_tier_name((enum cpu_tier)tier), name) != 0)
        tier++;
    return (enum cpu_tier)tier;
}

kvasir_status lab_ceiling_create(int threads, const char *tier, bool floats, lab_ceiling **out,
                                 kvasir_error *err) {
    ASSERT(threads > 0);
    lab_ceiling *c = mem_calloc(1, sizeof *c);
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory");
    c->threads = threads;
    c->multiply = multiply_of(tier_named(tier), floats);
    c->wide_loads = cpu_tier_have(CPU_TIER_AVX2) || cpu_tier_have(CPU_TIER_NEON);
    c->bytes = block_bytes();
    c->sums = mem_calloc((size_t)threads * SUM_STRIDE, sizeof *c->sums);
    c->results = mem_calloc((size_t)threads * SUM_STRIDE, sizeof *c->results);
    void *block = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    c->block = block == MAP_FAILED ? NULL : block;
    kvasir_status status =
        c->sums && c->results && c->block
            ? thread_pool_create(&c->pool, threads, err)
            : fail(err, KVASIR_ERR_MEMORY, "out of memory: measuring bandwidth reads %zu MiB",
                   c->bytes >> 20);
    if (status != KVASIR_OK) {
        lab_ceiling_destroy(c);
        return status;
    }
    (void)madvise(c->block, c->bytes, MADV_HUGEPAGE);
    thread_pool_run(c->pool, c->bytes / STRETCH_BYTES, write_item, c);
    *out = c;
    return KVASIR_OK;
}

void lab_ceiling_destroy(lab_ceiling *c) {
    if (!c)
        return;
    thread_pool_destroy(c->pool);
    if (c->block)
        munmap(c->block, c->bytes);
    mem_free(c->sums);
    mem_free(c->results);
    mem_free(c);
}
