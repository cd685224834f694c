#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# opcheck.sh [check|sanitize|bench|profile|all|build|stamp] [ARGUMENT...]
#
# Runs opcheck for the CUDA backend on a GPU. For the CPU's tiers opcheck is one of the tests.
#
#   check      opcheck --device=cuda, with these arguments (--filter=TEXT, --seed=N, ...), as PARTS
#              processes
#   sanitize   opcheck --quick under compute-sanitizer's memcheck, then racecheck
#   bench      nvidia-smi, opcheck --bench=ARGUMENT (decode, prefill, encode, matmul, step; all),
#              the same shapes in PyTorch (cuda_yardstick.py)
#   profile    ncu: instructions, stalls, bank conflicts of one launch of --bench=ARGUMENT (decode,
#              prefill), for the lines that contain the next argument, such as
#              "4/4 g64, 64 x 32768"
#   all        check, sanitize, bench
#   build      compiles and runs nothing; with a definition as ARGUMENT (KVASIR_FEW_KERNELS) it
#              builds the program of that definition
#   stamp      prints a hash of the sources, as `make cuda` writes it next to build-cuda/opcheck
#
# It uses build-cuda/opcheck if the stamp next to it matches the sources. Otherwise it compiles with
# gcc and nvcc alone, for this machine's GPU, into build-opcheck/ (this needs no cmake and no
# library but libc; of the CPU's tiers it has only ref). The names of objects contain a hash of
# their sources, because file times mean nothing in a tree that was copied.
#
# Logs: cuda-WHAT[-PART]-DATE-GPU.txt in $OUT, or in bench/results/ if it is not set.
# Environment: COMMIT, the commit that the log names; CC, NVCC, JOBS; PARTS (default: half as many
# as there are cores); ARCH, for example 90 (default: this GPU's).
set -euo pipefail
export LC_ALL=C # the same order of files on every machine
cd "$(dirname "$0")/.."
what=${1:-check}
[ $# -eq 0 ] || shift
CC=${CC:-gcc}
JOBS=${JOBS:-$(nproc)}
PARTS=${PARTS:-$((($(nproc) + 1) / 2))}
PATH=$PATH:/usr/local/cuda/bin
NVCC=${NVCC:-nvcc}

say() { echo "opcheck.sh: $*"; }
gpu() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -1; }

# ---- building ------------------------------------------------------------------------------------

ref_files=(src/backend/cpu/ref/*.c)
mapfile -t util_files < <(ls src/util/*.c | grep -v json) # which need jansson
c_files=("${util_files[@]}" src/quant/*.c src/backend/*.c src/backend/cpu/*.c tests/opcheck/*.c
    tests/opcheck/cuda/*.c tests/support/random_*.c tests/support/pick_reference.c)
cuda_files=(src/backend/cuda/*.cu)
header_files=(include/*.h tests/opcheck/*.h tests/support/random_*.h tests/support/pick_*.h
    src/backend/cuda/*.cuh)
while IFS= read -r f; do header_files+=("$f"); done < <(find src -name '*.h' | sort)
# The flags of CMakeLists.txt. -lineinfo: the sanitizer names lines; the code is the same.
c_flags="-std=gnu17 -O2 -w -ffp-contract=off -fno-math-errno -Iinclude -Isrc"
c_flags+=" -Itests/opcheck -Itests/support -DKVASIR_CUDA -DKVASIR_REF_ONLY"
nvcc_flags="-std=c++17 -O3 -fmad=false -lineinfo -Iinclude -Isrc"

hash_of() { sha256sum | cut -c1-16; }
sources_hash() {
    cat "${ref_files[@]}" "${c_files[@]}" "${cuda_files[@]}" "${header_files[@]}" CMakeLists.txt |
        hash_of
}

# Sets `dependencies`: FILE and the headers that it includes, and so on.
declare -A includes
find_dependencies() { # FILE
    local f name dir queue=("$1")
    local -A seen=()
    dependencies=()
    while [ ${#queue[@]} -gt 0 ]; do
        f=${queue[0]}
        queue=("${queue[@]:1}")
        [ -z "${seen[$f]:-}" ] || continue
        seen[$f]=1
        dependencies+=("$f")
        [ "${includes[$f]+known}" ] ||
            includes[$f]=$(sed -n 's/^# *include "\([^"]*\)".*/\1/p' "$f")
        for name in ${includes[$f]}; do
            for dir in include src tests/opcheck tests/support "$(dirname "$f")"; do
                if [ -f "$dir/$name" ]; then
                    queue+=("$dir/$name")
                    break
                fi
            done
        done
    done
}

