# SPDX-License-Identifier: Apache-2.0
"""Makes weights.golden: blocks of every weight type and the values that other code reads.

    python3 tests/unit/weights_golden.py            (gguf 0.19.0, mlx 0.32.4 on the CPU, numpy)

GGUF types: gguf.quants.dequantize. Affine and mxfp4: mx.dequantize to float32, scales widened to
float32 first. F8_E4M3: mx.from_fp8, times the scale in mlx's float32. Q8_K, which no package reads:
numpy, by the layout of ggml's block_q8_K (float32 d, 256 s8, 16 sums). No code of ours takes part.

The file is "kvweight", then records, all little-endian:

    u32     type, scalar, group, group_rows, n, k, bytes of data, of scales, of biases
    bytes   data, scales, biases
    f32     values [n][k]
"""
import pathlib

import gguf
import mlx.core as mx
import numpy as np

RNG = np.random.default_rng(20261121)
F16, BF16, F32 = 0, 1, 2
records = []


def record(kind, values, data, scales=b"", biases=b"", scalar=0, group=0, group_rows=0):
    n, k = values.shape
    parts = [np.ascontiguousarray(p).tobytes() if isinstance(p, np.ndarray) else p
             for p in (data, scales, biases)]
    head = np.array([kind, scalar, group, group_rows, n, k] + [len(p) for p in parts], "<u4")
    records.append(head.tobytes() + b"".join(parts) + values.astype("<f4").tobytes())


# ---- GGUF ---------------------------------------------------------------------------------------

# offsets of a block's f16 scales, first and last byte of its sub-scales
PLACES = {
    "Q4_0": ([0], 0, 0), "Q4_1": ([0, 2], 0, 0), "Q5_0": ([0], 0, 0), "Q5_1": ([0, 2], 0, 0),
    "Q8_0": ([0], 0, 0), "IQ4_NL": ([0], 0, 0), "MXFP4": ([], 0, 0), "Q8_K": ([], 0, 0),
    "Q2_K": ([80, 82], 0, 16), "Q3_K": ([108], 96, 108), "Q4_K": ([0, 2], 4, 16),
    "Q5_K": ([0, 2], 4, 16), "Q6_K": ([208], 192, 208), "IQ4_XS": ([0], 2, 8),
}
EDGES_F16 = [(0x3C00, 0xB800), (0x7BFF, 0xFBFF), (0xB800, 0x3C00), (0, 0x8000), (1, 0x83FF)]
EDGES_E8M0 = [127, 0, 1, 254, 255]
EDGES_F32 = [1, float.fromhex("0x1.fffffep+100"), -0.5, 0, 2.0**-140]


def block(name, size, i):
    """Block i: five edges (codes in turn, all bits, none, scale 0, subnormal), then random."""
    f16s, sub_from, sub_to = PLACES[name]
    b = RNG.integers(0, 256, size, dtype=np.uint8)
    if i == 0:
        b[:] = np.arange(size) * 17 % 251
    if i in (1, 2):
        b[:] = 255 if i == 1 else 0
    for s, at in enumerate(f16s):
        bits = EDGES_F16[i][s] if i < 5 else np.float16(RNG.normal() * 0.1).view(np.uint16)
        b[at:at + 2] = np.array([bits], "<u2").view(np.uint8)
    if name == "MXFP4":
        b[0] = EDGES_E8M0[i] if i < 5 else RNG.integers(110, 140)
    if name == "Q8_K":
        d = EDGES_F32[i] if i < 5 else RNG.normal()
        b[:4] = np.array([d], "<f4").view(np.uint8)
    return b


def q8_k(rows):
    b = rows.reshape(len(rows), -1, 292)
    d = np.ascontiguousarray(b[..., :4]).view("<f4")
    codes = np.ascontiguousarray(b[..., 4:260]).view(np.int8).astype(np.float32)
    return (d * codes).reshape(len(rows), -1)


