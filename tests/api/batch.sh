#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir batch` on stories260K: requests and results of OpenAI's batch format, the same answers as
# `generate`, failed requests, prompt-cache files, both orders, runs that continue after Ctrl-C and
# after a truncated line, and input that is refused before anything runs.
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -d "$stories" ] || skip "no model: $stories"
flags=(--kv-bits f16) # its heads have 8 values: no group size divides them

b() { good batch -m "$stories" "${flags[@]}" "$@"; }
# failing CODE PATTERN ARG...: like expect, for runs that may also print facts
failing() {
    local code=$1 pattern=$2
    shift 2
    expect "$code" "$pattern" batch -m "$stories" "${flags[@]}" -q "$@"
}
# request ID BODY: one line of chat or, where the body has a prompt, of completions
request() {
    local url=/v1/completions
    [[ $2 == *'"messages"'* ]] && url=/v1/chat/completions
    printf '{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' "$1" "$url" "$2"
}
# result FILE ID EXPRESSION: of that line's object r, its body b and its first choice c
result() {
    python3 -c 'import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
r, = [line for line in lines if line["custom_id"] == sys.argv[2]]
b = r["response"]["body"]
c = b.get("choices", [None])[0]
v = eval(sys.argv[3])
print(v if isinstance(v, str) else json.dumps(v))' "$@" || die "no result: $*"
}
is() { # FILE ID EXPRESSION WANTED
    local got
    got=$(result "$1" "$2" "$3")
    [ "$got" = "$4" ] || die "$2: $3 is $got, not $4"
}
ids() { python3 -c 'import json, sys
print(*[json.loads(line)["custom_id"] for line in open(sys.argv[1])])' "$1"; }

# ---- answers: the same as those of generate ----
printf '{%% for m in messages %%}{{ m.content }}{%% endfor %%}{{ extra }}' >t.jinja
{
    request text '{"model":"m","prompt":"Once upon a time","max_tokens":40}'
    echo
    request ids '{"prompt":[1,403,407,261,378],"max_tokens":40}'
    request chat '{"messages":[{"role":"user","content":"<s>Once upon a time"}],"max_tokens":40,
        "control_tokens":"all"}' | tr -d "\n"
    echo
    request seed '{"prompt":"Once","max_tokens":30,"temperature":1,"seed":7}'
    request stop '{"prompt":"Once upon a time","max_tokens":40,"stop":["girl","x"]}'
    request n '{"prompt":"Once","max_tokens":20,"temperature":1,"n":3,"seed":7}'
    request logprobs '{"prompt":"Once upon a time","max_tokens":4,"logprobs":2}'
    request default '{"prompt":"Once upon a time"}'
} >in
b -i in -o out1 --chat-template t.jinja -n 9 --cache-dir store --cache-disk-gb 0.5
grep -q '^batch:  8 requests in .* 0 failed$' err || die "no summary"
grep -qxF 'stores: disk store, 0 B of 512.0 MiB, 0 records' err || die "no line about stores"
[ -s out ] && die "something on standard output"
good generate -m "$stories" "${flags[@]}" --raw -p "Once upon a time" -n 40 --json -q
text=$(json text)
for id in text ids; do
    is out1 $id 'c["text"]' "$text"
    is out1 $id '[c["finish_reason"], c["index"], c["logprobs"]]' '["length", 0, null]'
done
is out1 chat 'c["message"]' "$(python3 -c 'import json, sys
print(json.dumps({"role": "assistant", "content": sys.argv[1], "refusal": None}))' "$text")"
is out1 text '[b["object"], b["model"], r["error"]]' '["text_completion", "m", null]'
is out1 chat 'b["object"]' chat.completion
is out1 ids 'b["model"]' hf
is out1 text '[b["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")]' \
    '[5, 40, 45]'
