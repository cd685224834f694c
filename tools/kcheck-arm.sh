#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kcheck-arm.sh [SEEDS]   kcheck of the NEON tiers on a machine of another architecture: builds it
#                         for 64-bit Arm and runs it under qemu for neon and neondot, seeds 1 to
#                         SEEDS (default 1), minutes each
#
# It does not use CMake, which would look for cross-built libraries; kcheck needs none. Correctness
# only: speeds under qemu mean nothing. Exit 77 if compiler or emulator is missing. For one case:
#     qemu-aarch64 -cpu max build-arm/kcheck --tier=neon --filter=score --seed=7
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
seeds=${1:-1}

compiler=aarch64-linux-gnu-gcc
qemu=qemu-aarch64
for program in "$compiler" "$qemu"; do
    command -v "$program" >/dev/null || {
        echo "kcheck-arm: $program is missing: run tools/deps.sh soak"
        exit 77
    }
done

# ---- build: the flags of CMakeLists.txt ----------------------------------------------------------

flags="-std=gnu17 -O3 -ffp-contract=off -fno-math-errno -Wall -Wextra -Wshadow -Werror
       -Iinclude -Isrc -Itests/support"
out=build-arm
compile() { # "FILE [FLAG...]"
    # shellcheck disable=SC2086 # all are words
    $compiler $flags -c $1 -o "$out/$(tr '/ ' __ <<<"$1").o"
}
export -f compile
export compiler flags out qemu
cpu=src/backend/cpu
rm -rf "$out"
mkdir -p "$out"
{
    ls src/util/*.c | grep -v json.c
    ls src/quant/*.c src/backend/*.c $cpu/*.c $cpu/ref/*.c tests/kcheck/*.c
    ls tests/support/random_*.c
    ls $cpu/simd/*.c $cpu/neon/*.c | sed 's/$/ -DKVASIR_NEON/'
    ls $cpu/simd/*.c $cpu/neon/*.c | sed 's/$/ -DKVASIR_NEONDOT -march=armv8.2-a+dotprod/'
} | xargs -P"$(nproc)" -d'\n' -I{} bash -c 'compile "{}"'
$compiler -static "$out"/*.o -lm -lpthread -o "$out/kcheck"

# ---- run -----------------------------------------------------------------------------------------

# A core without dot products must not be mistaken for one that has them.
! "$qemu" -cpu cortex-a53 "$out/kcheck" --require=neondot --filter=softmax >/dev/null || {
    echo "kcheck-arm: neondot was found on a core that lacks it"
    exit 1
}
"$qemu" -cpu cortex-a53 "$out/kcheck" --require=neon --tier=neon --filter=softmax
"$qemu" -cpu max "$out/kcheck" --require=neondot --tier=neondot --filter=softmax

check() { # TIER SEED
    local tier=$1 seed=$2 log=$out/kcheck-$1-$2.log
    SECONDS=0
    "$qemu" -cpu max "$out/kcheck" --tier="$tier" --seed="$seed" >"$log" 2>&1 || {
        grep -v ' ok$' "$log" || true
        echo "kcheck-arm: $tier failed with --seed=$seed"
        return 1
    }
    echo "kcheck-arm: $tier, seed $seed: $(grep -c ' ok$' "$log") families hold, $SECONDS s"
}
export -f check
for ((seed = 1; seed <= seeds; seed++)); do
    printf '%s\n' "neon $seed" "neondot $seed"
done | xargs -r -P"$(nproc)" -d'\n' -I{} bash -c 'check {}'
