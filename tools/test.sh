#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test.sh [asan|tsan]: everything CI runs, or one sanitizer's part of it. Stops at the first stage
# that fails; the last lines of a whole run are ctest's summary of the release build.
#
# What runs where, to stay below 30 minutes on 2 cores:
#   gcc release (build-ci)   all tests
#   clang (build-clang)      compiled without a warning
#   cuda (build-cuda-ci)     where nvcc is: compiled for one architecture; nothing of it runs here
#   asan (build-asan)        all but the goldens of real models
#   tsan (build-tsan)        tests labelled `threads` (soak: all but goldens and kcheck, which has
#                            one thread)
set -euo pipefail
cd "$(dirname "$0")/.."
exec </dev/null
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}

SECONDS=0
stage() {
    echo
    echo "==== $1 (at $((SECONDS / 60)):$(printf %02d $((SECONDS % 60))))"
}

# build PRESET [cmake arguments]
build() {
    local preset=$1
    shift
    cmake --preset "$preset" "$@" >/dev/null # what it warns of goes to stderr
    cmake --build "build-$preset"
}

run_asan() {
    stage "address and undefined behaviour sanitizers"
    build asan
    # Leaks are errors; a stack behind each report of undefined behaviour.
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 \
        ctest --test-dir build-asan --output-on-failure --no-label-summary -LE golden
}

run_tsan() {
    stage "thread sanitizer"
    build tsan
    # gcc 12's runtime cannot place its shadow under the address randomization of newer kernels;
    # setarch -R turns that off where a container lets it.
    local fixed=()
    ! setarch -R true 2>/dev/null || fixed=(setarch -R)
    TSAN_OPTIONS=halt_on_error=1 "${fixed[@]}" \
        ctest --test-dir build-tsan --output-on-failure --no-label-summary --no-tests=ignore "$@"
}

# Without a GPU opcheck can only be compiled; its C without a warning. One architecture of three:
# the others take as long each and differ in nothing that C++ sees.
run_cuda() {
    PATH=$PATH:/usr/local/cuda/bin
    if ! command -v nvcc >/dev/null; then
        echo "cuda: skipped, this machine has no nvcc"
        return
    fi
    cmake --preset cuda -B build-cuda-ci -DKVASIR_CUDA_ARCHS=90a -DKVASIR_WERROR=ON >/dev/null
    cmake --build build-cuda-ci --target opcheck
}

case ${1:-all} in
asan) run_asan ;;
tsan) run_tsan -L threads ;;
tsan-all) run_tsan -LE 'golden|kcheck' ;;
all)
    stage "dependencies, demo model"
    tools/deps.sh all
    tools/fetch-model.sh ||
        echo "WARNING: no demo model in models/: the tests that need it will be skipped" >&2

    stage "gcc, release, warnings are errors"
    # On x86 a machine without AVX2 must not pass by testing less.
    require=
    [ "$(uname -m)" != x86_64 ] || require=avx2
    build ci -DKVASIR_REQUIRE_TIER="$require"

    stage "checks"
    tools/check.sh

    stage "clang, warnings are errors"
    build clang

    stage "cuda, compiled"
    run_cuda

    run_asan
    run_tsan -L threads

    stage "all tests"
    ctest --test-dir build-ci --output-on-failure --no-label-summary
    ;;
*)
    echo "usage: $0 [asan|tsan|tsan-all]" >&2
    exit 2
    ;;
esac
