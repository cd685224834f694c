#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Flags of llama-server, vLLM, mlx_lm.server and vllm-mlx: other names of ours, flags that are not
# needed, flags that cannot be had; mistyped ones; models that would have to be downloaded.
. "$(dirname "$0")/../support/api.bash"
tiny_model
s() { expect 2 "^kvasir serve: $1" serve "${@:2}"; }
plan() { good serve --cache-memory-mb 64 --dry-run --json "$@"; }
is() { # KEY VALUE WHAT
    [ "$(json "$1")" = "$2" ] || die "$3: $1 is $(json "$1"), not $2"
}
noted() { grep -q -e "^note:   $1 is not needed here: " err || die "no note of $1"; }

# ---- llama-server --------------------------------------------------------------------------------

KVASIR_MODELS_DIR=$PWD plan -m "$tiny" # the folder of kvasir pull, not --models
mkdir several && cp -r "$tiny" several/
plan --models-dir several
plan -m "$tiny" -c 640 -t 1 -np 3 -ctk q8_0 -ctv q5_0 -a name -fa on --jinja --metrics --slots -v \
    --seed 4 --temperature 0.5 --repeat-penalty 1.1 --n-predict 9 -b 512 -ub 64 -ngl 0 --no-mmap
is ctx 640 "-c"
grep -q 'K 8 g[0-9]*, V 5 g' err || die "-ctk, -ctv"
grep -q '^sample: temperature 0.5, repetition_penalty 1.1' err || die "--repeat-penalty"
for flag in -fa --jinja --metrics --slots -v -b -ngl; do
    noted "$flag"
done
plan -m "$tiny" -fa --cache-type-v=bf16
grep -q 'K 8 g[0-9]*, V bf16' err || die "the other half keeps its default"
plan -m "$tiny" --kv-bits q4_0
grep -q 'K 4 g[0-9]*, V 4 g' err || die "--kv-bits q4_0"
s '-ctk: needs a value' -m x -ctk
s '-ngl: "99": only 0 is possible: this build computes on the CPU' -m x -ngl 99
s '--lora: adapters are not supported: merge it' -m x --lora y
s '-md: there is no speculative decoding' -m x -md y
s '--mmproj: images are not supported' -m x --mmproj y
s '-hf: run kvasir pull hf:REPOSITORY' -hf org/name
s '--jinja: takes no value' -m x --jinja=1

# ---- more than there is --------------------------------------------------------------------------

good serve -m "$tiny" --cache-memory-mb 1000000 --threads 500 --dry-run
grep -q '^note:   warning: 500 threads on [0-9]* CPUs*: more than one' err || die "threads"
grep -q "^note:   warning: the cache's budget of 976.6 GiB is more than" err || die "memory"

# ---- vLLM ----------------------------------------------------------------------------------------

plan "$tiny" --max-model-len 640 --kv-cache-dtype fp8 --enable-prefix-caching --dtype bfloat16 \
    --max-num-batched-tokens 64 --gpu-memory-utilization 0.2 --trust-remote-code \
    --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 \
    --generation-config auto --scheduling-policy priority
is ctx 640 "MODEL as an argument"
grep -q 'K 8 g[0-9]*, V 8 g' err || die "--kv-cache-dtype"
noted --enable-prefix-caching
noted --trust-remote-code
noted --scheduling-policy
plan "$tiny" --kv-cache-dtype auto
grep -q 'K 8 g[0-9]*, V 4 g' err || die "--kv-cache-dtype auto"
s '--kv-cache-dtype: "x" is not auto, fp8' -m x --kv-cache-dtype x
s '--dtype: "int4": only auto half' -m x --dtype int4
s '--tool-call-parser: "x" is not a parser' -m x --tool-call-parser x
s '--reasoning-parser: "x" is not a parser' -m x --reasoning-parser x
s 'unexpected argument "y"' -m x y

# ---- mlx_lm.server, vllm-mlx ---------------------------------------------------------------------

plan -m "$tiny" --log-level DEBUG --use-default-chat-template --decode-concurrency 4 \
    --prompt-concurrency 2 --chat-template-args '{"a": 1}' --trust-remote-code --enable-metrics \
    --timeout 60 --offline
noted --timeout
s '--compat: "x" is neither mlx nor vllm-mlx' -m x --compat x
plan -m "$tiny" --compat mlx
plan -m "$tiny" --compat vllm-mlx
s '--draft-model: there is no speculative decoding' -m x --draft-model y
s '--adapter-path: adapters are not supported' -m x --adapter-path y

# ---- mistakes ------------------------------------------------------------------------------------

expect 2 'unknown flag "--max-token": did you mean --max-tokens?' generate -m x --max-token 5
expect 2 'unknown flag "--prot": did you mean --port?' serve -m x --prot 80
expect 2 'unknown flag "--ctx-size"' tokenize -m x --ctx-size 5
s '-m: Qwen/Qwen3-0.6B is not on this machine: run kvasir pull Qwen/Qwen3-0.6B' -m Qwen/Qwen3-0.6B
s '-m: hf:a/b is not on this machine: run kvasir pull hf:a/b' -m hf:a/b
s '-m: https://x/y.gguf is not on this machine: run kvasir pull' -m https://x/y.gguf
expect 2 '^kvasir chat: -m: Qwen/Qwen3-0.6B is not on' chat -m Qwen/Qwen3-0.6B
mkdir models
expect 1 '^kvasir serve: models/none: No such file' serve -m models/none
expect 1 '^kvasir serve: some/none.gguf: No such file' serve -m some/none.gguf
echo '{"kv-bits": 8, "kv-group-size": 32}' >config.json
plan -m "$tiny" --config config.json
grep -q 'K 8 g32, V 8 g32' err || die "a number in the file"
