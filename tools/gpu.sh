#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu.sh [check | pack FOLDER | run FOLDER]: whole models on a GPU, in less than ten minutes.
#
#   check         builds with CUDA here and runs all of it
#   pack FOLDER   for a machine that has a GPU and little else: programs, their libraries, the tiny
#                 models and SmolLM2 as FOLDER/slice-*, each at most 30 MiB, which one transfer can
#                 carry; and this script. ARCHS (90a): what to compile for
#   run FOLDER    there: joins the slices, which may have come one by one, and runs all of it
#
# What is run: golden_tiny, every family against its golden; sim_property and sim_engine, the same
# bits whatever the cache did (KVASIR_PROGRAMS programs each, 60); SmolLM2's perplexity by format
# on the GPU and on the CPU, and its speed; that of Llama-8B's shape (bench/gpu.c,
# bench/host_tier.c), whose file of 4.5 GB is written to /dev/shm. Operations have a check of their
# own: opcheck.sh.
# The log is $OUT/gpu-models-DATE-GPU.txt, or in bench/results/ where OUT is not set.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")/.." && pwd)
shared=/work/shared
[ ! -d "$here/../shared" ] || shared=$(cd "$here/../shared" && pwd)
model=SmolLM2-135M-Instruct.Q4_1.gguf
programs='kvasir bench_gpu bench_host_tier tests/golden_tiny tests/sim_property tests/sim_engine'

build() {
    PATH=$PATH:/usr/local/cuda/bin
    cd "$here"
    cmake --preset cuda -DBUILD_TESTING=ON ${ARCHS:+-DKVASIR_CUDA_ARCHS=$ARCHS} >/dev/null
    # shellcheck disable=SC2086 # a list of targets
    cmake --build build-cuda --target kvasir bench_gpu bench_host_tier golden_tiny sim_property \
        sim_engine
}

# Libraries that a machine may lack. libarchive alone would bring 30 MiB more, for `kvasir pull`,
# which is not run there: functions that do nothing stand for it.
pack_libraries() { # FOLDER
    local name
    for name in cmocka edit bsd md tinfo seccomp utf8proc sodium hiredis jansson pcre2-8 xxhash; do
        cp -L /usr/lib/*-linux-gnu/lib$name.so.[0-9]* "$1/"
    done
    nm -D build-cuda/kvasir |
        sed -n 's/^ *U \(archive_[a-z0-9_]*\).*/void *\1(void) { return 0; }/p' |
        gcc -shared -fPIC -Wl,-soname,libarchive.so.13 -o "$1/libarchive.so.13" -x c -
}

pack() { # FOLDER
    local to program
    mkdir -p "$1/all/lib"
    to=$(cd "$1" && pwd)
    ARCHS=${ARCHS:-90a} build
    for program in $programs; do
        strip -o "$to/all/$(basename "$program")" "build-cuda/$program"
    done
    pack_libraries "$to/all/lib"
    cp -r "$shared/fixtures/tiny" "$to/all/tiny"
    cp "models/$model" bench/random_llama.py "$to/all/"
    cat "$shared"/text/wikitext-2-raw/*test* | head -c 60000 >"$to/all/text"
    # a long window: the programs are mostly the same bytes
    tar -C "$to/all" -c . | xz --lzma2=preset=1,dict=64MiB | split -b 30M - "$to/slice-"
    rm -rf "$to/all"
    cp "$0" "$to/"
    ls -l "$to"
}

models() { # FOLDER with the programs, model and text
    local device bits
    local large=/dev/shm/kvasir-llama-8b.gguf
    python3 "$1/random_llama.py" $large
    "$1/bench_gpu" $large
    "$1/bench_host_tier" cuda $large
    rm -f $large
    "$1/golden_tiny"
    "$1/sim_property" --programs="${KVASIR_PROGRAMS:-60}"
    "$1/sim_engine" --programs="${KVASIR_PROGRAMS:-60}"
    for bits in f16 8 8,4 4 3,2 6,5; do
        for device in cpu cuda; do
            echo "SmolLM2, $bits, $device:"
            "$1/kvasir" perplexity -m "$1/$model" -f "$1/text" --windows 8 --kv-bits $bits \
                --device $device 2>/dev/null | grep -E 'perplexity|loss'
        done
    done
    for device in cpu cuda; do
        echo "SmolLM2, an answer, $device:"
        "$1/kvasir" generate -m "$1/$model" --device $device --temp 0 --max-tokens 1000 \
            -p "Write a long story about a sailor." 2>&1 | tail -4
    done
}

logged() { # FOLDER
    local card folder=${OUT:-$here/bench/results} log
    card=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr -cs 'A-Za-z0-9\n' '-')
    log=$folder/gpu-models-$(date -u +%F)-${card#NVIDIA-}.txt
    mkdir -p "$folder"
    { nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv && models "$1"; } 2>&1 |
        tee "$log"
}

case ${1:-check} in
check)
    build
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for program in $programs; do ln -s "$here/build-cuda/$program" "$work/"; done
    ln -s "$here/models/$model" "$here/bench/random_llama.py" "$work/"
    cat "$shared"/text/wikitext-2-raw/*test* | head -c 60000 >"$work/text"
    logged "$work"
    ;;
pack) pack "$2" ;;
run)
    mkdir -p "$2/all"
    cat "$2"/slice-* | tar -C "$2/all" -xJ
    mkdir -p "$shared/fixtures" # where the tests look
    ln -sfn "$(cd "$2/all" && pwd)/tiny" "$shared/fixtures/tiny"
    export LD_LIBRARY_PATH=$2/all/lib
    logged "$2/all"
    ;;
*)
    echo "usage: $0 [check | pack FOLDER | run FOLDER]" >&2
    exit 2
    ;;
esac
