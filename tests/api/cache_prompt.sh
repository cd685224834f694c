#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir cache-prompt` and `generate --prompt-cache`: a prompt in two parts gives the logits and
# the answer of the whole one, in every format and kind of layer; refused files and flags, files
# left by a failed run, chats.
. "$(dirname "$0")/../support/api.bash"
tiny_model
models=$SHARED_DIR/fixtures/tiny

# The forms and classes of file c: "current KVCache".
kind() {
    python3 - <<'PY'
import json, struct
data = open("c", "rb").read()
n, = struct.unpack("<Q", data[:8])
m = json.loads(data[8:8 + n])["__metadata__"]
form, at = ("current", "1.") if m["2.0"] == "" else ("legacy", "2.")
print(form, *sorted({v for k, v in m.items() if k.startswith(at) and v.endswith("Cache")}))
PY
}

# two MODEL HEAD TAIL KIND FLAG...: the file of HEAD is of KIND; continued with TAIL it gives what
# HEAD,TAIL gives. FLAGs are for the cache; --format is for cache-prompt only.
two() {
    local model=$models/$1 head=$2 tail=$3 kind=$4 whole n format=()
    shift 4
    [ "${1:-}" = --format ] && format=(--format "$2") && shift 2
    good generate -m "$model" --tokens "$head,$tail" --key-centre off "$@" -n 12 --json -q \
        --logits w
    whole=$(json ids)
    good cache-prompt -m "$model" --tokens "$head" "$@" "${format[@]}" -o c -q
    [ -s out ] || [ -s err ] && die "--quiet speaks"
    [ "$(kind)" = "$kind" ] || die "$model $*: $(kind)"
    good generate -m "$model" --prompt-cache c --tokens "$tail" -n 12 --json -q --logits t
    [ "$(json ids)" = "$whole" ] || die "$model ${format[*]} $*: not $whole"
    n=$(tr -cd , <<<"$head" | wc -c)
    [ "$(json cached_tokens)" = $((n + 1)) ] || die "$model $*: cached_tokens"
    python3 - <<'PY' || die "$model ${format[*]} $*: other logits"
import struct
w, t = (open(name, "rb").read() for name in "wt")
assert len(t) > 512 * 4 and w[-512 * 4:] == t[-512 * 4:]
PY
}
long=$(seq -s, 1 200) more=$(seq -s, 201 210)
two llama 1,2,3 4,5 'current KVCache' --kv-bits f16
two llama 1,2,3 4,5 'current QuantizedKVCache' --kv-bits 8
two llama 1,2,3 4,5 'legacy QuantizedKVCache' --kv-bits 8,4
two llama 1,2,3 4,5 'legacy QuantizedKVCache' # the default
two llama "$long" "$more" 'current KVCache' --kv-bits bf16
two llama "$long" "$more" 'current QuantizedKVCache' --kv-bits 4 --kv-group-size 32
two llama "$long" "$more" 'legacy KVCache' --format legacy --kv-bits f16
two llama "$long" "$more" 'legacy QuantizedKVCache' --format legacy --kv-bits 8
two llama 1 "$more" 'legacy QuantizedKVCache' --format legacy --kv-bits 8,4
for size in 32 64 80 1000; do
    two llama "$long" "$more" 'current RotatingKVCache' --kv-bits f16 --max-kv-size $size
    two llama "$long" "$more" 'legacy QuantizedRotatingKVCache' --max-kv-size $size --kv-keep 7
done
# an exact start: of part of the file, of what a ring still has (unit.prompt_cache has others)
for start in 64 192; do
    two llama "$long" "$more" 'legacy ExactStartQuantizedKVCache' --quantized-kv-start $start
    two qwen3_next "$long" "$more" 'legacy ArraysCache ExactStartQuantizedKVCache' --kv-bits 8 \
        --quantized-kv-start $start
    two llama "$long" "$more" 'legacy ExactStartQuantizedRotatingKVCache' --max-kv-size 100 \
        --quantized-kv-start $start --kv-keep 4
    two gemma3 "$long" "$more" \
        'legacy ExactStartQuantizedKVCache ExactStartQuantizedRotatingKVCache' --kv-bits 8 \
        --quantized-kv-start $start
