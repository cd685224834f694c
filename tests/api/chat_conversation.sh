#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir chat` (chat.sh is about templates): with stories260K a turn continues a stored prefix and
# gives the answer of `generate`; commands, files of chats, reasoning; `kvasir serve` by --url
# answers as the model does; a fake server and its errors; refused input; a terminal
# (chat_terminal.py).
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -d "$stories" ] || skip "no model: $stories"
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY KVASIR_API_KEY
export XDG_STATE_HOME=$PWD/state

# c LINES ARG...: a conversation of the lines, separated by \n; its exit code is in $code
c() {
    printf "$1" >in
    timeout 100 "$kvasir" chat "${@:2}" <in >out 2>err
    code=$?
}
good_chat() {
    c "$@"
    [ "$code" = 0 ] || die "exit code $code: kvasir chat, $1"
}
bad_chat() { # CODE PATTERN LINES ARG...
    c "${@:3}"
    [ "$code" = "$1" ] || die "exit code $code, not $1: kvasir chat, $3"
    grep -q -e "^kvasir chat: $2" err || die "no \"$2\" on standard error: kvasir chat, $3"
}
saved() { # FILE EXPRESSION of its messages m
    python3 -c 'import json, sys
m = json.load(open(sys.argv[1]))["messages"]
v = eval(sys.argv[2])
print(v if isinstance(v, str) else json.dumps(v))' "$@" || die "no chat: $*"
}

# ---- flags ----
expect 2 'kvasir chat: -m or --url: missing' chat
expect 2 'kvasir chat: --api-key: only allowed with --url' chat -m x --api-key y
expect 2 'kvasir chat: --kv-bits: not allowed' chat --url http://x --kv-bits 4
expect 2 'kvasir chat: --no-prefix-cache: not allowed' chat --url http://x --no-prefix-cache
expect 2 'kvasir chat: --cache-memory-mb: not allowed' chat --url http://x --cache-memory-mb 1
expect 2 'kvasir chat: --chat-template: not allowed' chat --url http://x --chat-template t
expect 2 'kvasir chat: --url: "ftp://x" begins with neither' chat --url ftp://x
expect 2 'kvasir chat: --api-key: is empty or holds' chat --url http://x --api-key $'a\r\nb: c'
expect 2 'kvasir chat: -m: this model has no chat template' chat -m "$stories" --kv-bits f16 -q
expect 1 'kvasir chat: .*nowhere' chat -m nowhere
expect 1 'kvasir chat: http://127.0.0.1:1/v1/models: .*127.0.0.1' chat --url http://127.0.0.1:1/
expect 1 'kvasir chat: the system message is not UTF-8' chat --url http://x --system $'\xff'

# ---- a model: the chat's text is the prompt ----
printf '{%% for m in messages %%}{{ m.content }}{%% endfor %%}{{ extra }}' >t
m=(-m "$stories" --kv-bits f16 --chat-template t -n 30 -q)
good_chat 'Once upon a time\n/stats\n He\\\nran.\n\n/stats\n/save a.json' "${m[@]}"
[ "$(saved a.json '[x["role"] for x in m]')" = '["user", "assistant", "user", "assistant"]' ] ||
    die "/save"
[ "$(saved a.json 'm[2]["content"]')" = $' He\nran.' ] || die "a line that goes on"
saved a.json 'm[0]["content"] + m[1]["content"] + m[2]["content"]' | head -c -1 >prompt
good generate -m "$stories" --kv-bits f16 --chat-template t -n 30 -q -p "$(cat prompt)" --json
[ "$(json text)" = "$(saved a.json 'm[3]["content"]')" ] || die "another answer than generate's"
c 'Once upon a time\n/stats\n He\\\nran.\n/stats\n' "${m[@]}"
grep '^prompt:' err >prompts
grep -q '^prompt: [0-9]* tokens, 0 of them from the cache' <(sed -n 1p prompts) || die "turn 1"
read -r cached total < <(sed -n '2s/^prompt: \([0-9]*\) tokens, \([0-9]*\) of.*/\2 \1/p' prompts)
[ "$cached" -gt 20 ] && [ "$cached" -lt "$total" ] || die "turn 2 does not go on: $cached"
grep -q '^cache:  .*f16.*; .* of them stored prefixes' err || die "no cache in /stats"

