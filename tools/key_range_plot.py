#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plot of docs/quality.md from what bench_key_range prints: DUMP.tsv > PLOT.svg

Two bars per layer: the widest KV head before and after centring, on a logarithmic scale. A tick in
each bar is the mean over the layer's heads."""
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 340, 56, 12, 34, 40
COLOURS = {"before": "#c0504d", "after": "#3b7dbd"}

with open(sys.argv[1]) as f:
    lines = f.read().splitlines()
title = lines[0].lstrip("# ")
rows = [[float(x) for x in line.split("\t")] for line in lines if not line.startswith("#")]
values = [x for row in rows for x in row[1:]]
low = 10 ** math.floor(math.log10(min(values)))
high = 10 ** math.ceil(math.log10(max(values)))


def y_of(value):
    part = math.log10(value / low) / math.log10(high / low)
    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


out = []


def text(x, y, what, anchor="middle", size=11):
    out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
               f"{what}</text>")


step = (WIDTH - LEFT - RIGHT) / len(rows)
value = low
while value <= high:
    for k in range(1, 10):
        if value * k <= high:
            colour = "#999" if k == 1 else "#e4e4e4"
            y = y_of(value * k)
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                       f'stroke="{colour}" stroke-width="1"/>')
    text(LEFT - 6, y_of(value) + 4, f"{value:g}", "end")
    value *= 10
for row in rows:
    x = LEFT + row[0] * step
    for i, name in enumerate(COLOURS):
        widest, mean = row[1 + 2 * i], row[2 + 2 * i]
        at, bar = x + step * (0.1 + 0.4 * i), step * 0.38
        top = y_of(widest)
        out.append(f'<rect x="{at:.1f}" y="{top:.1f}" width="{bar:.1f}" '
                   f'height="{HEIGHT - BOTTOM - top:.1f}" fill="{COLOURS[name]}"/>')
        out.append(f'<line x1="{at:.1f}" x2="{at + bar:.1f}" y1="{y_of(mean):.1f}" '
                   f'y2="{y_of(mean):.1f}" stroke="white" stroke-width="1.5"/>')
    text(x + step / 2, HEIGHT - BOTTOM + 15, f"{row[0]:.0f}")
text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, "layer")
text(LEFT, 16, title.split(";")[0], "start", 12)
for i, (name, what) in enumerate(zip(COLOURS, ("as they are", "centred"))):
    x = WIDTH - 210 + 105 * i
    out.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{COLOURS[name]}"/>')
    text(x + 15, 17, what, "start", 12)
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
      f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">')
print(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
print("\n".join(out))
print("</svg>")
