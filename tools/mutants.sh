#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Plants the bugs of tests/mutants.txt in a copy of the tree, one at a time, and runs on each the
# tests of its room: of control tokens for text/ and api/, of changed model files for cli/, else of
# operations and the random ones of caches, the quick ones first. Every bug must be caught.
# Prints which test caught it. Part of `make soak`. A mutant is a line
# FILE|BEFORE|AFTER|what it breaks, where BEFORE is a text in FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${1:-150}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp -r CMakeLists.txt CMakePresets.json kvasir.pc.in include src tests docs bench "$dir"/
build() {
    cmake --build "$dir/build" --target unit_ops unit_control_tokens unit_control_bodies kvasir \
        sim_tree sim_engine sim_property >"$dir/log" 2>&1
}
passes() { # TESTS of ctest, in order; sets by to the one that fails
    for by in "$@"; do
        ctest --test-dir "$dir/build" -R "^$by\$" --no-tests=error >"$dir/log" 2>&1 || return 1
    done
}
holds() { # PROGRAMS FILE; sets by to the test that fails
    case $2 in
    text/* | api/*) passes unit.control_tokens unit.control_bodies; return ;;
    cli/*) passes api.model_changes; return ;;
    esac
    by=ops
    timeout 300 "$dir/build/tests/unit_ops" >"$dir/log" 2>&1 || return 1
    for by in tree engine property; do
        timeout 300 "$dir/build/tests/sim_$by" --programs="$1" >"$dir/log" 2>&1 || return 1
    done
}
plant() { python3 tools/mutants.py plant "$@"; } # FILE BEFORE AFTER
cmake -S "$dir" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=ON \
    -DSHARED_DIR="$PWD/../shared" -DMODELS_DIR="$PWD/models" >/dev/null
build
{ holds 20 cache/ && holds 20 text/ && holds 20 cli/; } ||
    { echo "mutants: the tree itself fails" >&2; exit 1; }
caught=0 missed=0
while IFS='|' read -r file before after what; do
    plant "$dir/src/$file" "$before" "$after"
    if ! build; then
        echo "mutants: does not compile: $what" >&2
        tail -5 "$dir/log" >&2
        exit 1
    fi
    if holds "$programs" "$file"; then
        echo "MISSED  $file: $what"
        missed=$((missed + 1))
    else
        echo "caught  $file: $what ($by)"
        caught=$((caught + 1))
    fi
    cp "src/$file" "$dir/src/$file"
done <tests/mutants.txt
echo "$caught mutants caught, $missed missed"
[ "$missed" = 0 ]
