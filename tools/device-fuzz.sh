#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device-fuzz.sh bundle [TARGET...]
#     here: builds all fuzz targets, or those named (tools/fuzz.sh), and packs them with their
#     libraries and seeds, tests/fuzz/grown.tar.xz and build-fuzz/corpus among them, into
#     build-fuzz/bundle.tar.xz
# device-fuzz.sh run SECONDS [TARGET:N...]
#     on a machine with many cores and no compiler that has that file: N workers of each target at
#     once, which share what they find (default: 1 of every target). Prints a log for
#     bench/results/; exit 1 on a finding. The smallest new inputs of each target, 32 MB at most,
#     go into OUT/corpus.tar.xz: unpacked in build-fuzz, the next run here or there begins with
#     them.
#
# Environment of run: COMMIT, OUT: a folder for findings and new inputs.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/fuzz_line.sh
bundle=build-fuzz/bundle

if [ "$1" = bundle ]; then
    targets=("${@:2}")
    [ ${#targets[@]} != 0 ] || mapfile -t targets < <(ls tests/fuzz/corpus)
    tools/fuzz.sh 0 "${targets[@]}"
    rm -rf $bundle
    mkdir -p $bundle/lib $bundle/corpus
    for target in "${targets[@]}"; do
        cp "build-fuzz/tests/fuzz_$target" $bundle/
        cp -r "tests/fuzz/corpus/$target" $bundle/corpus/
        for more in build-fuzz/{seeds,grown,corpus}; do
            [ ! -d "$more/$target" ] || cp -r "$more/$target" $bundle/corpus/
        done
    done
    cp build-fuzz/words/*.dict tests/fuzz/*.options $bundle/
    strip -g $bundle/fuzz_*
    ldd $bundle/fuzz_* | sed -nE 's/.*(=> |\t)(\/[^ ]+) .*/\2/p' | sort -u |
        xargs -I{} cp -L {} $bundle/lib/
    tar c $bundle | xz -9 >$bundle.tar.xz # the programs share most of their code
    du -h $bundle.tar.xz
    exit 0
fi

tar xJf $bundle.tar.xz
seconds=$2 out=${OUT:-$(mktemp -d)}
shift 2
if [ $# = 0 ]; then
    for target in "$bundle"/corpus/*/; do set -- "$@" "$(basename "$target")"; done
fi
echo "device-fuzz: ${COMMIT:-no commit named}, $(date -u +%FT%TZ), $(nproc) cores," \
    "$seconds s, workers of a target: $*"
grep -m1 'model name' /proc/cpuinfo || true
run() { # TARGET WORKER
    local target=$1 log=$out/$1-$2.log grown=$out/corpus/$1 args=()
    [ ! -e "$bundle/$target.dict" ] || args=(-dict="$bundle/$target.dict")
    [ ! -e "$bundle/$target.options" ] || mapfile -t -O 1 args <"$bundle/$target.options"
    ASAN_OPTIONS=detect_leaks=1:malloc_context_size=5:quarantine_size_mb=16:symbolize=0 \
        "$bundle"/lib/ld-linux-x86-64.so.2 --library-path "$bundle/lib" "$bundle/fuzz_$target" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=3000 \
        -print_final_stats=1 -verbosity=1 -seed="$2" \
        -artifact_prefix="$out/crash-$target-" "${args[@]}" "$grown" "$bundle/corpus/$target" \
        >"$log" 2>&1 || {
        echo "$target, worker $2: FAILED"
        tail -40 "$log"
        return 1
    }
    echo "$target, worker $2: $(fuzz_line "$log")"
    rm "$log"
}
export -f run fuzz_line
export bundle seconds out
for arg; do
    target=${arg%:*} workers=1
    [ "$target" = "$arg" ] || workers=${arg#*:}
    mkdir -p "$out/corpus/$target"
    for ((worker = 1; worker <= workers; worker++)); do
        echo "$target $worker"
    done
done | xargs -P 0 -L1 bash -c 'run $0 $1' || failed=1
# A merge would keep the inputs that edges need, but libFuzzer cannot start its child under ld.so.
for arg; do
    find "$out/corpus/${arg%:*}" -type f -printf '%s corpus/'"${arg%:*}"'/%f\n' | sort -n |
        awk '(bytes += $1) < 32e6 { print $2 }'
done >"$out/kept"
tar cJf "$out/corpus.tar.xz" -C "$out" --files-from="$out/kept"
rm -r "$out/corpus" "$out/kept"
exit "${failed:-0}"
