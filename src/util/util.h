/* SPDX-License-Identifier: Apache-2.0 */
/* util/: what every folder uses. Status and errors, memory, files, clock, threads, CPU features and
 * machine limits, and the few functions of libm that we do not take from libm.
 *
 * This is the only folder (beside cli/) that may print, read the environment or touch malloc. It
 * knows nothing of models or caches. All functions are safe to call from any thread unless they say
 * otherwise.
 */
#ifndef KVASIR_UTIL_H
#define KVASIR_UTIL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvasir_status.h" /* the status enum and kvasir_error are public */
#include "util/assert.h"

/* ---- status and errors (error.c) ------------------------------------------------------------- */

/* Forwards a failure: `TRY(f(x));` returns f's status from the current function unless it is
 * KVASIR_OK. Functions that own something use TRY_GOTO with their one `done:` label and a variable
 * `status`. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        kvasir_status try_status_ = (expr);                                                        \
        if (try_status_ != KVASIR_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)
#define TRY_GOTO(expr)                                                                             \
    do {                                                                                           \
        status = (expr);                                                                           \
        if (status != KVASIR_OK)                                                                   \
            goto done;                                                                             \
    } while (0)

#define MUST_CHECK        __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Fills *err (may be NULL) and returns `code`, so that a failing line reads `return fail(err, CODE,
 * "why %d", x);`. The text is one line without a full stop and names no command-line flag. fail_at
 * adds a byte offset in the current file, fail_field the option at fault (kvasir_error.field). */
kvasir_status fail(kvasir_error *err, kvasir_status code, const char *format, ...)
    PRINTF_LIKE(3, 4);
kvasir_status fail_at(kvasir_error *err, kvasir_status code, int64_t offset, const char *format,
                      ...) PRINTF_LIKE(4, 5);
kvasir_status fail_field(kvasir_error *err, kvasir_status code, const char *field,
                         const char *format, ...) PRINTF_LIKE(4, 5);
/* Makes a failure an error of this option; KVASIR_OK stays as it is. */
kvasir_status fail_of_field(kvasir_status status, kvasir_error *err, const char *field);
/* Puts "prefix: " in front of an error's text (a reader's caller adds the file's name). */
void fail_prefix(kvasir_error *err, const char *prefix);

/* ---- memory (memory.c) ----------------------------------------------------------------------- */

/* malloc family. NULL only if the system refuses; count * size is checked for overflow.
 * mem_free(NULL) is a no-op. */
void *mem_alloc(size_t bytes) MUST_CHECK;
void *mem_calloc(size_t count, size_t size) MUST_CHECK;
void *mem_realloc(void *p, size_t count, size_t size) MUST_CHECK;
/* 64-byte aligned, zeroed; free with mem_free. Up to 64 bytes after the end may be read. */
void *mem_alloc_aligned(size_t bytes) MUST_CHECK;
char *mem_strdup(const char *text) MUST_CHECK;
char *mem_strndup(const char *text, size_t n) MUST_CHECK;
void mem_free(void *p);

/* *out = a * b (a + b); false on overflow. */
static inline bool mul_size(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_size(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}
static inline size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}
static inline uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}
static inline uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}
static inline size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}
static inline size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* `ARRAY_GROW(list, cap, need)` makes room for need items in an array of cap items, which at least
 * doubles; list and cap are variables and change. False if memory ran out: nothing has changed. */
#define ARRAY_GROW(list, cap, need)                                                                \
    ((need) <= (cap) || ({                                                                         \
         size_t array_cap_ = (cap);                                                                \
         void *array_new_ =                                                                        \
             array_grow((list), &array_cap_, (need), (__typeof__(cap))-1, sizeof *(list));         \
         if (array_new_) {                                                                         \
             (list) = array_new_;                                                                  \
             (cap) = (__typeof__(cap))array_cap_;                                                  \
         }                                                                                         \
         array_new_ != NULL;                                                                       \
     }))
void *array_grow(void *list, size_t *cap, size_t need, size_t cap_max, size_t size) MUST_CHECK;

/* A growing byte buffer, NUL-terminated once something was appended. Zero-initialised is empty.
 * Appends return false if memory ran out (the buffer is unchanged). */
struct text_buf {
    char *data;
    size_t len, cap;
};
bool text_append(struct text_buf *b, const void *data, size_t n) MUST_CHECK;
bool text_puts(struct text_buf *b, const char *text) MUST_CHECK;
bool text_printf(struct text_buf *b, const char *format, ...) PRINTF_LIKE(2, 3) MUST_CHECK;
bool text_vprintf(struct text_buf *b, const char *format, va_list args) MUST_CHECK;
/* Makes room for n more bytes and the NUL after them, for callers that write to data + len
 * themselves. */
bool text_reserve(struct text_buf *b, size_t n) MUST_CHECK;
void text_free(struct text_buf *b); /* instead, data may be kept and freed with mem_free */

/* ---- address space for pages (memory.c) ------------------------------------------------------ */

