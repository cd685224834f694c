#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plot of docs/quality.md: what 4 bits cost keys and values by the axis of their ranges.

    scale_axis_plot.py NAME=FILE... > PLOT.svg

FILE is an exact prompt cache of the model NAME (kvasir cache-prompt --kv-bits f16) of 512 tokens or
more. Pages 1 to 7 of every layer and KV head are encoded with 4 bits and a range

    for each token                over the dims of a head, as affine formats have it
    for each token, rotated       the same of H x, H a Hadamard matrix
    for each channel              over the page's 64 tokens

and decoded again. A bar is the sum of the squared errors over that of the squared distances from
each channel's mean over its page. The figures are in the plot's first lines, as comments."""
import array
import json
import math
import struct
import sys

from log_bars import LogBars

PAGE, PAGES, LEVELS = 64, 7, 15
WAYS = [("a range for each token", "#c0504d"), ("the same, rotated", "#e0a030"),
        ("a range for each channel", "#3b7dbd")]


def tensors(path):
    """(layer, part): heads of rows, of pages 1 to PAGES. part 0: keys; 1: values."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(size))
        for name, t in sorted(head.items()):
            if t.get("dtype") != "F16" or len(t["shape"]) != 4 or name[-2:] not in (".0", ".1"):
                continue
            _, heads, tokens, dim = t["shape"]
            if tokens < (1 + PAGES) * PAGE:
                sys.exit(f"{path}: {tokens} tokens, too few: {(1 + PAGES) * PAGE} are needed")
            for h in range(heads):
                f.seek(8 + size + t["data_offsets"][0] + (h * tokens + PAGE) * dim * 2)
                n = PAGES * PAGE * dim
                x = array.array("f", struct.unpack(f"<{n}e", f.read(2 * n)))
                yield int(name[-1]), [x[i * dim:(i + 1) * dim] for i in range(PAGES * PAGE)]


def rotate(row):
    """H row, H orthonormal and symmetric."""
    x, step = list(row), 1
    while step < len(x):
        for i in range(0, len(x), 2 * step):
            for j in range(i, i + step):
                x[j], x[j + step] = x[j] + x[j + step], x[j] - x[j + step]
        step *= 2
    factor = 1 / math.sqrt(len(x))
    return [v * factor for v in x]


def error(values):
    """Squared error of one range of values."""
    low = min(values)
    step = (max(values) - low) / LEVELS
    if not step:
        return 0.0
    return sum((round((v - low) / step) * step + low - v) ** 2 for v in values)


def measure(path):
    """[part][way]: relative squared errors."""
    errors, energy = [[0.0] * 3, [0.0] * 3], [0.0, 0.0]
    for part, rows in tensors(path):
        for first in range(0, len(rows), PAGE):
            page = rows[first:first + PAGE]
            channels = list(zip(*page))
            for row in page:
                errors[part][0] += error(row)
                errors[part][1] += error(rotate(row))
            for channel in channels:
                errors[part][2] += error(channel)
                mean = sum(channel) / PAGE
                energy[part] += sum((v - mean) ** 2 for v in channel)
    return [[e / energy[part] for e in errors[part]] for part in range(2)]


def plot(results):
    p = LogBars([v for _, parts in results for part in parts for v in part], bottom=44)
    p.grid("#ccc")
    step = p.inner / (2 * len(results))
    comments = []
    for i, (name, parts) in enumerate(results):
        for j, (what, part) in enumerate(zip(("keys", "values"), parts)):
            comments.append(f"{name} {what}: " + " ".join(f"{v:.5f}" for v in part))
            x = p.LEFT + (2 * i + j) * step
            for k, v in enumerate(part):
                p.bar(x + step * (0.14 + 0.25 * k), step * 0.22, v, WAYS[k][1])
            p.below(x + step / 2, what)
        p.text(p.LEFT + (2 * i + 1) * step, p.HEIGHT - 8, name, size=12)
    for k, (what, colour) in enumerate(WAYS):
        p.legend(p.LEFT + 200 * k, what, colour)
    return p.svg(comments)


print(plot([(name, measure(path)) for name, path in (arg.split("=", 1) for arg in sys.argv[1:])]))
