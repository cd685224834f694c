#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mutants.sh [PATTERN]
#
# Plants the bugs of tests/mutants.txt in a copy of the tree, one at a time, and runs on each the
# test that its line names: every bug must be caught. Each test is first run on the tree itself,
# which it must pass. With a grep PATTERN only the lines that match it. Part of `make soak`.
# A mutant is a line FILE|BEFORE|AFTER|what it breaks|TEST, where BEFORE is a text in FILE and TEST
# a name for `ctest -R`. Random tests run MUTANT_PROGRAMS programs (150).
set -euo pipefail
cd "$(dirname "$0")/.."
export CTEST_OUTPUT_ON_FAILURE=1
programs=${MUTANT_PROGRAMS:-150}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp -r CMakeLists.txt CMakePresets.json kvasir.pc.in include src tests docs bench "$dir"/
grep -e "${1:-}" tests/mutants.txt >"$dir/list" ||
    { echo "mutants: no line matches $1" >&2; exit 2; }
targets() { # TEST...: what they need
    local test
    for test in "$@"; do
        case $test in
        api.*) echo kvasir ;;
        *) echo "${test/./_}" ;;
        esac
    done | sort -u
}
build() { # TEST...
    cmake --build "$dir/build" --target $(targets "$@") >"$dir/log" 2>&1
}
passes() { # TEST PROGRAMS
    case $1 in
    sim.tree | sim.engine | sim.property)
        timeout 300 "$dir/build/tests/${1/./_}" --programs="$2" >"$dir/log" 2>&1
        ;;
    *) ctest --test-dir "$dir/build" -R "^$1\$" --no-tests=error >"$dir/log" 2>&1 ;;
    esac
}
plant() { python3 tools/mutants.py plant "$@"; } # FILE BEFORE AFTER
skipped() { grep -q '\*\*\*Skipped' "$dir/log"; }
cmake -S "$dir" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON \
    -DSHARED_DIR="$PWD/../shared" -DMODELS_DIR="$PWD/models" >/dev/null
mapfile -t tests < <(cut -d'|' -f5 "$dir/list" | sort -u)
build "${tests[@]}" || { tail -5 "$dir/log" >&2 && exit 1; }
for test in "${tests[@]}"; do
    { passes "$test" 20 && ! skipped; } || {
        tail -20 "$dir/log"
        echo "mutants: $test fails or is skipped on the tree itself"
        exit 1
    } >&2
done
caught=0 missed=0
while IFS='|' read -r file before after what test; do
    plant "$dir/src/$file" "$before" "$after"
    if ! build "$test"; then
        echo "mutants: does not compile: $what" >&2
        tail -5 "$dir/log" >&2
        exit 1
    fi
    if passes "$test" "$programs" 2>/dev/null; then # the shell reports programs that abort
        echo "MISSED  $file: $what ($test)"
        missed=$((missed + 1))
    else
        echo "caught  $file: $what ($test)"
        caught=$((caught + 1))
    fi
    cp "src/$file" "$dir/src/$file"
done <"$dir/list"
echo "$caught mutants caught, $missed missed"
[ "$missed" = 0 ]
