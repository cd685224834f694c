#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# interop.sh: compares Kvasir with other projects' packages, at pinned versions, from PyPI into
# .venv. Part of `make soak`; needs ../shared, the models and, the first time, a network.
#
#   convert.py         folders that `kvasir convert` writes load in mlx-lm: the same greedy tokens
#   prompt_cache.py    prompt-cache files that our writer wrote load in mlx-lm: the same arrays
#   sampler.py         the same probabilities as with mlx-lm's samplers and processors
#   random_texts.py    500 random texts per tokenizer: the same ids, and the same decoded text
#   templates.py       200 random conversations through every chat template
#   gguf_families.sh   GGUF files of every family, as llama.cpp's converter writes them: the goldens
#                      of transformers
#   weights_golden.py  the goldens of weight types equal what gguf and mlx give today
#
# Also makes models/SmolLM2-135M-Instruct-mlx, which golden.mlx_smollm2 compares with the GGUF.
set -euo pipefail
cd "$(dirname "$0")/.."
shared=../shared
[ -d "$shared" ] || { echo "interop: $shared is missing: nothing to compare with" >&2; exit 1; }
tools/fetch-model.sh all
requirements=tests/interop/requirements.txt
if ! cmp -s "$requirements" .venv/requirements.txt; then
    rm -rf .venv
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements"
    cp "$requirements" .venv/requirements.txt
fi
cmake --preset release >/dev/null
cmake --build build
cmake --preset ci >/dev/null
cmake --build build-ci --target interop_rewrite interop_sampler golden_prompt_cache \
    golden_tiny
python=.venv/bin/python
smollm2=models/SmolLM2-135M-Instruct
[ -d $smollm2-mlx ] || $python "$shared"/tools/mlx_from_gguf.py $smollm2.Q4_1.gguf $smollm2-mlx
$python tests/interop/random_texts.py build/kvasir "$shared"/tokenizers/*/tokenizer.json \
    $smollm2.Q4_1.gguf=$smollm2-mlx/tokenizer.json \
    models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf="$shared"/tokenizers/qwen3/tokenizer.json \
    "$shared"/models/stories260K/stories260K-f32.gguf="$shared"/models/stories260K/hf/tokenizer.json
$python tests/interop/prompt_cache.py build-ci/tests/interop_rewrite \
    "$shared"/fixtures/mlx/prompt-cache
saved=$(mktemp -d)
build-ci/tests/golden_prompt_cache "$saved" >/dev/null
$python tests/interop/saved_caches.py "$shared"/fixtures/mlx/prompt-cache "$saved"
rm -rf "$saved"
$python tests/interop/sampler.py build-ci/tests/interop_sampler
$python tests/interop/templates.py build/libkvasir.so
$python tests/interop/convert.py build/kvasir $smollm2.Q4_1.gguf \
    models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf "$shared"/models/stories260K/stories260K-f32.gguf
tests/interop/gguf_families.sh $python build-ci/tests/golden_tiny "$shared"
$python tests/unit/weights_golden.py
git diff --exit-code --stat tests/unit/weights.golden
echo "interop: all agree"
