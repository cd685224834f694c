#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# circles.sh [BUILD] [--all]
#
# Lists circles of calls between the source files of src/, from the symbols of BUILD's object files
# (build-ci): a file calls another if it uses a symbol that the other defines. A circle between
# files of different folders breaks the rule, and so does one inside a folder, except for those that
# ARCHITECTURE.md names under "Circles". Prints nothing if the rule holds. With --all, prints those
# that ARCHITECTURE.md names, too.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build-ci all=
for arg; do
    case $arg in
    --all) all=1 ;;
    *) build=$arg ;;
    esac
done
[ -d "$build" ] || { echo "circles: no folder $build: build first (make check)" >&2; exit 1; }
found=$(find "$build" -path '*/src/*.o' -print0 | xargs -0 -r nm -A -P |
    ALL=$all python3 tools/circles.py)
[ -n "$found" ] || exit 0
echo "$found"
[ -n "$all" ] || { echo "circles: broken: calls form no circles" >&2 && exit 1; }