# the same chat continues from its file; commands give no answer
python3 -c 'import json
m = json.load(open("a.json"))["messages"]
json.dump(m[:2], open("b.json", "w"))' # an array alone is a chat, too
good_chat '/load b.json\n He\\\nran.\n/save c.json\n/help' "${m[@]}"
cmp -s a.json c.json || die "/load goes on elsewhere"
grep -q '^/reset ' err || die "/help"
good_chat '/system Once\n/reset\n//upon\n/save d.json\n/system\n/save e.json' "${m[@]}"
[ "$(saved d.json '[x["content"] for x in m][:2]')" = '["Once", "/upon"]' ] || die "/system"
[ "$(saved e.json 'm[0]["role"]')" = user ] || die "/system without a text"
good_chat 'One\n/quit\nTwo' "${m[@]}" --system S --chat-template-kwargs '{"extra": "x"}'
good_chat 'a\n/reset\n/save f.json' "${m[@]}" -q
[ "$(saved f.json m)" = '[]' ] || die "/reset"
good_chat '/stats' "${m[@]}"
grep -q '^answer: none yet' err || die "/stats at once"

# the last message again, taken back, another instead; quoted messages have several lines
r=("${m[@]}" --temp 1 --seed 7)
good_chat 'Once\n/save x.json\n/regen\n/save y.json\n/undo\n/save z.json' "${r[@]}"
[ "$(saved y.json '[x["role"] for x in m]')" = '["user", "assistant"]' ] || die "/regen"
[ "$(saved x.json 'm[1]["content"]')" != "$(saved y.json 'm[1]["content"]')" ] ||
    die "/regen draws the same answer"
[ "$(saved z.json m)" = '[]' ] || die "/undo"
good_chat 'Once\n/edit He ran.\n/save w.json' "${m[@]}" --system S
[ "$(saved w.json '[x["content"] for x in m][:2]')" = '["S", "He ran."]' ] || die "/edit"
bad_chat 2 '/undo: nothing was said yet' '/undo' "${m[@]}" --system S
bad_chat 2 '/regen: nothing was said yet' '/regen' "${m[@]}"
bad_chat 2 '/edit: nothing was said yet' '/edit x' "${m[@]}"
bad_chat 2 '/edit: needs a text' 'Once\n/edit' "${m[@]}"
good_chat '"""\na\\\n\nb"""\n"""c"""\n"""d\ne\n"""\n/save q.json' "${m[@]}" -n 1
[ "$(saved q.json '[x["content"] for x in m][::2]')" = '["a\\\n\nb", "c", "d\ne"]' ] ||
    die "quoted: $(saved q.json '[x["content"] for x in m][::2]')"

# a seed repeats a conversation; each of its turns draws differently
s=("${m[@]}" --temp 1 --seed 7)
good_chat 'Once\n/reset\nOnce\n' "${s[@]}" && mv out first
good_chat 'Once\n/reset\nOnce\n' "${s[@]}"
cmp -s first out || die "--seed does not repeat"
good_chat 'Once\n' "${s[@]}"
cmp -s <(cat out out) first && die "two turns draw alike"

# reasoning: if the template opens it, all text up to its end mark; not on standard output
printf '{%% for m in messages %%}{{ m.content }}{%% endfor %%}<think>\n' >think
good_chat 'Once\n/save r.json' -m "$stories" --kv-bits f16 -q -n 20 --chat-template think
[ "$(saved r.json 'm[1]["content"] == "" and len(m[1]["reasoning_content"]) > 5')" = true ] ||
    die "reasoning that the template opens"
[ -s out ] && die "reasoning on standard output"

