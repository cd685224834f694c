#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve before the first request: flags, variables and the file of --config, which of them
# takes precedence, errors in them; keys; --dry-run and its sums; layers that cannot be quantized;
# start, readiness and end.
. "$(dirname "$0")/../support/api.bash"
tiny_model
budgets=()
s() { expect 2 "^kvasir serve: $1" serve "${@:2}"; }
plan() { good serve -m "$tiny" --cache-memory-mb 64 --dry-run --json -q "$@"; }
is() { # KEY VALUE WHAT
    [ "$(json "$1")" = "$2" ] || die "$3: $1 is $(json "$1"), not $2"
}

# ---- flags ---------------------------------------------------------------------------------------

s '-m: missing'
s '--json: only allowed with --dry-run' -m x --json
s '--port: 65536 is out of range' -m x --port 65536
s '--max-num-seqs: 0 is out of range' -m x --max-num-seqs 0
s '--target-step-ms: 60001 is out of range' -m x --target-step-ms 60001
s '--max-waiting: 0 is out of range' -m x --max-waiting 0
s '--idle-timeout: 0 is out of range' -m x --idle-timeout 0
s '--prompt-cache-bytes: "much" is not a number of bytes' -m x --prompt-cache-bytes much
s '--prompt-cache-bytes: "" is not a number of bytes' -m x --prompt-cache-bytes=
s '--prompt-cache-bytes: "-1" is not a number of bytes' -m x --prompt-cache-bytes=-1
s '--prompt-cache-bytes: "4XB" is not a number of bytes' -m x --prompt-cache-bytes 4XB
s '--prompt-cache-bytes: "1.2.3G" is not a number of bytes' -m x --prompt-cache-bytes 1.2.3G
s '--prompt-cache-bytes: "1e3" is not a number of bytes' -m x --prompt-cache-bytes 1e3
s '--prompt-cache-bytes: 99999999TB is out of range' -m x --prompt-cache-bytes 99999999TB
s '--enable-prefix-cache and --no-prefix-cache: give one' -m x --enable-prefix-cache \
    --disable-prefix-cache
s '--kv-cache-quantization: not allowed with --no-prefix-cache' -m x --kv-cache-quantization \
    --no-prefix-cache
s '--cache-memory-percent: 0 is not above 0 and at most 100' -m "$tiny" --cache-memory-percent 0 -q
s '--cache-memory-percent: -0.1 is out of range' -m x --cache-memory-percent=-0.1
s '--cache-memory-percent: 101 is out of range' -m x --cache-memory-percent 101
s '--prompt-cache-size: -1 is out of range' -m x --prompt-cache-size=-1
s '--kv-cache-min-quantize-tokens: -1 is out of range' -m x --kv-cache-min-quantize-tokens=-1
s '--served-model-name: is empty' -m x --served-model-name ''
s '--chat-template-kwargs: not a JSON object' -m x --chat-template-kwargs '[1]'
s '--max-model-len: "long" is not a whole number' -m x --max-model-len=long
expect 1 '^kvasir serve: /nowhere/m: No such file' serve -m /nowhere/m
for bytes in 0 17 4GB 500M 1.5G 1.5gib 3T 2KiB; do
    plan --prompt-cache-bytes $bytes
done
plan --max-model-len=640 --prefill-step-size 32 --continuous-batching --enable-prefix-cache \
    --default-temperature .5 --prompt-cache-size 10 --cors-origin '*'
is ctx 640 "an alias with ="

# Shares of free memory, in percent or as a fraction: 2 % and 0.02 give nearly the same budget (free
# memory changes a little in between).
for percent in 2 0.02; do
    good serve -m "$tiny" --cache-memory-percent $percent --dry-run --json -q
    budgets+=("$(json cache_budget_bytes)")
done
((budgets[0] > budgets[1] / 2 && budgets[1] > budgets[0] / 2)) || die "shares: ${budgets[*]}"

# ---- variables and the file ----------------------------------------------------------------------

