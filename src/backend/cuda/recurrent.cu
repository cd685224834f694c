// SPDX-License-Identifier: Apache-2.0
// recurrent.cu: short convolutions and the gated delta rule. States are read from the arena, kept
// in registers while the sequence's rows go by in order, and written back in place.
//
//     short_conv    a thread for each (sequence, channel). It holds the last inputs and loads
//                   eight rows ahead; y may be x, since nobody else reads its channel
//
//         taps     | 0 ... 0 | w[0] ... w[width - 1] |     TAPS of them: 4 or 64
//         inputs   | 0 ... 0 | state ......... | x   |
//
//     delta_rule    a block for each (sequence, value head, some columns of S); PARTS lanes (4, 8
//                   or 16) share a column, 32 keys each. Eight rows at a time:
//
//         1  a warp for each q and k: normed, into shared memory; decay, beta and v likewise
//         2  row after row, without a barrier:  S = decay S;  held = k S;  d = beta (v - held);
//                                               S = S + k d;  y = q S
//
//         key of part p, register j:  4 PARTS (j / 4) + 4 p + j % 4, so that a lane reads its
//         keys four at a time and the parts read neighbours
//
// Invariants:
//   * a row's operations are the same in any step: sums go over taps in order; over keys in
//     four chains of each lane, then over the lanes. Taps and keys that are not there
//     are zeros
//   * addresses of states come in the step's tables, so a step with these operations can be
//     captured. Sequences of the bucket that a step does not have are of 0 rows
#include "backend/cuda/gate.cuh"
#include "backend/cuda/internal.cuh"

namespace {

// The operation's part of a sequence's state.
__device__ __forceinline__ float *state_of(uint8_t *const *states, uint32_t seq, size_t at) {
    return (float *)(states[seq] + at);
}

// ---- short convolutions ----------------------------------------------------------------------

enum { CONV_THREADS = 64, CONV_AHEAD = 8, TAPS_FEW = 4, TAPS_MAX = 64 };

struct conv_args {
    const batch_seq *seqs;
    uint8_t *const *states;
    size_t at;
    const float *x, *w;
    uint32_t width, channels;
    bool silu;
    float *y;
};

// The sum over the taps; `in` becomes the newest of the inputs `held`.
template <int TAPS>
__device__ __forceinline__ float conv_row(const float (&w)[TAPS], float (&held)[TAPS - 1],
                                          float in) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        sum = fmaf(w[j], held[j], sum);
    sum = fmaf(w[TAPS - 1], in, sum);
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        held[j] = j + 1 < TAPS - 1 ? held[j + 1] : in;
    return sum;
}

template <int TAPS> __global__ void __launch_bounds__(CONV_THREADS) conv_kernel(conv_args a) {
    constexpr uint32_t AHEAD = TAPS > TAPS_FEW ? 1 : CONV_AHEAD;
    const uint32_t c = blockIdx.y * CONV_THREADS + threadIdx.x;
    kernel_begins();
    const batch_seq seq = a.seqs[blockIdx.x];
    if (c >= a.channels || seq.rows == 0)
        return;
    const int pad = TAPS - (int)a.width; // taps that are not there
    float *state = state_of(a.states, blockIdx.x, a.at) + c;
    float w[TAPS], held[TAPS - 1];
#pragma unroll
    for (int j = 0; j < TAPS; j++)
        w[j] = j < pad ? 0 : a.w[(size_t)(j - pad) * a.channels + c];
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        held[j] = j < pad ? 0 : state[(size_t)(j - pad) * a.channels];
    const float *x = a.x + (size_t)seq.row * a.channels + c;
    float *y = a.y + (size_t)seq.row * a.channels + c;
    for (uint32_t first = 0; first < seq.rows; first += AHEAD) {
        float in[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            in[i] = first + i < seq.rows ? x[(size_t)(first + i) * a.channels] : 0;
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (first + i < seq.rows) {
                const float sum = conv_row<TAPS>(w, held, in[i]);
                y[(size_t)(first + i) * a.channels] = a.silu ? sum * sigmoid_of(sum) : sum;
            }
    }
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        if (j >= pad)
            state[(size_t)(j - pad) * a.channels] = held[j];
}

// ---- the gated delta rule --------------------------------------------------------------------

enum { KEYS = 32, DELTA_THREADS = 128, DELTA_AHEAD = 8, WARP = 32 };
static_assert(16 * KEYS >= HEAD_DIM_MAX, "the most lanes hold all keys");

struct delta_args {
    const batch_seq *seqs;
    uint8_t *const *states;
    size_t at;
    const float *qkv, *beta, *a;
    delta_layer layer;
    float *y;
};

// What a block needs of DELTA_AHEAD rows. PARTS: lanes that share a column.
template <int PARTS> struct delta_rows {
    static constexpr uint32_t COLUMNS = DELTA_THREADS / PARTS;
    // PARTS * KEYS floats, zeros at the end
    float4 q[DELTA_AHEAD][PARTS * KEYS / 4], k[DELTA_AHEAD][PARTS * KEYS / 4];
    float v[DELTA_AHEAD][COLUMNS];
    float decay[DELTA_AHEAD], beta[DELTA_AHEAD];
};

// out = x / sqrt(sum x^2 + 1e-6) * scale, by a warp; zeros from key_dim on.
template <int PARTS>
__device__ __forceinline__ void norm_keys(const float *x, uint32_t key_dim, float scale,
                                          float *out) {
    constexpr int EACH = PARTS * KEYS / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    float v[EACH], sum = 0;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        v[j] = lane + j * WARP < key_dim ? x[lane + j * WARP] : 0;
        sum = fmaf(v[j], v[j], sum);
    }
    const float inverse = 1.0f / sqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        out[lane + j * WARP] = v[j] * inverse * scale;
}