done
two llama 1,2,3 "$more" 'legacy ExactStartQuantizedKVCache' --kv-bits 4 --quantized-kv-start 64
two llama 1,2,3 "$more" 'current KVCache' --kv-bits f16 --quantized-kv-start 64
two gemma3 1,2,3 4,5 'current KVCache RotatingKVCache' --kv-bits f16
two gemma3 "$long" "$more" 'current KVCache RotatingKVCache' --kv-bits f16
two gemma3 "$long" "$more" 'legacy QuantizedKVCache QuantizedRotatingKVCache' --kv-bits 8
two qwen3_next 1,2,3 4,5 'current ArraysCache KVCache' --kv-bits f16
two qwen3_next "$long" "$more" 'legacy ArraysCache QuantizedKVCache' --snapshot-tokens 64
two qwen3_next "$long" "$more" 'legacy ArraysCache KVCache' --format legacy --kv-bits f16

# facts and figures
c() { good cache-prompt -m "$tiny" --tokens 1,2,3,4,5 "$@"; }
c -o c --json
[ "$(json file) $(json tokens) $(json kv_format)" = "c 5 K 8 g64, V 4 g64" ] || die "--json"
[ "$(json cache_bytes)" -gt 0 ] || die "cache bytes"
grep -q '^cache: .*K 8 g64, V 4 g64' err || die "no cache facts"
grep -q '^c: 5 tokens' err || die "no summary"
good generate -m "$tiny" --prompt-cache c --tokens 6 -n 3
grep -q '^file:   5 tokens from c$' err || die "generate does not tell of the file"
[ "$(wc -w <out)" = 3 ] || die "three ids"

# formats: those of the file, or with --convert-cache those of the flags
c --kv-bits 8 -o c -q
g() { good generate -m "$tiny" --prompt-cache c --tokens 6,7 -n 12 --json -q "$@"; }
g
[ "$(json kv_format)" = "K 8 g64, V 8 g64" ] || die "not the file's formats"
same=$(json ids)
g --kv-bits 8
[ "$(json ids)" = "$same" ] || die "--kv-bits 8 of a file of 8 bits"
g --kv-bits 8 --convert-cache
[ "$(json ids)" = "$same" ] || die "--convert-cache to what it is"
for bits in f16 8,4 4; do
    expect 2 '^kvasir generate: .*--convert-cache' generate -m "$tiny" --prompt-cache c --tokens 6 \
        --kv-bits $bits
    g --kv-bits $bits --convert-cache
    [ "$(json cached_tokens) $(json ids | wc -w)" = "5 12" ] || die "--convert-cache to $bits"
done
expect 2 '^kvasir generate: .*--convert-cache' generate -m "$tiny" --prompt-cache c --tokens 6 \
    --kv-bits 8 --kv-group-size 32
g --convert-cache
[ "$(json kv_format)" = "K 8 g64, V 4 g64" ] || die "--convert-cache to the default"
# another exact start than the file's is converted, too, unless it is the same of the file's pages
good cache-prompt -m "$tiny" --tokens "$long" --quantized-kv-start 64 -o started -q
for start in 0 65; do
    expect 2 '^kvasir generate: .*--quantized-kv-start: must be 64, as in the file' generate \
        -m "$tiny" --prompt-cache started --tokens 6 --kv-bits 8,4 --quantized-kv-start $start
    good generate -m "$tiny" --prompt-cache started --tokens 6 --kv-bits 8,4 -n 3 --json -q \
        --quantized-kv-start $start --convert-cache
done
good cache-prompt -m "$tiny" --tokens "$long" -o plain -q
expect 2 '--quantized-kv-start: must be 0, as in the file' generate -m "$tiny" --tokens 6 \
    --prompt-cache plain --quantized-kv-start 64
good generate -m "$tiny" --prompt-cache started --tokens 6 -n 3 --quantized-kv-start 64
grep -q '^note: *--quantized-kv-start: the first 64 tokens' err || die "no fact of the start"
# formats that are encoded when a page is full, with a start or not, are f16 in files
for start in 0 64; do
    good cache-prompt -m "$tiny" --tokens "$long" --kv-bits t4 --quantized-kv-start $start -o c -q
    [ "$(kind)" = 'current KVCache' ] || die "t4, start $start: $(kind)"
    good generate -m "$tiny" --prompt-cache c --tokens 6 -n 3 --json -q
    [ "$(json kv_format)" = "K f16, V f16" ] || die "t4, start $start: $(json kv_format)"
    good generate -m "$tiny" --prompt-cache c --tokens 6 -n 3 --json -q --kv-bits t4 \
        --quantized-kv-start $start --convert-cache