plan
is kv_format 'K 8 g64, V 4 g64' default
echo '{"kv-bits": "6", "ctx": 1024, "threads": 1}' >config.json
plan --config config.json
is kv_format 'K 6 g64, V 6 g64' file
KVASIR_KV_BITS=5 plan --config config.json
is kv_format 'K 5 g64, V 5 g64' 'variable over file'
is ctx 1024 'the rest of the file'
is threads 1 'a number of threads in the file'
plan
auto=$(json threads)
echo '{"threads": "auto"}' >threads.json
plan --config threads.json
is threads "$auto" '"auto" in the file'
plan --threads 3 --threads auto
is threads "$auto" '--threads auto'
KVASIR_KV_BITS=5 plan --config config.json --kv-bits 3
is kv_format 'K 3 g64, V 3 g64' 'command line over both'
KVASIR_CONFIG=config.json KVASIR_MAX_MODEL_LEN=2048 plan
is kv_format 'K 6 g64, V 6 g64' KVASIR_CONFIG
is ctx 2048 "an alias' variable over the file"
KVASIR_CONFIG=/nowhere/c plan --config config.json
is ctx 1024 '--config over KVASIR_CONFIG'
echo '{"max-model-len": 512}' >alias.json
plan --config alias.json
is ctx 512 "an alias in the file"
KVASIR_MODEL=$tiny KVASIR_DRY_RUN=1 KVASIR_JSON=true KVASIR_QUIET=true KVASIR_CACHE_MEMORY_MB=64 \
    good serve
is cache_budget_bytes 67108864 'all by variables'
python3 - "$tiny" <<'PY'
import json, sys
json.dump({"model": sys.argv[1], "dry-run": True, "json": True, "quiet": True, "log-prompts": False,
           "cache-memory-mb": 64, "api-key": ["a", "b"], "temp": 0.7, "top-p": 1,
           "prompt-cache-bytes": 1000, "chat-template-kwargs": {"enable_thinking": False}},
          open("all.json", "w"))
PY
good serve --config all.json
is cache_budget_bytes 67108864 'all by the file'
# A flag that is set to false counts as given, too.
KVASIR_JSON=0 run serve --config all.json
grep -q '^weights ' out || die "KVASIR_JSON=0 over the file"
KVASIR_NOTHING=1 KVASIR_=1 plan # ignored: not names of flags
# Other commands do not read these variables.
KVASIR_KV_BITS=nonsense good info "$tiny"

bad_variable() { # VARIABLE=VALUE PATTERN
    env "$1" timeout 100 "$kvasir" serve -m x >out 2>err </dev/null
    [ $? = 2 ] || die "exit code of $1"
    [ "$(wc -l <err)" = 1 ] && grep -q "^kvasir serve: $2" err || die "not \"$2\": $1"
}
bad_variable KVASIR_PORT=tcp://10.0.0.1:8080 'KVASIR_PORT: "tcp://10.0.0.1:8080" is not a whole'
bad_variable KVASIR_PORT= 'KVASIR_PORT: "" is not a whole number'
bad_variable KVASIR_TEMP=warm 'KVASIR_TEMP: "warm" is not a number'
bad_variable KVASIR_DEFAULT_TEMPERATURE=-1 'KVASIR_DEFAULT_TEMPERATURE: -1 is out of range'
bad_variable KVASIR_LOG_PROMPTS=yes 'KVASIR_LOG_PROMPTS: "yes" is not 1, true, 0 or false'
bad_variable KVASIR_LOG_PROMPTS= 'KVASIR_LOG_PROMPTS: "" is not 1'
bad_variable KVASIR_PROMPT_CACHE_BYTES=x 'KVASIR_PROMPT_CACHE_BYTES: "x" is not a number of bytes'
bad_variable KVASIR_API_KEY= '--api-key: a key is one or more visible'
bad_variable KVASIR_API_KEY=a,,b '--api-key: a key is one or more visible'
bad_variable KVASIR_ADMIN_KEY= '--admin-key: a key is one or more visible'
KVASIR_CTX=1 KVASIR_MAX_MODEL_LEN=2 expect 2 '^kvasir serve: --ctx: the environment has it as' \
    serve -m x