# ---- `kvasir serve`: the same answers as the model's ----
both() { # LINES FLAGS_OF_BOTH -- FLAGS_OF_CHAT: the chat in model.json
    local i=2
    while [ "${!i}" != -- ]; do i=$((i + 1)); done
    local shared=("${@:2:i-2}") chat=("${@:i+1}")
    good_chat "$1\n/stats\n/save model.json" "${shared[@]}" "${chat[@]}" -q
    mv out model.out && grep '^prompt: ' err | cut -d';' -f1 >model.prompt
    KVASIR_API_KEY=k start_server "${shared[@]}" -q
    good_chat "$1\n/stats\n/save served.json" --url "$url" --api-key k "${chat[@]}" -q
    cmp -s model.json served.json ||
        die "the server answers otherwise: $(cat model.json served.json)"
    cmp -s model.out out || die "another standard output"
    grep '^prompt: ' err | cut -d';' -f1 | cmp -s - model.prompt ||
        die "another count of the prompt"
    bad_chat 1 "$url/v1/models: HTTP 401: " a --url "$url" --api-key other
    end_server TERM 0
}
both 'Once upon a time\n He ran.' -m "$stories" --kv-bits f16 --chat-template t -- -n 30
both 'Once\nupon' -m "$stories" --kv-bits f16 --chat-template t -- -n 20 --temp 1 --seed 7 --top-k 9

# Reasoning in all its forms, control tokens or text; a tool call is text if no tools are given.
scripted() { # NAME TEMPLATE CONTROL SCRIPT
    python3 -c 'import json, sys
name, template, control, script = sys.argv[1:]
first = "{% for m in messages %}{{ m.content }}{% endfor %}<|script|>"
json.dump({"chat_template": "{# " + template + " #}" + first, "control": control.split(),
           "scripts": {"script": script}}, open(name + ".scripts", "w"))' "$@" &&
        python3 "$SOURCE_DIR/tests/support/scripted_model.py" "$1" "$1.scripts" || die "scripted $1"
}
call='<tool_call>{"name": "f", "arguments": {}}</tool_call>'
scripted s-think "<think></think><tool_call></tool_call>" '<think> </think>' \
    $'<think>\nLet me see.\n</think>\n\nDone. '"$call"
scripted s-gemma '<|channel>thought<channel|>' '<|channel> <channel|>' \
    $'<|channel>thought\nLet me see.<channel|>Done. '"$call"
scripted s-harmony '<|channel|><|message|>' '<|end|> <|start|>' \
    '<|channel|>analysis<|message|>Let me see.<|end|>'\