// exp(-rate softplus(a + bias)), rounded once: it works on the state again and again.
__device__ __forceinline__ float decay_of(float rate, float a, float bias) {
    const double x = (double)a + (double)bias;
    return (float)exp(-(double)rate * (fmax(x, 0.0) + log1p(exp(-fabs(x)))));
}

// Step 1 for rows [first, first + n) of the batch.
template <int PARTS>
__device__ __forceinline__ void take_rows(const delta_args &a, uint32_t first, uint32_t n,
                                          delta_rows<PARTS> &rows) {
    constexpr uint32_t COLUMNS = delta_rows<PARTS>::COLUMNS;
    const delta_layer &l = a.layer;
    const uint32_t head = blockIdx.y, column0 = blockIdx.z * COLUMNS;
    const uint32_t key_head =
        l.keys_cycle ? head % l.key_heads : head / (l.value_heads / l.key_heads);
    const size_t keys = (size_t)l.key_heads * l.key_dim,
                 values = (size_t)l.value_heads * l.value_dim;
    const float *qkv = a.qkv + (size_t)first * (2 * keys + values);
    for (uint32_t i = threadIdx.x / WARP; i < 2 * n; i += DELTA_THREADS / WARP) {
        const float *x = qkv + i / 2 * (2 * keys + values) + (size_t)key_head * l.key_dim;
        if (i % 2 == 0)
            norm_keys<PARTS>(x, l.key_dim, 1.0f / sqrtf((float)l.key_dim), (float *)rows.q[i / 2]);
        else
            norm_keys<PARTS>(x + keys, l.key_dim, 1.0f, (float *)rows.k[i / 2]);
    }
    for (uint32_t i = threadIdx.x; i < n * COLUMNS; i += DELTA_THREADS) {
        const uint32_t row = i / COLUMNS, c = column0 + i % COLUMNS;
        const float *v = qkv + row * (2 * keys + values) + 2 * keys + (size_t)head * l.value_dim;
        rows.v[row][i % COLUMNS] = c < l.value_dim ? v[c] : 0;
    }
    if (threadIdx.x < n) {
        const size_t gate = ((size_t)first + threadIdx.x) * l.value_heads + head;
        rows.decay[threadIdx.x] = decay_of(l.rate[head], a.a[gate], l.bias[head]);
        rows.beta[threadIdx.x] = (float)(1.0 / (1.0 + exp(-(double)a.beta[gate])));
    }
}

// The sum of a lane's four chains and of the column's lanes.
template <int PARTS> __device__ __forceinline__ float column_sum(const float (&chains)[4]) {
    float sum = (chains[0] + chains[1]) + (chains[2] + chains[3]);
#pragma unroll
    for (int step = 1; step < PARTS; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    return sum;
}

__device__ __forceinline__ void four_of(float4 v, float (&out)[4]) {
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
}

// Step 2 for one row: its y. s: this lane's keys of the column.
template <int PARTS>
__device__ __forceinline__ float delta_row(const delta_rows<PARTS> &rows, uint32_t row,
                                           uint32_t part, uint32_t column, float (&s)[KEYS]) {
    const float decay = rows.decay[row];
    float held[4] = {0, 0, 0, 0}, sum[4] = {0, 0, 0, 0}, k[4], q[4];
#pragma unroll
    for (int j = 0; j < KEYS / 4; j++) {
        four_of(rows.k[row][PARTS * j + part], k);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[4 * j + e] *= decay;
            held[e] = fmaf(k[e], s[4 * j + e], held[e]);
        }
    }
    const float change = rows.beta[row] * (rows.v[row][column] - column_sum<PARTS>(held));
#pragma unroll
    for (int j = 0; j < KEYS / 4; j++) {
        four_of(rows.k[row][PARTS * j + part], k);
        four_of(rows.q[row][PARTS * j + part], q);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[4 * j + e] = fmaf(k[e], change, s[4 * j + e]);
            sum[e] = fmaf(q[e], s[4 * j + e], sum[e]);
        }
    }
    return column_sum<PARTS>(sum);
}

