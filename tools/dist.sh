#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# dist.sh [OUT]: packs what `make install` installs into OUT (build-dist), as
# kvasir-VERSION-ARCHITECTURE-linux.tar.gz, with every library that it needs but the C library's
# and with their licences. It runs from any folder, and is installed with
# `tar -C /usr/local --strip-components=1 -xf`. It needs a C library at least as new as this
# machine's. Builds nothing: `make dist` does that before.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build-dist}")
version=$(sed -nE 's/^project\(kvasir VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
name=kvasir-$version-$(uname -m)-linux
top=$out/$name
glibc='^(linux-vdso|ld-linux.*|lib(c|m|mvec|resolv|rt|dl|pthread|util))\.so'

command -v patchelf dpkg-query >/dev/null ||
    { echo "dist: patchelf or dpkg is missing: run tools/deps.sh soak" >&2 && exit 1; }
rm -rf "$top" "$out/root"
DESTDIR=$out/root cmake --install build --prefix /usr/local >/dev/null
mv "$out/root/usr/local" "$top"
doc=$top/share/doc/kvasir libraries=$top/lib/kvasir
mkdir -p "$doc/licenses" "$libraries"
cp LICENSE README.md CHANGELOG.md dist/config.json "$doc/"
cp src/server/page/licences.txt "$doc/licenses/page"

# Copies the libraries that the program needs, and the licence of the package of each.
ldd "$top/bin/kvasir" | awk '$2 == "=>" { print $1, $3 }' | while read -r soname file; do
    ! [[ $soname =~ $glibc ]] || continue
    cp -L "$file" "$libraries/$soname"
    real=$(realpath "$file")
    package=$(dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}")
    package=${package%%:*}
    cp -L "/usr/share/doc/$package/copyright" "$doc/licenses/$package"
done
# Those texts name others by their place in Debian.
mkdir "$doc/licenses/common-licenses"
texts='/usr/share/common-licenses/[A-Za-z0-9.-]+[A-Za-z0-9]'
grep -ohE --directories=skip "$texts" "$doc/licenses"/* | sort -u | while read -r text; do
    [ ! -f "$text" ] || cp -L "$text" "$doc/licenses/common-licenses/"
done
chmod 755 "$libraries"/*
# Where each finds the others, wherever the folder is.
patchelf --set-rpath '$ORIGIN' "$libraries"/*
patchelf --set-rpath '$ORIGIN/../lib/kvasir' "$top/bin/kvasir"
patchelf --set-rpath '$ORIGIN/kvasir' "$top/lib/libkvasir.so.$version"
strip "$top/bin/kvasir" "$top/lib/libkvasir.so.$version"

tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner \
    --mtime="@$(git log -1 --format=%ct)" -czf "$out/$name.tar.gz" "$name"
rm -rf "$out/root" "$top"
ls "$out/$name.tar.gz"
