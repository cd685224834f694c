// SPDX-License-Identifier: Apache-2.0
// basis.cu: pages whose rows are in another basis than the plain one (enum page_basis of
// backend.h): matrices in device memory, and what attention does before and after its kernels.
//
// A score of such a page needs the query in the basis of its keys, and what its values add to the
// output is in the basis of its values. So attention over a row's pages is one pass for each basis
// that occurs in the step, over the pages of that basis alone, by the same kernels:
//
//     q --turn_queries--> turned --pass--> out                  if it is the only one; else
//                                     ---> turned, row_ms --join_passes--> out
//         (few queries: in the launch that stores K and V, by balanced_turn)
//
//     value of a pass    outputs divided by their sum s; rotated back by H if the basis is not
//                        plain. The kernels do that, and the fast ones rotate queries by H, too
//     join               a row that sees pages of one basis: its pass's value. Else, in order of
//                        bases, sums of w value and of w, w = s 2^(M - largest M); their quotient
//
// Which bases a row sees depends on its pages alone, so its bits do not depend on the step.
#include <string.h>

#include "backend/cuda/arithmetic.cuh"
#include "backend/cuda/basis.cuh"

// ---- matrices --------------------------------------------------------------------------------

kvasir_status cuda_reserve_basis(struct backend *base, const struct key_basis *basis,
                                 kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    const size_t bytes =
        (size_t)basis->layers * basis->kv_heads * basis->head_dim * basis->head_dim * sizeof(float);
    ASSERT(!b->capturing && bytes > 0);
    TRY(cuda_status(b, err));
    if (b->n_key_bases == BACKEND_GROUPS_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: more than %d groups with balanced keys",
                    BACKEND_GROUPS_MAX);
    auto &entry = b->key_bases[b->n_key_bases++]; // also of one that fails: bases_close frees it
    entry.device.inverse = (const float *)cuda_upload(base, basis->inverse, bytes);
    entry.device.forward = (const float *)cuda_upload(base, basis->forward, bytes);
    if (!entry.device.inverse || !entry.device.forward) {
        TRY(cuda_status(b, err));
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: bases of keys: out of memory");
    }
    entry.host = basis;
    return KVASIR_OK;
}

dev_basis basis_find(const cuda_backend *b, const key_basis *basis) {
    for (uint32_t i = 0; basis && i < b->n_key_bases; i++)
        if (b->key_bases[i].host == basis)
            return b->key_bases[i].device;
    return dev_basis{};
}

void bases_close(cuda_backend *b) {
    for (uint32_t i = 0; i < b->n_key_bases; i++) {
        (void)cudaFree(const_cast<float *>(b->key_bases[i].device.inverse));
        (void)cudaFree(const_cast<float *>(b->key_bases[i].device.forward));
    }
    b->n_key_bases = 0;
}

// ---- scratch ---------------------------------------------------------------------------------

bool turned_open(cuda_backend *b, uint32_t bases) {
    size_t heads = 0, values = 0; // of a row, in the group that has most
    for (uint32_t g = 0; g < b->limits.groups; g++) {
        const auto &shape = b->limits.group[g];
        heads = shape.heads > heads ? shape.heads : heads;
        const size_t n = (size_t)shape.heads * shape.head_dim;
        values = n > values ? n : values;
    }
    for (uint32_t i = 0; i < BASIS_COUNT; i++)
        if (bases >> i & 1 && !b->row_ms[i] &&
            (!device_array(b->limits.rows * heads, &b->row_ms[i]) ||
             (i != BASIS_PLAIN && !device_array(b->limits.rows * values, &b->turned[i])))) {
            (void)cudaGetLastError();
            turned_close(b);
            return false;
        }
    return true;
}

void turned_close(cuda_backend *b) {
    for (uint32_t i = 0; i < BASIS_COUNT; i++) {
        (void)cudaFree(b->turned[i]);
        (void)cudaFree(b->row_ms[i]);
        b->turned[i] = nullptr;
        b->row_ms[i] = nullptr;
    }
}

float hadamard_scale(uint32_t head_dim) {
    return (float)(1 / m_sqrt(head_dim & -head_dim));
}