is out1 text 'r["response"]["status_code"]' 200
is out1 stop '[c["text"], c["finish_reason"]]' "$(python3 -c 'import json, sys
print(json.dumps([sys.argv[1].split("girl")[0], "stop"]))' "$text")"
is out1 default 'b["usage"]["completion_tokens"]' 9
# several prompts: each gets what it gets alone; an echo with the prompt's log-probabilities
{
    request prompts '{"prompt":["Once upon a time","The"],"max_tokens":40}'
    request lists '{"prompt":[[1,403,407,261,378],[1,403]],"max_tokens":40,"n":2}'
    request echo '{"prompt":"Once upon a time","max_tokens":0,"echo":true,"logprobs":1}'
} >in
b -i in -o several
is several prompts "[x['index'] for x in b['choices']]" '[0, 1]'
is several prompts "c['text']" "$text"
is several lists "[x['index'] for x in b['choices']]" '[0, 1, 2, 3]'
is several lists "c['text'] == b['choices'][1]['text']" true
is several lists "c['text']" "$text"
is several lists 'b["usage"]["prompt_tokens"]' 7
is several echo '[c["text"], len(c["logprobs"]["tokens"]), b["usage"]["completion_tokens"]]' \
    '["Once upon a time", 5, 0]'
is several echo '[x is None for x in c["logprobs"]["token_logprobs"]]' \
    '[true, false, false, false, false]'
# a default that is too long for the context is shortened; a request's own length is refused
{
    request default '{"prompt":"Once upon a time","ignore_eos":true}'
    request said '{"prompt":"Once upon a time","max_tokens":600}'
} >in
failing 1 '1 of 2 requests failed' -i in -o room -n 600
is room default '[b["usage"]["total_tokens"], c["finish_reason"]]' '[512, "length"]'
is room said '[r["response"]["status_code"], "600" in b["error"]["message"]]' '[400, true]'

good generate -m "$stories" "${flags[@]}" --raw -p Once -n 30 --temp 1 --seed 7 --json -q
is out1 seed 'c["text"]' "$(json text)"
for i in 0 1 2; do # choice i draws from seed + i
    good generate -m "$stories" "${flags[@]}" --raw -p Once -n 20 --temp 1 --seed $((7 + i)) \
        --json -q
    is out1 n "b['choices'][$i]['text']" "$(json text)"
done
is out1 n 'b["usage"]["completion_tokens"]' 60
is out1 logprobs '"".join(c["logprobs"]["tokens"]) == c["text"]' true
is out1 logprobs '[len(t) for t in c["logprobs"]["top_logprobs"]]' '[2, 2, 2, 2]'
is out1 logprobs 'all(max(t.values()) == p for t, p in
    zip(c["logprobs"]["top_logprobs"], c["logprobs"]["token_logprobs"]))' true
is out1 logprobs 'c["logprobs"]["text_offset"][2] == len("".join(c["logprobs"]["tokens"][:2]))' true
[ "$(result out1 text 'b["id"]')" != "$(result out1 ids 'b["id"]')" ] || die "ids are the same"

# ---- one JSON object: it parses unless it was cut (token 128 is the byte of "}") ----
json_object='"response_format":{"type":"json_object"}'
{
    request ended "{\"prompt\":\"Once\",\"max_tokens\":99,\"temperature\":1,\"n\":3,
\"logit_bias\":{\"128\":30},$json_object}" | tr -d '\n'
    echo
    request cut "{\"prompt\":\"Once\",\"max_tokens\":5,\"logit_bias\":{\"128\":-100},$json_object}"
    request schema '{"prompt":"Once","response_format":{"type":"json_schema","json_schema":{}}}'
    request chosen '{"prompt":"Once","max_tokens":50,"guided_choice":["upon","a time"]}'
    request endless "{\"prompt\":\"Once\",\"ignore_eos\":true,$json_object}"
} >in
failing 1 '2 of 5 requests failed' -i in -o object
is object ended 'all(type(json.loads(c["text"])) is dict for c in b["choices"])' true
is object ended '[c["finish_reason"] for c in b["choices"]]' '["stop", "stop", "stop"]'
is object cut '[c["finish_reason"], b["usage"]["completion_tokens"]]' '["length", 5]'
is object schema 'r["response"]["status_code"]' 400
is object schema 'b["error"]["param"]' response_format.json_schema.schema
is object chosen '[c["text"] in ("upon", "a time"), c["finish_reason"]]' '[true, "stop"]'
is object endless 'b["error"]["param"]' ignore_eos

