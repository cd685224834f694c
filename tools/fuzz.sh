#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fuzz.sh [SECONDS|RUNSr [TARGET...]]: every target of tests/fuzz (or those named) with libFuzzer
# under the address and undefined behaviour sanitizers, SECONDS each (default 600; 0 only builds) or
# so many runs ("3000000r"), as many at a time as there are cores. Part of `make soak`. Seeds:
# tests/fuzz/corpus, grown.tar.xz beside it and those of tools/fuzz_seeds.py; new inputs stay in
# build-fuzz/corpus. A finding is a file build-fuzz/crash-TARGET-*: fix the bug that it shows, then
# add it to tests/fuzz/corpus/TARGET. TARGET.dict and TARGET.options in tests/fuzz are libFuzzer's;
# readers of models have the words of src/model and src/text instead.
#
# fuzz.sh pack [TARGET...]: renews tests/fuzz/grown.tar.xz, so that sessions add up. It has what
# earlier ones found: few and small inputs that reach the edges that build-fuzz/corpus reaches and
# the seeds do not. How often an edge is reached does not count. Other targets keep theirs. `make
# test` replays them.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/fuzz_line.sh
limit=-max_total_time=${1:-600}
case ${1:-} in
pack) pack=1 ;;
0) only_build=1 ;;
*r) limit=-runs=${1%r} ;;
esac
shift || true
cmake -S . -B build-fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug \
    -DKVASIR_SANITIZE=fuzzer-no-link,address,undefined -DKVASIR_FUZZ=ON >/dev/null
targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    for file in tests/fuzz/corpus/*/; do targets+=("$(basename "$file")"); done
fi
cmake --build build-fuzz --target "${targets[@]/#/fuzz_}"

rm -rf build-fuzz/grown build-fuzz/seeds
mkdir -p build-fuzz/grown build-fuzz/words
python3 tools/fuzz_seeds.py ../shared build-fuzz/seeds
cp tests/fuzz/*.dict build-fuzz/words/
words=$(grep -ohE '"[A-Za-z0-9_.|<>/:-]{2,40}"' src/model/*.c src/text/*.c | sort -u)
for target in config gguf safetensors; do echo "$words" >build-fuzz/words/$target.dict; done
[ ! -e tests/fuzz/grown.tar.xz ] || tar xJf tests/fuzz/grown.tar.xz -C build-fuzz/grown

if [ "${pack:-}" ]; then
    for target in "${targets[@]}"; do
        found=()
        for folder in build-fuzz/grown/"$target" build-fuzz/corpus/"$target"; do
            [ ! -d "$folder" ] || found+=("$folder")
        done
        rm -rf build-fuzz/merged # a merge adds to its first folder what that does not reach yet
        cp -r "tests/fuzz/corpus/$target" build-fuzz/merged
        [ ! -d "build-fuzz/seeds/$target" ] || cp -r "build-fuzz/seeds/$target"/. build-fuzz/merged
        mapfile -t seeds < <(find build-fuzz/merged -type f)
        "build-fuzz/tests/fuzz_$target" -merge=1 -use_counters=0 -max_len=4096 -timeout=10 \
            -rss_limit_mb=3000 build-fuzz/merged "${found[@]}" 2>"build-fuzz/$target.log" || {
            tail -20 "build-fuzz/$target.log"
            exit 1
        }
        rm "${seeds[@]}"
        rm -rf "build-fuzz/grown/$target"
        mv build-fuzz/merged "build-fuzz/grown/$target"
        echo "fuzz: $target: $(find "build-fuzz/grown/$target" -type f | wc -l) inputs grown"
    done
    tar c --sort=name --owner=0 --group=0 --mtime=@0 --mode=u=rwX,go=rX -C build-fuzz/grown . |
        xz -9e >tests/fuzz/grown.tar.xz
    du -h tests/fuzz/grown.tar.xz
    exit 0
fi
[ -z "${only_build:-}" ] || exit 0

run() { # TARGET
    local target=$1 seeds=(tests/fuzz/corpus/"$1")
    mkdir -p "build-fuzz/corpus/$target"
    [ ! -d "build-fuzz/grown/$target" ] || seeds+=("build-fuzz/grown/$target")
    [ ! -d "build-fuzz/seeds/$target" ] || seeds+=("build-fuzz/seeds/$target")
    if [ "$target" = prompt_file ]; then
        for folder in ../shared/fixtures/mlx/prompt-cache/corrupt/*/; do
            [ ! -d "$folder" ] || seeds+=("$folder")
        done
    fi
    [ ! -e "build-fuzz/words/$target.dict" ] || seeds+=(-dict="build-fuzz/words/$target.dict")
    [ ! -e "tests/fuzz/$target.options" ] ||
        mapfile -t -O ${#seeds[@]} seeds <"tests/fuzz/$target.options"
    ASAN_OPTIONS=detect_leaks=1:malloc_context_size=5:quarantine_size_mb=16 \
        UBSAN_OPTIONS=print_stacktrace=1 "build-fuzz/tests/fuzz_$target" \
        "$limit" -max_len=65536 -timeout=10 -rss_limit_mb=3000 \
        -print_final_stats=1 -verbosity=1 -artifact_prefix="build-fuzz/crash-$target-" \
        "build-fuzz/corpus/$target" "${seeds[@]}" \
        >"build-fuzz/$target.log" 2>&1 || {
        echo "fuzz: $target FAILED; build-fuzz/$target.log ends:"
        tail -40 "build-fuzz/$target.log"
        return 1
    }
    echo "fuzz: $target: $(fuzz_line "build-fuzz/$target.log")"
}
export -f run fuzz_line
export limit
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run {}'
