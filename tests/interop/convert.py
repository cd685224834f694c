#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvasir convert`, then the folder in mlx-lm and in Kvasir: the same greedy tokens.

    convert.py KVASIR MODEL...

For each model and each kind of folder: mlx-lm loads it (with its tokenizer), and both continue the
same prompts greedily, ours with 16-bit pages and --act-bits 16. mlx-lm is fed our tokens, so that
every step is compared: its best token must be ours, or ours must be within TIE[dtype] of its best
logit (mlx-lm computes in the folder's dtype, so its own logits are off by that much). Quantized
weights must also equal mx.quantize of the unquantized folder's weights, bit for bit.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
from mlx_lm import load

# Flags, dtype, number of prompts, tokens of each (few where mlx's matmuls with f16 scales take
# seconds a token on a CPU).
KINDS = [
    (["--dtype", "f32"], "f32", 3, 48),
    (["--dtype", "bf16"], "bf16", 3, 48),
    (["--bits", "4", "--group-size", "64", "--dtype", "f32"], "f32", 3, 48),
    (["--bits", "8", "--group-size", "32", "--dtype", "f16"], "f16", 1, 12),
]
TIE = {"f32": 0.02, "f16": 0.1, "bf16": 0.25}
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
]


def ours(kvasir, folder, ids, steps):
    out = subprocess.run(
        [
            kvasir,
            "generate",
            "-m",
            folder,
            "--tokens",
            ",".join(map(str, ids)),
            "--json",
            "--kv-bits",
            "f16",
            "--act-bits",
            "16",
            "--max-tokens",
            str(steps),
            "--ignore-eos",
            "--temp",
            "0",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return json.loads(out)["ids"]


def gaps(model, prompt, answer):
    """For each step the difference between mlx-lm's best logit and that of our token."""
    logits = model(mx.array([prompt + answer[:-1]]))[0, len(prompt) - 1 :].astype(mx.float32)
    chosen = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=1)[:, 0]
    return (logits.max(axis=1) - chosen).tolist()


def same_codes(plain, quantized, bits, group, dtype):
    """Compares the quantized folder with mx.quantize of the unquantized one's weights."""
    a, b = mx.load(str(plain / "model.safetensors")), mx.load(str(quantized / "model.safetensors"))
    names = [n[: -len(".scales")] for n in b if n.endswith(".scales")]
    for n in names:
        w, s, z = mx.quantize(a[n + ".weight"].astype(dtype), group_size=group, bits=bits)
        for part, want in (("weight", w), ("scales", s), ("biases", z)):
            if not mx.array_equal(b[f"{n}.{part}"], want).item():
                return f"{n}.{part} differs from mx.quantize's"
    return None if names else "nothing is quantized"


def check(kvasir, source, work):
    bad = 0
    for flags, dtype, prompts, steps in KINDS:
        folder = work / "-".join([source.stem] + [f.strip("-") for f in flags])
        subprocess.run(
            [kvasir, "convert", source, folder] + flags, check=True, stderr=subprocess.DEVNULL
        )
        model, tokenizer = load(str(folder))
        worst = equal = total = 0
        for prompt in PROMPTS[:prompts]:
            ids = tokenizer.encode(prompt)
            answer = ours(kvasir, folder, ids, steps)
            below = gaps(model, ids, answer)
            worst = max([worst] + below)
            equal += sum(g == 0 for g in below)
            total += len(below)
        why = (
            f"a token {worst:.3f} below mlx-lm's best"
            if worst > TIE[dtype] or total != steps * prompts
            else None
        )
        if not why and dtype == "f32" and "--bits" in flags:
            why = same_codes(
                work / f"{source.stem}-dtype-f32", folder, int(flags[1]), int(flags[3]), mx.float32
            )
        print(
            f"convert: {folder.name}: {equal} of {total} tokens are mlx-lm's, worst gap {worst:.4f}"
            + (f": FAILED, {why}" if why else ""),
            flush=True,
        )
        bad += bool(why)
    return bad


def main():
    kvasir, sources = Path(sys.argv[1]).resolve(), [Path(p) for p in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as work:
        sys.exit(sum(check(kvasir, s, Path(work)) for s in sources) > 0)


if __name__ == "__main__":
    main()
