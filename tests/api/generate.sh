#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir generate` with a tiny model without a tokenizer: token ids in and out, --logits, limits,
# budget and cache flags, Ctrl-C, a closed standard output.
. "$(dirname "$0")/../support/api.bash"
tiny_model
ids=1,2,3,4,5,6,7,8,9,10

g() { good generate -m "$tiny" --tokens $ids "$@"; }
bad() { expect 2 "^kvasir generate: $1" generate -m "$tiny" --tokens $ids "${@:2}"; }

# ids on standard output, facts and figures on standard error
g -n 5
[ "$(wc -w <out)" = 5 ] || die "five ids"
plain=$(cat out)
grep -q '^cache: .*K 8 g64, V 4 g64' err || die "no cache facts"
grep -q '^prompt: 10 tokens' err || die "no summary"
g -n 5 -q
[ -s err ] && die "--quiet speaks"
[ "$(cat out)" = "$plain" ] || die "not the same answer twice"
g -n 5 --json
[ "$(json ids | tr -d '[],')" = "$plain" ] || die "--json: other ids"
[ "$(json prompt_ids)" = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" ] || die "--json: prompt ids"
[ "$(json finish)" = length ] || die "--json: finish"
[ "$(json text)" = null ] || die "--json: text without a tokenizer"
[ "$(json prompt_tokens) $(json decode_steps) $(json cache_tokens)" = "10 4 14" ] || die "figures"
[ "$(json cache_bytes)" -gt 0 ] || die "cache bytes"

# any chunk and thread count: the same
for flags in "--prefill-chunk 1" "--prefill-chunk 3" "--threads 1" "--threads 3"; do
    g -n 5 -q $flags
    [ "$(cat out)" = "$plain" ] || die "$flags changes the answer"
done

# sampling: the same seed gives the same answer, another does not; a random seed is printed
g -n 30 -q --temp 2 --seed 7 && mv out a
g -n 30 -q --temp 2 --seed 7
cmp -s a out || die "--seed does not repeat"
g -n 30 -q --temp 2 --seed 8
cmp -s a out && die "--seed has no effect"
g -n 30 --temp 2 --json
told=$(json seed) drawn=$(json ids)
g -n 30 --temp 2 --json --seed "$told"
[ "$(json ids)" = "$drawn" ] || die "the printed seed does not repeat"
g -n 5 -q --temp 1 --top-k 1
[ "$(cat out)" = "$plain" ] || die "--top-k 1 is not the likeliest"

# bias and penalties, greedy and drawn; such large biases outweigh the model's logits
g -n 3 -q --logit-bias 77:10000
[ "$(cat out)" = "77 77 77" ] || die "--logit-bias"
g -n 3 -q --logit-bias 77:10000,78:9500 --presence-penalty 900
[ "$(cat out)" = "77 78 77" ] || die "--presence-penalty"
g -n 4 -q --logit-bias 77:10000,78:9500 --frequency-penalty 300
[ "$(cat out)" = "77 77 78 77" ] || die "--frequency-penalty"
g -n 3 -q --logit-bias 77:10000,78:9000 --repetition-penalty 1.5 --repetition-context-size 1
[ "$(cat out)" = "77 78 77" ] || die "--repetition-penalty"
g -n 2 -q --logit-bias 9:10000,78:9500 --presence-penalty 900
[ "$(cat out)" = "78 9" ] || die "--presence-penalty does not see the prompt"
g -n 2 -q --logit-bias 9:10000,78:9500 --presence-penalty 900 --presence-context-size 1
[ "$(cat out)" = "9 78" ] || die "--presence-context-size has no effect"
d() { # FLAG...: which of three tokens are drawn; no other has a probability above 0
    g -n 60 --json --seed 5 --logit-bias 100:1000,101:900,102:800 --temp 1000 "$@"
    json ids | grep -ow '[0-9]*' | sort -u | tr '\n' ' '
}
[ "$(d --top-k 3)" = "100 101 102 " ] || die "three tokens"
[ "$(d --min-p 0.9)" = "100 " ] || die "--min-p"
[ "$(d --min-p 0.9 --min-tokens-to-keep 2)" = "100 101 " ] || die "--min-tokens-to-keep"
xtc="--xtc-threshold 0 --top-k 1 --xtc-probability"
[ "$(d $xtc 1)" = "102 " ] || die "--xtc-probability 1"
[ "$(d $xtc 0.5)" = "100 102 " ] || die "--xtc-probability 0.5"
[ "$(d $xtc 0)" = "100 " ] || die "--xtc-probability 0"
[ "$(d --top-k 2 --xtc-probability 1)" = "100 101 " ] || die "--xtc-threshold is not 0.1"
d $xtc 0.5 >first
drawn=$(json ids)
d $xtc 0.5 >second
[ "$(json ids)" = "$drawn" ] || die "--seed does not repeat with xtc"
bad '--logit-bias: id 512 is not below the vocabulary size 512' --logit-bias 1:1,512:1
bad '--min-tokens-to-keep: 513' --min-p 0.5 --min-tokens-to-keep 513
bad '--frequency-context-size: 0 is not between 1 and' --frequency-penalty 1 \
    --frequency-context-size 0
bad '--presence-context-size: 2000000 is not' --presence-penalty 1 --presence-context-size 2000000

# --logits: the file appears complete or not at all
g -n 0 -q --logits l.safetensors
[ -s out ] && die "-n 0 prints"
ls l.safetensors.tmp* >/dev/null 2>&1 && die "a .tmp file is left"
python3 - <<'PY' || die "--logits"
import json, struct
data = open("l.safetensors", "rb").read()
n, = struct.unpack("<Q", data[:8])
t = json.loads(data[8:8 + n])["logits"]
assert t["dtype"] == "F32" and t["shape"] == [10, 512], t
assert t["data_offsets"] == [0, 10 * 512 * 4] and len(data) == 8 + n + 10 * 512 * 4
x = struct.unpack("<5120f", data[8 + n:])
assert all(abs(v) < 1e4 for v in x) and len(set(x)) > 1000
PY
g -n 1 -q
first=$(cat out)
python3 - "$first" <<'PY' || die "the last row of --logits is not what was picked from"
import struct, sys
data = open("l.safetensors", "rb").read()
last = struct.unpack("<512f", data[-2048:])
assert last.index(max(last)) == int(sys.argv[1])
PY
cp l.safetensors before
expect 1 'context of 8' generate -m "$tiny" --tokens $ids --ctx 8 --logits l.safetensors -q
cmp -s l.safetensors before || die "a failed run touched the old file"
ls l.safetensors.tmp* >/dev/null 2>&1 && die "a failed run left a .tmp file"
g -n 0 -q --logits /dev/null
[ -c /dev/null ] || die "/dev/null was replaced"

# the context ends an answer
g -n 100 --ctx 16 --json
[ "$(json finish)" = context ] || die "finish at the end of the context"
[ "$(json ids | wc -w)" = 7 ] || die "10 + 6 evaluated, one more picked"
# with rotation an answer can have any length
g -n 300 --max-kv-size 64 --kv-keep 4 --json
[ "$(json finish) $(json cache_tokens)" = "length 64" ] || die "rotation"

bad '--kv-bits: ' --kv-bits 7
bad '--kv-bits: ' --kv-bits 8,4,2
bad '--kv-group-size: ' --kv-group-size 48
bad '--kv-group-size: ' --kv-group-size 128
bad '--kv-keep' --max-kv-size 4 --kv-keep 4
bad '--cpu-tier' --cpu-tier fast
bad '--act-bits' --act-bits 12
bad '--top-k: 600' --temp 1 --top-k 600
bad '--stop: this model has no tokenizer' --stop x
printf 'root ::= "a" b' >undefined.gbnf
printf 'root ::= "a"' >a.gbnf
bad '--grammar: undefined.gbnf: ' --grammar undefined.gbnf
bad '--grammar: not allowed with --ignore-eos' --grammar a.gbnf --ignore-eos
bad '--json-schema: not allowed with --grammar' --grammar a.gbnf --json-schema a.gbnf
expect 1 'the model has no tokenizer' generate -m "$tiny" --tokens $ids --grammar a.gbnf
expect 2 '--tokens: id 512 is not below the vocabulary size 512' generate -m "$tiny" --tokens 1,512
expect 1 'no tokenizer' generate -m "$tiny" --raw -p hello
expect 2 '--system: this model has no chat template' generate -m "$tiny" --system a -p hello
many=$(seq -s, 1 500)
expect 1 'budget' generate -m "$tiny" --tokens "$many",$many,$many,$many --ctx 4096 \
    --cache-mb 1 --kv-bits f32 -q

# Ctrl-C: the answer ends, the summary is printed
timeout --foreground 60 "$kvasir" generate -m "$tiny" --tokens $ids -n 1000000 --max-kv-size 64 \
    >out 2>err &
pid=$!
for _ in $(seq 100); do
    [ -s out ] && break
    sleep 0.1
done
kill -INT $pid # timeout passes it on
wait $pid
[ $? = 130 ] || die "Ctrl-C: exit code"
grep -q '^answer: .*interrupted' err || die "Ctrl-C: no summary"

# a closed standard output gives one error line
timeout 60 "$kvasir" generate -m "$tiny" --tokens $ids -n 100000 --max-kv-size 64 -q 2>err |
    head -c 1 >out
[ "${PIPESTATUS[0]}" = 1 ] || die "closed standard output: exit code"
[ "$(wc -l <err)" = 1 ] || die "closed standard output: not one line"
grep -q 'standard output: Broken pipe' err || die "closed standard output: no error"
[ -e /dev/full ] && {
    timeout 60 "$kvasir" generate -m "$tiny" --tokens $ids -n 3 -q >/dev/full 2>err
    [ $? = 1 ] || die "full disk: exit code"
    grep -q 'standard output: No space' err || die "full disk: no error"
    expect 1 '--logits: cannot write /dev/full: No space' generate -m "$tiny" --tokens $ids -n 0 \
        -q --logits /dev/full
}
exit 0
