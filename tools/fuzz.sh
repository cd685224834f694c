#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh [SECONDS [TARGET...]]: every target of tests/fuzz (or those named) with libFuzzer under
# the address and undefined behaviour sanitizers, SECONDS each (default 600; 0 only builds), as many
# at a time as there are cores. Part of `make soak`. Seeds are tests/fuzz/corpus and the real files
# of ../shared; new inputs stay in build-fuzz/corpus. A finding is a file build-fuzz/crash-TARGET-*:
# fix the bug that it shows, then add the file to tests/fuzz/corpus/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
    -DKVASIR_SANITIZE=fuzzer-no-link,address,undefined -DKVASIR_FUZZ=ON >/dev/null
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    for file in tests/fuzz/corpus/*/; do targets+=("$(basename "$file")"); done
fi
cmake --build build-fuzz --target "${targets[@]/#/fuzz_}"

[ "$seconds" != 0 ] || exit 0

run() { # TARGET
    local target=$1 seeds=(tests/fuzz/corpus/"$1") length=65536
    mkdir -p "build-fuzz/corpus/$target"
    case $target in
    prompt_file)
        for folder in ../shared/fixtures/mlx/prompt-cache/corrupt/*/; do
            [ ! -d "$folder" ] || seeds+=("$folder")
        done
        ;;
    template) [ ! -d ../shared/chat-templates ] || seeds+=(../shared/chat-templates) ;;
    esac
    [ ! -e "tests/fuzz/$target.dict" ] || seeds+=(-dict="tests/fuzz/$target.dict")
    ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        "build-fuzz/tests/fuzz_$target" -max_total_time="$seconds" -max_len="$length" -timeout=10 \
        -rss_limit_mb=3000 -print_final_stats=1 -verbosity=1 \
        -artifact_prefix="build-fuzz/crash-$target-" "build-fuzz/corpus/$target" "${seeds[@]}" \
        >"build-fuzz/$target.log" 2>&1 || {
        echo "fuzz: $target FAILED; build-fuzz/$target.log ends:"
        tail -40 "build-fuzz/$target.log"
        return 1
    }
    local runs edges
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/$target.log")
    edges=$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "build-fuzz/$target.log" | tail -1)
    echo "fuzz: $target: $runs runs in $seconds s, $edges edges, no finding"
}
export -f run
export seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run {}'