done
c --kv-bits 8 -o c -q
expect 2 '--convert-cache: only allowed with --prompt-cache' generate -m "$tiny" --tokens 1 \
    --convert-cache
# a file that was computed otherwise is used, with a warning
c --act-bits 8 --cpu-tier ref -o how -q
h() { good generate -m "$tiny" --prompt-cache how --tokens 6,7 -n 3 "$@"; }
h --act-bits 8 --cpu-tier ref
grep -q warning err && die "a warning about a file that was computed alike"
h --act-bits 16 --cpu-tier ref
grep -q '^warning: how was computed with --act-bits 8, this run uses 16' err || die "act bits"
grep -q 'on tier' err && die "a warning about the same tier"
h --act-bits 8
tier=$(sed -n 's/^cpu: .* tier \([a-z0-9]*\),.*/\1/p' err)
[ "$tier" = ref ] || grep -q "^warning: how was computed on tier ref, this run uses $tier" err ||
    die "tier"
# mlx-lm's own files, which do not contain their tokens
for form in legacy-0.31.3 mlx-lm-0.32.2; do
    cache=$SHARED_DIR/fixtures/mlx/prompt-cache/$form/tiny-llama/rot64k4_100.safetensors
    [ -f "$cache" ] || continue
    good generate -m "$tiny" --prompt-cache "$cache" --tokens 6 -n 3 --json -q \
        --repetition-penalty 1.1
    [ "$(json cached_tokens) $(json ids | wc -w)" = "100 3" ] || die "$form"
done
# a ring lacks tokens that a larger one, or a cache without rotation, would see
good cache-prompt -m "$tiny" --tokens "$long" --max-kv-size 32 -o ring -q
for flags in '--kv-bits 8,4' '--max-kv-size 64' '--max-kv-size 32 --kv-keep 5'; do
    expect 2 '--max-kv-size: .* must be those of the file' generate -m "$tiny" \
        --prompt-cache ring --tokens 6 $flags
done

# files of another model, empty or damaged files: refused by name
p() { expect "$1" "^kvasir generate: $2" generate -m "$models/$3" --prompt-cache "$4" --tokens 6; }
other() { # MODEL FILE PATTERN: exit code 1, or 2 where the file's shape could be a flag's fault
    run generate -m "$models/$1" --prompt-cache "$2" --tokens 6
    case $? in 1 | 2) ;; *) die "$1 takes $2" ;; esac
    [ -s out ] && die "an error, and standard output: $1 $2"
    [ "$(wc -l <err)" = 1 ] || die "not one line of error: $1 $2"
    grep -q "^kvasir generate: $2: $3" err || die "no \"$2: $3\" on standard error: $1"
}
other mistral c 'the file was made with the model [0-9a-f]\{16\} '
other qwen2 c 'layer 0: K of 64 values'
other gemma3 c .
other qwen3_next c .
good cache-prompt -m "$models/qwen3_next" --tokens 1,2 -o r -q
other llama r 'layer 0 '
p 1 '/nowhere/c: No such file' llama /nowhere/c
p 1 '\.: ' llama .
: >empty
p 1 'empty: ' llama empty
p 1 '.*model.safetensors: ' llama "$tiny/model.safetensors"
size=$(stat -c %s c)
for at in 7 8 100 $((size / 2)) $((size - 1)); do
    head -c "$at" c >cut
    p 1 'cut: ' llama cut
done
python3 - <<'PY'
import json, struct
data = open("c", "rb").read()
n, = struct.unpack("<Q", data[:8])
def put(name, change):
    header = json.loads(data[8:8 + n])
    change(header, header["__metadata__"])
    text = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(text)) + text + data[8 + n:])