'<|start|>assistant<|channel|>final<|message|>Done. '"$call"
for model in s-think s-gemma s-harmony; do
    both 'Well?' -m $model --ctx 1024 -- -n 500
    [ "$(saved model.json '[m[1]["reasoning_content"], m[1]["content"]]')" = \
        "$(CALL="Done. $call" python3 -c 'import json, os
print(json.dumps(["Let me see.", os.environ["CALL"]]))')" ] || die "reasoning of $model"
    grep -q 'see' out && die "reasoning of $model on standard output"
done

# the first error ends the conversation and is reported
bad_chat 2 'unknown command "/frob"; /help' '/frob\nOnce' "${m[@]}"
[ -s out ] && die "it went on behind an error"
bad_chat 2 '/save: needs the name' '/save ' "${m[@]}"
bad_chat 2 '/reset: takes no value' '/reset now' "${m[@]}"
bad_chat 1 '/save: cannot write nowhere/x' '/save nowhere/x' "${m[@]}"
bad_chat 1 '/load: .*nowhere.*: No such' '/load nowhere' "${m[@]}"
bad_chat 1 'the user message is not UTF-8 (at byte 1)' 'a\xff' "${m[@]}"
load() { # PATTERN TEXT
    printf '%s' "$2" >bad.json
    bad_chat 1 "/load: bad.json: $1" '/load bad.json' "${m[@]}"
}
load 'invalid JSON at byte' '{"messages": ['
load 'messages: is missing' '{"x": []}'
load 'invalid JSON at byte' '"text"'
load 'messages\[1\]: is not an object' '[{"role": "user", "content": "a"}, 3]'
load 'messages\[0\].role: is missing' '[{"content": "a"}]'
load 'messages\[0\].content: is not a string' '[{"role": "user", "content": [1]}]'
load 'messages\[0\].reasoning_content: is not' '[{"role": "user", "reasoning_content": {}}]'
bad_chat 1 '.*context' 'Once upon a time\n' "${m[@]}" --ctx 2
good_chat 'Once\n' "${m[@]}" -n 4000000 --ctx 64
grep -q '^note:   the limit of its length' err || die "an answer that was cut"

# Ctrl-C without a terminal: prints the beginning of the answer, exit code 130
mkfifo pipe
timeout --foreground 60 "$kvasir" chat -m "$stories" --kv-bits f16 --chat-template t -n 0 \
    --ctx 500000 -q <pipe >out 2>err &
pid=$!
exec 3>pipe
echo 'Once upon a time' >&3
for _ in $(seq 100); do
    [ -s out ] && break
    sleep 0.05
done
kill -INT $pid # timeout passes it on
wait $pid
code=$?
exec 3>&-
[ "$code" = 130 ] && [ -s out ] || die "Ctrl-C: exit code $code"

# ---- a server ----
coproc python3 "$SOURCE_DIR/tests/support/fake_server.py" --key 'secret key' --log log
read -r port <&"${COPROC[0]}" || die "no fake server"
url=http://127.0.0.1:$port
logged() { # EXPRESSION of the newest chat body b and its line l
    python3 -c 'import json, sys
l = [x for x in map(json.loads, open("log")) if x["body"]][-1]
b = l["body"]
v = eval(sys.argv[1])
print(v if isinstance(v, str) else json.dumps(v))' "$1" || die "not logged: $1"
}
bad_chat 1 "$url/v1/models: HTTP 401: a key is needed" 'a' --url $url
bad_chat 1 "$url/v1/models: HTTP 401" 'a' --url $url --api-key 'another key'
export KVASIR_API_KEY='secret key'
u=(--url $url/v1/ -q)
good_chat 'Hello, w\xc3\xb6rld \xf0\x9f\x8c\x8d\n/stats\nthink\n/save s.json' "${u[@]}" --system Be
[ "$(cat out)" = $'You said: Hello, wörld 🌍\nIt is done.' ] || die "answers of a server"
grep -q '^prompt: 4 tokens, 1 of them from the cache' err || die "usage"
grep -q '^answer: 5 tokens' err || die "usage: answer"
grep -q '^cache:  [0-9.]* KiB of 1.0 GiB' err || die "/v1/status"
grep -q ' of K 8 g64, V 4 g64, stored$' err || die "/v1/status: formats"
[ "$(saved s.json '[m[0]["role"], m[4]["content"], m[4]["reasoning_content"]]')" = \
    '["system", "It is done.", "Let me think of it."]' ] || die "reasoning of a server"
[ "$(logged '[b[k] for k in "model stream stream_options max_tokens".split()]')" = \
    '["fake-model", true, {"include_usage": true}, 2048]' ] || die "the request"
[ "$(logged 'sorted(b)')" = \
    '["max_tokens", "messages", "model", "stream", "stream_options"]' ] ||
    die "more than was asked for is sent: $(logged 'sorted(b)')"
good_chat '/load s.json\nagain\n' "${u[@]}" -m mine --temp 0.7 --top-p 0.9 --top-k 5 --seed 3 -n 7 \
    --presence-penalty 1 --presence-context-size 9 --logit-bias 3:1.5 \
    --chat-template-kwargs '{"x": 1}'
[ "$(logged '[b[k] for k in ("model temperature top_p top_k seed max_tokens presence_penalty " +
    "presence_context_size logit_bias chat_template_kwargs").split()]')" = \
    '["mine", 0.7, 0.9, 5, 3, 7, 1.0, 9, {"3": 1.5}, {"x": 1}]' ] || die "flags are not sent"
[ "$(logged '[sorted(x) for x in b["messages"]] == 6 * [["content", "role"]]')" = true ] ||
    die "reasoning is sent back"
bad_chat 1 "$url/v1/chat/completions: HTTP 400: messages\[0\].content: is not" refuse "${u[@]}"
bad_chat 1 "$url: the answer broke off" break "${u[@]}"
[ "$(cat out)" = 'half of it' ] || die "what came before it broke off"
bad_chat 1 "$url: the engine failed" fail "${u[@]}"
bad_chat 1 "$url: the stream holds something that is not a JSON object: {no JSON" garbage "${u[@]}"
bad_chat 1 "$url/v1/v1/models: HTTP 404" a --url $url/v1/v1
good_chat long "${u[@]}"
grep -q '^note:   the limit of its length' err || die "finish_reason length"
good_chat control "${u[@]}"
grep -q $'\033\[2Jgone' out || die "a pipe gets what was said"

# ---- a terminal ----
python3 "$SOURCE_DIR/tests/api/chat_terminal.py" "$kvasir" "$url" "$PWD" || die "on a terminal"
eval "exec ${COPROC[1]}>&-"
exit 0
