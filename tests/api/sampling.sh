#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What a model's makers recommend for sampling is the default of generate and serve, below flags and
# requests; --generation-config none turns it off.
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -f "$stories/config.json" ] || skip "$stories is not there"
mkdir model
cp "$stories"/* model/
chmod -R u+w model
cat >model/generation_config.json <<<'{"eos_token_id": 2, "temperature": 0.8, "top_k": 5}'

samples() { grep -q '^seed:' err; }
g() { good generate --kv-bits f16 -m model -p 'Once upon a time' -n 3 --threads 1 --seed 1 "$@"; }
g
samples || die "the model's temperature is not used"
g --temp 0
samples && die "--temp 0 does not come before the model's"
g --generation-config none
samples && die "--generation-config none"
g --generation-config auto
samples || die "vLLM's word for model"
expect 2 '^kvasir generate: --generation-config: "x" is neither model nor none' \
    generate -m model -p x --generation-config x

s() { good serve --kv-bits f16 -m model --cache-memory-mb 64 --threads 1 --dry-run "$@"; }
s
grep -q '^sample: temperature 0.8, top_k 5 (the model' err || die "serve does not say its defaults"
s --temp 0.5 --top-k 0 --top-p 0.9
grep -q '^sample: temperature 0.5, top_p 0.9 (' err || die "flags come before the model's"
s --generation-config none
grep -q '^sample: temperature 0$' err || die "serve --generation-config none"

echo '{"temperature": "hot"}' >model/generation_config.json
expect 1 'generation_config.json: field temperature must be a number from 0 to 1000' \
    generate -m model -p x
expect 2 '^kvasir chat: --generation-config: not allowed with --url' \
    chat --url http://127.0.0.1:1 --generation-config none
