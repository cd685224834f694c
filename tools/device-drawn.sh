#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device-drawn.sh bundle        here: prepares build-drawn (tools/draw_mutants.py); packs it, the
#                               shared data but MLX fixtures, and the headers and libraries that
#                               another machine may lack, into build-device/drawn.tar.xz
# device-drawn.sh run ARGS...   on a machine with many cores, gcc and python3 that has build-device:
#                               unpacks it below /, where it was packed, and keeps files that are
#                               there. Runs draw_mutants.py ARGS: tests that fail there are not run.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$1" = bundle ]; then
    rm -rf build-device
    mkdir build-device
    python3 tools/draw_mutants.py --prepare
    echo "$PWD/build-drawn" >build-device/folder
    # Programs are linked anew; only gcov needs its files.
    find "$PWD/build-drawn" -type f \( -name '*.gc??' -o -path '*/build-ci/*' -perm -100 \) \
        >build-device/left-out
    {
        printf '%s\n' "$PWD"/build-drawn/{tree,stub.o,ready.json}
        find "$(realpath ../shared)" -type f -not -path '*/fixtures/mlx/*'
        dpkg -L libjansson{4,-dev} libpcre2-{8-0,dev} libutf8proc{2,-dev} libxxhash{0,-dev} \
            libsodium{23,-dev} libhiredis{0.14,-dev} \
            libcmocka{0,-dev} libedit{2,-dev} libseccomp{2,-dev} | grep -E '\.h$|\.so(\.|$)'
    } | tar cP --exclude-from=build-device/left-out -T - | xz -T0 -7 >build-device/drawn.tar.xz
    du -h build-device/drawn.tar.xz
    exit 0
fi
shift
folder=$(cat build-device/folder)
[ -d "$folder" ] || { tar xJPf build-device/drawn.tar.xz --skip-old-files && ldconfig; }
exec python3 -u tools/draw_mutants.py --folder "$folder" "$@"
