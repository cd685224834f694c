#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# deb.sh [OUT]: builds the Debian packages (debian/) of this tree into OUT (build-deb): kvasir,
# libkvasir0 and libkvasir-dev. Then lintian must find nothing. Needs tools/deps.sh soak.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build-deb}")
version=$(sed -nE 's/^project\(kvasir VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
case $(dpkg-parsechangelog -S Version) in
"$version"-*) ;;
*)
    echo "deb: debian/changelog is not of version $version, as CMakeLists.txt is" >&2
    exit 1
    ;;
esac

# In a copy: dpkg-buildpackage writes into the tree and beside it.
tree=$out/kvasir-$version
rm -rf "$tree" "$out"/*.deb "$out"/*.changes
mkdir -p "$tree"
git ls-files -z --cached --others --exclude-standard |
    tar --null --ignore-failed-read -T - -c 2>/dev/null | tar -x -C "$tree"
if ! (cd "$tree" && dpkg-buildpackage -b -us -uc) >"$out/deb.log" 2>&1; then
    tail -n 30 "$out/deb.log"
    exit 1
fi
# The project has no mail address and is not in Debian, so no bug asks for it there.
unfit=bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs
lintian --allow-root --fail-on error,warning --suppress-tags $unfit "$out"/*.changes
ls "$out"/*.deb
