#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bits.sh FOLDER [COMMIT]
#
# Makes a folder that shows on any machine of this architecture whether two commits compute the same
# bits: FOLDER/bits, tests/golden/bits.c as one static program with COMMIT's library (without COMMIT
# the working tree's), and FOLDER/models, the tiny models (38 MB). With the folders OLD and NEW of
# two commits on a machine with, say, AVX-512:
#
#     OLD/bits --print --models=OLD/models >record.txt
#     NEW/bits --models=OLD/models record.txt
#
# If a version of the arithmetic was raised between them, all lines count as other versions'. With
# NEW/bits --print the lines of tests/golden/bits.txt are recorded again. They have the versions of
# COMMIT in them.
#
# Environment: CC (cc); LIBRARY, an existing libkvasir.a of COMMIT (nothing is built then).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: bits.sh FOLDER [COMMIT]}
commit=${2:-}
mkdir -p "$out/models"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tree=$PWD
if [ -n "$commit" ]; then
    tree=$work/tree
    mkdir "$tree"
    git archive "$commit" | tar -x -C "$tree"
fi
library=${LIBRARY:-}
if [ -z "$library" ]; then
    cmake -S "$tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF \
        >/dev/null
    cmake --build "$work/build" --target kvasir_static >/dev/null
    library=$work/build/libkvasir.a
fi
# Before there was a version of the model's arithmetic, it was 1.
version() { # NAME FILE
    local number
    number=$(sed -n "s/^#define $1 *\([0-9]*\)$/\1/p" "$tree/src/$2")
    echo "${number:-1}"
}
versions=$(version KV_ORDER_VERSION quant/quant.h)
versions=$versions.$(version KV_ARITHMETIC_VERSION quant/quant.h)
versions=$versions.$(version MODEL_ARITHMETIC_VERSION model/model.h)
# Option structs of commits before November 23, 2026 do not carry their size.
before=
grep -q struct_size "$tree/include/kvasir.h" || before=-DBEFORE_STRUCT_SIZE
"${CC:-cc}" -std=gnu17 $before "-DVERSIONS=\"$versions\"" -O2 -I"$tree/include" \
    tests/golden/bits.c -static "$library" \
    -ljansson -lpcre2-8 -lutf8proc -lxxhash -lsodium -lhiredis -lpthread -lm -o "$out/bits"

# The goldens are not copied, nor are models that differ from another one in a number or two.
shared=${SHARED_DIR:-../shared}
for model in "$shared"/fixtures/tiny/*/ tests/golden/*/; do
    name=$(basename "$model")
    case $name in phi3_short | mistral | qwen3_yarn | qwen3_5) continue ;; esac
    mkdir -p "$out/models/$name"
    cp -f "$model/config.json" "$model/model.safetensors" "$out/models/$name/"
done
chmod -R u+w "$out"
du -sh "$out"