# ---- no seed: a repeated run gives the same answers; each custom_id has its own ----
for id in a b c; do request $id '{"prompt":"Once","max_tokens":30,"temperature":1}'; done >in
b -i in -o free1 -q
b -i in -o free2 -q
[ "$(result free1 a 'c["text"]')" = "$(result free2 a 'c["text"]')" ] || die "not the same again"
[ "$(result free1 a 'c["text"]')" != "$(result free1 b 'c["text"]')" ] || die "not another answer"

# flags are the defaults of requests that do not say; --seed gives other answers, the same again
for id in a b; do request $id '{"prompt":"Once","max_tokens":30}'; done >in
request c '{"prompt":"Once","max_tokens":30,"temperature":0,"repetition_penalty":1}' >>in
b -i in -o flags1 --temp 1
grep -qx 'sample: temperature 1' err || die "no line about sampling"
b -i in -o flags2 -q --temperature 1 --seed 0
b -i in -o flags3 -q --temp 1 --seed 5
b -i in -o greedy -q
for id in a b; do
    is flags1 $id 'c["text"]' "$(result free1 $id 'c["text"]')"
    is flags2 $id 'c["text"]' "$(result free1 $id 'c["text"]')"
    [ "$(result flags3 $id 'c["text"]')" != "$(result free1 $id 'c["text"]')" ] || die "--seed"
    is greedy $id 'c["text"]' "$(result flags1 c 'c["text"]')"
done
# what the model's makers recommend, unless --generation-config none or a flag says otherwise
cp -r "$stories" recommending
chmod -R u+w recommending
echo '{"do_sample":true,"temperature":1.0}' >recommending/generation_config.json
for how in model none; do
    good batch -m recommending "${flags[@]}" -i in -o by-$how -q --generation-config $how
done
is by-model a 'c["text"]' "$(result free1 a 'c["text"]')"
is by-none a 'c["text"]' "$(result greedy a 'c["text"]')"
failing 2 '^kvasir batch: --seed: "x" is not a whole number' -i in -o no --seed x
failing 2 '^kvasir batch: --generation-config: "x" is neither' -i in -o no --generation-config x

# ---- template variables from the flag; no template ----
said='"messages":[{"role":"user","content":"<s>Once"}]'
request a "{$said,\"control_tokens\":\"all\",\"max_tokens\":2}" >in
b -i in -o kw -q --chat-template t.jinja --chat-template-kwargs '{"extra":" upon a time"}'
is kw a 'b["usage"]["prompt_tokens"]' 5
failing 1 '1 of 1 requests failed' -i in -o none
is none a '[r["response"]["status_code"], b["error"]["param"]]' '[400, "messages"]'

# ---- requests that fail become results; the run continues ----
{
    request top_p '{"prompt":"x","top_p":2}'
    request stream '{"prompt":"x","stream":true}'
    request content '{"messages":[{"role":"user","content":"a"},{"role":"user","content":7}]}'
    request good '{"prompt":"Once","max_tokens":3}'
    request long "{\"prompt\":[$(printf '5,%.0s' $(seq 600))5]}"
    request file '{"prompt":"x","prompt_cache":"/nowhere/f"}'
    echo '{"custom_id":"method","method":"GET","url":"/v1/completions","body":{"prompt":"x"}}'
    echo '{"custom_id":"url","method":"POST","url":"/v1/embedding","body":{"input":"x"}}'
    echo '{"custom_id":"body","method":"POST","url":"/v1/completions"}'
} >in
failing 1 '^kvasir batch: 8 of 9 requests failed: the results say why$' -i in -o failed
[ "$(wc -l <failed)" = 9 ] || die "not a result for each request"
is failed good 'r["response"]["status_code"]' 200
is failed top_p '[r["response"]["status_code"], b["error"]["param"], b["error"]["type"]]' \
    '[400, "top_p", "invalid_request_error"]'