// The key that register j of a lane holds.
template <int PARTS> __device__ __forceinline__ uint32_t key_of(uint32_t part, uint32_t j) {
    return 4 * PARTS * (j / 4) + 4 * part + j % 4;
}

template <int PARTS> __global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(delta_args a) {
    __shared__ delta_rows<PARTS> rows;
    const delta_layer &l = a.layer;
    const uint32_t part = threadIdx.x % PARTS, column = threadIdx.x / PARTS;
    const uint32_t head = blockIdx.y, c = blockIdx.z * delta_rows<PARTS>::COLUMNS + column;
    const bool inside = c < l.value_dim;
    kernel_begins();
    const batch_seq seq = a.seqs[blockIdx.x];
    if (seq.rows == 0) // the whole block
        return;
    const size_t matrix = (size_t)l.key_dim * l.value_dim;
    float *state = state_of(a.states, blockIdx.x, a.at) + head * matrix + c;
    float s[KEYS];
#pragma unroll
    for (uint32_t j = 0; j < KEYS; j++) {
        const uint32_t key = key_of<PARTS>(part, j);
        s[j] = inside && key < l.key_dim ? state[(size_t)key * l.value_dim] : 0;
    }
    for (uint32_t first = 0; first < seq.rows; first += DELTA_AHEAD) {
        const uint32_t n = min((uint32_t)DELTA_AHEAD, seq.rows - first);
        __syncthreads(); // the last rows were read
        take_rows<PARTS>(a, seq.row + first, n, rows);
        __syncthreads();
        for (uint32_t i = 0; i < n; i++) {
            const float y = delta_row<PARTS>(rows, i, part, column, s);
            const size_t row = (size_t)seq.row + first + i;
            if (inside && part == 0)
                a.y[(row * l.value_heads + head) * l.value_dim + c] = y;
        }
    }
#pragma unroll
    for (uint32_t j = 0; j < KEYS; j++) {
        const uint32_t key = key_of<PARTS>(part, j);
        if (inside && key < l.key_dim)
            state[(size_t)key * l.value_dim] = s[j];
    }
}

template <int PARTS> void launch_delta(cuda_backend *b, const delta_args &a) {
    const delta_layer &l = a.layer;
    const uint32_t columns = delta_rows<PARTS>::COLUMNS;
    const dim3 blocks(b->step.n_seqs, l.value_heads, blocks_of(l.value_dim, columns));
    cuda_ok(b, launch_early(b, delta_kernel<PARTS>, blocks, DELTA_THREADS, 0, a));
}

} // namespace

void run_short_conv(cuda_backend *b, const short_conv_op &op) {
    const step_group &g = b->step.group[0];
    const conv_args a = {g.seqs,   g.states,    op.at,        op.x, op.w,
                         op.width, op.channels, op.silu != 0, op.y};
    const dim3 blocks(b->step.n_seqs, blocks_of(op.channels, CONV_THREADS));
    kvasir_error err;
    if (op.width <= TAPS_FEW)
        cuda_ok(b, launch_early(b, conv_kernel<TAPS_FEW>, blocks, CONV_THREADS, 0, a));
    else if (op.width <= TAPS_MAX)
        cuda_ok(b, launch_early(b, conv_kernel<TAPS_MAX>, blocks, CONV_THREADS, 0, a));
    else {
        fail(&err, KVASIR_ERR_UNSUPPORTED,
             "CUDA: convolutions over %u rows are not supported: 1 to %d", op.width, TAPS_MAX);
        cuda_stick(b, &err);
    }
}

void run_delta_rule(cuda_backend *b, const delta_rule_op &op) {
    const step_group &g = b->step.group[0];
    const delta_layer layer = {op.key_heads, op.value_heads, op.key_dim,        op.value_dim,
                               op.rate,      op.bias,        op.keys_cycle != 0};
    const delta_args args = {g.seqs, g.states, op.at, op.qkv, op.beta, op.a, layer, op.y};
    if (layer.key_dim <= 4 * KEYS)
        launch_delta<4>(b, args);
    else if (layer.key_dim <= 8 * KEYS)
        launch_delta<8>(b, args);
    else
        launch_delta<16>(b, args);
}
