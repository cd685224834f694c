#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# attack.sh [SECONDS [FLAG|PART...]]: attacks a program that was built, for about SECONDS (60):
#   files       model and prompt-cache files with bent bytes and members, through info and generate
#   templates   chat templates that loop, grow, recurse and reach out
#   fields      requests with fields of wrong types, sizes and places, on every route
#   raw         bent heads, lengths and chunks, with requests hidden in bodies
#   batch       batch, killed and started again
#   shares      150 clients of one key beside 50 of another: equal tokens (with --limits only)
#   overload    hostile bodies and thousands of connections beside honest clients
# Flags: --seed N repeats a run; --count N ends fields after N requests and raw after N cases, even
# if there is time left; --limits asserts times, too: for a machine without other work, with
# SmolLM2 in models/. Environment: BUILD, the folder of the program (build-ci), for example
# build-asan or build-tsan after `make asan` or `make tsan`.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build-ci}
[ -x "$build/kvasir" ] ||
    { echo "attack: $build/kvasir is missing: run \`make check\` first" >&2 && exit 1; }
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1}
# gcc 12's thread sanitizer cannot place its shadow under the address randomization of newer kernels
# (tools/test.sh). Children inherit that it is off.
fixed=()
if grep -q '^KVASIR_SANITIZE:STRING=.*thread' "$build/CMakeCache.txt" &&
    setarch -R true 2>/dev/null; then
    fixed=(setarch -R)
fi
exec "${fixed[@]}" python3 tests/attack/attack.py "$build/kvasir" "${@:-60}"
