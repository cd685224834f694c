#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tables and the plot of docs/quality.md: `kvasir quality` of every cache format over the first
# windows of wikitext-2.
#
#   tools/quality.sh [WINDOWS [MODEL [CENTRE]]]     prints Markdown; some minutes a window
#   ACTS="16 8"    act bits        KVASIR=build/kvasir       SVG=FILE: also a plot, at act bits 16
#   STATE=FOLDER   keeps what is finished there, and goes on from it
#
# CENTRE (bias, or a file of kvasir calibrate) adds a line with centred keys for each format.
set -euo pipefail
cd "$(dirname "$0")/.."
windows=${1:-8} model=${2:-models/SmolLM2-135M-Instruct.Q4_1.gguf} centre=${3:-}
text=../shared/text/wikitext-2-raw/wiki.test.raw
state=${STATE:-$(mktemp -d)}
[ -n "${STATE:-}" ] || trap 'rm -rf "$state"' EXIT
mkdir -p "$state"
run() { # ACT_BITS CENTRE GROUP FORMAT... [FLAG...]
    "${KVASIR:-build/kvasir}" quality -m "$model" -f "$text" --windows "$windows" --json \
        --act-bits "$1" --key-centre "$2" --kv-group-size "$3" \
        --resume "$state/$(basename "$model")-$1" --kv-bits "${@:4}"
}
echo "| act bits | cache | bytes a token | bits | perplexity | change | KL mean | median | 99 % |" \
    "same top |"
echo "|---|---|---|---|---|---|---|---|---|---|"
rows() { python3 tools/quality_rows.py "$@"; }
for act in ${ACTS:-16 8}; do
    for how in off $centre; do
        formats=(8 "8,4" 6 5 "4,8" 4 "8,2" 3 2) name=", centred" exact=() plot=()
        [ "$how" != off ] || formats=(f16 bf16 "${formats[@]}") name="" exact=(--exact)
        [ "$act $how" != "16 ${centre:-off}" ] || [ -z "${SVG:-}" ] ||
            plot=(--svg "$SVG" --peers docs/quality-peers.json)
        run "$act" "$how" 64 "${formats[@]}" "${plot[@]}" | rows 64 "$name" "${exact[@]}"
        run "$act" "$how" 32 8,4 4 | rows 32 "$name"
    done
done