/* Reserves address space; memory is taken when it is touched. mem_touch takes that of a range,
 * whose contents are zero. mem_release gives it back (contents become zero). Sizes and offsets are
 * multiples of 4096. NULL if the system refuses. */
void *mem_reserve(size_t bytes) MUST_CHECK;
void mem_touch(void *at, size_t bytes);
/* Memory for a range without touching its bytes, which others may use meanwhile. */
void mem_populate(void *at, size_t bytes);
void mem_release(void *at, size_t bytes);
void mem_unreserve(void *base, size_t bytes);

/* ---- files (file.c, mapping.c) --------------------------------------------------------------- */

/* A whole regular file mapped read-only. An empty file is an error (KVASIR_ERR_FORMAT), and so is
 * anything but a regular file. May be copied; one copy is closed. */
struct file_map {
    const uint8_t *data;
    size_t size;
    struct mapping *mapping; /* NULL: data was read into memory, or nothing is open */
};
kvasir_status file_map_open(struct file_map *m, const char *path, kvasir_error *err) MUST_CHECK;
/* The same, read into memory instead: what becomes of the file no longer matters. */
kvasir_status file_map_read(struct file_map *m, const char *path, kvasir_error *err) MUST_CHECK;
/* Reads all of it and keeps it in memory (mlock). `path` is for errors. */
kvasir_status file_map_lock(const struct file_map *m, const char *path,
                            kvasir_error *err) MUST_CHECK;
void file_map_close(struct file_map *m);
/* Installs a handler of SIGBUS for the process. From then on a read of a mapped file that cannot be
 * served gives zeros instead of ending the process, and so does all that follows in that mapping.
 * Whoever uses what was read calls file_map_check afterwards. Other faults do what they did. */
void file_map_catch_faults(void);
/* KVASIR_ERR_IO with the offset once a read of the mapping failed, or file_map_verify. */
kvasir_status file_map_check(const struct file_map *m, kvasir_error *err) MUST_CHECK;
/* Whether any mapping ever failed: one load. */
bool file_map_any_fault(void);
/* Compares the file's size and time of change with those at the opening; from a difference on,
 * file_map_check fails. Another file under the same name is no difference: the old one is still
 * mapped. From any thread. */
kvasir_status file_map_verify(const struct file_map *m, kvasir_error *err) MUST_CHECK;
/* What tells a file from every other one, and its content from an earlier one. */
struct file_stamp {
    uint64_t device, inode, size;
    int64_t mtime_ns, ctime_ns; /* since 1970: of its content, of its inode */
};
/* Of the open file, now. False: there is none (file_map_read), or the system does not say. */
bool file_map_stamp(const struct file_map *m, struct file_stamp *out) MUST_CHECK;
/* Advises the system that all of it will be read repeatedly, so that it may use huge pages. Linux
 * does so from 6.16 on (ext4; xfs sooner), for parts that are not in memory yet. */
void file_map_reread(const struct file_map *m);
/* Reads a whole regular file into a fresh NUL-terminated string, *size bytes long. */
kvasir_status file_read_all(const char *path, size_t limit_bytes, char **out, size_t *size,
                            kvasir_error *err) MUST_CHECK;
/* For files that a user names: a regular file or the shell's <(command). FIFOs, devices, sockets
 * and folders are errors, as everywhere. */
kvasir_status file_open_input(const char *path, int *fd, kvasir_error *err) MUST_CHECK;
/* The same, read whole; "-" is standard input. */
kvasir_status file_read_input(const char *path, size_t limit_bytes, char **out, size_t *size,
                              kvasir_error *err) MUST_CHECK;
bool file_is_dir(const char *path);
/* Makes a folder and those above it; what exists is good. */
kvasir_status folder_make_all(const char *path, unsigned mode, kvasir_error *err) MUST_CHECK;
/* Only ENOENT and ENOTDIR mean that there is none: a link in a circle or a folder that may not be
 * searched is an error. */
kvasir_status file_exists(const char *path, bool *exists, kvasir_error *err) MUST_CHECK;

/* ---- files and folders that are complete or not there (write.c) ------------------------------ */

enum { WRITE_PATH_MAX = 4096 };
/* A file under construction inside a folder_writer's folder. */
struct file_writer {
    int fd;
    char path[WRITE_PATH_MAX];
};
kvasir_status file_begin(struct file_writer *w, const char *path, kvasir_error *err) MUST_CHECK;
kvasir_status file_write(struct file_writer *w, const void *data, size_t bytes,
                         kvasir_error *err) MUST_CHECK;
/* Flushed to the disk and closed. */
kvasir_status file_end(struct file_writer *w, kvasir_error *err) MUST_CHECK;
void file_abandon(struct file_writer *w); /* closes it if it is open */

/* A file that appears under its name once it is complete: `out` writes PATH.tmp-N next to it. */
struct file_replacer {
    struct file_writer out;
    char path[WRITE_PATH_MAX];
};
/* owner_only: nobody else may read it. Removes what killed processes left of the same file.
 * abandon does nothing after a commit. */