put("tokens", lambda h, m: m.update({"0.kvasir_tokens": "1,2,3"}))
put("class", lambda h, m: m.update({"1.0": "WrongCache"}))
put("lost", lambda h, m: h.pop("0.0.1"))
put("model", lambda h, m: m.update({"0.kvasir_model": "0123456789abcdef"}))
open("header", "wb").write(data[:8] + b"[" + data[9:])
PY
p 1 'tokens: .*its checksum is' llama tokens
p 1 'class: .*WrongCache' llama class
p 1 'lost: .*0\.0\.1' llama lost
p 1 'header: ' llama header
p 2 'model: .*0123456789abcdef' llama model

# a failed run leaves an old file unchanged, and nothing else
b() { expect "$1" "^kvasir cache-prompt: $2" cache-prompt -m "$tiny" "${@:3}"; }
cp c before
mkdir -p at/folder
left() {
    cmp -s c before || die "$1: touched the old file"
    [ "$(find at -type f)" = "" ] || die "$1: left $(find at -type f)"
    [ "$(find . -name 'c?*' -newer before)" = "" ] || die "$1: left a file beside it"
}
for out in c at/new; do
    b 1 '10 tokens do not fit the context of 8' --tokens 1,2,3,4,5,6,7,8,9,10 --ctx 8 -o $out
    b 2 '--tokens: id 512 ' --tokens 1,512 -o $out
    b 2 '--tokens: the prompt is empty' --tokens '' -o $out
    b 1 '.*no tokenizer' -p hello -o $out
    b 2 '--kv-bits 8,f16: no class of mlx-lm' --tokens 1,2 --kv-bits 8,f16 -o $out
    b 2 '--key-centre bias: ' --tokens 1,2 --key-centre bias -o $out
    b 2 '--format: "new" is neither' --tokens 1,2 --format new -o $out
    b 2 '--kv-bits: ' --tokens 1,2 --kv-bits 7 -o $out
    expect 1 '^kvasir cache-prompt: /nowhere/m: No such' cache-prompt -m /nowhere/m --tokens 1 \
        -o $out
    (
        trap '' XFSZ # the disk is full
        ulimit -f 2
        b 1 "$out.*: File too large" --tokens "$long" -o $out
    ) || exit 1
    left "$out"
done
b 2 '-o: missing' --tokens 1
b 1 '-o: at/folder: is a folder' --tokens 1 -o at/folder
b 1 '-o: /nowhere/c: ' --tokens 1 -o /nowhere/c
mkfifo pipe
b 1 '-o: pipe: is a device or pipe' --tokens 1 -o pipe
[ -p pipe ] || die "a pipe was replaced"
rm pipe
left "a bad -o"
good cache-prompt -m "$tiny" --tokens 9 -o c -q
cmp -s c before && die "the old file was not replaced"
cp c before

# Ctrl-C
many=$(printf '1,%.0s' $(seq 30000))1
timeout --foreground 60 "$kvasir" cache-prompt -m "$models/gemma3" --tokens "$many" -o at/new -q \
    --max-kv-size 1000 --prefill-chunk 1 --cpu-tier ref >out 2>err &
pid=$!
sleep 0.5
kill -INT $pid # timeout passes it on
wait $pid
[ $? = 130 ] || die "Ctrl-C: exit code"
left "Ctrl-C"

# ---- text ----------------------------------------------------------------------------------------

[ -f "$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf" ] || {
    echo "left out: no demo model"
    exit 0
}
demo_model
# chat HEAD TAIL FLAG...: FLAGs are for HEAD's file
chat() {
    local head=$1 tail=$2 whole all raw=()
    shift 2
    [ "${1:-}" = --raw ] && raw=(--raw)
    good generate -m "$demo" -p "$head$tail" --key-centre off "$@" -n 10 --json -q
    whole=$(json text) all=$(json prompt_tokens)
    printf '%s\n' "$head" >head.txt
    [ "${1:-}" = --raw ] && printf '%s' "$head" >head.txt # --raw keeps every byte
    good cache-prompt -m "$demo" -f head.txt "$@" -o c -q
    good generate -m "$demo" --prompt-cache c -p "$tail" "${raw[@]}" -n 10 --json -q
    [ "$(json text)" = "$whole" ] || die "chat $*: not $whole"
    [ $(($(json cached_tokens) + $(json prompt_tokens))) = "$all" ] || die "chat $*: tokens"
}
chat "The capital of France" " is what city?"
chat "The capital of France" " is what city?" --system "You are a pirate."
chat "The capital of France" " is" --raw --kv-bits 8
