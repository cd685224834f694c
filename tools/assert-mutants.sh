#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# assert-mutants.sh [N]
#
# Negates N (20) assertions of src/, drawn with the commit as the seed, one at a time in a copy of
# the tree, and runs the unit tests and short random programs. If nothing fails, no test reaches the
# assertion, so nothing checks it. Prints a line for each and how many were caught.
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-20}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp -r CMakeLists.txt CMakePresets.json kvasir.pc.in include src tests docs bench "$dir"/
cmake -S "$dir" -B "$dir/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_FLAGS=-DKVASIR_DEBUG -DBUILD_TESTING=ON \
    -DSHARED_DIR="$PWD/../shared" -DMODELS_DIR="$PWD/models" >/dev/null
units=(tests/unit/test_*.c)
units=("${units[@]##*/test_}")
targets=("${units[@]/#/unit_}")
build() {
    cmake --build "$dir/build" --target "${targets[@]%.c}" sim_tree sim_engine sim_property \
        >"$dir/log" 2>&1
}
build

# The test that fails, or nothing: unit tests, then short random programs.
caught_by() {
    local sim
    ctest --test-dir "$dir/build" -L unit -j "$(nproc)" --stop-on-failure >"$dir/log" 2>&1 || {
        sed -nE '/Skipped/d; s/.*Test +#[0-9]+: ([a-z_.]+) .*\*\*\*.*/\1/p' "$dir/log" | head -n 1
        return
    }
    for sim in tree engine property; do
        timeout 300 "$dir/build/tests/sim_$sim" --programs=10 >"$dir/log" 2>&1 ||
            { echo "sim.$sim" && return; }
    done
}

caught=0 missed=0
while IFS=$'\t' read -r file line text; do
    python3 - "$dir/$file" "$line" <<'PY'
import sys
path, line = sys.argv[1], int(sys.argv[2]) - 1
lines = open(path).read().split("\n")
at = sum(len(l) + 1 for l in lines[:line]) + lines[line].index("ASSERT(") + len("ASSERT(")
text = "\n".join(lines)
end, depth = at, 1
while depth:
    depth += {"(": 1, ")": -1}.get(text[end], 0)
    end += 1
open(path, "w").write(text[:at] + "!(" + text[at:end] + text[end - 1:])
PY
    if ! build; then
        echo "assert-mutants: does not compile: $file:$line" >&2
        tail -5 "$dir/log" >&2
        exit 1
    fi
    by=$(caught_by)
    if [ -n "$by" ]; then
        echo "caught  $file:$line: $text ($by)"
        caught=$((caught + 1))
    else
        echo "MISSED  $file:$line: $text"
        missed=$((missed + 1))
    fi
    cp "$file" "$dir/$file"
done < <(git grep -nE '^ *(DEBUG_)?ASSERT\(' -- 'src/*.c' 'src/*.inl' |
    SEED=$(git rev-parse HEAD) N=$count python3 -c '
import os, random, sys
lines = [l for l in sys.stdin.read().split("\n") if l]
for l in random.Random(os.environ["SEED"]).sample(lines, int(os.environ["N"])):
    path, number, text = l.split(":", 2)
    print(path, number, text.strip(), sep="\t")
')
echo "$caught negated assertions caught, $missed missed"