is failed content 'b["error"]["message"]' \
    'messages[1].content: is a number, not a string or an array of parts'
is failed stream 'b["error"]["param"]' stream
is failed file '[b["error"]["param"], "No such file" in b["error"]["message"]]' \
    '["prompt_cache", true]'
is failed long '[r["response"]["status_code"], "512" in b["error"]["message"]]' '[400, true]'
is failed method 'b["error"]["param"]' method
is failed url 'b["error"]["param"]' url
is failed url '"/v1/rerank" in b["error"]["message"]' true
is failed body '"body" in b["error"]["message"]' true

# ---- embeddings: what the server answers ----
post() { printf '{"custom_id":"%s","method":"POST","url":"/v1/%s","body":%s}\n' "$@"; }
{
    post one embeddings '{"input":"Once upon a time","dimensions":16}'
    post many embeddings '{"input":["Once","a lion"],"encoding_format":"base64","frob":1}'
    post rank rerank '{"query":"Once","documents":["a lion","Once upon"],"top_n":1}'
    post bad embeddings '{"input":[]}'
    request text '{"prompt":"Once","max_tokens":3}'
} >in
failing 1 '1 of 5 requests failed' -i in -o embedded
is embedded many '[b["warnings"], r["response"]["status_code"]]' \
    '[["frob: unknown field, ignored"], 200]'
is embedded bad '[r["response"]["status_code"], b["error"]["param"]]' '[400, "input"]'
is embedded rank 'len(b["results"])' 1
start_server -q -m "$stories" "${flags[@]}"
python3 - "$url" <<'END' || die "other embeddings than the server's"
import json, struct, sys, urllib.request
def exact(x): # a file has 9 digits of a number, which are all of a float32
    return struct.unpack("f", struct.pack("f", float(x)))[0]
parse = lambda text: json.loads(text, parse_float=exact)
results = {r["custom_id"]: r["response"]["body"] for r in map(parse, open("embedded"))}
for line in map(json.loads, open("in")):
    if line["custom_id"] not in ("one", "many", "rank"):
        continue
    request = urllib.request.Request(sys.argv[1] + line["url"], json.dumps(line["body"]).encode(),
                                     {"Content-Type": "application/json"})
    served, ours = parse(urllib.request.urlopen(request).read()), results[line["custom_id"]]
    ours.pop("id", 0), served.pop("id", 0), ours.pop("model"), served.pop("model")
    assert ours == served, (ours, served)
END
end_server TERM 0

# ---- a prompt-cache file: the answer is that of the whole prompt ----
printf 'Once upon a time, there was a little' >head
good cache-prompt -m "$stories" "${flags[@]}" --raw -f head -o head.cache -q
good generate -m "$stories" "${flags[@]}" --prompt-cache head.cache --raw -p ' girl named' -n 12 \
    --json -q
text=$(json text) cached=$(json cached_tokens)
for i in 1 2 3; do
    request $i '{"prompt":" girl named","max_tokens":12,"prompt_cache":"head.cache"}'
done >in
request chat '{"messages":[{"role":"user","content":" girl named"}],"max_tokens":12,"prompt_cache":
    "head.cache"}' | tr -d '\n' >>in
printf '<s>{{ messages[0].content }}' >t.jinja
b -i in -o cached -q --chat-template t.jinja
for i in 1 2 3; do is cached $i 'c["text"]' "$text"; done
is cached chat 'c["message"]["content"]' "$text"
is cached 2 'b["usage"]["prompt_tokens_details"]["cached_tokens"]' "$cached"

