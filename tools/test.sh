#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test.sh [check|asan|tsan]: everything that CI runs; or build, rules and unit tests (`make check`);
# or one sanitizer's part. Stops at the first stage that fails; the last lines of a whole run are
# ctest's summary of the release build.
# For tools/soak.sh: asan-all; tsan-all; storm SECONDS, the server's storm under each sanitizer.
#
# What runs where, to stay below 35 minutes on 2 cores:
#   gcc release (build-ci)   all tests
#   clang (build-clang)      reads all C without a warning
#   cuda (build-cuda-ci)     if nvcc exists: compiled for one architecture; nothing of it runs here
#   asan (build-asan)        all but goldens, kcheck, which has guard pages of its own, and those
#                            labelled `soak` (soak: all but goldens)
#   tsan (build-tsan)        tests labelled `threads` (soak: all but goldens and kcheck, which has
#                            one thread)
# The last three link the vector kernels of build-ci, which take a third of the time of a build;
# they are instrumented in soak only.
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}
# More tests than cores: many wait for clients that pause. Those that time something run alone.
level=$((CTEST_PARALLEL_LEVEL + (CTEST_PARALLEL_LEVEL + 1) / 2))

SECONDS=0
stage() {
    echo
    echo "==== $1 (at $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))))"
}

# build PRESET [cmake arguments]
build() {
    local preset=$1
    shift
    cmake --preset "$preset" "$@" >/dev/null # warnings still go to stderr
    cmake --build "build-$preset"
}

# Whose vector kernels other builds link; empty: each compiles its own.
kernels_from=

# Leaks are errors; reports of undefined behaviour have a stack trace.
under_asan() { # COMMAND
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 "$@"
}

# gcc 12's runtime cannot place its shadow under the address randomization of newer kernels;
# setarch -R turns that off where a container lets it.
under_tsan() { # COMMAND
    local fixed=()
    ! setarch -R true 2>/dev/null || fixed=(setarch -R)
    TSAN_OPTIONS=halt_on_error=1 "${fixed[@]}" "$@"
}

run_asan() { # TARGET OUT KERNELS
    stage "address and undefined behaviour sanitizers"
    cmake --preset asan -DKVASIR_SANITIZE_KERNELS="$3" \
        -DKVASIR_KERNELS_FROM="$kernels_from" >/dev/null
    cmake --build build-asan --target "$1"
    under_asan ctest --test-dir build-asan --output-on-failure --no-label-summary \
        -j $level -LE "$2"
}

# With -L only the programs labelled threads are built and run, else all of them.
run_tsan() { # KERNELS FLAG...
    stage "thread sanitizer"
    local target=all kernels=$1
    shift
    [ "$1" != -L ] || target=threads_tests
    cmake --preset tsan -DKVASIR_SANITIZE_KERNELS="$kernels" \
        -DKVASIR_KERNELS_FROM="$kernels_from" >/dev/null
    cmake --build build-tsan --target $target
    under_tsan ctest --test-dir build-tsan --output-on-failure --no-label-summary \
        -j $level --no-tests=ignore "$@"
}

run_storm() { # SECONDS
    local preset
    for preset in asan tsan; do
        stage "the server's storm, $preset"
        cmake --preset $preset >/dev/null
        cmake --build build-$preset --target sim_server
        under_$preset build-$preset/tests/sim_server --seconds="$1" --clients=64
    done
}

# Without a GPU the CUDA backend can only be compiled, and what uses it linked; its C without a
# warning. One architecture of three: the others take as long each and differ in nothing that C++
# sees. Attention for heads of 128 dims only (KVASIR_FEW_KERNELS), of the same templates, and no
# machine code optimized, since none runs; `make cuda` has all. The library's C is the release
# build's, but for the one file that differs.
run_cuda() {
    PATH=$PATH:/usr/local/cuda/bin
    if ! command -v nvcc >/dev/null; then
        echo "cuda: skipped, this machine has no nvcc"
        return
    fi
    cmake --preset cuda -B build-cuda-ci -DKVASIR_CUDA_ARCHS=90a -DKVASIR_WERROR=ON \
        -DCMAKE_BUILD_TYPE=Quick -DCMAKE_C_FLAGS_QUICK=-O1 \
        -DKVASIR_KERNELS_FROM="$kernels_from" -DKVASIR_CORE_FROM="$kernels_from" \
        -DCMAKE_CUDA_FLAGS_QUICK='-O1 -Xptxas -O0 -DKVASIR_FEW_KERNELS' >/dev/null
    cmake --build build-cuda-ci --target kvasir opcheck
}

check_rules() {
    stage "rules on the sources"
    tools/check.sh
    tools/circles.sh build-ci
}

case ${1:-all} in
check)
    stage "gcc, release, warnings are errors"
    build ci
    check_rules
    stage "unit tests"
    ctest --test-dir build-ci --output-on-failure --no-label-summary -L unit
    ;;
asan) run_asan short_tests 'golden|kcheck|soak' OFF ;;
asan-all) run_asan all golden ON ;;
tsan) run_tsan OFF -L threads ;;
tsan-all) run_tsan ON -LE 'golden|kcheck' ;;
storm) run_storm "$2" ;;
all)
    stage "dependencies, demo model"
    tools/deps.sh all
    tools/fetch-model.sh ||
        echo "WARNING: no demo model in models/: the tests that need it will be skipped" >&2
    tools/fetch-model.sh axe ||
        echo "WARNING: api.page will not check how accessible the page is" >&2
    clients_log=$(mktemp)
    tools/clients.sh >"$clients_log" 2>&1 & # PyPI and one core, while other stages run
    clients=$!
    trap 'wait; rm -f "$clients_log"' EXIT

    stage "gcc, release, warnings are errors"
    # An x86 machine without AVX2 must fail instead of testing less.
    require=
    [ "$(uname -m)" != x86_64 ] || require=avx2
    build ci -DKVASIR_REQUIRE_TIER="$require"

    check_rules

    stage "clang, warnings are errors"
    cmake --preset clang >/dev/null
    tools/syntax.py build-clang

    wait $clients || echo "WARNING: tests of clients will be skipped: $(cat "$clients_log")" >&2

    kernels_from=$PWD/build-ci
    run_cuda >build-ci/cuda.log 2>&1 & # one thread, while other stages use several
    cuda=$!
    run_asan short_tests 'golden|kcheck|soak' OFF
    stage "cuda, compiled meanwhile"
    wait $cuda || { cat build-ci/cuda.log && exit 1; }
    tail -n 1 build-ci/cuda.log
    run_tsan OFF -L threads

    stage "all tests"
    ctest --test-dir build-ci --output-on-failure --no-label-summary -j $level
    ;;
*)
    echo "usage: $0 [check|asan|asan-all|tsan|tsan-all|storm SECONDS]" >&2
    exit 2
    ;;
esac
