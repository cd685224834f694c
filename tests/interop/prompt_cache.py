#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompt-cache files of both forms, rewritten by our writer and loaded by mlx-lm: the same classes,
metadata, numbers and arrays.

    prompt_cache.py REWRITE FIXTURES

REWRITE is tests/interop/rewrite.c, FIXTURES ../shared/fixtures/mlx/prompt-cache. Caches that the
fixtures lack (lists of caches, empty ones, padding) are made here. Files of the older form are
written in the newer one, and each of their tensors must be among those that mlx-lm loads.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache


def same(a, b):
    if not isinstance(a, mx.array):
        return type(a) is type(b) and a == b
    return a.dtype == b.dtype and a.shape == b.shape and mx.array_equal(a, b).item()


def leaves(caches):
    return tree_flatten([c.state for c in caches])


def compare(path, again):
    want, metadata = cache.load_prompt_cache(str(path), return_metadata=True)
    found, found_metadata = cache.load_prompt_cache(str(again), return_metadata=True)
    assert metadata == found_metadata, path
    assert [type(c) for c in want] == [type(c) for c in found], path
    want, found = leaves(want), leaves(found)
    assert len(want) == len(found), path
    for (name, a), (other, b) in zip(want, found):
        assert name == other and same(a, b), f"{path}: {name}"


def compare_older(path, again):
    caches = cache.load_prompt_cache(str(again))
    found = dict(leaves(caches))
    for name, tensor in mx.load(str(path)).items():
        layer, rest = name.split(".", 1)
        if isinstance(caches[int(layer)], cache.ArraysCache):
            rest = "0." + rest
        assert same(tensor, found[f"{layer}.{rest}"]), f"{path}: {name}"


def rows(n):
    return mx.random.normal((1, 2, n, 8)), mx.random.normal((1, 2, n, 8))


def made(folder):
    plain, ring = cache.KVCache(), cache.RotatingKVCache(max_size=4, keep=2)
    plain.update_and_fetch(*rows(5))
    for _ in range(5):
        ring.update_and_fetch(*rows(1))
    states, padded = cache.ArraysCache(2), cache.ArraysCache(1, left_padding=[1])
    states[0] = mx.random.normal((1, 3, 4))
    padded[0] = mx.random.normal((1, 3))
    nested = cache.CacheList(ring, cache.CacheList(plain, padded))
    empty = [cache.KVCache(), cache.RotatingKVCache(8), cache.QuantizedKVCache()]
    for name, caches in [("list", [cache.CacheList(plain, states), nested]), ("empty", empty)]:
        path = folder / f"{name}.safetensors"
        cache.save_prompt_cache(str(path), caches, {"model": 'x \u00e9\n"', "a.b": "{}"})
        yield path


def main():
    rewrite, fixtures = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        again = folder / "again.safetensors"
        newer = sorted(fixtures.glob("mlx-lm-0.32.2/*/*.safetensors")) + list(made(folder))
        older = sorted(fixtures.glob("legacy-0.31.3/*/*.safetensors"))
        assert newer and older, "no fixtures"
        for path in newer + older:
            subprocess.run([rewrite, str(path), str(again), "032"], check=True)
            (compare_older if path in older else compare)(path, again)
    print(f"prompt_cache: {len(newer)} files of the newer form and {len(older)} of the older load")


if __name__ == "__main__":
    main()