c() { # JSON PATTERN
    printf '%s' "$1" >bad.json
    expect 2 "^kvasir serve: --config: bad.json: $2" serve -m x --config bad.json
}
c '' 'JSON does not parse: line 1, column [0-9]*: '
c '{' 'JSON does not parse: line 1, column [0-9]*: '
c '[1]' 'is not a JSON object'
c '"kv-bits"' 'JSON does not parse: line 1, column [0-9]*: '
c '{"kv-bits": "8"} x' 'JSON does not parse: line 1, column [0-9]*: end of file expected'
c $'{"kv-bits": "8",\n\n"kv-bits": "4"}' '.*line 3, column .*: duplicate object key'
c $'{"host": "\xff"}' 'JSON does not parse: line 1, column [0-9]*: '
c '{"host": "a\u0000b"}' 'JSON does not parse: line 1, column [0-9]*: '
c '{"kv_bits": "8"}' '"kv_bits": kvasir serve has no such flag'
c '{"--kv-bits": "8"}' '"--kv-bits": kvasir serve has no such flag'
c '{"m": "x"}' '"m": kvasir serve has no such flag'
c '{"": 1}' '"": kvasir serve has no such flag'
c '{"help": true}' '"help": kvasir serve has no such flag'
c "{\"$(printf 'k%.0s' {1..5000})\": 1}" '"kkk.* no such flag'
c '{"config": "x"}' '"config": a file cannot name another'
c '{"kv-bits": 8.5}' '"kv-bits": must be a string or a whole number'
c '{"host": 8}' '"host": must be a string'
c '{"kv-bits": null}' '"kv-bits": must be a string'
c '{"kv-bits": ["8", "4"]}' '"kv-bits": must be a string'
c '{"port": "8080"}' '"port": must be a number'
c '{"port": true}' '"port": must be a number'
c '{"port": 1.5}' '"port": "1.5" is not a whole number'
c '{"port": -1}' '"port": -1 is out of range'
c '{"port": 70000}' '"port": 70000 is out of range'
c '{"temp": 1e99}' '"temp": 1e99 is out of range'
c '{"log-prompts": 1}' '"log-prompts": must be true or false'
c '{"log-prompts": "true"}' '"log-prompts": must be true or false'
c '{"api-key": ["a", 5]}' '"api-key": must be a string or an array of strings'
c '{"api-key": [["a"]]}' '"api-key": must be a string or an array of strings'
c '{"api-key": {}}' '"api-key": must be a string or an array of strings'
c '{"prompt-cache-bytes": true}' '"prompt-cache-bytes": must be a number or a string with a unit'
c '{"prompt-cache-bytes": "4 GB"}' '"prompt-cache-bytes": "4 GB" is not a number of bytes'
c '{"prompt-cache-bytes": 1e300}' '"prompt-cache-bytes": "1e+\?300" is not a number of bytes'
c '{"chat-template-kwargs": 1}' '"chat-template-kwargs": must be an object or a string'
c '{"ctx": 1, "max-model-len": 2}' '"max-model-len": the file has --ctx twice, under both its names'
c "{\"api-key\": [$(printf '"k",%.0s' {1..32})\"k\"]}" '"api-key": more than 32 values'
python3 -c 'print("{\"a\":" * 100000)' >deep.json
expect 2 '^kvasir serve: --config: deep.json: JSON is nested deeper than 32 levels' serve -m x \
    --config deep.json
expect 1 '^kvasir serve: --config: /nowhere/c: No such file' serve -m x --config /nowhere/c
expect 1 '^kvasir serve: --config: \.: is a folder, not a file' serve -m x --config .
# The file's value is not checked if the command line has the flag, but its name must be right.
printf '{"port": "x", "kv-bits": "8"}' >bad.json
plan --config bad.json --port 1
is kv_format 'K 8 g64, V 8 g64' 'the file, but for a flag that is typed'

# ---- keys ----------------------------------------------------------------------------------------