# compile FOLDER [DEFINITION]: builds missing objects and the program. With DEFINITION, files that
# mention it, or include one that does, are compiled with it, and the program is opcheck-DEFINITION.
compile() {
    local dir=$1 define=${2:-} arch f key object flags compiler objects=() commands=()
    arch=${ARCH:-$(gpu compute_cap | tr -d .)}
    arch=${arch:-90}
    [ "$arch" != 90 ] || arch=90a # wgmma, setmaxnreg (prefill.cuh)
    mkdir -p "$dir"
    for f in "${c_files[@]}" "${ref_files[@]}" "${cuda_files[@]}"; do
        compiler=$CC flags=$c_flags
        find_dependencies "$f"
        case $f in
        *.cu)
            compiler=$NVCC flags="$nvcc_flags -gencode=arch=compute_$arch,code=sm_$arch"
            [ -z "$define" ] || ! grep -q "$define" "${dependencies[@]}" || flags+=" -D$define"
            [ "$define" != KVASIR_FEW_KERNELS ] || flags=${flags/-lineinfo /}
            ;;
        src/backend/cpu/ref/*) flags="$c_flags -O3" ;;
        esac
        key=$({ echo "$compiler $flags $f" && cat "${dependencies[@]}"; } | hash_of)
        object=$dir/$(echo "$f" | tr / _)-$key.o
        objects+=("$object")
        [ -f "$object" ] ||
            commands+=("$compiler $flags -c $f -o $object.tmp && mv $object.tmp $object")
    done
    [ ${#commands[@]} -eq 0 ] ||
        printf '%s\0' "${commands[@]}" | xargs -0 -P "$JOBS" -I{} sh -c '{}' || return 1
    "$NVCC" -gencode="arch=compute_$arch,code=sm_$arch" "${objects[@]}" \
        -o "$dir/opcheck${define:+-$define}" \
        -lpthread -lm || return 1
}

# Sets `program`, which it builds if necessary.
find_program() {
    if [ "$(cat build-cuda/opcheck.stamp 2>/dev/null)" = "$(sources_hash)" ] &&
        [ -x build-cuda/opcheck ]; then
        program=build-cuda/opcheck
        return
    fi
    for compiler in "$CC" "$NVCC"; do
        command -v "$compiler" >/dev/null || {
            say "build-cuda/opcheck is missing or older than the sources, and there is no $compiler"
            exit 1
        }
    done
    local start=$SECONDS
    compile build-opcheck || {
        say "it does not compile"
        exit 1
    }
    program=build-opcheck/opcheck
    say "compiled in $((SECONDS - start)) s"
}

# ---- running -------------------------------------------------------------------------------------

header() {
    echo "opcheck $1: ${COMMIT:-no commit named}, sources $(sources_hash), $(date -u +%FT%TZ)"
    local clocks=clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem
    nvidia-smi --query-gpu="name,driver_version,compute_cap,$clocks,power.limit" --format=csv \
        2>/dev/null || echo "no nvidia-smi"
    "$NVCC" --version 2>/dev/null | tail -1 || true
}

# The reference's work on the host takes most of the time: processes share it.
do_check() {
    local i status=0 pids=()
    for ((i = 0; i < PARTS; i++)); do
        "$program" --device=cuda --part="$i/$PARTS" "$@" >"$work/part-$i" 2>&1 &
        pids+=($!)
    done
    for ((i = 0; i < PARTS; i++)); do
        wait "${pids[i]}" || status=$?
        cat "$work/part-$i"
    done
    return "$status"
}

do_sanitize() {
    local tool checked status=0
    if ! command -v compute-sanitizer >/dev/null; then
        say "no compute-sanitizer: nothing was checked"
        return 1
    fi
    # racecheck tracks each thread separately, so prefill.cuh is compiled differently for it
    compile build-opcheck KVASIR_RACECHECK || return 1
    for tool in memcheck racecheck; do
        echo "compute-sanitizer --tool $tool"
        checked=$program
        [ "$tool" = memcheck ] || checked=build-opcheck/opcheck-KVASIR_RACECHECK
        compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$checked" --device=cuda --quick "$@" || status=$?
    done
    return "$status"
}

do_bench() {
    local part=${1:-all} status=0 ceiling
    "$program" --device=cuda --bench="$part" | tee "$work/bench.txt" || status=$?
    ceiling=$(sed -n 's/^read ceiling: \([0-9.]*\) TB.*/\1/p' "$work/bench.txt")
    case $part in
    all | decode | prefill | matmul)
        echo
        python3 tools/cuda_yardstick.py "$part" "${ceiling:-0}" || say "the yardstick: exit $?"
        ;;
    esac
    return "$status"
}

