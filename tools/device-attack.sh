#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device-attack.sh bundle
#     here: builds `kvasir` with the address and with the thread sanitizer and packs both with their
#     libraries and the attacks (tests/attack) into build-attack/bundle.tar.xz
# device-attack.sh run SECONDS [REQUESTS CASES]
#     on a machine with many cores, Python and no compiler that has that file: with each sanitizer
#     REQUESTS requests with odd fields (1,000,000) to four servers and CASES raw ones (100,000) to
#     another, all at once, or as many as SECONDS allow. Prints a log for bench/results/; exit 1 on
#     a finding or if a count is not reached.
#
# Environment of run: COMMIT; SEED: the first seed (1). To resolve offsets in a report: addr2line -e
# build-SANITIZER/kvasir, of the same build.
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=build-attack/bundle

if [ "$1" = bundle ]; then
    rm -rf $bundle
    mkdir -p $bundle/lib $bundle/tests/support
    for sanitizer in asan tsan; do
        cmake --preset $sanitizer >/dev/null
        cmake --build build-$sanitizer --target kvasir >&2
        strip -g build-$sanitizer/kvasir -o $bundle/$sanitizer
        ldd build-$sanitizer/kvasir
    done | sed -nE 's/.*(=> |\t)(\/[^ ]+) .*/\2/p' | sort -u | xargs -I{} cp -L {} $bundle/lib/
    strip -g $bundle/lib/*
    cp -r tests/attack $bundle/tests/
    cp tests/support/scripted_model.py $bundle/tests/support/
    rm -rf $bundle/tests/attack/__pycache__
    tar c $bundle | xz -6 -T1 >$bundle.tar.xz
    du -h $bundle.tar.xz
    exit 0
fi

tar xJf $bundle.tar.xz
seconds=$2 requests=${3:-1000000} cases=${4:-100000} seed=${SEED:-1} scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# As in tools/test.sh. With random addresses, tests/attack starts a server until it succeeds.
fixed=
! setarch -R true 2>/dev/null || fixed='setarch -R'
echo "device-attack: ${COMMIT:-no commit named}, $(date -u +%FT%TZ), $(nproc) cores, at most" \
    "$seconds s, with each sanitizer $requests requests to 4 servers and $cases raw cases to 1;" \
    "addresses: ${fixed:-random}"
grep -m1 'model name' /proc/cpuinfo || true
# A program that tests/attack can start. It takes the name of a sanitizer's library in it as a sign
# of that sanitizer.
for sanitizer in asan tsan; do
    {
        printf '#!/bin/sh\n# lib%s.so\nexec %s ' $sanitizer "$fixed"
        printf '"%s" --library-path "%s" "%s" "$@"\n' \
            "$PWD/$bundle/lib/ld-linux-x86-64.so.2" "$PWD/$bundle/lib" "$PWD/$bundle/$sanitizer"
    } >"$scratch/$sanitizer"
    chmod +x "$scratch/$sanitizer"
done
options=symbolize=0:halt_on_error=1
export ASAN_OPTIONS=$options:detect_leaks=1:strict_string_checks=1 TSAN_OPTIONS=$options
export UBSAN_OPTIONS=print_stacktrace=1
attack() { # SANITIZER PART COUNT SEED
    timeout -k 10 $((seconds + 200)) python3 "$bundle/tests/attack/attack.py" "$scratch/$1" \
        "$seconds" "$2" --seed "$4" --count "$3" 2>&1 |
        sed "s/^attack: $2, /$1: &/; /^attack: /d"
}
export -f attack
export bundle seconds scratch
for sanitizer in asan tsan; do
    for i in 0 1 2 3; do
        echo $sanitizer fields $(((requests + 3) / 4)) $((seed + i))
    done
    echo $sanitizer raw "$cases" "$seed"
done | xargs -P 0 -L1 bash -c 'attack $0 $1 $2 $3' | tee "$scratch/log"
awk -v requests="$requests" -v cases="$cases" '
    / (requests|cases)[,:]/ {
        for (i = 2; i <= NF; i++)
            if ($i ~ /^(requests|cases)[,:]$/)
                done[$1 " " substr($i, 1, length($i) - 1)] += $(i - 1)
    }
    / held$/ { held++ }
    END {
        for (what in done) {
            print "device-attack: " what ": " done[what]
            few += done[what] < (what ~ /cases/ ? cases : requests)
        }
        print "device-attack: " held + 0 " of 10 attacks held" (few ? ", counts not reached" : "")
        exit held != 10 || few
    }' "$scratch/log"
