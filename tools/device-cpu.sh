#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device-cpu.sh [TIER]   kcheck on a bare x86 machine: builds it with only a C compiler (no cmake,
#                        no library but libc) in a temporary folder, runs it with --require=TIER
#                        (default avx512vnni), then with --bench the kernels that determine decode
#                        and prompt speed, avx2 and TIER. Prints a log for bench/results/; its exit
#                        status is kcheck's.
#
# Environment: CC (cc), JOBS (all cores), COMMIT: the commit that the log names, OUT: a folder that
# gets the log, too.
set -euo pipefail
cd "$(dirname "$0")/.."
tier=${1:-avx512vnni}
CC=${CC:-cc}
JOBS=${JOBS:-$(nproc)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -z "${OUT:-}" ] || exec > >(tee "$OUT/device-cpu-$tier.txt") 2>&1

if ! command -v "$CC" >/dev/null; then
    echo "device-cpu: no C compiler ($CC)"
    exit 1
fi

# The flags of CMakeLists.txt.
common="-std=gnu17 -O2 -w -ffp-contract=off -fno-math-errno -Iinclude -Isrc"
avx2="-O3 -mavx2 -mfma -mf16c"
avx512="$avx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512cd"

compile_all() { # PREFIX FLAGS FILE...: lines "object<TAB>command"
    local prefix=$1 flags=$2 f
    shift 2
    for f in "$@"; do
        echo "$CC $common $flags -c $f -o $work/$prefix-$(basename "$f" .c).o"
    done
}
{
    compile_all util "" $(ls src/util/*.c | grep -v json.c)
    compile_all quant "" src/quant/*.c
    compile_all cpu "" src/backend/page_layout.c src/backend/cpu/kernels.c
    compile_all ref -O3 src/backend/cpu/ref/*.c
    cpu=src/backend/cpu
    compile_all avx2 "$avx2 -DKVASIR_AVX2" $cpu/simd/*.c $cpu/avx2/*.c
    compile_all avx512 "$avx512 -DKVASIR_AVX512" $cpu/simd/*.c $cpu/avx512/*.c
    compile_all vnni "$avx512 -mavx512vnni -DKVASIR_AVX512VNNI" $cpu/simd/*.c $cpu/avx512/*.c
    compile_all amx "$avx512 -mavx512vnni -mamx-tile -mamx-int8 -DKVASIR_AVX512VNNI" $cpu/amx/*.c
    compile_all kcheck '-Itests/kcheck -Itests/support' tests/kcheck/*.c \
        tests/support/random_*.c
} | xargs -P "$JOBS" -I{} sh -c '{}'
"$CC" "$work"/*.o -o "$work/kcheck" -lpthread -lm

echo "device-cpu: ${COMMIT:-no commit named}, $(date -u +%FT%TZ), $(uname -m)"
"$CC" --version | head -1
grep -m1 'model name' /proc/cpuinfo || true
status=0
"$work/kcheck" --require="$tier" || status=$?
echo "kcheck: exit $status"

# These are medians of the CPU time of one thread, so alternating the tiers would gain nothing.
for filter in "8 g64 D64" "4 g64 D64" "8 g64 D128" "4 g64 D128" "f16 D64" "centre" \
    "Q4_1 act 8" "Q4_K act 8" "Q6_K act 8" "Q8_0 act 8" "Q5_0 act 8" "AFFINE4 act 8" \
    "Q4_1 act 16" "BF16" "encode" "softmax_run" "act_pack" "gate_mul"; do
    for t in avx2 "$tier"; do
        "$work/kcheck" --bench --tier="$t" --filter="$filter" | grep "^$t" || true
    done
done
exit "$status"
