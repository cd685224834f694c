#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plot of docs/quality.md from what bench_key_range prints: DUMP.tsv > PLOT.svg

Two bars per layer: the widest KV head before and after centring, on a logarithmic scale. A tick in
each bar is the mean over the layer's heads."""
import sys

from log_bars import LogBars

COLOURS = {"before": "#c0504d", "after": "#3b7dbd"}

with open(sys.argv[1]) as f:
    lines = f.read().splitlines()
title = lines[0].lstrip("# ")
rows = [[float(x) for x in line.split("\t")] for line in lines if not line.startswith("#")]
plot = LogBars([x for row in rows for x in row[1:]], bottom=40)
step = plot.inner / len(rows)
plot.grid("#999", "#e4e4e4")
for row in rows:
    x = plot.LEFT + row[0] * step
    for i, name in enumerate(COLOURS):
        widest, mean = row[1 + 2 * i], row[2 + 2 * i]
        at, bar = x + step * (0.1 + 0.4 * i), step * 0.38
        plot.bar(at, bar, widest, COLOURS[name])
        plot.level(f"{at:.1f}", f"{at + bar:.1f}", mean, "white", "1.5")
    plot.below(x + step / 2, f"{row[0]:.0f}")
plot.text(plot.LEFT + plot.inner / 2, plot.HEIGHT - 8, "layer")
plot.text(plot.LEFT, 16, title.split(";")[0], "start", 12)
for i, (name, what) in enumerate(zip(COLOURS, ("as they are", "centred"))):
    plot.legend(plot.WIDTH - 210 + 105 * i, what, COLOURS[name])
print(plot.svg())
