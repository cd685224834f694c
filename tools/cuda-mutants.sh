#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# cuda-mutants.sh [build] [PATTERN]
#
# Plants the bugs of tests/opcheck/mutants.txt in copies of the tree, one bug per copy, builds an
# opcheck of each (build-mutants/) and runs it on a GPU: every bug must be caught. `build` only
# builds the programs, on any machine with nvcc. With a grep PATTERN only the lines that match it.
#
# A mutant is a line FILE|BEFORE|AFTER|what it breaks, FILE below src/backend/cuda. The programs
# have few kernels (KVASIR_FEW_KERNELS: heads of 128 dims, one kernel for all formats), so that
# twenty of them compile in minutes. Only these kernels are checked, with fewer cases (--quick).
#
# Log: cuda-mutants-DATE.txt in $OUT, or in bench/results/ if it is not set
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
only_build=
if [ "${1:-}" = build ]; then
    only_build=1
    shift
fi
define=KVASIR_FEW_KERNELS
tree_hash=$(tools/opcheck.sh stamp)
log=${OUT:-bench/results}/cuda-mutants-$(date -u +%F).txt
mkdir -p build-mutants

plant() { python3 tools/mutants.py plant "$@"; } # FILE BEFORE AFTER
make_program() { # FOLDER LINE [JOBS]; an empty line: the tree itself
    local to=$1 tree
    [ ! -x "$to/opcheck" ] || return 0
    mkdir -p "$to"
    tree=$(mktemp -d)
    cp -r include src tests tools CMakeLists.txt "$tree"/
    [ ! -d build-mutants/objects ] || cp -r build-mutants/objects "$tree"/build-opcheck
    if [ -n "$2" ]; then
        IFS='|' read -r file before after what <<<"$2"
        plant "$tree/src/backend/cuda/$file" "$before" "$after"
        echo "$file: $what" >"$to/what"
    fi
    (cd "$tree" && JOBS=${3:-1} tools/opcheck.sh build "$define") >"$to/log" 2>&1 || true
    if [ -z "$2" ]; then
        rm -f "$tree"/build-opcheck/opcheck*
        rm -rf build-mutants/objects
        cp -r "$tree/build-opcheck" build-mutants/objects
        (cd "$tree" && tools/opcheck.sh build "$define") >>"$to/log" 2>&1 || true
    fi
    cp "$tree/build-opcheck/opcheck-$define" "$to/opcheck" 2>/dev/null || true
    rm -rf "$tree"
}
folder_of() { # LINE
    echo "build-mutants/$(echo "$tree_hash $1" | sha256sum | cut -c1-16)"
}
# The checks that a program with few kernels supports.
checks() {
    local filter
    for filter in "128 dims" "of 128" long matmul kv_store step experts gate_mul short_conv \
        delta_rule; do
        timeout 100 "$1" --device=cuda --quick --filter="$filter" || return 1
    done
}

mapfile -t lines < <(grep -- "${1:-.}" tests/opcheck/mutants.txt)
[ ${#lines[@]} -gt 0 ] || { echo "cuda-mutants: no line holds '$1'" >&2; exit 1; }
folders=()
make_program "$(folder_of "")" "" "$(nproc)" # first: the others reuse its objects
for line in "${lines[@]}"; do
    folders+=("$(folder_of "$line")")
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    make_program "$(folder_of "$line")" "$line" &
done
wait
echo "cuda-mutants: ${#lines[@]} programs in build-mutants/"
[ -z "$only_build" ] || exit 0

checks "$(folder_of "")/opcheck" >/dev/null ||
    { echo "cuda-mutants: the tree itself fails" >&2; exit 1; }
caught=0 missed=0
for to in "${folders[@]}"; do # several at once: most of the time goes into CPU references
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n || true; done
    { if checks "$to/opcheck"; then echo passed; else echo failed; fi; } >"$to/out" 2>&1 &
done
wait
{
    echo "cuda-mutants: ${COMMIT:-no commit named}, $(date -u +%FT%TZ)"
    for to in "${folders[@]}"; do
        if [ ! -x "$to/opcheck" ]; then
            echo "BROKEN  $(cat "$to/what"): $(tail -1 "$to/log")"
            missed=$((missed + 1))
        elif [ "$(tail -1 "$to/out")" = passed ]; then
            echo "MISSED  $(cat "$to/what")"
            missed=$((missed + 1))
        else
            # 0 families: it crashed or hung
            echo "caught  $(cat "$to/what")  ($(grep -c FAILED "$to/out" || true) families)"
            caught=$((caught + 1))
        fi
    done
    echo "$caught mutants caught, $missed missed"
} | tee "$log"
! grep -q 'MISSED\|BROKEN' "$log"
