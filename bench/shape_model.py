#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file with the shape of Qwen3-0.6B, random Q4_0 weights and no use but timing.

    shape_model.py VOCABULARY.gguf OUT.gguf

VOCABULARY.gguf gives the tokenizer: any Qwen2 or Qwen3 file with 151,936 tokens, such as the
qwen2.5-coder of `make models`. Needs the PyPI packages gguf and numpy.
"""
import sys

import gguf
import numpy

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, CONTEXT = 28, 1024, 16, 8, 128, 3072, 131072
source, out = sys.argv[1:]
random = numpy.random.default_rng(1)
reader = gguf.GGUFReader(source)
writer = gguf.GGUFWriter(out, "qwen3")


def copy_tokenizer():
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        types = field.types
        value = field.contents()
        if types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, types[0], sub_type=types[-1])
        else:
            writer.add_key_value(name, value, types[0])
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def add_matrix(name, rows, columns):
    """Blocks of 32 weights: a scale in 16 bits and 32 codes of 4 bits around 8."""
    blocks = rows * columns // 32
    data = random.integers(0, 256, (blocks, 18), dtype=numpy.uint8)
    scale = numpy.full(blocks, 0.25 / columns ** 0.5, numpy.float16)
    data[:, :2] = scale.view(numpy.uint8).reshape(blocks, 2)
    writer.add_tensor(name, data.reshape(rows, columns // 32 * 18),
                      raw_dtype=gguf.GGMLQuantizationType.Q4_0)


def add_ones(name, n):
    writer.add_tensor(name, numpy.ones(n, numpy.float32))


vocab = copy_tokenizer()
assert vocab == 151936, f"{source} has {vocab} tokens, not 151936"
writer.add_name("random weights in Qwen3-0.6B's shape")
writer.add_context_length(CONTEXT)
writer.add_embedding_length(WIDTH)
writer.add_block_count(LAYERS)
writer.add_feed_forward_length(INNER)
writer.add_head_count(HEADS)
writer.add_head_count_kv(KV_HEADS)
writer.add_key_length(HEAD)
writer.add_value_length(HEAD)
writer.add_layer_norm_rms_eps(1e-6)
writer.add_rope_freq_base(1e6)
add_matrix("token_embd.weight", vocab, WIDTH)
add_ones("output_norm.weight", WIDTH)
for i in range(LAYERS):
    for name, n in (("attn_norm", WIDTH), ("ffn_norm", WIDTH), ("attn_q_norm", HEAD),
                    ("attn_k_norm", HEAD)):
        add_ones(f"blk.{i}.{name}.weight", n)
    for name, rows, columns in (("attn_q", HEADS * HEAD, WIDTH), ("attn_k", KV_HEADS * HEAD, WIDTH),
                                ("attn_v", KV_HEADS * HEAD, WIDTH),
                                ("attn_output", WIDTH, HEADS * HEAD), ("ffn_gate", INNER, WIDTH),
                                ("ffn_up", INNER, WIDTH), ("ffn_down", WIDTH, INNER)):
        add_matrix(f"blk.{i}.{name}.weight", rows, columns)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
