// SPDX-License-Identifier: Apache-2.0
// weights.cu: matrices of a checkpoint in the forms that kernels multiply (product.cuh), and embed.
//
//     Q4_0, Q4_1, AFFINE4 with 16-bit scales      HALVES
//     Q4_K, AFFINE2, AFFINE3, AFFINE4             NIBBLES: codes below 16, scales in float32
//     all other types with integer codes          BYTES
//     F16, BF16                                   FLOATS
//     F32; F8_E4M3, decoded                       SINGLES
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cuda/product.cuh"

struct backend_weight {
    weight_view view; // its pointers are into `data`
    uint8_t *data;    // device
};

const weight_view *weight_view_of(const struct backend_weight *w) {
    return &w->view;
}

namespace {

enum { LANE_BYTES = 16 };

// ---- forms -----------------------------------------------------------------------------------

bool group_of_halves(uint32_t group) {
    return group == 32 || group == 64 || group == 128;
}

matrix_form form_of(const weight *w) {
    switch (w->type) {
    case WEIGHT_Q4_0:
    case WEIGHT_Q4_1:
        return HALVES;
    case WEIGHT_AFFINE4:
        return w->scalar != SCALAR_F32 && group_of_halves(w->group) ? HALVES : NIBBLES;
    case WEIGHT_AFFINE2:
    case WEIGHT_AFFINE3:
    case WEIGHT_Q4_K:
        return NIBBLES;
    case WEIGHT_F16:
    case WEIGHT_BF16:
        return FLOATS;
    case WEIGHT_F32:
    case WEIGHT_F8_E4M3:
        return SINGLES;
    default:
        return BYTES;
    }
}

// Bytes of a matrix's codes, of its scales or its biases, and of its units.
struct sizes {
    size_t codes, scalars, units;
};

sizes sizes_of(const weight_view &v) {
    const size_t tiles = (v.n + TILE_OUTPUTS - 1) / TILE_OUTPUTS, pairs = tiles * v.pairs;
    switch (v.form) {
    case HALVES: {
        const size_t whole = (tiles + COLUMN_TILES - 1) / COLUMN_TILES * COLUMN_TILES;
        return {whole * v.pairs * 32 * LANE_BYTES, whole * v.quads * 8 * LANE_BYTES,
                whole * TILE_OUTPUTS * sizeof(float)};
    }
    case NIBBLES:
        return {pairs * 32 * LANE_BYTES, pairs * 2 * TILE_OUTPUTS * sizeof(float), 0};
    case BYTES:
        return {pairs * 2 * 32 * LANE_BYTES,
                pairs * 2 * scalars_of_block(v) * TILE_OUTPUTS * sizeof(float), 0};
    case FLOATS:
        return {pairs * 4 * 32 * LANE_BYTES, 0, 0};
    default:
        return {(size_t)v.n * v.k * sizeof(float), 0, 0};
    }
}

kvasir_status view_of(const weight *w, weight_view *v, kvasir_error *err) {
    const weight_traits *t = weight_traits_of(w->type);
    *v = weight_view{};
    if (!t)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "weight type %d cannot be multiplied on CUDA",
                    (int)w->type);
    if (w->n == 0 || w->k == 0 || w->k % t->block_values != 0 ||
        (t->run_values != 0 && w->group != 0 && w->k % w->group != 0))
        return fail(err, KVASIR_ERR_ARGUMENT, "%s matrix of %u x %u", t->name, w->n, w->k);
    v->n = w->n;
    v->k = w->k;
    v->form = form_of(w);
    v->biased = t->has_min;
    v->group = t->run_values;
    v->bf16 = w->type == WEIGHT_BF16;
    v->minus_8 = w->type == WEIGHT_Q4_0;
    if (v->form == HALVES && w->type == WEIGHT_AFFINE4)
        v->group = w->group;
    v->pairs = (v->k + PAIR - 1) / PAIR;
    if (v->form == HALVES)
        v->quads = (v->k / v->group + 3) / 4;
    return KVASIR_OK;
}

