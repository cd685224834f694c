#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# exactness.sh [SERVER...]: the table of docs/exactness.md. `kvasir exactness` asks each server,
# with SmolLM2 135M, the same prompts cold, warm, beside strangers, after eviction, after a restart;
# its report goes to bench/results/exactness-DATE-SERVER.txt. Needs `make check` and minutes.
#   kvasir-f16  kvasir-8  kvasir-8,4  kvasir-4  kvasir-8,4-rotating   ours
#   llama-server  llama-server-q8  llama-server-reuse  mistral.rs     bench/exactness_peer.py
#   mlx_lm.server                                                     PyPI's mlx-lm, on the CPU
#   vllm-mlx  vllm-mlx-q8                                             PyPI's vllm-mlx, on the CPU
# The last four, which are slow on CPUs, get fewer and shorter prompts. A server that is not done
# after EXACTNESS_MINUTES (20) is given up.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf port=18099 peers=.venv-peers/bin
folder_model=$PWD/build-peers/smollm2 # of mlx_lm and those like it: bf16
offline="HF_HOME=$PWD/build-peers/hf HF_HUB_OFFLINE=1 exec"
servers=("$@")
[ $# != 0 ] || servers=(kvasir-f16 kvasir-8 kvasir-8,4 kvasir-4 kvasir-8,4-rotating llama-server
    llama-server-q8 llama-server-reuse mistral.rs mlx_lm.server vllm-mlx vllm-mlx-q8)

command_of() { # SERVER
    local bits flags peer="exec $peers/python bench/exactness_peer.py"
    case $1 in
    kvasir-*)
        bits=${1#kvasir-}
        echo "exec build-ci/kvasir serve -m $model --port $port --ctx 4096 --log-level error" \
            "--kv-bits ${bits%-rotating} --cache-memory-mb 512" \
            "$([[ $1 != *-rotating ]] || echo --max-kv-size 256)" \
            "--cache-dir $folder/$1 --cache-disk-gb 1 2>/dev/null"
        ;;
    mlx_lm.server)
        echo "$offline $peers/mlx_lm.server --model $folder_model --port $port 2>/dev/null"
        ;;
    vllm-mlx*)
        flags=--continuous-batching
        [ "$1" = vllm-mlx ] || flags+=" --kv-cache-quantization --kv-cache-min-quantize-tokens 1"
        echo "$offline ${peers/peers/vllm-mlx}/vllm-mlx serve $folder_model" \
            "--host 127.0.0.1 --port $port $flags >/dev/null 2>&1"
        ;;
    mistral.rs) echo "$peer $1 $folder_model $port >/dev/null" ;;
    *) echo "$peer $1 $model $port >/dev/null" ;;
    esac
}

install_peer() { # SERVER
    case $1 in
    kvasir-*) return ;;
    vllm-mlx*)
        # Not its torch, gradio and image libraries, which serving text does without.
        [ -d .venv-vllm-mlx ] || { python3 -m venv .venv-vllm-mlx &&
            .venv-vllm-mlx/bin/pip install -q -r tests/interop/vllm-mlx.txt &&
            .venv-vllm-mlx/bin/pip install -q --no-deps vllm-mlx==0.6.0 \
                lm-format-enforcer==0.11.3; }
        ;;
    *)
        [ -d .venv-peers ] || { python3 -m venv .venv-peers && $peers/pip install -q \
            xllamacpp==2026.10.11549 mistralrs==0.9.5 'mlx[cpu]==0.32.4' mlx-lm==0.32.2; }
        ;;
    esac
    mkdir -p "${folder_model%/*}/hf/hub" # mlx_lm.server wants to list it
    [ -d "$folder_model" ] || build-ci/kvasir convert "$model" "$folder_model"
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for server in "${servers[@]}"; do
    out=bench/results/exactness-$(date -u +%F)-$server.txt
    echo "$server: $out"
    install_peer "$server"
    start=$(command_of "$server")
    size=(--words 250 --flood 24 -n 48) code=0
    case $server in
    mlx_lm.server | vllm-mlx* | mistral.rs)
        size=(--prompts 2 --words 80 --strangers 3 --flood 8 -n 16) ;;
    esac
    [ "$server" != mlx_lm.server ] || size+=(--model default_model)
    {
        echo "exactness: $server, $(git describe --always --dirty), $(date -u +%FT%TZ)"
        echo "start: ${start//$PWD/.}"
        timeout -s INT "${EXACTNESS_MINUTES:-20}m" build-ci/kvasir exactness \
            --url http://127.0.0.1:$port --start "$start" --seed 1 -q "${size[@]}" 2>&1
    } >"$out" || code=$?
    sed 1,2d "$out"
    [ $code = 0 ] || [ $code = 3 ] || { echo "exactness: $server: exit code $code" && exit 1; }
done