# ---- orders: the requests after the first one take less time than it ----
{
    request slow '{"prompt":"Once","max_tokens":400,"ignore_eos":true}'
    for i in $(seq 12); do request $i '{"prompt":"Once","max_tokens":1}'; done
} >in
b -i in -o ordered --order input -q
[ "$(ids ordered)" = "slow $(seq -s ' ' 12)" ] || die "--order input: $(ids ordered)"
b -i in -o finished -q
[ "$(ids finished | tr ' ' '\n' | sort)" = "$(ids ordered | tr ' ' '\n' | sort)" ] ||
    die "--order finished: $(ids finished)"

# ---- continuing: finished requests are not run again ----
b -i in -o ordered
grep -q '^batch:  all 13 requests were finished before$' err || die "nothing to do, unsaid"
grep -q '^model:' err && die "a model is loaded for nothing"
head -3 ordered >some
before=$(cat some)
b -i in -o some
grep -q '^batch:  10 requests in .* 0 failed, 3 finished before$' err || die "going on"
[ "$(head -3 some)" = "$before" ] || die "results that were there are changed"
[ "$(ids some | tr ' ' '\n' | sort -u | wc -l)" = 13 ] || die "going on: $(ids some)"
# a last line that is cut off anywhere
for bytes in 1 5 17 20 100; do
    {
        head -3 ordered
        sed -n 4p ordered | head -c $bytes
    } >torn
    b -i in -o torn
    grep -q '^note:   torn: its last line was torn' err || die "torn after $bytes bytes: unsaid"
    [ "$(head -3 torn)" = "$before" ] || die "torn after $bytes bytes: the others are changed"
    [ "$(ids torn | tr ' ' '\n' | sort -u | wc -l)" = 13 ] || die "torn after $bytes bytes"
    [ "$(wc -l <torn)" = 13 ] || die "torn after $bytes bytes: not 13 lines"
done
# an output file with other contents is not changed
for text in 'hello' '{"custom_id":"x"}' '[1]'; do
    for end in '' '\n' '\n\n{"id":"batch_'; do
        printf "%s$end" "$text" >other
        cp other other.before
        failing 1 '^kvasir batch: -o: other: line 1 is not a batch result' -i in -o other
        cmp -s other other.before || die "a file that holds no results was changed"
    done
done
cp in in.before
failing 1 'line 1 is not a batch result' -i in -o in
cmp -s in in.before || die "the requests were changed"

# ---- Ctrl-C: exit code 130, and a later run can continue the file ----
for i in $(seq 300); do
    request $i '{"prompt":"Once","max_tokens":300,"ignore_eos":true}'
done >in
interrupt() { # OUT ARG...: runs a batch, ends it after some results
    local out=$1 pid code
    shift
    timeout --foreground 60 "$kvasir" batch -m "$stories" "${flags[@]}" -o "$out" "$@" 2>err \
        <&0 &
    pid=$!
    for _ in $(seq 200); do
        [ -s "$out" ] && break
        sleep 0.05
    done
    kill -INT $pid # timeout passes it on
    wait $pid
    code=$?
    [ $code = 130 ] || die "Ctrl-C: exit code $code"
    [ -z "$(tail -c 1 "$out")" ] || die "Ctrl-C: a torn line"
    grep -q '^batch: ' err || die "Ctrl-C: no summary"
}
interrupt part -i in --order input
n=$(wc -l <part)
[ "$n" -lt 300 ] || die "Ctrl-C came too late to be tested"
[ "$(ids part)" = "$(seq -s ' ' "$n")" ] || die "Ctrl-C: not in order"
head -n $((n + 5)) in >less
b -i less -o part --order input -q
[ "$(ids part)" = "$(seq -s ' ' $((n + 5)))" ] || die "going on after Ctrl-C: $(ids part)"
# standard input: a result is written before the next request arrives; Ctrl-C ends the wait
mkfifo pipe
sleep 100 >pipe &
holder=$!
head -1 in >pipe &
interrupt piped -i - <pipe
kill $holder
[ "$(ids piped)" = 1 ] || die "standard input: $(ids piped)"