// ---- repacking, in host memory ---------------------------------------------------------------

// A row in parts. AFFINE8's codes are unsigned here, with the biases of the file.
struct row_parts {
    int8_t *codes;
    float *d, *m;
};

void parts_of_row(const weight *w, uint32_t row, row_parts &p) {
    const weight_traits *t = weight_traits_of(w->type);
    t->parts(w, row, p.codes, p.d, p.m);
    if (w->type == WEIGHT_Q4_0) // as HALVES have it
        for (uint32_t i = 0; i < w->k; i++)
            p.codes[i] = (int8_t)(p.codes[i] + 8);
    if (w->type != WEIGHT_AFFINE8)
        return;
    for (uint32_t i = 0; i < w->k; i++)
        p.codes[i] = (int8_t)((uint8_t)p.codes[i] ^ 0x80u);
    for (uint32_t i = 0; i < w->k / BLOCK; i++)
        p.m[i] = scalar_load(w->scalar, w->biases,
                             (size_t)row * (w->k / w->group) + i * BLOCK / w->group);
}

// The unit of an output (HALVES) whose largest |d| or |m| / 8 this is.
HD float unit_of(float most) {
    uint32_t bits;
    memcpy(&bits, &most, sizeof bits);
    const int e = (int)(bits >> 23) - 127; // 2^e <= most < 2^(e + 1)
    if (most == 0 || e == 128)
        return 1;
    bits = (uint32_t)((e < -100 ? -100 : e) - 14 + 127) << 23;
    memcpy(&most, &bits, sizeof bits);
    return most;
}
float unit_of_row(const row_parts &p, uint32_t groups) {
    float most = 0; // NaN: its weights are not finite, whatever the unit
    for (uint32_t i = 0; i < groups; i++)
        most = std::max(most, std::max(fabsf(p.d[i]), fabsf(p.m[i]) / BIAS_UNIT));
    return unit_of(most);
}

void put_row(const weight *w, const weight_view &v, uint32_t row, const row_parts &p,
             uint8_t *codes, uint8_t *scales, uint8_t *biases, float *units) {
    for (uint32_t i = 0; i < v.k; i++)
        if (v.form == BYTES)
            codes[code_byte(v, row, i)] = (uint8_t)p.codes[i];
        else
            ((uint32_t *)codes)[nibble_word(v, row, i)] |= (uint32_t)(p.codes[i] & 15)
                                                           << nibble_bit(v, i);
    const uint32_t run = weight_traits_of(w->type)->run_values;
    const float unit = v.form == HALVES ? unit_of_row(p, v.k / run) : 1;
    if (v.form == HALVES)
        units[row] = unit;
    for (uint32_t i = 0; i < v.k; i += run) {
        if (v.form == HALVES) {
            const size_t at = half_scalar(v, row, i);
            ((uint16_t *)scales)[at] = f32_to_f16(p.d[i / run] / unit);
            if (v.biased)
                ((uint16_t *)biases)[at] = f32_to_f16(p.m[i / run] / unit / BIAS_UNIT);
            continue;
        }
        const size_t at = float_scalar(v, row, i);
        ((float *)scales)[at] = p.d[i / run];
        if (v.biased)
            ((float *)biases)[at] = p.m[i / run];
    }
}

// False: no memory.
bool repack_codes(const weight *w, const weight_view &v, uint8_t *out) {
    const sizes s = sizes_of(v);
    const uint32_t runs = w->k / weight_traits_of(w->type)->run_values;
    row_parts p = {(int8_t *)mem_alloc(w->k), (float *)mem_alloc(runs * sizeof(float)),
                   (float *)mem_alloc(runs * sizeof(float))};
    const bool some = p.codes && p.d && p.m;
    for (uint32_t row = 0; some && row < w->n; row++) {
        parts_of_row(w, row, p);
        put_row(w, v, row, p, out, out + s.codes, out + s.codes + s.scalars,
                (float *)(out + s.codes + s.scalars * (v.biased ? 2 : 1)));
    }
    mem_free(p.codes);
    mem_free(p.d);
    mem_free(p.m);
    return some;
}

