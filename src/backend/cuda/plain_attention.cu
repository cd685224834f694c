// SPDX-License-Identifier: Apache-2.0
// plain_attention.cu: attention of the rows that the fast kernels do not take (step.cu, STEP-6):
// any page format and head size, centred keys, soft caps, sinks. Correct before fast.
//
// A block is (some tokens of one sequence, KV head): its columns are (token, query head of the
// group), up to 16. It goes over the tiles that some column sees, 64 dims at a time, which all its
// threads decode into shared memory once for all columns:
//
//     K chunk [dim][token]  --> scores of (token, four columns), a thread's
//                                     | a warp per column: maximum, weights, sum
//     V chunk [token][dim]  --> outputs of (dim of each chunk, four columns), a thread's registers
//
// and either walks all super-runs of its tokens or has one of them (plain_item.super); then the
// block of a (tokens, KV head) that arrives last merges the parts. The arithmetic, all in float32:
//
//   tile     values as tile_decode_row gives them
//   score    x = q * scale; dot: one chain of fma over dims in order; of a centred page then over
//            its pairs in order, A cos + B sin (centre.cuh); soft cap; * log2 e
//   tile     M' = max(M, largest score of the tile that the row sees); everything so far
//            *= 2^(M - M'); p = 2^(score - M')
//              sum      tokens t and t + 32, then a tree over lanes
//              output   one chain of fma over tokens in order; those with p = 0 are left out
//   super    2,048 tokens at an absolute multiple: its tiles in order, from M = -inf and zeros
//   row      its supers merged in order (fold of arithmetic.cuh), then the sink, / sum
//
// So a column's bits depend on its row alone: what a column does not see changes nothing of it, not
// even the sign of a zero. All of this assumes finite K and V in the slots that were written.
#include "backend/cuda/arithmetic.cuh"
#include "backend/cuda/basis.cuh"
#include "backend/cuda/centre.cuh"
#include "backend/cuda/plain.cuh"

