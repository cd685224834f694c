#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random logits through random samplers and processors: the same probabilities as mlx-lm's.

    sampler.py SAMPLER

SAMPLER is tests/interop/sampler.c. mlx-lm's functions are called in the order of make_sampler and
make_logits_processors; xtc happens always or never, since both use different random numbers.
"""

import random
import subprocess
import sys

import mlx.core as mx
from mlx_lm import sample_utils

CASES = 3000


def one_case(r):
    vocab = r.choice([8, 50, 200, 1500])
    half = range(vocab // 2)
    return {
        "logits": [r.gauss(0, 2.5) for _ in range(vocab)],
        "seen": r.choices(half, k=r.randrange(30)),
        "bias": {r.randrange(vocab): r.uniform(-2, 2) for _ in range(r.randrange(3))},
        "penalties": [
            (r.choice(factors), r.choice([1, 5, 20]))
            for factors in ([0, 1.3], [0, 0.7, -0.4], [0, 0.2])
        ],
        "temp": r.choice([0.5, 1, 1.7]),
        "top_p": r.choice([0, 0.5, 0.9, 0.99]),
        "min_p": r.choice([0, 0.3, 0.02]),
        "keep": r.choice([1, 3]),
        "xtc": r.choice([0, 1]),
        "threshold": r.choice([0.02, 0.1, 0.3]),
        "special": r.sample(range(vocab), 2),
        "top_k": r.choice([0, 3, 6]),
    }


def line(c):
    values = [len(c["logits"]), c["temp"], c["top_p"], c["min_p"], c["keep"], c["xtc"]]
    values += [c["threshold"], c["top_k"]]
    for penalty in c["penalties"]:
        values += penalty
    values += [len(c["special"]), *c["special"], len(c["bias"])]
    for pair in c["bias"].items():
        values += pair
    values += [len(c["seen"]), *c["seen"], *c["logits"]]
    return " ".join(map(repr, values))


def theirs(c):
    (rep, rep_n), (pres, pres_n), (freq, freq_n) = c["penalties"]
    x = mx.array([c["logits"]])
    seen = mx.array(c["seen"]) if c["seen"] else []
    for process in sample_utils.make_logits_processors(
        c["bias"] or None, rep, rep_n, pres, pres_n, freq, freq_n
    ):
        x = process(seen, x)
    x = x - mx.logsumexp(x, keepdims=True)
    if c["top_p"]:
        x = sample_utils.apply_top_p(x, c["top_p"])
    if c["min_p"]:
        x = sample_utils.apply_min_p(x, c["min_p"], c["keep"])
    if c["xtc"]:
        x = sample_utils.apply_xtc(x, 1.0, c["threshold"], c["special"])
    if c["top_k"]:
        x = sample_utils.apply_top_k(x, c["top_k"])
    return mx.softmax(x / c["temp"], -1)[0].tolist()


r = random.Random(3)
cases = [one_case(r) for _ in range(CASES)]
told = "\n".join(map(line, cases)) + "\n"
ours = subprocess.run(sys.argv[1], input=told, stdout=subprocess.PIPE, check=True, text=True)
rows = ours.stdout.splitlines()
assert len(rows) == CASES, len(rows)
for c, row in zip(cases, rows):
    worst = max(abs(a - float(b)) for a, b in zip(theirs(c), row.split(), strict=True))
    if worst > 1e-4:
        c.pop("logits")
        sys.exit(f"sampler.py: probabilities differ by {worst}: {c}")
print(f"sampler.py: {CASES} cases agree")
