#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# soak.sh: what takes too long for `make test`. The log is kept:
# bench/results/soak-DATE-COMMIT.log.
#   KVASIR_SOAK_SEEDS   seeds of kcheck, most of a minute each (default 20)
#   KVASIR_SOAK_ARM_SEEDS   seeds of kcheck for the NEON tiers, minutes each (default 3)
#   KVASIR_SOAK_PROGRAMS   random programs of the property test (default 2000)
#   KVASIR_SOAK_FUZZ   seconds of each fuzz target (default 600)
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
seeds=${KVASIR_SOAK_SEEDS:-20}
arm_seeds=${KVASIR_SOAK_ARM_SEEDS:-3}
programs=${KVASIR_SOAK_PROGRAMS:-2000}
fuzz=${KVASIR_SOAK_FUZZ:-600}

mkdir -p bench/results
log=bench/results/soak-$(date -u +%Y-%m-%d)-$(git describe --always --dirty 2>/dev/null || true).log
exec > >(sed -u "s|$PWD|.|g" | tee "$log") 2>&1

echo "soak: $(git describe --always --dirty 2>/dev/null || echo 'no commit'), $(date -u +%FT%TZ)"
echo "soak: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, $(uname -r)"
tools/deps.sh soak
tools/fetch-model.sh all
cmake --preset ci >/dev/null
cmake --build build-ci | tail -1

echo "soak: kcheck, $seeds seeds"
one_kcheck() { # SEED
    build-ci/tests/kcheck --seed="$1" >"build-ci/kcheck-$1.log" 2>&1 || {
        cat "build-ci/kcheck-$1.log"
        echo "soak: kcheck failed with --seed=$1"
        return 1
    }
}
export -f one_kcheck
seq "$seeds" | xargs -P"$(nproc)" -I{} bash -c 'one_kcheck {}'

echo "soak: kcheck of the NEON tiers, emulated, $arm_seeds seeds"
tools/kcheck-arm.sh "$arm_seeds"

echo "soak: property test, $programs programs"
build-ci/tests/sim_property --programs="$programs"

echo "soak: fuzzing, $fuzz s a target"
tools/fuzz.sh "$fuzz"

echo "soak: beside the packages of others"
tools/interop.sh

echo "soak: goldens that take long"
KVASIR_SOAK=1 ctest --test-dir build-ci --output-on-failure --no-label-summary -R '^golden\.' \
    -E '^golden\.smollm2$'

echo "soak: mutants"
tools/mutants.sh

echo "soak: every test under the thread sanitizer"
tools/test.sh tsan-all
echo "soak: passed, $((SECONDS / 60)) minutes; log in $log"