namespace {

enum {
    THREADS = 256,
    COLUMNS = PLAIN_COLUMNS,
    FOURS = COLUMNS / 4, // of columns; a thread has one
    CHUNK = 64,          // dims
    PITCH = COLUMNS + 4, // of a row of columns: 16-byte loads, few conflicts
    PAIRS = CHUNK / 2,   // pairs of a centre in a chunk
};
static_assert(CHUNK * FOURS == THREADS && TILE_TOKENS == (int)CHUNK,
              "a thread has a token, or a dim");

struct PlainArgs {
    dev_centre centre;
    const float *q;     // [row][head][dim], in the pass's basis
    const float *plain; // the same in the plain one: centres are
    const float *sinks; // [head] or NULL
    float *out;
    float2 *ms;                 // [row][head]; NULL: not wanted (attention_pass)
    float scale, softcap, back; // back: factor of H, which outputs are rotated by; 0: they are not
    uint32_t basis, layer, heads, gqa, kv_heads, dim;
    float *part_out;   // [item][kv head][column][dim]
    float2 *part_ms;   // [item][kv head][column] maximum, sum
    uint32_t *arrived; // [first item of the tokens][kv head]
};

struct Shared {
    alignas(16) float tile[CHUNK * TILE_TOKENS];   // K: [dim][token]; V: [token][dim]
    alignas(16) float query[CHUNK * PITCH];        // [dim][column]
    alignas(16) float scores[TILE_TOKENS * PITCH]; // [token][column], then weights
    float2 turn[PAIRS];
    float max[COLUMNS], sum[COLUMNS], alpha[COLUMNS]; // of the super-run
    float row_max[COLUMNS], row_sum[COLUMNS];
    FoldFactors factors[COLUMNS];
    bool last;
};

// What a block works on.
struct Work {
    const plain_item &item;
    const dev_view &view;
    uint32_t kv, row, pos; // row, pos: of its first token
    uint32_t last, columns;
};

// What a thread has of the block's outputs: dim x of each chunk, four columns.
template <int CHUNKS> using Outputs = float[CHUNKS][4];

__device__ __forceinline__ uint32_t own_x() {
    return threadIdx.x % CHUNK;
}
__device__ __forceinline__ uint32_t own_column() { // the first of four
    return threadIdx.x / CHUNK * 4;
}

// Where the query, or the output, of a column begins.
__device__ __forceinline__ size_t column_at(const PlainArgs &a, const Work &w, uint32_t column) {
    return ((size_t)(w.row + column / a.gqa) * a.heads + w.kv * a.gqa + column % a.gqa) * a.dim;
}

// ---- scores ----------------------------------------------------------------------------------

// scores += the chunk's n dims.
__device__ __forceinline__ void add_dots(const Shared &sh, const Work &w, uint32_t n,
                                         float (&s)[4]) {
    const uint32_t token = own_x(), column = own_column();
    if (column >= w.columns)
        return;
    for (uint32_t d = 0; d < n; d++) {
        const float k = sh.tile[d * TILE_TOKENS + token];
        const float4 q = *(const float4 *)&sh.query[d * PITCH + column];
        s[0] = fmaf(q.x, k, s[0]);
        s[1] = fmaf(q.y, k, s[1]);
        s[2] = fmaf(q.z, k, s[2]);
        s[3] = fmaf(q.w, k, s[3]);
    }
}

__device__ __forceinline__ void score_dims(const PlainArgs &a, const Work &w, const uint8_t *tile,
                                           const kv_format &format, Shared &sh, float (&s)[4]) {
    const uint32_t fours = (w.columns + 3) / 4 * 4;
    for (uint32_t d0 = 0; d0 < a.dim; d0 += CHUNK) {
        const uint32_t n = min((uint32_t)CHUNK, a.dim - d0);
        __syncthreads(); // the last chunk was read
        for (uint32_t i = threadIdx.x; i < n / 4 * TILE_TOKENS; i += THREADS) {
            const uint32_t token = i % TILE_TOKENS, row = i / TILE_TOKENS;
            const float4 k = read_four<TILE_K>(tile, format, a.dim, d0 / 4 + row, token);
            float *to = &sh.tile[row * 4 * TILE_TOKENS + token];
            to[0] = k.x;
            to[TILE_TOKENS] = k.y;
            to[2 * TILE_TOKENS] = k.z;
            to[3 * TILE_TOKENS] = k.w;
        }
        for (uint32_t i = threadIdx.x; i < n * fours; i += THREADS) {
            const uint32_t d = i % n, column = i / n;
            sh.query[d * PITCH + column] =
                column < w.columns ? a.q[column_at(a, w, column) + d0 + d] * a.scale : 0.f;
        }
        __syncthreads();
        add_dots(sh, w, n, s);
    }
}

// scores += q . rope(c, t): the pairs' A and B, turned to the tile's middle, times its waves.
__device__ __forceinline__ void score_centre(const PlainArgs &a, const Work &w, uint32_t number,
                                             Shared &sh, float (&s)[4]) {
    const CentrePairs all = pairs_of(a.centre, a.layer, a.kv_heads, w.kv);
    for (uint32_t first = 0; first < all.count; first += PAIRS) {
        const uint32_t n = min((uint32_t)PAIRS, all.count - first);
        const centre_pair *pairs = all.pairs + first;
        __syncthreads(); // the last chunk was read
        if (threadIdx.x < n)
            sh.turn[threadIdx.x] = centre_turn(a.centre, number, pairs[threadIdx.x].pair);
        for (uint32_t i = threadIdx.x; i < n * 2 * TILE_TOKENS; i += THREADS)
            sh.tile[i] =
                a.centre.waves[(size_t)pairs[i / (2 * TILE_TOKENS)].pair * 2 * TILE_TOKENS +
                               i % (2 * TILE_TOKENS)];
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n * COLUMNS; i += THREADS) {
            const uint32_t column = i % COLUMNS;
            const centre_pair c = pairs[i / COLUMNS];
            const float2 turn = sh.turn[i / COLUMNS];
            float2 parts = make_float2(0, 0);
            if (column < w.columns)
                parts = centre_parts(a.centre, c, a.plain + column_at(a, w, column), a.scale);
            const float2 ab = centre_turned(parts, turn);
            float *to = &sh.query[i / COLUMNS * 2 * PITCH + column];
            to[0] = ab.x;
            to[PITCH] = ab.y;
        }
        __syncthreads();
        add_dots(sh, w, 2 * n, s);
    }
}

