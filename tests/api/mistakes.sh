#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# mistakes.sh KVASIR [--write]: what a new user types wrong, and what the program says: one line,
# which tells what is wrong and what to do. docs/decisions/mistakes.md has the table; --write renews
# it, otherwise it must be as it is.
. "$(dirname "$0")/../support/api.bash"
model=$SHARED_DIR/models/stories260K/hf
[ -d "$model" ] || skip "no fixtures: $model"
tiny_model
unset "${!KVASIR_@}" "${!HF_@}"
export HOME=$PWD XDG_CACHE_HOME=$PWD XDG_DATA_HOME=$PWD
doc=$SOURCE_DIR/docs/decisions/mistakes.md
rows=()

row() { # TYPED SAID
    local cells
    cells=$(printf '| `%s` | %s |' "$1" "${2//|/\\|}")
    cells=${cells//$port/PORT}
    rows+=("$(sed 's/ after [0-9]* ms/ after N ms/; s/Could not connect/Couldn'"'"'t connect/' \
        <<<"$cells")")
}
# Words as they are typed: those that need it in quotes.
typed() { printf ' %s' "${@@Q}" | sed "s/'\([A-Za-z0-9.,:=/_@-]\+\)'/\1/g"; }
heading() { rows+=("" "## $1" "" "| typed | it says |" "|---|---|"); }
# mistake CODE PATTERN ARG...: as `expect`; lines of facts and notes may come before the error.
mistake() {
    local code=$1 pattern=$2 got
    shift 2
    run "$@"
    got=$?
    [ "$got" = "$code" ] || die "exit code $got, not $code: kvasir $*"
    [ "$(grep -c '^kvasir' err)" = 1 ] || die "not one line of error: kvasir $*"
    grep -qE -e "$pattern" <(grep '^kvasir' err) || die "no \"$pattern\": kvasir $*"
    row "kvasir$(typed "$@")" "$(grep '^kvasir' err)"
}
# ask STATUS PATTERN ARG...: a request with curl; the last argument is the path.
ask() {
    local status=$1 pattern=$2 got said path=${*: -1}
    shift 2
    got=$(curl -s -o out -w '%{http_code}' "${@:1:$#-1}" "$url$path")
    [ "$got" = "$status" ] || die "status $got, not $status: $*"
    said=$(python3 -c 'import json; print(json.load(open("out"))["error"]["message"])') ||
        die "no error: $*"
    grep -qE -e "$pattern" <<<"$said" || die "no \"$pattern\" in: $said"
    row "curl$(typed "$@")" "$status: $said"
}

# files that are no model, or not all of one
port=@@@ # none yet
cp -r "$model" model
cp -r "$tiny" ids
mkdir empty config gguf
cp model/config.json config
printf 'GGUF\3\0\0\0\1\0\0\0\0\0\0\0' >gguf/cut.gguf
: >zero.gguf
printf 'hello' >text.gguf
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\n' >pointer.gguf
printf '<!DOCTYPE html><html></html>' >page.gguf
printf '{"kv-bits": 8, "port": "80a"}' >config.json
printf '{"kv_bit": 8}' >typo.json
printf 'hello\n' >requests.jsonl
printf '# none\n' >keys
printf 'word %.0s' {1..90} >long.txt

heading "Commands and flags"
mistake 2 'did you mean serve\?' servee
mistake 2 'did you mean chat\?' run model
mistake 2 'did you mean list\?' ls
mistake 2 'comes before its flags' -m model
mistake 2 'kvasir help lists the commands' frobnicate
mistake 2 'did you mean --max-tokens\?' generate -m model -p hi --max-token 5
mistake 2 'computes on the CPU only' serve -m model -ngl 99
mistake 2 'merge it into the model' serve -m model --lora adapter
mistake 2 'a prompt comes after -p' generate -m model 'tell me a story'
mistake 2 'needs a value' generate -m model -p
mistake 2 "file, folder or name" serve
mistake 2 'not a whole number' generate -m model -p hi -n many
mistake 2 'not a whole number of MiB' serve -m model --cache-memory-mb 4GB
mistake 2 'out of range' generate -m model -p hi --temp -1

heading "Models"
mistake 1 'No such file or directory; "kvasir pull"' generate -m nowhere.gguf -p hi
mistake 1 'did you mean smollm2:135m\?' generate -m smolm2:135m -p hi
mistake 2 'run kvasir pull org/name' generate -m org/name -p hi
mistake 2 'run kvasir pull https' generate -m https://example.org/m.gguf -p hi
mistake 1 'holds no config.json; for GGUF give the file' generate -m gguf -p hi
mistake 1 'holds no config.json' generate -m empty -p hi
mistake 1 'is the download complete\?' generate -m config -p hi
mistake 1 'is the download complete\?' generate -m gguf/cut.gguf -p hi
mistake 1 'the file is empty' generate -m zero.gguf -p hi
mistake 1 'not a GGUF file' generate -m text.gguf -p hi
mistake 1 'git lfs pull' generate -m pointer.gguf -p hi
mistake 1 'is a web page' generate -m page.gguf -p hi
mistake 1 'give the folder' generate -m ids/model.safetensors -p hi
mistake 1 'has no tokenizer.*takes token ids' generate -m ids -p hi
mistake 2 'is not a model.s name' pull mymodel
mistake 2 'hf:ORGANIZATION/REPOSITORY' pull hf:mymodel
mistake 1 'Could ?n.t connect' pull http://127.0.0.1:1/m.gguf

heading "Answers"
mistake 2 'the prompt is empty' generate -m model -p ''
mistake 1 'No such file' generate -m model -f nowhere.txt
mistake 2 'unknown KV format "7"' generate -m model -p hi --kv-bits 7
mistake 2 'is not 32, 64 or 128' generate -m model -p hi --kv-group-size 48
mistake 2 'use f16, bf16 or f32' generate -m model -p hi --kv-bits 8
mistake 1 'raise --ctx' generate -m model -f long.txt --ctx 64 --kv-bits f16
mistake 1 'line 1' batch -m model -i requests.jsonl -o results.jsonl
mistake 2 'neither http:// nor https://' chat --url 127.0.0.1:8080
mistake 1 'is a server running there\?' chat --url http://127.0.0.1:1

heading "Servers"
serve=(--chat-template template --cache-memory-mb 64 --kv-bits f16)
echo '{% for m in messages %}{{ m.content }}{% endfor %}' >template
start_server -m model "${serve[@]}"
port=${url##*:}
mistake 1 'another program has this port: choose another' serve -m model --kv-bits f16 \
    --port "$port"
mistake 2 'out of range' serve -m model --port 80800
mistake 1 'not an address of this machine' serve -m model --kv-bits f16 --port 0 \
    --host 203.0.113.7 --api-key secret
mistake 2 'without a key, anyone' serve -m model --host 0.0.0.0
mistake 2 'contains no key' serve -m model --api-key-file keys
mistake 2 'is neither text nor json' serve -m model --log-format xml
mistake 2 '"port"' serve -m model --config config.json
mistake 2 'did you mean "kv-bits"' serve -m model --config typo.json
mistake 1 'is it an http:// URL\?' chat --url "https://127.0.0.1:$port"
mistake 1 'is --url right\?' top --once --url "http://127.0.0.1:$port/v2"

heading "Requests"
hi='{"messages": [{"role": "user", "content": "hi"}]}'
ask 404 'did you mean /v1/chat/completions\?' -d "$hi" /v1/chat/completion
ask 404 'did you mean /v1/chat/completions\?' -d "$hi" /v1/v1/chat/completions
ask 405 'use POST' /v1/chat/completions
ask 400 'invalid JSON at byte' -d "{'messages': []}" /v1/chat/completions
ask 400 'body is empty' -d '' /v1/chat/completions
ask 400 'messages: missing' -d '{"prompt": "hi"}' /v1/chat/completions
ask 400 'messages: is a string, not an array' -d '{"messages": "hi"}' /v1/chat/completions
ask 400 'messages: is empty' -d '{"messages": []}' /v1/chat/completions
ask 400 'prompt: missing' -d "$hi" /v1/completions
ask 400 'only text is' -d '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}' \
    /v1/chat/completions
ask 400 'temperature: is a string' -d "${hi%\}}, \"temperature\": \"hot\"}" /v1/chat/completions
ask 400 'do not fit the context' -d "${hi%\}}, \"max_tokens\": 999999}" /v1/chat/completions
ask 403 'allowed-hosts' -H 'Host: example.org' /v1/models
end_server TERM 0
start_server -m model "${serve[@]}" --api-key secret --served-model-name stories
port=${url##*:}
ask 401 'missing API key: send it' -d "$hi" /v1/chat/completions
ask 401 'invalid API key' -H 'Authorization: Bearer wrong' -d "$hi" /v1/chat/completions
ask 404 '"gpt-4" not found, this server runs "stories"' -H 'Authorization: Bearer secret' \
    -d "${hi%\}}, \"model\": \"gpt-4\"}" /v1/chat/completions
end_server TERM 0

{
    cat <<'TEXT'
# What mistakes say

What a new user types wrong, and the line that the program answers with: what is wrong, and what to
do. Written by `tests/api/mistakes.sh KVASIR --write`, which is also the test of each. `model` is a
small model's folder, `ids` one without a tokenizer.
TEXT
    printf '%s\n' "${rows[@]}"
} >table
[ "${2:-}" != --write ] || cp table "$doc"
diff "$doc" table >out 2>err ||
    die "docs/decisions/mistakes.md is not what the program says: renew it with --write"