do_profile() {
    local metrics=gpu__time_duration.sum,smsp__cycles_active.avg,smsp__inst_executed.sum
    metrics+=,smsp__issue_active.avg.pct_of_peak_sustained_active
    metrics+=,l1tex__data_pipe_lsu_wavefronts_mem_shared.sum
    metrics+=,l1tex__data_bank_conflicts_pipe_lsu.sum
    metrics+=,dram__bytes_read.sum.pct_of_peak_sustained_elapsed
    metrics+=,regex:smsp__average_warps_issue_stalled_.*_per_issue_active.ratio
    metrics+=,regex:sm__inst_executed_pipe_[a-z]*.sum
    ncu --clock-control none --metrics "$metrics" --page raw -k "regex:^(decode|prefill)" \
        --launch-skip 3 --launch-count 1 "$program" --device=cuda --bench="$1" --filter="${2:-}" |
        grep -E '^[^ ]|\.(sum|ratio|avg) |sustained_(active|elapsed) ' |
        grep -vE '^==|pipe_.*sustained|\.(min|max)'
}

logged() { # WHAT ARGUMENT...
    local name=$1 log folder=${OUT:-bench/results} card part='' status=0
    shift
    [ "$name" != bench ] && [ "$name" != profile ] || part=${1:+-$1}
    card=$(gpu name | sed 's/^NVIDIA //' | tr -cs 'A-Za-z0-9\n' '-')
    mkdir -p "$folder"
    log=$folder/cuda-$name$part-$(date -u +%F)-${card:-none}.txt
    {
        header "$name"
        "do_$name" "$@"
    } 2>&1 | tee "$log" || status=$?
    say "$name: exit $status, written to $log"
    return "$status"
}

case $what in
check | sanitize | bench | profile | all | build) ;;
stamp)
    sources_hash
    exit
    ;;
*)
    echo "usage: $0 [check|sanitize|bench|profile|all|build] [ARGUMENT...]" >&2
    exit 2
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$what" = build ] && [ $# -gt 0 ]; then
    compile build-opcheck "$1" || exit 1
    say "build-opcheck/opcheck-$1"
    exit
fi
find_program
status=0
case $what in
build) say "$program" ;;
all)
    for one in check sanitize bench; do
        logged "$one" || status=1
    done
    ;;
*) logged "$what" "$@" || status=$? ;;
esac
exit "$status"