// ---- weights ---------------------------------------------------------------------------------

// Scores become weights, one warp a column. first: the tile's first token.
__device__ __forceinline__ void weigh(const PlainArgs &a, const Work &w, uint32_t first,
                                      Shared &sh) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t column = threadIdx.x / 32; column < w.columns; column += THREADS / 32) {
        const uint32_t p = w.pos + column / a.gqa;
        const uint64_t seen = first <= p ? seen_of_tile(w.view, p, first) : 0;
        float *low = &sh.scores[lane * PITCH + column], *high = low + 32 * PITCH;
        const float x = seen >> lane & 1 ? *low : MINUS_INF,
                    y = seen >> (lane + 32) & 1 ? *high : MINUS_INF;
        const float m = warp_max(fmaxf(x, y));
        const float old = sh.max[column], top = fmaxf(old, m), base = finite_max(top);
        const float wx = exp2_fast(x - base), wy = exp2_fast(y - base);
        const float sum = warp_sum(wx + wy);
        *low = wx;
        *high = wy;
        __syncwarp(); // all lanes have read the maximum
        if (lane == 0) {
            const float alpha = old == top ? 1.f : exp2_fast(old - base);
            sh.alpha[column] = alpha;
            sh.sum[column] = sh.sum[column] * alpha + sum;
            sh.max[column] = top;
        }
    }
}

// ---- values ----------------------------------------------------------------------------------

// A dim of the chunk; slots that no row sees may hold anything.
__device__ __forceinline__ void add_chunk(const Shared &sh, uint32_t x, uint32_t column,
                                          float (&out)[4]) {
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        const float v = sh.tile[t * CHUNK + x];
        const float4 p = *(const float4 *)&sh.scores[t * PITCH + column];
        out[0] = p.x != 0 ? fmaf(p.x, v, out[0]) : out[0];
        out[1] = p.y != 0 ? fmaf(p.y, v, out[1]) : out[1];
        out[2] = p.z != 0 ? fmaf(p.z, v, out[2]) : out[2];
        out[3] = p.w != 0 ? fmaf(p.w, v, out[3]) : out[3];
    }
}

template <int CHUNKS>
__device__ __forceinline__ void add_values(const PlainArgs &a, const Work &w, const uint8_t *tile,
                                           const kv_format &format, Shared &sh,
                                           Outputs<CHUNKS> &out) {
    const uint32_t x = own_x(), column = own_column();
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
        const uint32_t d0 = j * CHUNK;
        if (d0 >= a.dim) // the same for all threads
            break;
        const uint32_t n = min((uint32_t)CHUNK, a.dim - d0);
        __syncthreads(); // the last chunk was read
        for (uint32_t i = threadIdx.x; i < TILE_TOKENS / 4 * CHUNK; i += THREADS) {
            const uint32_t d = i % CHUNK, row = i / CHUNK;
            if (d >= n)
                continue;
            const float4 v = read_four<TILE_V>(tile, format, a.dim, row, d0 + d);
            float *to = &sh.tile[row * 4 * CHUNK + d];
            to[0] = v.x;
            to[CHUNK] = v.y;
            to[2 * CHUNK] = v.z;
            to[3 * CHUNK] = v.w;
        }
        __syncthreads();
        if (x < n && column < w.columns)
            add_chunk(sh, x, column, out[j]);
    }
}

// ---- a tile, a super-run ---------------------------------------------------------------------