void repack_floats(const weight *w, const weight_view &v, uint8_t *out) {
    const uint8_t *from = (const uint8_t *)w->data;
    for (uint32_t row = 0; row < w->n; row++)
        for (uint32_t i = 0; i < w->k; i++)
            memcpy((uint16_t *)out + half_value(v, row, i), from + 2 * ((size_t)row * w->k + i), 2);
}

bool repack(const weight *w, const weight_view &v, uint8_t *out) {
    if (v.form == SINGLES)
        for (uint32_t row = 0; row < w->n; row++)
            weight_traits_of(w->type)->decode(w, row, (float *)out + (size_t)row * w->k);
    else if (v.form == FLOATS)
        repack_floats(w, v, out);
    else
        return repack_codes(w, v, out);
    return true;
}

// ---- repacking, on the device ----------------------------------------------------------------

// Q4_0 and Q4_1 as files have them: blocks of a scale (and a bias) and 16 bytes, byte i with inputs
// i and 16 + i. A thread repacks a block.
struct file_blocks {
    const uint8_t *data;
    uint32_t head; // bytes before the codes
    size_t row_bytes;
    // 16-bit loads: blocks are of 18 bytes
    __device__ __forceinline__ const uint16_t *block(uint32_t row, uint32_t i) const {
        return (const uint16_t *)(data + row * row_bytes + i * (size_t)(head + BLOCK / 2));
    }
};

// Units. A warp has an output; as bits, infinities and NaN are larger than numbers.
__global__ void __launch_bounds__(256)
    units_kernel(const file_blocks from, const weight_view w, float *units) {
    const uint32_t row = (blockIdx.x * 256 + threadIdx.x) / 32;
    uint32_t bits = 0;
    for (uint32_t i = threadIdx.x % 32; row < w.n && i < w.k / BLOCK; i += 32) {
        const uint16_t *p = from.block(row, i);
        bits = max(bits, __float_as_uint(fabsf(to_float(p[0], false))));
        if (w.biased)
            bits = max(bits, __float_as_uint(fabsf(to_float(p[1], false)) / BIAS_UNIT));
    }
    bits = __reduce_max_sync(~0u, bits);
    if (row < w.n && threadIdx.x % 32 == 0)
        units[row] = unit_of(__uint_as_float(bits));
}

__global__ void __launch_bounds__(256)
    repack_kernel(const file_blocks from, const weight_view w, uint32_t *codes, uint16_t *scales,
                  uint16_t *biases, const float *units) {
    const uint32_t blocks = w.k / BLOCK;
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= (size_t)w.n * blocks)
        return;
    const uint32_t row = (uint32_t)(i / blocks), block = (uint32_t)(i % blocks);
    const uint16_t *p = from.block(row, block);
    const size_t scalar = half_scalar(w, row, block * BLOCK);
    const auto in_units = [&](uint16_t half, float unit) {
        return __half_as_ushort(__float2half_rn(to_float(half, false) / unit));
    };
    scales[scalar] = in_units(p[0], units[row]);
    if (w.biased)
        biases[scalar] = in_units(p[1], units[row] * BIAS_UNIT);
    p += from.head / 2;
#pragma unroll
    for (uint32_t q = 0; q < 4; q++)
        codes[nibble_word(w, row, block * BLOCK + 4 * q)] =
            swap_middle(p[2 * q] | (uint32_t)p[2 * q + 1] << 16);
}

bool repacked_by_device(const weight *w) {
    return w->type == WEIGHT_Q4_0 || w->type == WEIGHT_Q4_1;
}

