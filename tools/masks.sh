#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# masks.sh [OPTIONS of tests/interop/masks.py]: the sets of tokens that grammars allow, at the
# 151,936 tokens of Qwen2.5-Coder: how long ours take (bench_grammar), and what differs from those
# of llguidance and xgrammar (PyPI, at the versions of tests/interop/masks.txt, into .venv-masks).
# Part of `make soak`. The log is kept: bench/results/masks-DATE-COMMIT.log.
set -euo pipefail
cd "$(dirname "$0")/.."
schemas=../shared/fixtures/json-schema/maskbench.jsonl
model=models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
[ -f $schemas ] || { echo "masks: $schemas is missing: nothing to compare with" >&2; exit 1; }
tools/fetch-model.sh all
requirements=tests/interop/masks.txt
if ! cmp -s $requirements .venv-masks/requirements.txt; then
    rm -rf .venv-masks
    python3 -m venv .venv-masks
    .venv-masks/bin/pip install --quiet --disable-pip-version-check -r $requirements
    cp $requirements .venv-masks/requirements.txt
fi
cmake --preset ci >/dev/null
cmake --build build-ci --target bench_grammar interop_masks | tail -1
commit=$(git describe --always --dirty 2>/dev/null || echo 'no-commit')
log=bench/results/masks-$(date -u +%Y-%m-%d)-$commit.log
mkdir -p bench/results
exec > >(tee "$log") 2>&1
echo "masks: $commit, $(date -u +%FT%TZ)"
echo "masks: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, $(uname -r)"
build-ci/bench_grammar --repeat 3 $model $schemas 2>/dev/null
.venv-masks/bin/python tests/interop/masks.py build-ci/tests/interop_masks $model $schemas "$@"