def gguf_types():
    for name in PLACES:
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        per_row = 8 if values == 32 else 3
        rows = np.array([np.concatenate([block(name, size, r * per_row + i)
                                         for i in range(per_row)]) for r in range(2)])
        if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"):
            x = RNG.normal(size=(1, per_row * values)).astype(np.float32)
            rows = np.concatenate([rows, gguf.quants.quantize(x, kind)])
        with np.errstate(over="ignore"):
            values = q8_k(rows) if name == "Q8_K" else gguf.quants.dequantize(rows, kind)
        record(int(kind), values, rows)
    for kind, bits in ((1, "<u2"), (30, "<u2"), (0, "<u4")):
        words = RNG.integers(0, 2 ** (8 * np.dtype(bits).itemsize), (2, 64)).astype(bits)
        words[0, :4] = [0, 1, 0x8000, 0x83FF]
        raw = words.view(np.uint8)
        record(kind, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(kind)), raw)


# ---- mlx ----------------------------------------------------------------------------------------

DTYPES = {F16: mx.float16, BF16: mx.bfloat16, F32: mx.float32}


def stored(a, scalar):
    """The bytes of an mlx array of the scalar type."""
    return np.array(a if scalar == F32 else a.view(mx.uint16))


def to_scalar(x, scalar):
    return mx.array(np.asarray(x, np.float32)).astype(DTYPES[scalar])


def affine(bits, group, scalar):
    """A row from mx.quantize, a row of any codes with scales at the edges."""
    k = 128
    row = to_scalar(RNG.normal(size=(1, k)), scalar)
    codes, scales, biases = mx.quantize(row, group_size=group, bits=bits)
    words = RNG.integers(0, 2**32, codes.shape, dtype=np.uint32)
    words[:, :bits] = 0xFFFFFFFF
    edges = RNG.permutation([0.0, 2.0**-24 * 5, -0.37, 60.0])[:k // group].reshape(1, -1)
    codes = mx.concatenate([codes, mx.array(words)])
    scales = mx.concatenate([scales, to_scalar(edges, scalar)])
    biases = mx.concatenate([biases, to_scalar(RNG.normal(size=edges.shape), scalar)])
    values = mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32),
                           group_size=group, bits=bits)
    record(1000 + bits, np.array(values), np.array(codes), stored(scales, scalar),
           stored(biases, scalar), scalar, group)


def mxfp4():
    row = mx.array(RNG.normal(size=(1, 256)).astype(np.float32))
    codes, scales = mx.quantize(row, group_size=32, bits=4, mode="mxfp4")
    words = RNG.integers(0, 2**32, codes.shape, dtype=np.uint32)
    words[0, :2] = [0x76543210, 0xFEDCBA98]
    edges = np.array([[0, 127, 1, 254, 255, 130, 120, 2]], np.uint8)
    codes = mx.concatenate([codes, mx.array(words)])
    scales = mx.concatenate([scales, mx.array(edges)])
    values = mx.dequantize(codes, scales, group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
    record(1014, np.array(values), np.array(codes), np.array(scales))


def f8_e4m3():
    every = np.arange(256, dtype=np.uint8).reshape(1, 256)
    record(1018, np.array(mx.from_fp8(mx.array(every), dtype=mx.float32)), every)
    n, k = 7, 13
    for scalar in (F16, BF16, F32):
        for group_rows, group in ((3, 5), (n, k), (1, k)):
            data = RNG.integers(0, 256, (n, k), dtype=np.uint8)
            scales = to_scalar(RNG.normal(size=(-(-n // group_rows), -(-k // group))), scalar)
            full = mx.repeat(mx.repeat(scales.astype(mx.float32), group_rows, 0), group, 1)[:n, :k]
            values = mx.from_fp8(mx.array(data), dtype=mx.float32) * full
            record(1018, np.array(values), data, stored(scales, scalar), b"", scalar, group,
                   group_rows)


mx.set_default_device(mx.cpu)
gguf_types()
for bits in (2, 3, 4, 5, 6, 8):
    for group in (32, 64, 128):
        for scalar in DTYPES:
            affine(bits, group, scalar)
mxfp4()
f8_e4m3()
out = pathlib.Path(__file__).with_name("weights.golden")
out.write_bytes(b"kvweight" + b"".join(records))
print(f"{out}: {len(records)} records, {out.stat().st_size} bytes")
