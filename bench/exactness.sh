#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# exactness.sh [SERVER...]: the table of docs/exactness.md. `kvasir exactness` asks each server,
# with SmolLM2 135M, the same prompts cold, warm, beside strangers, after eviction, after a restart;
# its report goes to bench/results/exactness-DATE-SERVER.txt. Needs `make check` and minutes.
#   kvasir-f16  kvasir-8,4  kvasir-4  kvasir-8,4-rotating    ours
#   llama-server  llama-server-q8  llama-server-reuse        bench/exactness_peer.py
set -euo pipefail
cd "$(dirname "$0")/.."
model=$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf port=18099 venv=.venv-peers
servers=("$@")
[ $# != 0 ] || servers=(kvasir-f16 kvasir-8,4 kvasir-4 kvasir-8,4-rotating llama-server
    llama-server-q8 llama-server-reuse)

command_of() { # SERVER
    local bits
    case $1 in
    kvasir-*)
        bits=${1#kvasir-}
        echo "exec build-ci/kvasir serve -m $model --port $port --ctx 4096 --log-level error" \
            "--kv-bits ${bits%-rotating} --cache-memory-mb 512" \
            "$([[ $1 != *-rotating ]] || echo --max-kv-size 512)" \
            "--cache-dir $folder/$1 --cache-disk-gb 1 2>/dev/null"
        ;;
    *) echo "exec $venv/bin/python bench/exactness_peer.py $1 $model $port" ;;
    esac
}

[ -d $venv ] || { python3 -m venv $venv && $venv/bin/pip install -q xllamacpp==2026.10.11549; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for server in "${servers[@]}"; do
    out=bench/results/exactness-$(date -u +%F)-$server.txt
    echo "$server: $out"
    start=$(command_of "$server")
    code=0
    {
        echo "exactness: $server, $(git describe --always --dirty), $(date -u +%FT%TZ)"
        echo "start: ${start//$PWD/.}"
        build-ci/kvasir exactness --url http://127.0.0.1:$port --start "$start" --seed 1 -q \
            --words 250 --flood 24 -n 48 2>&1
    } >"$out" || code=$?
    [ $code = 0 ] || [ $code = 3 ] || { tail -n 3 "$out" && exit 1; }
    sed 1,2d "$out"
done
