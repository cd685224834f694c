#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mlx-lm's own prompt-cache files, loaded and saved by Kvasir (golden_prompt_cache SAVED), load in
mlx-lm again: the same classes and numbers, and in every layer the same rows of the same tokens.

    saved_caches.py FIXTURES SAVED

FIXTURES is ../shared/fixtures/mlx/prompt-cache. Rows are compared in order of position: our file
has exactly the rows that the cache holds, mlx-lm's a longer buffer or a ring that starts elsewhere.
"""

import sys
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache

# In a full ring the next token overwrites the oldest row, which nothing sees any more.
UNSEEN = 1


def ordered(c, array):
    """Rows of a buffer [1, heads, rows, ...] by position."""
    if isinstance(c, cache.RotatingKVCache):
        rows, held = c._temporal_order(array), min(c.offset, c.max_size)
        newest = rows[:, :, c.keep :][:, :, c.keep - held :]
        return mx.concatenate([rows[:, :, : c.keep], newest], axis=2)
    return array[:, :, : c.offset]


def parts(c):
    for side in (c.keys, c.values):
        yield from side if isinstance(side, (list, tuple)) else [side]


def compare(path, want, found):
    assert type(want) is type(found), f"{path}: {type(want)}, ours {type(found)}"
    if isinstance(want, cache.ArraysCache):
        a, b = tree_flatten(want.state), tree_flatten(found.state)
        assert len(a) == len(b), path
        for (name, x), (_, y) in zip(a, b):
            if isinstance(x, mx.array) and x.size:
                assert mx.array_equal(x.astype(mx.float32), y).item(), f"{path}: {name}"
        return
    assert want.offset == found.offset, path
    for x, y in zip(parts(want), parts(found)):
        x, y = ordered(want, x), ordered(found, y)
        assert x.dtype == y.dtype and x.shape == y.shape, f"{path}: {x.shape}, ours {y.shape}"
        if isinstance(want, cache.RotatingKVCache) and want.offset >= want.max_size:
            keep = want.keep
            assert mx.array_equal(x[:, :, :keep], y[:, :, :keep]).item(), path
            x, y = x[:, :, keep + UNSEEN :], y[:, :, keep + UNSEEN :]
        assert mx.array_equal(x, y).item(), path


def main():
    fixtures, saved = Path(sys.argv[1]), Path(sys.argv[2])
    files = sorted(fixtures.glob("mlx-lm-0.32.2/*/*.safetensors"))
    for path in files:
        ours = saved / "_".join(path.relative_to(fixtures).parts)
        want = cache.load_prompt_cache(str(path))
        found = cache.load_prompt_cache(str(ours))
        assert len(want) == len(found), path
        for a, b in zip(want, found):
            compare(path, a, b)
    print(f"saved_caches: {len(files)} files of mlx-lm, saved by Kvasir, load with equal rows")


if __name__ == "__main__":
    main()
