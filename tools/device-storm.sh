#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device-storm.sh bundle        here: builds sim_server with the address and with the thread
#                               sanitizer and packs both with their libraries and the tiny model
#                               into build-storm/bundle.tar.gz
# device-storm.sh run SECONDS   on a machine with many cores and no compiler that has that file:
#                               storms of 64 and 128 clients with each, eight at once. Prints a log
#                               for bench/results/; exit 1 if one fails.
#
# Environment of run: COMMIT, OUT: a folder for the logs of storms that fail. To resolve offsets in
# them: addr2line -e build-SANITIZER/tests/sim_server, of the same build.
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=build-storm/bundle

if [ "$1" = bundle ]; then
    rm -rf $bundle
    mkdir -p $bundle/lib $bundle/model
    for sanitizer in asan tsan; do
        cmake --preset $sanitizer >/dev/null
        cmake --build build-$sanitizer --target sim_server
        strip -g build-$sanitizer/tests/sim_server -o $bundle/$sanitizer
        ldd build-$sanitizer/tests/sim_server
    done | sed -nE 's/.*(=> |\t)(\/[^ ]+) .*/\2/p' | sort -u | xargs -I{} cp -L {} $bundle/lib/
    strip -g $bundle/lib/*
    cp -L ../shared/fixtures/tiny/llama/{config.json,model.safetensors} $bundle/model/
    tar czf $bundle.tar.gz $bundle
    exit 0
fi

tar xzf $bundle.tar.gz
seconds=$2 out=${OUT:-$(mktemp -d)}
# As in tools/test.sh. With random addresses only some starts of the thread sanitizer succeed, hence
# the retries below.
fixed=
! setarch -R true 2>/dev/null || fixed='setarch -R'
echo "device-storm: ${COMMIT:-no commit named}, $(date -u +%FT%TZ), $(nproc) cores, $seconds s," \
    "eight storms at once; addresses: ${fixed:-random}"
grep -m1 'model name' /proc/cpuinfo || true
storm() { # SANITIZER CLIENTS SEED
    local log=$out/$1-$2-$3.log options=symbolize=0:halt_on_error=1 start
    for ((start = 0; start < 100; start++)); do
        ASAN_OPTIONS=$options:detect_leaks=1:strict_string_checks=1 TSAN_OPTIONS=$options \
            $fixed "$bundle"/lib/ld-linux-x86-64.so.2 --library-path "$bundle/lib" "$bundle/$1" \
            --model="$PWD/$bundle/model" --seconds="$seconds" --clients="$2" --seed="$3" \
            >"$log" 2>&1 && {
            echo "$1: held; $(cat "$log")"
            rm "$log"
            return 0
        }
        grep -q 'unexpected memory mapping' "$log" || break
    done
    echo "$1, $2 clients, seed $3: FAILED"
    tail -60 "$log"
    return 1
}
export -f storm
export bundle seconds out fixed
for seed in 1 2; do
    for clients in 64 128; do
        printf '%s\n' "asan $clients $seed" "tsan $clients $seed"
    done
done | xargs -P 0 -L1 bash -c 'storm $0 $1 $2'
