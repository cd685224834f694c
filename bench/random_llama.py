#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file with the shape of Llama-3-8B, random Q4_0 weights and no use but timing. Needs
Python alone, so that a machine with a GPU and little else can write its own.

    random_llama.py OUT.gguf [LAYERS [SHAPE]]

SHAPE is 8b; 4b: Qwen3-4B (no norms of heads); or 0.6b: the layers of Qwen3-0.6B (likewise), with a
vocabulary of 8,192, so that a few of its layers cost what they cost in the whole model.
"""
import os
import struct
import sys

SHAPES = {"8b": (4096, 32, 8, 128, 14336, 128256, 32), "4b": (2560, 32, 8, 128, 9728, 151936, 36),
          "0.6b": (1024, 16, 8, 128, 3072, 8192, 28)}
SHAPE = sys.argv[3] if len(sys.argv) > 3 else "8b"
WIDTH, HEADS, KV_HEADS, HEAD, INNER, VOCAB, LAYERS = SHAPES[SHAPE]
LAYERS, CONTEXT = int(sys.argv[2]) if len(sys.argv) > 2 else LAYERS, 262144
ALIGNMENT, BLOCK_BYTES, F32, Q4_0 = 32, 18, 0, 2
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def field(name, kind, value):
    packed = {UINT32: lambda: struct.pack("<I", value), FLOAT32: lambda: struct.pack("<f", value),
              STRING: lambda: text(value)}[kind]()
    return text(name) + struct.pack("<I", kind) + packed


def array(name, kind, values):
    packed = (b"".join(map(text, values)) if kind == STRING
              else struct.pack(f"<{len(values)}i", *values))
    return text(name) + struct.pack("<IIQ", ARRAY, kind, len(values)) + packed


def vocabulary():
    """A token for each byte, as byte-level BPE writes it, then words."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))] + [
        "wo"] + [f"word{i}" for i in range(VOCAB - 257)]


fields = [
    field("general.architecture", STRING, "llama"),
    field("general.name", STRING, f"random weights, shape {SHAPE}"),
    field("llama.context_length", UINT32, CONTEXT),
    field("llama.embedding_length", UINT32, WIDTH),
    field("llama.block_count", UINT32, LAYERS),
    field("llama.feed_forward_length", UINT32, INNER),
    field("llama.attention.head_count", UINT32, HEADS),
    field("llama.attention.head_count_kv", UINT32, KV_HEADS),
    field("llama.attention.key_length", UINT32, HEAD),
    field("llama.attention.value_length", UINT32, HEAD),
    field("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
    field("llama.rope.freq_base", FLOAT32, 5e5),
    field("llama.rope.dimension_count", UINT32, HEAD),
    field("llama.vocab_size", UINT32, VOCAB),
    field("tokenizer.ggml.model", STRING, "gpt2"),
    field("tokenizer.ggml.pre", STRING, "llama-bpe"),
    array("tokenizer.ggml.tokens", STRING, vocabulary()),
    array("tokenizer.ggml.token_type", INT32, [1] * VOCAB),
    array("tokenizer.ggml.merges", STRING, ["w o"]),
    field("tokenizer.ggml.eos_token_id", UINT32, VOCAB - 1),
]
tensors = [("token_embd.weight", VOCAB, WIDTH), ("output.weight", VOCAB, WIDTH),
           ("output_norm.weight", 0, WIDTH)]
for i in range(LAYERS):
    tensors += [(f"blk.{i}.{name}.weight", rows, columns) for name, rows, columns in (
        ("attn_norm", 0, WIDTH), ("ffn_norm", 0, WIDTH), ("attn_q", HEADS * HEAD, WIDTH),
        ("attn_k", KV_HEADS * HEAD, WIDTH), ("attn_v", KV_HEADS * HEAD, WIDTH),
        ("attn_output", WIDTH, HEADS * HEAD), ("ffn_gate", INNER, WIDTH), ("ffn_up", INNER, WIDTH),
        ("ffn_down", WIDTH, INNER))]


def blocks(columns, bytes_wanted, pool={}):
    """Q4_0's blocks: a scale that keeps the size of activations, and 32 random codes."""
    if columns not in pool:
        made = bytearray(os.urandom(BLOCK_BYTES << 20))
        scale = struct.pack("<e", 0.25 / columns ** 0.5)
        made[0::BLOCK_BYTES] = scale[:1] * (len(made) // BLOCK_BYTES)
        made[1::BLOCK_BYTES] = scale[1:] * (len(made) // BLOCK_BYTES)
        pool[columns] = memoryview(bytes(made))
    source = pool[columns]
    while bytes_wanted:
        # another beginning each time, so that no two matrices are the same
        first = int.from_bytes(os.urandom(4), "little") % (1 << 20) * BLOCK_BYTES
        n = min(bytes_wanted, len(source) - first)
        yield source[first:first + n]
        bytes_wanted -= n


def size(rows, columns):
    return rows * columns // 32 * BLOCK_BYTES if rows else columns * 4


infos, offset = [], 0
for name, rows, columns in tensors:
    dims = struct.pack("<IQQ", 2, columns, rows) if rows else struct.pack("<IQ", 1, columns)
    infos.append(text(name) + dims + struct.pack("<IQ", Q4_0 if rows else F32, offset))
    offset += (size(rows, columns) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
with open(sys.argv[1], "wb") as out:
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
    out.write(b"".join(fields) + b"".join(infos))
    out.write(bytes(-out.tell() % ALIGNMENT))
    for name, rows, columns in tensors:
        if rows:
            for piece in blocks(columns, size(rows, columns)):
                out.write(piece)
        else:
            out.write(struct.pack("<f", 1) * columns)
        out.write(bytes(-out.tell() % ALIGNMENT))
