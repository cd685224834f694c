#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Plants the bugs of tests/opcheck/mutants.txt in copies of the tree and runs opcheck --quick on
# each, then its long sequences: every one must be caught. For a machine with a GPU, many cores.
# A mutant is a line FILE|BEFORE|AFTER|what it breaks, FILE below src/backend/cuda. With an argument
# only lines that hold it (a pattern of grep).
#
# Log: $OUT, or bench/results/ where it is not set: cuda-mutants-DATE.txt
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
log=${OUT:-bench/results}/cuda-mutants-$(date -u +%F).txt

tools/opcheck.sh build >/dev/null # what is not mutated is compiled once
checks() { # PROGRAM: both runs of a mutant
    timeout 100 "$1" --quick && timeout 100 "$1" --filter=long
}
checks build-opcheck/opcheck >/dev/null ||
    { echo "cuda-mutants: the tree itself fails" >&2; exit 1; }
plant() { # FILE BEFORE AFTER
    python3 - "$@" <<'PY'
import sys
path, before, after = sys.argv[1:]
text = open(path).read()
if before not in text:
    sys.exit(f"cuda-mutants: '{before}' is not in {path}")
open(path, "w").write(text.replace(before, after, 1))
PY
}
n=0
while IFS='|' read -r file before after what; do
    n=$((n + 1))
    tree=$dir/$n
    mkdir -p "$tree"
    cp -r include src tests tools CMakeLists.txt build-opcheck "$tree"/
    plant "$tree/src/backend/cuda/$file" "$before" "$after"
    echo "$file: $what" >"$tree/what"
    (cd "$tree" && JOBS=2 tools/opcheck.sh build >log 2>&1) &
done < <(grep -- "${1:-.}" tests/opcheck/mutants.txt)
wait
[ "$n" -gt 0 ] || { echo "cuda-mutants: no line holds '$1'" >&2; exit 1; }

caught=0 missed=0
{
    echo "cuda-mutants: ${COMMIT:-no commit named}, $(date -u +%FT%TZ)"
    for i in $(seq "$n"); do
        tree=$dir/$i
        # the log of a failed build says so in its last line
        if ! tail -1 "$tree/log" | grep -q build-opcheck/opcheck; then
            echo "BROKEN  $(cat "$tree/what"): $(tail -1 "$tree/log")"
            missed=$((missed + 1))
        elif checks "$tree/build-opcheck/opcheck" >"$tree/out" 2>&1; then
            echo "MISSED  $(cat "$tree/what")"
            missed=$((missed + 1))
        else
            # 0 families: it crashed or hung
            echo "caught  $(cat "$tree/what")  ($(grep -c FAILED "$tree/out" || true) families)"
            caught=$((caught + 1))
        fi
    done
    echo "$caught mutants caught, $missed missed"
} | tee "$log"
! grep -q 'MISSED\|BROKEN' "$log"
