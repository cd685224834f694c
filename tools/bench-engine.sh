#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bench-engine.sh [ROUNDS]: many sequences at once, the prefix tree and its policy, each measured in
# the same run as its bound (bench/batch.c, bench/tree.c, bench/shared_redis.py, bench/simulate.sh).
# Results: bench/results/engine-DATE-CPU.txt. Nothing else may run on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
tiny=../shared/fixtures/tiny/llama
tools/fetch-model.sh
cmake --preset release >/dev/null
cmake --build build --target bench_batch bench_tree bench_sampler kvasir | tail -1
cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1 | tr -cs 'A-Za-z0-9\n' '-')
out=bench/results/engine-$(date -u +%F)-$cpu.txt
mkdir -p bench/results
{
    commit=$(git describe --always --dirty 2>/dev/null || echo no-commit)
    echo "# $commit, $(date -u +%FT%TZ), $cpu, $(nproc) cores"
    # a whole process can be fast or slow, by where the host places the cores: run several
    for _ in $(seq "$rounds"); do build/bench_batch "$model" decode 3; done
    for part in histories hit shared prefix; do build/bench_batch "$model" "$part" "$rounds"; done
    [ ! -d "$tiny" ] || { echo "a tiny model:" && build/bench_batch "$tiny" histories "$rounds"; }
    build/bench_tree || true # it names the bounds that it misses
    build/bench_sampler
    bench/shared_redis.py build/kvasir "$model" || true # likewise
    [ ! -x bench/simulate.sh ] || bench/simulate.sh build/kvasir
} | tee "$out"
echo "written to $out"
