#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The table of docs/quality.md: perplexity and KL divergence of every cache format on SmolLM2-135M,
# the first windows of wikitext-2, through the cache, for --act-bits 16 and 8. KL is from the run
# with f32 pages and the same act bits; the base file takes 200 MB a window.
#
#   tools/quality.sh [WINDOWS]        prints Markdown; about a minute per window on two cores
set -euo pipefail
cd "$(dirname "$0")/.."
windows=${1:-8}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf text=../shared/text/wikitext-2-raw/wiki.test.raw
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
settings=("f16 64" "bf16 64" "8 64" "8,4 64" "8,4 32" "6 64" "5 64" "4,8 64" "4 64" "4 32" "8,2 64"
    "3 64" "2 64")
run() { # ACT_BITS KV_BITS [arguments]
    build/kvasir perplexity -m "$model" -f "$text" --window 1024 --windows "$windows" --json \
        --act-bits "$1" --kv-bits "$2" "${@:3}" 2>/dev/null
}
row() { # ACT_BITS NAME, JSON on standard input
    python3 tools/quality_row.py "$1" "$2"
}
echo "| act bits | cache | bytes a token | perplexity | KL mean | median | 99 % | same top |"
echo "|---|---|---|---|---|---|---|---|"
for act in 16 8; do
    run "$act" f32 --save-base "$dir/base" | row "$act" f32
    for setting in "${settings[@]}"; do
        read -r bits group <<<"$setting"
        run "$act" "$bits" --kv-group-size "$group" --base "$dir/base" |
            row "$act" "$bits$([[ $bits == *f16 ]] || echo " g$group")"
    done
done