# ---- an invalid batch is refused before anything runs ----
request a '{"prompt":"x"}' >in
no() { # LINE PATTERN
    printf '%s\n' "$1" | cat in - >bad
    rm -f new
    failing 1 "^kvasir batch: -i: bad: line 2$2" -i bad -o new
    [ -s new ] && die "a request was run: $1"
    "$kvasir" batch -m "$stories" "${flags[@]}" -q -i - -o new <bad 2>err
    [ $? = 1 ] || die "standard input: exit code: $1"
    grep -q "^kvasir batch: -i: standard input: line 2$2" err || die "standard input: $1"
}
no '{"custom_id":"a","method":"POST"}' ': custom_id "a" is that of line 1$'
no '{"method":"POST"}' ': "custom_id" is missing$'
no '{"custom_id":7}' ': "custom_id" is not a string$'
no '{"custom_id":""}' ': "custom_id" is empty'
no '{"custom_id":"b"' ' (at byte [0-9]*): '
no '[]' ' (at byte [0-9]*): is not a JSON object$'
failing 1 '^kvasir batch: -i: /nowhere/in: No such file' -i /nowhere/in -o new
failing 1 '^kvasir batch: -o: /nowhere/out: No such file' -i in -o /nowhere/out
failing 1 '^kvasir batch: -o: \.: Is a directory' -i in -o .
failing 2 '^kvasir batch: --order: "up" is neither' -i in -o new --order up
failing 2 '^kvasir batch: --kv-cache-min-quantize-tokens: -1 is out of range' -i in -o new \
    --kv-cache-min-quantize-tokens -1
failing 2 '^kvasir batch: --kv-cache-quantization-group-size: only allowed with' -i in -o new \
    --kv-cache-quantization-group-size 32
failing 2 '^kvasir batch: --max-num-seqs: 0 is out of range' -i in -o new --max-num-seqs 0
failing 2 '^kvasir batch: --kv-bits: ' -i in -o new --kv-bits 7
failing 2 '^kvasir batch: unknown flag "--cache-mb"' -i in -o new --cache-mb 5

# ---- fields that nobody knows, those of other servers, lengths that do not fit ----
{
    request typo '{"prompt":"Once","max_token":3,"n_predict":2,"temprature":2}'
    request dry '{"prompt":"Once","dry_multiplier":5}'
    request long '{"prompt":"Once","max_tokens":90000}'
} >fields
failing 1 '2 of 3 requests failed' -i fields -o fields1 --ctx 256
is fields1 typo 'b["usage"]["completion_tokens"]' 2
is fields1 typo '[w.split(":")[0] for w in b["warnings"]]' '["max_token", "temprature"]'
is fields1 dry 'b["error"]["param"]' dry_multiplier
is fields1 long 'b["error"]["code"]' context_length_exceeded
failing 1 '2 of 3 requests failed' -i fields -o fields2 --ctx 256 --strict-fields --clamp-max-tokens
is fields2 typo 'b["error"]["message"]' \
    'max_token: unknown field; did you mean "max_tokens"?'
is fields2 long 'c["finish_reason"]' length

# ---- an output that is not a regular file is only written ----
b -i in -o /dev/stdout -q
cp out piped
is piped a 'r["response"]["status_code"]' 200
b -i in -o /dev/null -q
[ -e /dev/full ] && failing 1 '^kvasir batch: -o: /dev/full: No space left' -i in -o /dev/full
: >empty
b -i empty -o new
grep -q '^batch:  all 0 requests' err || die "an empty input"

# ---- two programs must not write the same file ----
request slow '{"prompt":"Once","max_tokens":400,"ignore_eos":true}' >in
mkfifo slow
sleep 100 >slow &
holder=$!
timeout --foreground 60 "$kvasir" batch -m "$stories" "${flags[@]}" -q -i slow -o locked \
    2>/dev/null &
pid=$!
for _ in $(seq 100); do
    [ -e locked ] && break
    sleep 0.05
done
sleep 0.2
failing 1 '^kvasir batch: -o: locked: another batch is writing it' -i in -o locked
kill -INT $pid
kill $holder
wait $pid
exit 0
