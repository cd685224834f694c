#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians, spreads and paired ratios from the lines that tools/bench.sh collected."""
import json, platform, re, statistics, sys

raw, depth, threads, tier = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
runs = {}  # (who, setting, depth, "tg" or "pp") -> one value a round
for line in open(raw):
    who = line.split()[0]
    setting = line.split()[1]
    if "fa=0" in line:
        setting += " no-fa"
    if " centred " in line:
        setting += " centred"
    if "{" in line:  # of `kvasir bench`
        for r in json.loads(line[line.index("{"):])["results"]:
            kind = {"decode": "tg", "prompt": "pp"}[r["phase"]]
            runs.setdefault((who, setting, r["depth"], kind), []).append(
                r["tokens_per_second"]["median"])
        continue
    d = int(re.search(r"d=(\d+)", line).group(1))
    for kind, value in re.findall(r"\b(tg|pp)\d+ med ([\d.]+)", line):
        runs.setdefault((who, setting, d, kind), []).append(float(value))

cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if "model name" in l), "?")
print(f"machine: {cpu}, {platform.release()}; {threads} threads; kvasir tier {tier}; "
      f"{max(map(len, runs.values()))} rounds; tokens/s")
for (who, setting, d, kind), values in sorted(runs.items(), key=lambda r: (r[0][2], r[0][3], r[0])):
    print(f"{kind} depth {d:6d}  {who:6s} {setting:18s} median {statistics.median(values):8.2f}"
          f"   min {min(values):8.2f}   max {max(values):8.2f}")


def best(who, d, kind):
    found = {k: statistics.median(v) for k, v in runs.items()
             if k[0] == who and k[2] == d and k[3] == kind}
    return max(found, key=found.get) if found else None


def ratio(a, b, name, floor):
    pairs = [x / y for x, y in zip(runs.get(a, []), runs.get(b, []))]
    if not pairs:
        return
    m = statistics.median(pairs)
    goal = f"(floor {floor}: {'met' if m >= floor else 'MISSED'})" if floor else ""
    print(f"{name}: {m:.2f} [{min(pairs):.2f} .. {max(pairs):.2f}] {goal}")


print("\npaired ratios, median over rounds [min .. max]")
ours = "8,4 centred" if ("kvasir", "8,4 centred", 0, "tg") in runs else "8,4"  # as by default
ours0 = ("kvasir", ours, 0, "tg")
for who, floors in (("llama", (0.8, 0.8, 1.5)), ("ik", (None, None, None))):
    b = best(who, 0, "tg")
    if b:
        ratio(ours0, b, f"decode at depth 0, ours {ours} / {who} {b[1]}", floors[0])
    b = best(who, 0, "pp")
    if b:
        ratio(("kvasir", ours, 0, "pp"), b, f"prompt 512, ours / {who} {b[1]}", floors[1])
    b = best(who, depth, "tg")
    if b:
        ratio(("kvasir", "8,4", depth, "tg"), b,
              f"decode at depth {depth}, ours 8,4 / {who}'s best ({b[1]})", floors[2])
ratio(("mlx", "8,4", 0, "tg"), ours0, "decode at depth 0, MLX folder / GGUF", 0.9)
ratio(("kvasir", "8,4", depth, "tg"), ("kvasir", "f16", depth, "tg"),
      f"decode at depth {depth}, ours 8,4 / ours f16", 1.0)
ratio(("kvasir", "8,4 centred", depth, "tg"), ("kvasir", "8,4", depth, "tg"),
      f"decode at depth {depth}, ours 8,4 with centred keys / without", 0.9)
