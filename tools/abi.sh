#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# abi.sh [record]: compares libkvasir's binary interface with that of the last release, which
# dist/libkvasir.abi describes. What programs were compiled with must stay: while the version begins
# with 0., a changed interface needs a new minor version, then a new major one; new functions never
# do. A member at the end of a structure that carries its size breaks nothing, but abidiff cannot
# know that: look at what it prints, then record. `record`, also once for each release, writes the
# file. Needs abigail-tools.
set -euo pipefail
cd "$(dirname "$0")/.."
recorded=dist/libkvasir.abi build=build-abi
command -v abidw >/dev/null ||
    { echo "abi: abidw is missing: run tools/deps.sh soak" >&2 && exit 1; }

# For a processor without kernels of its own: they are no part of the interface, and with -g take
# minutes.
cmake -G Ninja -S . -B $build -DBUILD_TESTING=OFF -DCMAKE_BUILD_TYPE=Abi \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=none -DCMAKE_C_FLAGS_ABI='-O0 -g' >/dev/null
cmake --build $build --target kvasir_shared | tail -1
abidw --headers-dir include --drop-private-types --exported-interfaces-only --no-corpus-path \
    --no-comp-dir-path --no-architecture --no-elf-needed --out-file $build/libkvasir.abi \
    $build/libkvasir.so
sed -i "s|$PWD/||" $build/libkvasir.abi
version=$(sed -nE 's/^project\(kvasir VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)

if [ "${1:-}" = record ]; then
    cp $build/libkvasir.abi $recorded
    echo "<!-- libkvasir $version: tools/abi.sh record -->" >>$recorded
    echo "abi: recorded $version"
    exit
fi
was=$(sed -nE 's/^<!-- libkvasir ([0-9.]+):.*/\1/p' $recorded)
code=0
abidiff --no-added-syms $recorded $build/libkvasir.abi || code=$?
# abidiff's exit code is a set of bits: 1 and 2 are mistakes, 4 is a change.
[ $((code & 3)) = 0 ] || exit 1
level() { # VERSION: the part that a break raises
    case $1 in
    0.*) cut -d. -f1-2 <<<"$1" ;;
    *) cut -d. -f1 <<<"$1" ;;
    esac
}
if [ $code != 0 ] && [ "$(level "$version")" = "$(level "$was")" ]; then
    echo "abi: programs of version $was may break with $version: raise the version (CHANGELOG)," \
        "or keep the interface, or record it if they do not see the change"
    exit 1
fi
echo "abi: compatible: $was, $version"