s '--api-key: a key is one or more visible ASCII' -m x --api-key ''
s '--api-key: a key is one or more visible ASCII' -m x --api-key 'se cret'
s '--api-key: a key is one or more visible ASCII' -m x --api-key good --api-key $'secr\xc3\xa9t'
grep -q secr err && die "a key in an error"
printf '# keys\n\n  one  \r\ntwo\n' >keys
plan --api-key-file keys --api-key three --admin-key four
printf 'one\nsecret two\n' >keys
s '--api-key-file: keys: line 2, column 8: expected NAME=VALUE' -m x --api-key-file keys
grep -q secret err && die "a key of a file in an error"
printf 'secret\0s weight=2\n' >keys
s '--api-key-file: keys: contains a NUL byte' -m x --api-key-file keys
printf '# none\n\n' >keys
s '--api-key-file: keys: contains no key' -m x --api-key-file keys
: >keys
s '--api-key-file: keys: contains no key' -m x --api-key-file keys
expect 1 '^kvasir serve: --api-key-file: /nowhere/k: No such' serve -m x --api-key-file /nowhere/k

# ---- --dry-run -----------------------------------------------------------------------------------

plan --quantized-kv-start 100
python3 - <<'PY' || die "sums of --dry-run"
import json
o = json.load(open("out"))
(g,) = o["layer_groups"]
assert (g["layers"], g["kv_heads"], g["head_dim"], g["window"]) == (4, 2, 64, 0), g
assert (g["k_format"], g["v_format"]) == ("8 g64", "4 g64")
values = 4 * 2 * 64
assert g["bytes_per_token"] == values * (8.5 + 4.5) / 8 == o["kv_bytes_per_token"]
assert g["bytes_per_token_16bit"] == values * 4 == o["kv_bytes_per_token_16bit"]
assert o["start_tokens"] == 128 and o["start_bytes"] == 128 * values * 4
assert o["start_bytes_quantized"] == 128 * g["bytes_per_token"]
assert o["cache_budget_bytes"] == 64 << 20 and 0 < o["step_bytes"] < 64 << 20
assert 256 << 20 <= o["request_memory_bytes"] <= 4 << 30, o["request_memory_bytes"]
assert o["open_page_bytes"] == o["tail_tokens"] == o["tail_bytes"] == 0
assert o["state_bytes"] == 0 and o["weight_bytes"] > 1 << 20
assert 0 < o["fit_tokens"] <= o["ctx"]
page, page16 = (-(-64 * b // 4096) * 4096 for b in (g["bytes_per_token"], values * 4))
assert [l["tokens"] for l in o["lengths"]] == [1024 << i for i in range(8)]
for l in o["lengths"]:
    n = l["tokens"]
    assert l["bytes"] == (n // 64 - 2) * page + 2 * page16, l
    assert l["bytes_16bit"] == n * values * 4
    assert l["need_bytes"] >= l["bytes"]
    assert l["at_once"] == (o["cache_budget_bytes"] - o["step_bytes"]) // l["need_bytes"]
PY
# An exact tail: so many more pages at 16 bits, of formats that have shadows.
plan --kv-bits t4 --quantized-kv-start 0 && [ "$(json start_tokens)" = 0 ] || die "no start"
plan --kv-bits t4 && cp out without
grep -q -- '--quantized-kv-start: the first 64 tokens stay f16' out || die "the default start"
plan --kv-bits t4 --kv-exact-tail 100
python3 - <<'PY' || die "an exact tail in --dry-run"
import json
was, now = (json.load(open(f)) for f in ("without", "out"))
assert was["start_tokens"] == 64 and was["start_bytes"] == 64 * 4 * 2 * 64 * 4, was
assert was["open_page_bytes"] == now["open_page_bytes"] == 64 * 4 * 2 * 64 * 4, was
assert was["tail_tokens"] == was["tail_bytes"] == 0
assert now["tail_tokens"] == 128 and now["tail_bytes"] == 128 * 4 * 2 * 64 * 4, now
assert "the newest 64 tokens of a sequence are kept as f16, too: 128.0 KiB" in was["notes"]
for a, b in zip(was["lengths"], now["lengths"]):
    assert b["bytes"] - a["bytes"] == 2 * 64 * 4 * 2 * 64 * 4, (a, b)
PY
plan --kv-bits r8,4 --kv-exact-tail 1024 --max-kv-size 256 --kv-keep 4
python3 - <<'PY' || die "an exact tail longer than what a token sees"
import json
assert json.load(open("out"))["tail_bytes"] == 4 * 64 * 4 * 2 * 64 * 4
PY
good serve -m "$tiny" --cache-memory-mb 64 --dry-run -q --kv-bits t4 --kv-exact-tail 100
grep -q '^open page: .*: 128.0 KiB' out || die "$(cat out)"
grep -q '^--kv-exact-tail: the last 128 .*: up to 256.0 KiB' out || die "$(cat out)"
s '--kv-exact-tail: needs pages that are encoded' -m "$tiny" --kv-exact-tail 64 --dry-run -q
# A budget that holds less than the context: fit_tokens is the longest sequence that fits.
plan --cache-memory-mb 3 --prefill-chunk 32 --ctx 4096
fit=$(json fit_tokens)
plan --cache-memory-mb 3 --prefill-chunk 32 --ctx 4096 --request-memory-mb 16
[ "$(json request_memory_bytes)" = 16777216 ] || die "request memory $(json request_memory_bytes)"
good serve -m "$tiny" --cache-memory-mb 64 --dry-run -q --request-memory-mb 64
grep -q '^requests  up to 64.0 MiB, beside the budget' out || die "$(cat out)"
plan --cache-memory-mb 3 --prefill-chunk 32 --ctx 4096
[ "$fit" -gt 64 ] && [ "$fit" -lt "$(json ctx)" ] || die "fit_tokens $fit of $(json ctx)"
s '--cache-memory-mb: a budget of' -m "$tiny" --cache-memory-mb 1 --dry-run -q
s '--kv-group-size: group 128 does not fit head size 64' -m "$tiny" --kv-group-size 128 --dry-run -q
s '--kv-cache-quantization-bits: ' -m "$tiny" --kv-cache-quantization-bits f32 --dry-run -q
s '--kv-cache-quantization-bits: ' -m "$tiny" --kv-cache-quantization-bits 4 \
    --kv-cache-quantization-group-size 128 --dry-run -q
for bits in f16 bf16,4 8,f16 f32; do
    plan --kv-bits $bits --kv-cache-quantization
    [ -s err ] && die "--kv-cache-quantization, $bits"
    plan --kv-bits $bits --kv-group-size 32 --kv-cache-quantization
done
good serve -m "$tiny" --cache-memory-mb 64 --dry-run --kv-cache-quantization
grep -q '^note: .*--kv-cache-quantization has no effect: --kv-bits 8,4' err || die "no effect"
grep -q '^ *131072 ' out || die "the table of lengths"

# A window and layers without pages: bytes at 16 bits count only the visible tokens.
for model in gemma3 qwen3_next; do
    [ -d "$SHARED_DIR/fixtures/tiny/$model" ] || continue
    good serve -m "$SHARED_DIR/fixtures/tiny/$model" --cache-memory-mb 64 --dry-run --json -q
    python3 - <<'PY' || die "--dry-run of $model"
import json
o = json.load(open("out"))
for l in o["lengths"]:
    want = o["state_bytes"]
    for g in o["layer_groups"]:
        want += g["bytes_per_token_16bit"] * min(l["tokens"], g["window"] or l["tokens"])
    assert l["bytes_16bit"] == want, (l, want)
PY
done
[ "$model" = qwen3_next ] && [ "$(json state_bytes)" -gt 0 ] || die "states of qwen3_next"

# ---- layers that cannot be quantized -------------------------------------------------------------

two=$SHARED_DIR/fixtures/tiny/gemma4
for dim in 80 96; do
    python3 "$SOURCE_DIR/tests/support/two_heads.py" "$two" two-$dim $dim || die "two_heads.py"
done
# No group size fits heads of 80, only 32 fits heads of 96.
mixed() { # MODEL FLAG...: one group is quantized, the other stays f16, with a warning
    good serve -m "$1" --cache-memory-mb 64 --dry-run "${@:2}"
    [ "$(grep -c '^note:   warning: --kv-bits leaves 1 layer(s) at ' err)" = 1 ] || die "warning"
    good serve -m "$1" --cache-memory-mb 64 --dry-run --json -q "${@:2}"
    python3 -c '
import json
o = json.load(open("out"))
a, b = o["layer_groups"]
assert (a["k_format"], b["k_format"], b["v_format"]) == ("8 g64", "f16", "f16"), o
assert a["layers"] == 3 and b["bytes_per_token"] == b["bytes_per_token_16bit"]' || die "mixed $*"
}
mixed two-80
mixed two-96 --kv-group-size 64
mixed two-80 --kv-cache-quantization-bits 4
good serve -m two-96 --cache-memory-mb 64 --dry-run
grep -q warning err && die "heads of 96 have a group of 32"
for model in two-80 two-96; do
    s '--kv-group-size: ' -m $model --kv-group-size 128 --dry-run -q
done
# Such a model answers, and prefill in steps of 1 gives the same ids.
good generate -m two-80 --tokens 1,2,3 -n 100 --json
mv out first
good generate -m two-80 --tokens 1,2,3 -n 100 --prefill-chunk 1 --json
python3 -c '
import json
a, b = json.load(open("first")), json.load(open("out"))
assert a["ids"] == b["ids"] and len(a["ids"]) == 100' || die "answers of two-80"

# ---- start and end -------------------------------------------------------------------------------

small=(-m "$tiny" --cache-memory-mb 64)
start_server "${small[@]}"
[[ $url =~ ^http://127\.0\.0\.1:[1-9][0-9]*$ ]] || die "url $url"
grep -q '^model: ' "$log" && grep -q '^cache: ' "$log" || die "lines at the start"
grep -q warning "$log" && die "a warning on loopback"
end_server TERM 0
[ -s serve.out ] && die "standard output of serve"

# SIGHUP reads the keys again; a mistake changes nothing.
code() { curl -s -o out -w '%{http_code}' -H "Authorization: Bearer $1" "$url/v1/models"; }
printf 'first name=a\nsecond\n' >keys
start_server "${small[@]}" --api-key-file keys --api-key fixed
codes() { echo "$(code first) $(code second) $(code fixed) $(code third)"; }
[ "$(codes)" = "200 200 200 401" ] || die "keys at the start"
hup() { # PATTERN of the line that it logs
    kill -HUP $(cat /proc/$pid/task/$pid/children) # of `timeout`
    for _ in {1..100}; do
        ! grep -q "$1" "$log" || return 0
        sleep 0.1
    done
    cp "$log" err
    die "no line $1"
}
printf 'third\nfirst weight=7\n' >keys
hup '^server: SIGHUP: 3 API keys$'
[ "$(codes)" = "200 401 200 200" ] || die "keys after SIGHUP"
printf 'fourth\nfifth weight=x\n' >keys
hup '^server: SIGHUP: the API keys stay as they were$'
grep -q 'keys: line 2, column 7: not a number' "$log" || die "the mistake's place"
[ "$(code third)$(code fourth)" = 200401 ] || die "keys after a mistake"
: >keys
hup 'contains no key'
[ "$(code third)" = 200 ] || die "keys after an empty file"
end_server TERM 0
for host in 0.0.0.0 :: 192.0.2.1 name.example; do # a server that all may use is asked for by name
    expect 2 "anyone who can reach $host could use .*: set --api-key-file.*--insecure-no-key" \
        serve "${small[@]}" --host $host --port 0
    expect 2 "--insecure-no-key" serve "${small[@]}" --host $host --admin-key a --dry-run
done
expect 2 "--allowed-hosts: is empty" serve "${small[@]}" --allowed-hosts ''
start_server "${small[@]}" --host 0.0.0.0 --insecure-no-key --allowed-hosts llm.example
curl -sf -H 'Host: llm.example:80' "$url/health" >out || die "an allowed Host"
curl -sf -H 'Host: evil.example' "$url/health" >out && die "any Host"
grep -q '^server: warning: no --api-key: anyone who can reach 0.0.0.0' "$log" ||
    die "no warning about keys"
end_server TERM 0
KVASIR_API_KEY=a,b start_server "${small[@]}" --host 0.0.0.0 -q
[ "$(wc -l <"$log")" = 1 ] || die "-q"
end_server TERM 0

# ---- stores --------------------------------------------------------------------------------------

mkdir store && touch secret && port1=1 # nobody listens there
s '--cache-remote: the remote cache.s URL must be redis://' -m "$tiny" --cache-memory-mb 64 -q \
    --cache-remote http://localhost
s '--cache-remote-secret-file: the remote cache.s secret has 0 bytes' -m "$tiny" -q \
    --cache-memory-mb 64 --cache-remote redis://127.0.0.1:$port1 --cache-remote-secret-file secret
s '--cache-dir: not allowed with --no-prefix-cache' -m "$tiny" --cache-memory-mb 64 -q \
    --cache-dir store --no-prefix-cache
s '--cache-remote-tenant-gb: only allowed with --cache-remote' -m "$tiny" --cache-remote-tenant-gb 1
s '--cache-disk-gb: must be at least 16 MiB' -m "$tiny" --cache-memory-mb 64 -q \
    --cache-dir store --cache-disk-gb 0.01
start_server "${small[@]}" --cache-dir store --cache-disk-gb 0.5 \
    --cache-remote "redis://me:pw@7301@127.0.0.1:$port1/0"
grep -qxF "stores: disk store, 0 B of 512.0 MiB, 0 records; remote redis://127.0.0.1:$port1/0" \
    "$log" || die "no line about stores"
curl -sf "$url/v1/status" >out
grep -q '"tier":"disk",.*"limit_bytes":536870912,.*"tier":"remote"' out || die "/v1/status"
expect 2 '--cache-dir: store is in use by process' serve "${small[@]}" -q --cache-dir store
curl -sf "$url/v1/completions" -d '{"prompt": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,
    21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,
    53,54,55,56,57,58,59,60,61,62,63,64,65,66,67,68], "max_tokens": 1}' >out || die "a request"
end_server TERM 0
grep -qF "@127" "$log" && die "the log has the password"
start_server "${small[@]}" --cache-dir store --cache-disk-gb 0.5
grep -qE '^stores: disk store, [0-9.]+ KiB of 512\.0 MiB, 1 record$' "$log" || die "a restart"
end_server TERM 0

python3 - "$kvasir" "$tiny" <<'PY' || die "signals and the service manager"
import os, signal, socket, subprocess, sys, tempfile
where = tempfile.mkdtemp(dir=".")
for address in (where + "/notify", "@kvasir-test-%d" % os.getpid()):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.settimeout(60)
    manager.bind(address.replace("@", "\0"))
    path = os.path.abspath(address) if address[0] != "@" else address
    p = subprocess.Popen([sys.argv[1], "serve", "-m", sys.argv[2], "--port", "0", "-q",
                          "--cache-memory-mb", "64"], stderr=subprocess.PIPE,
                         env=dict(os.environ, NOTIFY_SOCKET=path))
    assert manager.recv(100) == b"READY=1"
    assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2  # each second
    p.send_signal(signal.SIGINT)
    while (last := manager.recv(100)) == b"WATCHDOG=1":
        pass
    assert last == b"STOPPING=1"
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0 and b"server: SIGINT, 0 requests are open" in err, (p.returncode, err)
# It serves even if the service manager's socket does not exist.
p = subprocess.Popen([sys.argv[1], "serve", "-m", sys.argv[2], "--port", "0", "--cache-memory-mb",
                      "64"], stderr=subprocess.PIPE, text=True,
                     env=dict(os.environ, NOTIFY_SOCKET="/nowhere/socket"),
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
for line in p.stderr:
    if "listening" in line:
        break
p.send_signal(signal.SIGINT) # ignored by the parent's wish
try:
    p.wait(0.5)
    sys.exit("SIGINT was not ignored")
except subprocess.TimeoutExpired:
    pass
p.send_signal(signal.SIGTERM)
assert p.wait(60) == 0
PY
exit 0
