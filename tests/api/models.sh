#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve --models: several models in one server (models.py), and what is wrong usage.
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K
[ -d "$stories/hf" ] || skip "no model: $stories"
tiny_model
unset "${!KVASIR_@}"
mkdir -p empty many && ln -s "$stories/hf" many/stories && ln -s "$tiny" many/tiny
ln -s "$stories/stories260K-f32.gguf" many/stories.gguf

# ---- wrong usage ----
s() { expect 2 "^kvasir serve: $1" serve "${@:2}"; }
file() { printf '%s' "$1" >file.json; }
of() { # MEMBERS PATTERN: one model with these members
    file "[{\"path\": \"many/tiny\"$1}]"
    s "--models: file.json: model 1: $2" --models file.json
}
s '-m: missing'
s '--model: not allowed with --models' -m many/tiny --models many
s '--warm-prompts: not allowed with --models' --models many --warm-prompts x
s '--served-model-name: not allowed with --models' --models many --served-model-name x
s '--models-at-once: only allowed with --models' -m many/tiny --models-at-once 2
s '--model-idle-seconds: only allowed with --models' -m many/tiny --model-idle-seconds 2
s '--models: empty: contains no model' --models empty
s '--models: two models have the name "stories"' --models many
rm many/stories.gguf
mkdir 'many/two words' && touch 'many/two words/config.json'
s '--models: many/two words: its name must be UTF-8 without blanks' --models many
rm -r 'many/two words'
expect 1 '^kvasir serve: --models: .*nothing.json' serve --models nothing.json
file '{"path": "many/tiny"}'
s '--models: file.json: is not an array of models' --models file.json
file '[{"name": "x"}]'
s '--models: file.json: model 1: "path": must be' --models file.json
file '[3]'
s '--models: file.json: model 1: is not an object' --models file.json
of ', "port": 1' '"port" is neither name, path, .* nor a flag that a model can have'
of ', "kv_bits": 8' '"kv_bits" is neither'
of ', "kv-bits": true' '"kv-bits": must be a string or a whole number'
of ', "ctx": "many"' '"ctx": must be a number'
of ', "share": 101' '"share": must be a number above 0 and at most 100'
of ', "share": 50, "cache-memory-mb": 50' '"share" and "cache-memory-mb": give one'
of ', "aliases": "x"' '"aliases": must be an array of strings'
of ', "pinned": 1' '"pinned": must be true or false'
file '[{"path": "many/tiny", "share": 60}, {"path": "many/stories", "share": 50}]'
s '--models: the shares add up to 110 %: at most 100' --models file.json
file '[{"path": "many/tiny", "share": 100}, {"path": "many/stories"}]'
s '--models: the shares leave nothing for "stories"' --models file.json
file '[{"path": "many/tiny", "cache-memory-mb": 80}, {"path": "many/stories", "share": 50}]'
s "--models: the models' shares are 130 MiB, the cache has 100" --models file.json \
    --cache-memory-mb 100
file '[{"path": "many/tiny", "pinned": true}, {"path": "many/stories"}]'
s '--models: "stories" does not fit beside the pinned models' --models file.json --models-at-once 1
file '[{"path": "many/tiny", "aliases": ["x"]}, {"path": "many/stories", "name": "x"}]'
s '--models: two models have the name "x"' --models file.json
file '[{"path": "many/tiny", "default": true}, {"path": "many/stories", "default": true}]'
s '--models: two models are the "default"' --models file.json
file '[{"path": "many/nothing", "pinned": true}]'
run serve --models file.json --cache-memory-mb 64 --sandbox off --port 0 -q
[ $? = 1 ] || die "a pinned model that does not exist"
grep -q '^kvasir serve: many/nothing: No such file or directory;' err || die "not a word of it"

# ---- the plan ----
file '[{"path": "many/tiny", "share": 25}, {"path": "many/stories", "name": "s", "pinned": true}]'
good serve --models file.json --cache-memory-mb 400 --dry-run --json
[ "$(json cache_budget_bytes)" = $((400 << 20)) ] || die "the budget"
python3 -c 'import json; m = json.load(open("out"))["models"]
assert [(x["name"], x["cache_bytes"] >> 20, x["pinned"], x["default"]) for x in m] == \
    [("tiny", 100, False, True), ("s", 300, True, False)], m' || die "the plan"
good serve --models many --cache-memory-mb 400 --dry-run
grep -q '^stories .* 200.0 MiB  default$' out || die "the plan of a folder"

# ---- servers ----
cc -O1 -shared -fPIC -o slow_open.so "$SOURCE_DIR/tests/api/slow_open.c" -ldl ||
    die "slow_open.c does not compile"
sandbox=(--sandbox on)
run serve -m "$tiny" --cache-memory-mb 64 "${sandbox[@]}" --dry-run -q || sandbox=()
[ ${#sandbox[@]} != 0 ] || echo "not in a sandbox: $(head -1 err)"
timeout "$(limit 200)" python3 "$SOURCE_DIR/tests/api/models.py" "$kvasir" "$stories" "$tiny" \
    "${sandbox[@]}"
