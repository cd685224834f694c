#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# soak.sh [STAGE...]: the tests that take too long for `make test`: all stages, in this order, or
# those named. The log is kept: bench/results/soak-DATE-COMMIT.log; that of `tiers` alone, which is
# the proof of docs/tiers.md and takes less than 25 minutes, as tiers-proof-DATE-COMMIT.log.
#   kcheck     KVASIR_SOAK_SEEDS seeds (default 20), most of a minute each
#   arm        kcheck of the NEON tiers, emulated: KVASIR_SOAK_ARM_SEEDS seeds (3), minutes each
#   property   KVASIR_SOAK_PROGRAMS random programs (2000) of each random test, and
#              1,000 kills of a process that writes to the disk tier, and 1,000 steps over large
#              pages without a system call
#   tiers      KVASIR_SOAK_FAULTS faults (500) of each class of tests/sim/tier_faults.c, and its
#              control; KVASIR_SOAK_KILLS kills (1000) of servers and as many of a writer;
#              KVASIR_SOAK_LIES rounds of lies of a Redis (20)
#   server     64 clients of all kinds, KVASIR_SOAK_STORM seconds (180), under each sanitizer
#   fuzz       KVASIR_SOAK_FUZZ seconds of each target (600)
#   installs   every way to install, in a bare Debian (tools/installs.sh); its log is kept beside
#              this one. Needs root
#   abi        libkvasir's binary interface beside the last release's (tools/abi.sh)
#   site       the documentation as a site, without a warning (tools/site.sh)
#   interop    comparisons with other projects' packages (tools/interop.sh)
#   goldens    the goldens that take long
#   proxy      nginx and Caddy in front, as docs/deploy.md shows them, where they are installed
#   framing    KVASIR_SOAK_FRAMING raw requests (4000) through each of nginx and HAProxy, strict and
#              lenient: nothing is framed otherwise (tests/soak/framing.py)
#   attack     KVASIR_SOAK_ATTACK seconds of attacks (600) with limits on time (tools/attack.sh),
#              then a minute under each sanitizer
#   schemas    KVASIR_SOAK_SCHEMAS answers (500) of Qwen2.5-Coder under real schemas, each judged by
#              PyPI's jsonschema (tests/soak/schemas.py)
#   masks      sets of allowed tokens beside llguidance's and xgrammar's, and how long ours take
#              (tools/masks.sh): KVASIR_SOAK_MASKS seconds (1800); its log is kept beside this one
#   agents     conversations of agents, written and recorded, to 35,000 tokens: what is computed
#              beside the least that is possible, on plain and hybrid models
#              (tests/soak/agent_traces.py)
#   recall     a fact at the start of 22,000 tokens, over 8-bit keys and 4-bit values
#   lmeval     EleutherAI's lm-eval through /v1/completions, where it is installed
#   mutants    planted bugs (tools/mutants.sh)
#   drawn      KVASIR_SOAK_DRAWN changes (200) drawn by a script (tools/draw_mutants.py)
#   asan       every test but goldens under the address sanitizer, kcheck too
#   tsan       every test but goldens and kcheck under the thread sanitizer
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
stages=("$@")
[ $# != 0 ] ||
    stages=(kcheck arm property tiers server fuzz installs abi site interop goldens proxy framing
        attack schemas masks agents recall lmeval mutants drawn asan tsan)

mkdir -p bench/results
commit=$(git describe --always --dirty 2>/dev/null || echo 'no-commit')
name=soak targets=()
if [ "${stages[*]}" = tiers ]; then
    name=tiers-proof targets=(--target kvasir sim_tier_faults sim_tier_kill unit_tier_redis)
fi
log=bench/results/$name-$(date -u +%Y-%m-%d)-$commit.log
exec > >(sed -u -e "s|$PWD|.|g" -e '/^\[[0-9]*\/[0-9]*\] /d' | tee "$log") 2>&1

echo "soak: $commit, $(date -u +%FT%TZ)"
echo "soak: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, $(uname -r)"
if [ "$name" = soak ]; then
    tools/deps.sh soak
    tools/fetch-model.sh all
fi
cmake --preset ci >/dev/null
cmake --build build-ci "${targets[@]}" | tail -1

one_kcheck() { # SEED
    build-ci/tests/kcheck --seed="$1" >"build-ci/kcheck-$1.log" 2>&1 || {
        cat "build-ci/kcheck-$1.log"
        echo "soak: kcheck failed with --seed=$1"
        return 1
    }
}
export -f one_kcheck

tiers_stage() {
    local folder code=0
    build-ci/tests/sim_tier_faults --faults="${KVASIR_SOAK_FAULTS:-500}"
    echo "the control:"
    build-ci/tests/sim_tier_faults --faults=20 --unchecked || code=$?
    [ $code = 1 ] || { echo "soak: the control ends with $code, not 1" && return 1; }
    folder=$(mktemp -d)
    (cd "$folder" && python3 "$OLDPWD/tests/soak/tier_kills.py" "$OLDPWD/build-ci/kvasir" \
        "$OLDPWD/../shared/fixtures/tiny/llama" --worlds 4 --kills "${KVASIR_SOAK_KILLS:-1000}")
    rm -rf "$folder"
    build-ci/tests/sim_tier_kill --kills="${KVASIR_SOAK_KILLS:-1000}"
    build-ci/tests/unit_tier_redis --faults="${KVASIR_SOAK_LIES:-20}"
}

for stage in "${stages[@]}"; do
    echo "soak: $stage, at $((SECONDS / 60)) minutes"
    case $stage in
    kcheck)
        seq "${KVASIR_SOAK_SEEDS:-20}" | xargs -P"$(nproc)" -I{} bash -c 'one_kcheck {}'
        echo "kcheck: ${KVASIR_SOAK_SEEDS:-20} seeds hold"
        ;;
    arm) tools/kcheck-arm.sh "${KVASIR_SOAK_ARM_SEEDS:-3}" ;;
    property)
        build-ci/tests/sim_property --programs="${KVASIR_SOAK_PROGRAMS:-2000}"
        build-ci/tests/sim_tree --programs="${KVASIR_SOAK_PROGRAMS:-2000}0"
        build-ci/tests/sim_engine --programs="${KVASIR_SOAK_PROGRAMS:-2000}" --seed=1
        build-ci/tests/sim_tier_kill --kills=1000
        KVASIR_SOAK=1 build-ci/tests/sim_engine_pages
        ;;
    tiers) tiers_stage ;;
    server) tools/test.sh storm "${KVASIR_SOAK_STORM:-180}" ;;
    fuzz) tools/fuzz.sh "${KVASIR_SOAK_FUZZ:-600}" ;;
    installs) tools/installs.sh ;;
    abi) tools/abi.sh ;;
    site) tools/site.sh ;;
    interop) tools/interop.sh ;;
    goldens)
        KVASIR_SOAK=1 ctest --test-dir build-ci --output-on-failure --no-label-summary \
            -R '^golden\.'
        ;;
    lmeval)
        SOURCE_DIR=$PWD bash tests/lmeval/run.sh build-ci/kvasir || [ $? = 77 ] # skipped
        ;;
    proxy) SOURCE_DIR=$PWD bash tests/soak/proxy.sh build-ci/kvasir ;;
    framing)
        timeout 3600 python3 tests/soak/framing.py build-ci/kvasir \
            --cases "${KVASIR_SOAK_FRAMING:-4000}"
        ;;
    attack)
        tools/attack.sh "${KVASIR_SOAK_ATTACK:-600}" --limits
        for preset in asan tsan; do
            cmake --preset $preset >/dev/null
            cmake --build build-$preset --target kvasir
            BUILD=build-$preset tools/attack.sh 60
        done
        ;;
    schemas)
        tools/clients.sh
        .venv-frameworks/bin/python tests/soak/schemas.py build-ci/kvasir \
            models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf \
            ../shared/fixtures/json-schema/maskbench.jsonl --count "${KVASIR_SOAK_SCHEMAS:-500}"
        ;;
    masks) tools/masks.sh --seconds "${KVASIR_SOAK_MASKS:-1800}" ;;
    agents) python3 tests/soak/agent_traces.py build-ci/kvasir ../shared ;;
    recall) MODELS_DIR=$PWD/models bash tests/soak/recall.sh build-ci/kvasir ;;
    mutants) tools/mutants.sh ;;
    drawn)
        rm -rf build-drawn
        python3 tools/draw_mutants.py --count "${KVASIR_SOAK_DRAWN:-200}"
        ;;
    asan) tools/test.sh asan-all ;;
    tsan) tools/test.sh tsan-all ;;
    *)
        echo "soak: no stage is called $stage"
        exit 2
        ;;
    esac
done
echo "soak: passed (${stages[*]}), $((SECONDS / 60)) minutes; log in $log"