template <int CHUNKS>
__device__ __forceinline__ void attend_tile(const PlainArgs &a, const Work &w, uint32_t number,
                                            const uint8_t *page, const dev_layout &l, Shared &sh,
                                            Outputs<CHUNKS> &out) {
    const uint32_t token = own_x(), column = own_column();
    float s[4] = {0, 0, 0, 0};
    score_dims(a, w, tile_of(page, l, a.layer, w.kv, TILE_K), l.k_stored, sh, s);
    if (l.centred)
        score_centre(a, w, number, sh, s);
    if (column < w.columns) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = (a.softcap > 0 ? a.softcap * tanhf(s[i] / a.softcap) : s[i]) * LOG2E;
        *(float4 *)&sh.scores[token * PITCH + column] = make_float4(s[0], s[1], s[2], s[3]);
    }
    __syncthreads();
    weigh(a, w, number * TILE_TOKENS, sh);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[j][i] *= sh.alpha[column + i];
    add_values<CHUNKS>(a, w, tile_of(page, l, a.layer, w.kv, TILE_V), l.v_stored, sh, out);
}

// out: from zeros; maxima and sums to sh.
template <int CHUNKS>
__device__ __forceinline__ void attend_super(const step_group &g, const PlainArgs &a, const Work &w,
                                             uint32_t super, Shared &sh, Outputs<CHUNKS> &out) {
    const uint32_t window = kv_window_start(w.view.span, w.pos),
                   begin = super * (SUPER / TILE_TOKENS),
                   end = min(begin + SUPER / TILE_TOKENS, w.last / TILE_TOKENS + 1);
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[j][i] = 0;
    __syncthreads(); // those of the last super-run were read
    if (threadIdx.x < COLUMNS) {
        sh.max[threadIdx.x] = MINUS_INF;
        sh.sum[threadIdx.x] = 0;
        sh.alpha[threadIdx.x] = 1; // also of columns that there are not
    }
    for (uint32_t number = begin; number < end; number++) {
        const uint32_t first = number * TILE_TOKENS;
        if (first >= w.view.keep && first + TILE_TOKENS <= window)
            continue;
        uint32_t layout = 0;
        const uint8_t *page = page_seen(g, w.view, number, w.pos, &layout);
        if (page && g.layouts[layout].basis == a.basis)
            attend_tile<CHUNKS>(a, w, number, page, g.layouts[layout], sh, out);
    }
    __syncthreads();
}

// ---- merging ---------------------------------------------------------------------------------

// A part with maxima and sums ms(column) joins what the row has so far.
template <int CHUNKS, class Fn>
__device__ __forceinline__ void fold_part(Shared &sh, const Outputs<CHUNKS> &part,
                                          Outputs<CHUNKS> &all, Fn ms) {
    __syncthreads(); // the last part's factors were read
    if (threadIdx.x < COLUMNS) {
        const float2 part_ms = ms(threadIdx.x);
        const FoldFactors f = fold_factors(sh.row_max[threadIdx.x], part_ms.x);
        sh.row_sum[threadIdx.x] = fold(f, sh.row_sum[threadIdx.x], part_ms.y);
        sh.factors[threadIdx.x] = f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const FoldFactors f = sh.factors[own_column() + i];
#pragma unroll
        for (int j = 0; j < CHUNKS; j++)
            all[j][i] = fold(f, all[j][i], part[j][i]);
    }
}

// fn(value, column, dim) for what this thread has.
template <int CHUNKS, class Fn>
__device__ __forceinline__ void for_own(const PlainArgs &a, const Work &w, Outputs<CHUNKS> &x,
                                        Fn fn) {
#pragma unroll
    for (int j = 0; j < CHUNKS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t column = own_column() + i, d = j * CHUNK + own_x();
            if (column < w.columns && d < a.dim)
                fn(x[j][i], column, d);
        }
}

__device__ __forceinline__ size_t part_of(const PlainArgs &a, uint32_t item, uint32_t kv,
                                          uint32_t column) {
    return ((size_t)item * a.kv_heads + kv) * COLUMNS + column;
}

