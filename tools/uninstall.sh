#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# uninstall.sh BUILD PREFIX (DESTDIR from the environment): installs into a scratch folder to find
# out which files an install puts below PREFIX, then removes exactly those. Folders stay.
set -euo pipefail
build=$1
prefix=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
DESTDIR=$scratch cmake --install "$build" --prefix "$prefix" >/dev/null
cd "$scratch"
find . \( -type f -o -type l \) -printf '%P\n' | while IFS= read -r file; do
    target=${DESTDIR:-}/$file
    if [ -e "$target" ] || [ -L "$target" ]; then
        rm -f "$target"
        echo "removed $target"
    fi
done
