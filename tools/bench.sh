#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Speed against other engines, paired in one run: llama-cpp-python 0.3.36 built from source (for
# AVX2, or with PEER=native for all instructions of this machine) and the ik-llama-cpp-python 0.1.5
# wheel, same GGUF, same threads. Rounds alternate between the programs; ratios are medians over
# rounds. Nothing else may run on the machine.
#
# SmolLM2 (Q4_1) at depth 0 and DEPTH, the same weights as an MLX folder at 0, Qwen2.5-Coder-0.5B
# (Q4_K_M: Q5_0, Q8_0, Q4_K, Q6_K; keys centred, as by default) at 0; centred against plain keys at
# DEPTH, SmolLM2 and Qwen; then our tokenizer against PyPI's.
#
#   tools/bench.sh [ROUNDS]        results: bench/results/speed-DATE-CPU-TIER.txt
#   THREADS=2 DEPTH=8000 TIER=avx2 PEER=avx2 BENCH_DIR=build-bench
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} threads=${THREADS:-2} depth=${DEPTH:-8000} tier=${TIER:-avx2}
dir=${BENCH_DIR:-build-bench}
smollm2=models/SmolLM2-135M-Instruct.Q4_1.gguf mlx=models/SmolLM2-135M-Instruct-mlx
qwen=models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
tools/fetch-model.sh all
mkdir -p "$dir" bench/results

# ---- peers ---------------------------------------------------------------------------------------
if [ ! -d ../shared/tools ]; then
    echo "bench: ../shared/tools is missing: the peers' harness (kvdepth.cpp) lies there" >&2
    exit 1
fi
[ -d "$dir/venv" ] || python3 -m venv "$dir/venv"
flags="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
llama=$PWD/$dir/llama ik=$PWD/$dir/ik
if [ "${PEER:-avx2}" = native ]; then
    flags="-DGGML_NATIVE=ON" llama=$PWD/$dir/llama-native
fi
if [ ! -d "$llama/llama_cpp" ]; then
    echo "bench: building llama-cpp-python 0.3.36 from source (about ten minutes on two cores)"
    CMAKE_ARGS="$flags -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAVA_BUILD=OFF" \
        "$dir/venv/bin/pip" install --quiet --no-deps --no-binary llama-cpp-python \
        --target "$llama" llama-cpp-python==0.3.36
fi
[ -d "$dir/ik/ik_llama_cpp" ] ||
    "$dir/venv/bin/pip" install --quiet --no-deps --target "$dir/ik" ik-llama-cpp-python==0.1.5
# The harness draws token ids below 50,000; this vocabulary ends at 49,152.
for tool in kvdepth kvdepth_ik; do
    sed 's/% 50000/% 49000/g' "../shared/tools/$tool.cpp" >"$dir/$tool.cpp"
done
g++ -O2 -std=c++17 -I"$llama/include" "$dir/kvdepth.cpp" -o "$dir/kvdepth" \
    -L"$llama/llama_cpp/lib" -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath,"$llama/llama_cpp/lib"
g++ -O2 -std=c++17 -I"$ik/include" "$dir/kvdepth_ik.cpp" -o "$dir/kvdepth_ik" -L"$ik/lib64" \
    -lllama -lggml -Wl,-rpath,"$ik/lib64:$ik/ik_llama_cpp_python.libs" \
    -Wl,-rpath-link,"$ik/ik_llama_cpp_python.libs"

[ -d "$mlx" ] || {
    "$dir/venv/bin/pip" install --quiet gguf==0.19.0 safetensors==0.8.0
    "$dir/venv/bin/python" ../shared/tools/mlx_from_gguf.py "$smollm2" "$mlx"
}

# ---- ours ----------------------------------------------------------------------------------------
cmake --preset release >/dev/null
cmake --build build --target bench_tokenizer kvasir
centre=$dir/smollm2.centre.safetensors
build/kvasir calibrate -m "$smollm2" -o "$centre" --quiet

# ---- rounds --------------------------------------------------------------------------------------
rm -f "$dir"/raw-*.txt
peer() { # NAME PROGRAM K V FA NGEN NPP DEPTH
    timeout 300 "$dir/$2" "$model" "$3" "$4" "$threads" "$5" 1 "$6" "$7" "$8" 2>/dev/null |
        sed "s|^|$1 $3/$4 |" | tee -a "$raw"
}
measured() { # WHO MODEL BITS[:CENTRE] NGEN NPP DEPTH
    local bits=${3%%:*} centre=off who="$1 ${3%%:*}" result
    if [ "$3" != "$bits" ]; then
        centre=${3#*:} who="$who centred"
    fi
    result=$(timeout 300 build/kvasir bench -m "$2" -q --json --kv-bits "$bits" \
        --key-centre "$centre" --threads "$threads" --cpu-tier "$tier" --depth "$6" -n "$4" \
        --prompt-tokens "$5" -r 1)
    echo "$who $result" >>"$raw"
    echo "$who at depth $6"
}
ours() { # BITS NGEN NPP DEPTH
    measured kvasir "$model" "$@"
}
from_mlx() { # the same with the MLX folder
    measured mlx "$mlx" "$@"
}
use() { # MODEL
    model=$1 raw=$dir/raw-$(basename "$1" .gguf).txt
}
for round in $(seq "$rounds"); do
    echo "round $round of $rounds, load $(cut -d' ' -f1 /proc/loadavg)"
    use "$qwen"
    ours 8,4:auto 32 512 0
    peer llama kvdepth f16 f16 1 32 512 0
    peer ik kvdepth_ik q8_0 q8_0 1 32 512 0
    ours 8,4 16 0 "$depth"
    ours 8,4:auto 16 0 "$depth"
    use "$smollm2"
    ours 8,4 32 512 0
    from_mlx 8,4 32 512 0
    peer llama kvdepth f16 f16 1 32 512 0
    peer ik kvdepth_ik q8_0 q8_0 1 32 512 0
    ours 8,4 16 0 "$depth"
    ours "8,4:$centre" 16 0 "$depth"
    peer llama kvdepth f16 f16 0 16 0 "$depth"
    peer llama kvdepth q8_0 f16 0 16 0 "$depth"
    peer llama kvdepth q4_0 f16 0 16 0 "$depth"
    ours f16 16 0 "$depth"
    peer llama kvdepth f16 f16 1 16 0 "$depth"
    peer llama kvdepth q8_0 q8_0 1 16 0 "$depth"
    ours 8 16 0 "$depth"
    peer llama kvdepth q8_0 q4_0 1 16 0 "$depth"
    ours 4 16 0 "$depth"
    peer ik kvdepth_ik q8_0 q8_0 1 16 0 "$depth"
    peer ik kvdepth_ik q8_0 q4_0 1 16 0 "$depth"
    peer ik kvdepth_ik q4_0 q4_0 1 16 0 "$depth"
done
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1 | tr -cs 'A-Za-z0-9\n' '-')
out=bench/results/speed-$(date +%F)-$cpu-$tier.txt
for raw in "$dir"/raw-*.txt; do
    echo "$(basename "$raw" .txt | sed 's/^raw-//'):"
    python3 tools/bench_summary.py "$raw" "$depth" "$threads" "$tier"
    echo
done | tee "$out"
"$dir/venv/bin/pip" install --quiet tokenizers==0.23.3
text=../shared/text/wikitext-2-raw/wiki.test.raw
"$dir/venv/bin/python" tools/tokenizer_peer.py speed build/bench_tokenizer "$text" \
    ../shared/tokenizers/*/tokenizer.json | tee -a "$out"
echo "written to $out"
