#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gguf_families.sh PYTHON GOLDEN_TINY [SHARED]
#     Every tiny model, shared or of tests/golden, as the GGUF file that llama.cpp's converter
#     would write (tiny_gguf.py), against the golden of its folder: matrices in float32 and in
#     bfloat16, and gpt_oss with MXFP4 experts against the same numbers in float32. PYTHON needs
#     numpy and gguf; GOLDEN_TINY is the program of tests/golden/tiny.c.
set -euo pipefail
python=$1 golden_tiny=$2
here=$(dirname "$0")
tiny=${3:-$here/../../../shared}/fixtures/tiny
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
write() { "$python" "$here"/tiny_gguf.py "$@"; }
for folder in "$tiny"/*/ "$here"/../golden/*/; do
    name=$(basename "$folder")
    for type in f32 bf16; do write --type $type "$folder" "$out/$name-$type.gguf"; done
done
for experts in mxfp4 mxfp4-plain; do
    write --type f32 --experts $experts "$tiny"/gpt_oss "$out/gpt_oss-$experts.gguf"
done
"$golden_tiny" "$out"
