#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""two_heads.py GEMMA4 OUT DIM    the tiny gemma4 with heads of DIM in its last layer (random)"""
import json
import os
import random
import struct
import sys

source, out, dim = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = json.load(open(source + "/config.json"))
assert config["head_dim"] == 64
config["per_layer_config"] = {"3": {"head_dim": dim}}
with open(source + "/model.safetensors", "rb") as f:
    size = struct.unpack("<Q", f.read(8))[0]
    old = json.loads(f.read(size))
    body = f.read()

head, data, noise = {}, b"", random.Random(1)
for name, tensor in old.items():
    if name == "__metadata__":
        continue
    begin, end = tensor["data_offsets"]
    values, shape = body[begin:end], tensor["shape"]
    if name.startswith("model.layers.3.self_attn."):
        across = 1 if ".o_proj." in name else 0
        shape[across] = shape[across] // 64 * dim
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        # bfloat16 of either sign, 0.01 to 0.04
        values = b"".join(
            struct.pack("<H", noise.choice((0, 0x8000)) | 0x3C20 + noise.randrange(256))
            for _ in range(count)
        )
    where = [len(data), len(data) + len(values)]
    head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": where}
    data += values
text = json.dumps(head).encode()
text += b" " * (-len(text) % 8)
os.mkdir(out)
json.dump(config, open(out + "/config.json", "w"))
open(out + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