kvasir_status file_replace_begin(struct file_replacer *r, const char *path, bool owner_only,
                                 kvasir_error *err) MUST_CHECK;
kvasir_status file_replace_commit(struct file_replacer *r, kvasir_error *err) MUST_CHECK;
void file_replace_abandon(struct file_replacer *r);

/* A folder under construction: files are written to tmp, next to path. */
struct folder_writer {
    char path[WRITE_PATH_MAX], tmp[WRITE_PATH_MAX];
};
/* KVASIR_ERR_ARGUMENT if path exists. */
kvasir_status folder_begin(struct folder_writer *w, const char *path, kvasir_error *err) MUST_CHECK;
kvasir_status folder_commit(struct folder_writer *w, kvasir_error *err) MUST_CHECK;
void folder_abandon(struct folder_writer *w); /* nothing after a commit */

/* ---- clock, machine (machine.c) -------------------------------------------------------------- */

double clock_seconds(void); /* monotonic */
/* Memory that is still available: the smaller of MemAvailable and what the cgroup allows. 0 if
 * unknown. */
uint64_t memory_available_bytes(void);
uint64_t memory_machine_bytes(void); /* of the whole machine; 0 if unknown */
uint64_t memory_resident_peak_bytes(void);

/* Instruction-set tiers in rising order per architecture, detected with cpuid and xgetbv (the OS
 * must save the registers), on Arm with getauxval. */
enum cpu_tier {
    CPU_TIER_REF,
    CPU_TIER_AVX2,       /* AVX2, FMA, F16C */
    CPU_TIER_AVX512,     /* AVX-512 F, BW, DQ, VL, CD */
    CPU_TIER_AVX512VNNI, /* and VNNI */
    CPU_TIER_AMX,        /* and AMX with 8-bit integers, which the system has to permit */
    CPU_TIER_NEON,       /* Armv8-A */
    CPU_TIER_NEONDOT,    /* and the dot products of Armv8.2-A */
    CPU_TIER_COUNT
};
bool cpu_tier_have(enum cpu_tier tier); /* this machine and this build have it */
enum cpu_tier cpu_tier_detect(void);    /* the best tier that it runs */
const char *cpu_tier_name(enum cpu_tier tier);
/* The tier, by name, that has the same bits: for "amx" "avx512vnni", otherwise the tier itself.
 * What is stored names this one. */
const char *cpu_tier_of_bits(const char *tier);
const char *cpu_model_name(void);

/* ---- threads (threads.c) --------------------------------------------------------------------- */

/* A pool, created once. thread_pool_run calls fn(ctx, item, worker) for every item in [0, items)
 * exactly once and returns when all are done; the caller works too (worker 0). A worker starts with
 * a range of neighbouring items and then takes what others have left. Which worker gets which item
 * must not matter to the result. No allocation, and no lock while there is work: idle workers spin
 * briefly, then park on a futex. Not re-entrant: one run at a time. */
struct thread_pool;
typedef void thread_fn(void *ctx, size_t item, int worker);
kvasir_status thread_pool_create(struct thread_pool **out, int threads,
                                 kvasir_error *err) MUST_CHECK;
void thread_pool_destroy(struct thread_pool *pool);
void thread_pool_run(struct thread_pool *pool, size_t items, thread_fn *fn, void *ctx);

/* ---- elementary functions that are the same on every machine (math.c) ------------------------ */

/* libm's exp, sin, cos ... differ between machines and versions; the bits of these do not (no FMA,
 * no tables of the system). Errors: m_expf < 2 ulp on [-104, 88] (0 below, +inf above); the double
 * functions < 2 ulp, tanh, sigmoid and softplus < 4, m_sincos for |x| < 2^40 (else 0, 1). NaN stays
 * NaN. */
float m_expf(float x);
double m_exp(double x);
void m_exp_each(double *x, size_t n); /* x[i] = m_exp(x[i]), in vectors */
/* The sum of e^((x[i] - max) * scale), x[i] <= max, in vectors of floats: within 1e-6 of it where
 * terms above e^-10 have most of the sum. NaN and what is below e^-87 count as e^-87. */
double m_exp_sum(const float *x, size_t n, float max, float scale);
double m_log(double x);
double m_pow(double base, double exponent); /* base > 0 */
double m_tanh(double x);
double m_sigmoid(double x);  /* 1 / (1 + e^-x) */
double m_softplus(double x); /* ln(1 + e^x) */
void m_sincos(double x, double *sin_out, double *cos_out);
double m_sqrt(double x);

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits in which every
 * output bit depends on every input bit. */
static inline uint64_t mix_bits(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

/* FNV-1a, for ids and seeds that were published with it, and byte by byte; elsewhere hashes are
 * XXH64. */
#define HASH_FNV1A_START 0xcbf29ce484222325ULL
static inline uint64_t hash_fnv1a_more(uint64_t h, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    return h;
}
static inline uint64_t hash_fnv1a(const char *text, size_t len) {
    return hash_fnv1a_more(HASH_FNV1A_START, text, len);
}

#endif
