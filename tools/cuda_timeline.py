#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the kernels of a step cost, from the lines that cuda_timeline.cpp writes.

    cuda_timeline.py FILE

By kernel and number of blocks: launches, how long one is on the device (much of it waiting for its
predecessor), and how long after its predecessor it ended, which is what it adds to a step. In
microseconds, medians. Copies and fills, which may run beside kernels, have KiB for blocks and add
nothing.
"""
import re
import statistics
import sys


def short(name: str) -> str:
    kernel = re.search(r"[0-9]([a-z_]+_kernel)|[0-9](decode|prefill)I", name)
    source = re.search(r"[0-9](few_norms|few_rows_of|few_rounded)", name)
    shown = (kernel.group(1) or kernel.group(2)) if kernel else name[:40]
    return shown + (f" {source.group(1)}" if source else "")


def main() -> None:
    rows = []
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in lines:
            start, end, blocks, name = line.split(maxsplit=3)
            rows.append((int(start), int(end), int(blocks), short(name.strip())))
    rows.sort()
    kernels = {}
    before = None
    for start, end, blocks, name in rows:
        copies = name == "fill" or name.startswith("copy_kind_")
        added = 0 if copies or before is None else end - before
        kernels.setdefault((name, blocks), []).append((end - start, added))
        before = before if copies else end
    print(f"{'kernel':32} {'blocks':>7} {'times':>6} {'on device':>10} {'adds':>8}")
    for (name, blocks), times in sorted(kernels.items(), key=lambda k: -sum(t[1] for t in k[1])):
        on_device, adds = (statistics.median(t[i] for t in times) / 1e3 for i in (0, 1))
        print(f"{name:32} {blocks:7} {len(times):6} {on_device:10.2f} {adds:8.2f}")


if __name__ == "__main__":
    main()