// False: no memory for a copy of the matrix as it is, or another error.
bool repack_on_device(cuda_backend *b, const weight *w, const weight_view &v, uint8_t *out) {
    const sizes s = sizes_of(v);
    const uint32_t head = w->type == WEIGHT_Q4_0 ? 2 : 4;
    const size_t row_bytes = (size_t)(w->k / BLOCK) * (head + BLOCK / 2);
    const size_t scalars = s.scalars * (v.biased ? 2 : 1);
    float *units = (float *)(out + s.codes + scalars);
    uint8_t *copy = (uint8_t *)cuda_alloc(&b->base, row_bytes * w->n);
    if (!copy)
        return false;
    const file_blocks from = {copy, head, row_bytes};
    cuda_write(&b->base, copy, w->data, row_bytes * w->n);
    cuda_ok(b, cudaMemsetAsync(out, 0, s.codes + scalars + s.units, b->stream));
    units_kernel<<<blocks_of(w->n, 8), 256, 0, b->stream>>>(from, v, units);
    cuda_ok(b, cudaGetLastError());
    repack_kernel<<<blocks_of((size_t)w->n * (w->k / BLOCK), 256), 256, 0, b->stream>>>(
        from, v, (uint32_t *)out, (uint16_t *)(out + s.codes),
        (uint16_t *)(out + s.codes + s.scalars), units);
    cuda_ok(b, cudaGetLastError());
    cuda_free(&b->base, copy); // waits
    return cuda_works(b);
}

// ---- embed -----------------------------------------------------------------------------------

__global__ void __launch_bounds__(256)
    embed_kernel(const weight_view w, const int32_t *tokens, float *y) {
    kernel_begins();
    const uint32_t row = blockIdx.x, i = blockIdx.y * 256 + threadIdx.x;
    if (i < w.k)
        y[(size_t)row * w.k + i] = weight_value(w, (uint32_t)tokens[row], i);
}

} // namespace

// ---- the table -------------------------------------------------------------------------------

kvasir_status cuda_weight_put(struct backend *base, const struct weight *w,
                              const struct backend_weight **out, kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    backend_weight c = {};
    *out = nullptr;
    TRY(view_of(w, &c.view, err));
    const sizes s = sizes_of(c.view);
    const size_t bytes = s.codes + s.scalars * (c.view.biased ? 2 : 1) + s.units;

    const bool by_device = repacked_by_device(w);
    kvasir_status status = KVASIR_OK;
    uint8_t *host = by_device ? nullptr : (uint8_t *)mem_calloc(bytes, 1);
    backend_weight *made = (backend_weight *)mem_alloc(sizeof *made);
    if (!made || (!by_device && (!host || !repack(w, c.view, host)))) {
        status = fail(err, KVASIR_ERR_MEMORY, "no memory to repack %zu bytes of weights", bytes);
        goto done;
    }
    c.data = (uint8_t *)cuda_alloc(base, bytes);
    if (!c.data || (by_device && !repack_on_device(b, w, c.view, c.data))) {
        status = cuda_status(b, err);
        if (status == KVASIR_OK)
            status =
                fail(err, KVASIR_ERR_MEMORY, "no device memory for %zu bytes of weights", bytes);
        goto done;
    }
    if (!by_device)
        cuda_write(base, c.data, host, bytes);
    c.view.codes = c.data;
    c.view.scales = c.data + s.codes;
    c.view.biases = c.view.scales + s.scalars;
    if (s.units > 0)
        c.view.units = (const float *)(c.data + bytes - s.units);
    *made = c;
    *out = made;
    made = nullptr;
    c.data = nullptr;
done:
    cuda_free(base, c.data);
    mem_free(made);
    mem_free(host);
    return status;
}

void cuda_weight_drop(struct backend *b, const struct backend_weight *w) {
    if (!w)
        return;
    graphs_drop(cuda_of(b)); // another matrix may get the same address
    cuda_free(b, w->data);
    mem_free(const_cast<backend_weight *>(w));
}

void run_embed(cuda_backend *b, const embed_op &op) {
    const weight_view &w = op.w->view;
    cuda_ok(b, launch_early(b, embed_kernel, dim3(op.rows, (w.k + 255) / 256), 256, 0, w, op.tokens,
                            op.y));
}
