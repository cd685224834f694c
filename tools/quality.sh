#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tables of docs/quality.md: perplexity and KL divergence of every cache format over the first
# windows of wikitext-2. KL is from the run with f32 pages and the same act bits; the base file
# takes 4 bytes x vocabulary x 1,023 a window (200 MB on SmolLM2, 620 MB on Qwen).
#
#   tools/quality.sh [WINDOWS [MODEL [CENTRE]]]     prints Markdown; some minutes a window
#   ACTS="16 8"   act bits      KVASIR=build/kvasir
#
# CENTRE (bias, or a file of kvasir calibrate) adds a line with centred keys for each format.
set -euo pipefail
cd "$(dirname "$0")/.."
windows=${1:-8} model=${2:-models/SmolLM2-135M-Instruct.Q4_1.gguf} centre=${3:-}
text=../shared/text/wikitext-2-raw/wiki.test.raw
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
settings=("f16 64" "bf16 64" "8 64" "8,4 64" "8,4 32" "6 64" "5 64" "4,8 64" "4 64" "4 32" "8,2 64"
    "3 64" "2 64")
run() { # ACT_BITS KV_BITS CENTRE [arguments]
    "${KVASIR:-build/kvasir}" perplexity -m "$model" -f "$text" --window 1024 \
        --windows "$windows" --json --act-bits "$1" --kv-bits "$2" --key-centre "$3" "${@:4}" \
        2>/dev/null
}
row() { # ACT_BITS NAME, JSON on standard input
    python3 tools/quality_row.py "$1" "$2"
}
echo "| act bits | cache | bytes a token | perplexity | KL mean | median | 99 % | same top |"
echo "|---|---|---|---|---|---|---|---|"
for act in ${ACTS:-16 8}; do
    run "$act" f32 off --save-base "$dir/base" | row "$act" f32
    for setting in "${settings[@]}"; do
        read -r bits group <<<"$setting"
        name=$bits$([[ $bits == *f16 ]] || echo " g$group")
        run "$act" "$bits" off --kv-group-size "$group" --base "$dir/base" | row "$act" "$name"
        [[ -z $centre || $bits == *f16 ]] ||
            run "$act" "$bits" "$centre" --kv-group-size "$group" --base "$dir/base" |
            row "$act" "$name, centred"
    done
done
