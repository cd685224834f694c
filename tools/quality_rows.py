#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lines of tools/quality.sh's table: GROUP SUFFIX [--exact], the JSON of `kvasir quality` on stdin.
The exact run's line is printed with --exact."""
import json
import sys

o = json.load(sys.stdin)
group, suffix, exact = sys.argv[1], sys.argv[2], "--exact" in sys.argv
for r in o["results"]:
    name = r["kv_bits"]
    if "kld_mean" not in r and not exact:
        continue
    if "f" not in name:  # not f32, f16, bf16
        name += f" g{group}{suffix}"
    cells = [o["machine"]["act_bits"], name, round(r["page_bytes_per_token"]),
             f"{r['bits_per_value']:.2f}", f"{r['ppl']:.4f}",
             f"{100 * r['ppl_ratio'] - 100:+.2f} %"]
    cells += [f"{r[k]:.4g}" if k in r else "" for k in ("kld_mean", "kld_median", "kld_p99")]
    cells += [f"{100 * r['same_top']:.2f} %" if "same_top" in r else ""]
    print("|", " | ".join(str(c) for c in cells), "|")
