#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A line of tools/quality.sh's table: ACT_BITS NAME, the JSON of `kvasir perplexity` on stdin."""
import json
import sys

d = json.load(sys.stdin)
cells = [sys.argv[1], sys.argv[2], d["kv_bytes_per_token"], f"{d['ppl']:.4f}"]
cells += [f"{d[k]:.4g}" if k in d else "" for k in ("kld_mean", "kld_median", "kld_p99")]
cells += [f"{100 * d['same_top']:.2f} %" if "same_top" in d else ""]
print("|", " | ".join(str(c) for c in cells), "|")