// ---- queries ---------------------------------------------------------------------------------

namespace {

__global__ void __launch_bounds__(TURN_THREADS) turn(const TurnArgs a) {
    kernel_comes();
    turn_block(a);
}

} // namespace

static TurnArgs turn_args(const cuda_backend *b, const attention_op &op,
                          const attention_pass &pass) {
    const auto &shape = b->limits.group[op.group];
    ASSERT(pass.basis != BASIS_BALANCED || op.basis.forward);
    return {op.q,        pass.turned,    pass.basis == BASIS_BALANCED ? op.basis.forward : nullptr,
            pass.factor, b->step.rows,   op.layer,
            op.heads,    shape.kv_heads, shape.head_dim};
}

attention_pass pass_of(const cuda_backend *b, const attention_op &op, uint32_t basis, bool more) {
    const bool plain = basis == BASIS_PLAIN;
    return {basis,
            op.q,
            b->turned[basis],
            more && !plain ? b->turned[basis] : op.out,
            nullptr,
            plain ? 0 : hadamard_scale(b->limits.group[op.group].head_dim)};
}

bool balanced_turn(const cuda_backend *b, const attention_op &op, TurnArgs *args) {
    if (!(b->plan[op.group].bases >> BASIS_BALANCED & 1))
        return false;
    *args = turn_args(b, op, pass_of(b, op, BASIS_BALANCED, true));
    return true;
}

void turn_queries(cuda_backend *b, const attention_op &op, const attention_pass &pass) {
    const TurnArgs a = turn_args(b, op, pass);
    const dim3 grid(turn_blocks(a), a.kv_heads);
    cuda_ok(b, launch_early(b, turn, grid, TURN_THREADS, turn_bytes(a.dim), a));
}

// ---- outputs ---------------------------------------------------------------------------------

namespace {

enum { JOIN_WARPS = 4 };

struct JoinArgs {
    attention_pass passes[BASIS_COUNT];
    uint32_t n;
    float *out;            // [row][head][dim]
    uint32_t columns, dim; // columns: rows x heads
};

// A warp has one (row, query head).
__global__ void __launch_bounds__(JOIN_WARPS * 32) join(const JoinArgs a) {
    kernel_begins();
    const uint32_t column = blockIdx.x * JOIN_WARPS + threadIdx.x / 32;
    if (column >= a.columns)
        return;
    float2 ms[BASIS_COUNT];
    float top = MINUS_INF, w[BASIS_COUNT], all = 0;
    uint32_t seen = 0;
#pragma unroll
    for (uint32_t i = 0; i < BASIS_COUNT; i++) {
        ms[i] = i < a.n ? a.passes[i].ms[column] : make_float2(MINUS_INF, 0);
        if (ms[i].y != 0) { // also NaN
            seen |= 1u << i;
            top = fmaxf(top, ms[i].x);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < BASIS_COUNT; i++) {
        w[i] = seen >> i & 1 ? ms[i].y * exp2_fast(ms[i].x - top) : 0.f;
        all += w[i];
    }
    const bool one = (seen & (seen - 1)) == 0;
    for (uint32_t d = threadIdx.x % 32; d < a.dim; d += 32) {
        const size_t at = (size_t)column * a.dim + d;
        float sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < BASIS_COUNT; i++)
            if (seen >> i & 1)
                sum = one ? a.passes[i].out[at] : sum + w[i] * a.passes[i].out[at];
        a.out[at] = one ? sum : sum / all;
    }
}

} // namespace

void join_passes(cuda_backend *b, const attention_op &op, const attention_pass *passes,
                 uint32_t n) {
    JoinArgs a = {};
    ASSERT(n > 0 && n <= BASIS_COUNT);
    memcpy(a.passes, passes, n * sizeof *passes);
    a.n = n;
    a.out = op.out;
    a.dim = b->limits.group[op.group].head_dim;
    a.columns = b->step.rows * op.heads;
    cuda_ok(b, launch_early(b, join, blocks_of(a.columns, JOIN_WARPS), JOIN_WARPS * 32, 0, a));
}