// Leaves the part of item `index`. True: it was the last one of its tokens.
template <int CHUNKS>
__device__ __forceinline__ bool leave_part(const PlainArgs &a, const Work &w, uint32_t index,
                                           Shared &sh, Outputs<CHUNKS> &out) {
    for_own<CHUNKS>(a, w, out, [&](float x, uint32_t column, uint32_t d) {
        a.part_out[part_of(a, index, w.kv, column) * a.dim + d] = x;
    });
    if (threadIdx.x < w.columns)
        a.part_ms[part_of(a, index, w.kv, threadIdx.x)] =
            make_float2(sh.max[threadIdx.x], sh.sum[threadIdx.x]);
    __syncthreads();
    uint32_t *arrived = &a.arrived[w.item.part * a.kv_heads + w.kv];
    if (threadIdx.x == 0) {
        __threadfence(); // what the block wrote, too: the barrier was before
        sh.last = atomicAdd(arrived, 1) == w.item.count - 1;
        if (sh.last)
            *arrived = 0; // for the next layer
    }
    __syncthreads();
    if (sh.last)
        __threadfence();
    return sh.last;
}

template <int CHUNKS>
__device__ __forceinline__ void merge_parts(const PlainArgs &a, const Work &w, Shared &sh,
                                            Outputs<CHUNKS> &all) {
    for (uint32_t i = w.item.part; i < w.item.part + w.item.count; i++) {
        Outputs<CHUNKS> part = {};
        for_own<CHUNKS>(a, w, part, [&](float &x, uint32_t column, uint32_t d) {
            x = __ldcg(&a.part_out[part_of(a, i, w.kv, column) * a.dim + d]);
        });
        fold_part<CHUNKS>(sh, part, all, [&](uint32_t column) {
            return column < w.columns ? __ldcg(&a.part_ms[part_of(a, i, w.kv, column)])
                                      : make_float2(MINUS_INF, 0);
        });
    }
}

// Outputs to the rows', rotated, by way of the tile's memory.
template <int CHUNKS>
__device__ __forceinline__ void rotate_back(const PlainArgs &a, const Work &w, Shared &sh,
                                            Outputs<CHUNKS> &all) {
    const uint32_t room = CHUNK * TILE_TOKENS / a.dim, warp = threadIdx.x / 32;
    for (uint32_t first = 0; first < w.columns; first += room) {
        const uint32_t n = min(room, w.columns - first);
        __syncthreads(); // the last columns were written
        for_own<CHUNKS>(a, w, all, [&](float x, uint32_t column, uint32_t d) {
            if (column >= first && column < first + n)
                sh.tile[(column - first) * a.dim + d] = x;
        });
        __syncthreads();
        for (uint32_t i = warp; i < n; i += THREADS / 32)
            hadamard_row(sh.tile + i * a.dim, a.dim, a.back);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n * a.dim; i += THREADS)
            a.out[column_at(a, w, first + i / a.dim) + i % a.dim] = sh.tile[i];
    }
}

// A sink is one more score, without a value: it adds to the sum, and may be the maximum. It comes
// with the page of the row itself.
template <int CHUNKS>
__device__ __forceinline__ void finish(const step_group &g, const PlainArgs &a, const Work &w,
                                       Shared &sh, Outputs<CHUNKS> &all) {
    uint32_t own = 0;
    (void)page_find(g, w.view, w.pos / TILE_TOKENS, &own);
    const bool sinks = a.sinks && g.layouts[own].basis == a.basis;
    for_own<CHUNKS>(a, w, all, [&](float &x, uint32_t column, uint32_t d) {
        float sum = sh.row_sum[column], scale = 1, max = sh.row_max[column];
        if (sinks) {
            const float sink = a.sinks[w.kv * a.gqa + column % a.gqa] * LOG2E;
            max = fmaxf(max, sink);
            const float base = finite_max(max);
            scale = exp2_fast(sh.row_max[column] - base);
            sum = sum * scale + exp2_fast(sink - base);
        }
        x = x * scale / sum;
        if (a.back == 0)
            a.out[column_at(a, w, column) + d] = x;
        if (a.ms && d == 0)
            a.ms[column_at(a, w, column) / a.dim] = make_float2(max, sum);
    });
    if (a.back != 0)
        rotate_back<CHUNKS>(a, w, sh, all);
}

