#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device-soak.sh bundle   here: packs kcheck (also for 64-bit Arm, with the emulator) and the random
#                         programs (build-ci) with their libraries and the tiny fixtures into
#                         build-soak/bundle.tar.gz
# device-soak.sh run      on an x86 machine with many cores and no compiler that has that file: the
#                         stages kcheck, arm and property of tools/soak.sh, many at once. Prints a
#                         log for bench/results/; exit 1 if something fails.
#
# Environment of run: COMMIT, SEEDS of kcheck (20), ARM_SEEDS of kcheck on each NEON tier (3),
# PROGRAMS of each random test (2000), JOBS (all cores). Unpacks the fixtures to the path that they
# have here, which is built into the programs.
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=build-soak/bundle

if [ "$1" = bundle ]; then
    cmake --preset ci >/dev/null
    cmake --build build-ci --target kcheck sim_property sim_engine sim_tree sim_simulate
    rm -rf $bundle
    mkdir -p $bundle/lib
    for name in kcheck sim_property sim_engine sim_tree sim_simulate; do
        strip -g -o $bundle/$name build-ci/tests/$name
    done
    tools/kcheck-arm.sh 0 # builds it
    cp build-arm/kcheck $bundle/kcheck-arm
    cp "$(command -v qemu-aarch64)" $bundle/
    ldd $bundle/kcheck $bundle/sim_* $bundle/qemu-aarch64 |
        sed -nE 's/.*(=> |\t)(\/[^ ]+) .*/\2/p' | sort -u |
        xargs -I{} cp -L {} $bundle/lib/
    shared=$(realpath ../shared)
    echo "$shared" >$bundle/shared
    tar cf $bundle/fixtures.tar -C "$shared" fixtures/tiny
    tar czf $bundle.tar.gz $bundle
    exit 0
fi

tar xzf $bundle.tar.gz
shared=$(cat $bundle/shared)
mkdir -p "$shared"
[ -d "$shared/fixtures/tiny" ] || tar xf $bundle/fixtures.tar -C "$shared"
jobs=${JOBS:-$(nproc)} programs=${PROGRAMS:-2000} seeds=${SEEDS:-20} arm_seeds=${ARM_SEEDS:-3}
out=$(mktemp -d)
echo "device-soak: ${COMMIT:-no commit named}, $(date -u +%FT%TZ), $(nproc) cores"
grep -m1 'model name' /proc/cpuinfo || true
run() { # NAME ARGUMENT...
    local log=$out/$(tr -c 'A-Za-z0-9\n' - <<<"$*")
    if "$bundle"/lib/ld-linux-x86-64.so.2 --library-path "$bundle/lib" "$bundle/$1" "${@:2}" \
        >"$log" 2>&1; then
        echo "$*: $(tail -1 "$log")"
    else
        echo "$*: FAILED"
        tail -40 "$log"
        return 1
    fi
}
export -f run
export bundle out
# The programs of a test are split into parts with different seeds, so that all cores are busy.
parts=16
{
    for ((seed = 1; seed <= arm_seeds; seed++)); do # the slowest come first
        for tier in neon neondot; do
            echo "qemu-aarch64 -cpu max $bundle/kcheck-arm --tier=$tier --seed=$seed"
        done
    done
    for ((part = 0; part < parts; part++)); do
        echo "sim_property --programs=$((programs / parts)) --seed=$((1000000 * part + 1))"
        echo "sim_engine --programs=$((programs / parts)) --seed=$((1000000 * part + 1))"
    done
    echo "sim_tree --programs=$((10 * programs)) --seed=1"
    echo "sim_simulate --programs=$programs"
    for ((seed = 1; seed <= seeds; seed++)); do echo "kcheck --seed=$seed"; done
} | xargs -P "$jobs" -L1 bash -c 'run $0 "$@"'
echo "device-soak: passed, $((SECONDS / 60)) minutes"
