#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is a program slower than the one before it? Two builds of bench_depth take turns, half a second
to some seconds each, so that a machine whose speed drifts changes both alike.

    pairs.py OLD NEW PAIRS MODEL KV_BITS THREADS TIER DECODE_TOKENS PROMPT_TOKENS DEPTH

Prints, for decode and prompt, the median of new / old (tokens/s) over all pairs and its 95 %
interval (bootstrap). An OLD from before KVASIR_TURNS existed: build it with today's bench/depth.c.
"""
import os
import random
import statistics
import subprocess
import sys

old, new, pairs, model, bits, threads, tier, decode, prompt, depth = sys.argv[1:]
assert int(pairs) <= 64, "bench_depth keeps at most 64 repetitions"
programs = [subprocess.Popen(
    [p, model, bits, threads, tier, pairs, decode, prompt, depth], stdin=subprocess.PIPE,
    stdout=subprocess.PIPE, text=True, env={**os.environ, "KVASIR_TURNS": "1"})
    for p in (old, new)]


def turn(program):
    program.stdin.write("go\n")
    program.stdin.flush()
    word, what, speed = program.stdout.readline().split()
    assert word == "turn"
    return what, float(speed)


ratios = {"decode": [], "prompt": []}
for i in range(int(pairs) + 1):  # the first is a warm-up
    for _ in range(2 if prompt != "0" else 1):
        values = [None, None]
        for which in ((0, 1), (1, 0))[i % 2]:
            what, values[which] = turn(programs[which])
        if i:
            ratios[what].append(values[1] / values[0])
for program in programs:
    program.stdin.close()
    program.wait()
random.seed(1)
for what, r in ratios.items():
    if not r:
        continue
    drawn = sorted(statistics.median(random.choices(r, k=len(r))) for _ in range(10000))
    print(f"{what}: new / old {statistics.median(r):.4f}, 95 % interval {drawn[250]:.4f} to "
          f"{drawn[9749]:.4f}, {len(r)} pairs, {min(r):.3f} to {max(r):.3f}")