// ---- the kernel ------------------------------------------------------------------------------

template <int CHUNKS>
__global__ void __launch_bounds__(THREADS, CHUNKS > 4 ? 1 : 2)
    plain(const step_group g, const PlainArgs a) {
    __shared__ Shared sh;
    kernel_begins();
    if (blockIdx.x >= g.counts[COUNT_PLAIN])
        return;
    const plain_item item = g.plain[blockIdx.x];
    const batch_seq seq = g.seqs[item.seq];
    const dev_view view = g.views[item.seq];
    const uint32_t pos = seq.pos + item.first, last = pos + item.tokens - 1;
    const Work w = {item, view, blockIdx.y, seq.row + item.first, pos, last, item.tokens * a.gqa};
    Outputs<CHUNKS> out, all = {};
    if (threadIdx.x < COLUMNS) {
        sh.row_max[threadIdx.x] = MINUS_INF;
        sh.row_sum[threadIdx.x] = 0;
    }
    auto own_part = [&](uint32_t column) { return make_float2(sh.max[column], sh.sum[column]); };
    if (item.super == ALL_SUPERS) {
        // as supers_seen of step.cu
        const uint32_t end = last / SUPER + 1,
                       kept = min(view.keep ? (view.keep - 1) / SUPER + 1 : 0, end),
                       first = max(kept, kv_window_start(view.span, pos) / SUPER);
        for (uint32_t super = kept ? 0 : first; super < end;) {
            attend_super<CHUNKS>(g, a, w, super, sh, out);
            fold_part<CHUNKS>(sh, out, all, own_part);
            super++;
            if (super >= kept && super < first) // between the kept ones and the window
                super = first;
        }
    } else {
        attend_super<CHUNKS>(g, a, w, item.super, sh, out);
        if (item.count == 1)
            fold_part<CHUNKS>(sh, out, all, own_part);
        else if (leave_part<CHUNKS>(a, w, blockIdx.x, sh, out))
            merge_parts<CHUNKS>(a, w, sh, all);
        else
            return;
    }
    finish<CHUNKS>(g, a, w, sh, all);
}

} // namespace

void attention_plain(cuda_backend *b, const attention_op &op, const attention_pass &pass) {
    const auto &shape = b->limits.group[op.group];
    ASSERT(shape.head_dim <= 8 * CHUNK && op.heads / shape.kv_heads <= COLUMNS);
    PlainArgs a = {op.centre, pass.basis == BASIS_PLAIN ? op.q : pass.turned,
                   op.q,      op.sinks,
                   pass.out,  pass.ms};
    a.back = pass.factor;
    a.basis = pass.basis;
    a.scale = op.scale;
    a.softcap = op.softcap;
    a.layer = op.layer;
    a.heads = op.heads;
    a.gqa = op.heads / shape.kv_heads;
    a.kv_heads = shape.kv_heads;
    a.dim = shape.head_dim;
    a.part_out = b->part_out;
    a.part_ms = b->part_ms;
    a.arrived = b->arrived;
    const uint32_t chunks = (shape.head_dim + CHUNK - 1) / CHUNK;
    void (*kernel)(step_group, PlainArgs) = chunks <= 1   ? plain<1>
                                            : chunks <= 2 ? plain<2>
                                            : chunks <= 4 ? plain<4>
                                                          : plain<8>;
    cuda_ok(b, launch_early(b, kernel, dim3(b->plan[op.group].blocks[COUNT_PLAIN], shape.kv_heads),
                            THREADS, 0, b->group[op.group], a));
}
