#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# count-lines.sh [COMMIT]          lines of src/ and include/ that are neither blank nor comment, by
#                                  folder, and assertions for each 1,000 of them
# count-lines.sh --floor N [ROOT]  prints each folder of src/ except cli/ with fewer than N
#                                  assertions for each 1,000 lines (folders of fewer than 200 lines
#                                  are exempt)
#
# Assertions: ASSERT, DEBUG_ASSERT, _Static_assert and static_assert, except plain NULL checks.
# Sources that the build generates from a line of CMakeLists.txt count with their lines.
set -euo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" = --floor ]; then
    exec python3 "$tools/count_lines.py" "${3:-$tools/..}" --floor "$2"
fi
cd "$tools/.."
[ $# -gt 0 ] || exec python3 "$tools/count_lines.py" .
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
git archive "$1" | tar -x -C "$tree"
python3 "$tools/count_lines.py" "$tree"
