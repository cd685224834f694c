#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# deps.sh [demo|all|soak]: installs the Debian packages that are missing; silent when none is.
#   demo   packages for building and for fetching the demo model
#   all    and those for the tests (default)
#   soak   and those for `make soak`: a cross compiler and an emulator of 64-bit Arm; proxies;
#          Prometheus; packages of Kvasir, chroots and images to try them in, abidiff
# Installing needs root or sudo. Without dpkg it names what to install and continues.
set -euo pipefail

packages=(gcc libc6-dev cmake ninja-build pkg-config libjansson-dev libpcre2-dev libutf8proc-dev
          libxxhash-dev libsodium-dev libhiredis-dev libedit-dev libcurl4-openssl-dev
          libseccomp-dev libarchive-dev
          node-markdown-it node-highlight.js node-dompurify libjs-katex) # the page: 5 MB, no Node
[ "${1:-all}" = demo ] || packages+=(g++ clang clang-format mold pmccabe libcmocka-dev
                                        chromium-headless-shell curl redis-server)
[ "${1:-all}" != soak ] || packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
                                         nginx-light haproxy prometheus
                                         debhelper lintian patchelf abigail-tools
                                         mmdebstrap buildah)

missing=()
if command -v dpkg-query >/dev/null; then
    for package in "${packages[@]}"; do
        status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$status" = installed ] || missing+=("$package")
    done
    # A user's own python3 (pyenv, conda) with pip is as good as Debian's.
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3 python3-pip)
else
    echo "deps: not a Debian system; if the build fails, install what these packages hold:" >&2
    echo "deps: ${packages[*]} python3-pip" >&2
fi
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
    if ! command -v sudo >/dev/null; then
        echo "deps: neither root nor sudo here; as root run: apt-get install ${missing[*]}" >&2
        exit 1
    fi
fi
echo "deps: installing ${missing[*]}"
install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends)
"${as_root[@]}" apt-get update -q
"${as_root[@]}" "${install[@]}" "${missing[@]}"
