#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir tokenize`: text to ids and back against Hugging Face's goldens, chats against jinja2's
# renders, JSON lines, a GGUF file of an unknown architecture, error messages about bad input.
. "$(dirname "$0")/../support/api.bash"
tokenizers=$SHARED_DIR/tokenizers
templates=$SHARED_DIR/chat-templates

# t CODE PATTERN INPUT ARG...: like expect, with INPUT (a format of printf) on standard input;
# standard output may contain what came before an error.
t() {
    local code=$1 pattern=$2 input=$3 got
    shift 3
    printf "$input" | timeout 100 "$kvasir" tokenize "$@" >out 2>err
    got=$?
    [ "$got" = "$code" ] || die "exit code $got, not $code: kvasir tokenize $*"
    [ "$(wc -l <err)" = $((code != 0)) ] || die "not one line of error: kvasir tokenize $*"
    grep -q -e "$pattern" err || [ "$code" = 0 ] || die "no \"$pattern\": kvasir tokenize $*"
}

# ---- flags ---------------------------------------------------------------------------------------

expect 2 '^kvasir tokenize: -m: missing' tokenize
expect 2 '^kvasir tokenize: --ids, --pieces and --decode: ' tokenize -m x --ids --decode
expect 2 '^kvasir tokenize: --chat: not allowed' tokenize -m x --chat --decode
expect 2 '^kvasir tokenize: --add-special: not allowed' tokenize -m x --add-special --decode
expect 2 '^kvasir tokenize: --add-special: not allowed' tokenize -m x --add-special --chat
expect 2 '^kvasir tokenize: --chat-template: only allowed' tokenize -m x --chat-template y
expect 2 '^kvasir tokenize: --chat-template-kwargs: invalid JSON at' tokenize -m x --chat \
    --chat-template-kwargs '{'
expect 1 '^kvasir tokenize: x: No such file' tokenize -m x
echo '{"a": 1}' >other.json
expect 1 '^kvasir tokenize: other.json: ' tokenize -m other.json
mkdir empty
expect 1 '^kvasir tokenize: empty' tokenize -m empty

# ---- a GGUF file: only its vocabulary matters, not its architecture ------------------------------

python3 - <<'PY' || die "no GGUF file made"
import struct
def text(s): return struct.pack("<Q", len(s)) + s
def string(key, s): return text(key) + struct.pack("<I", 8) + text(s)
def number(key, n): return text(key) + struct.pack("<II", 4, n)
def strings(key, l):
    return text(key) + struct.pack("<IIQ", 9, 8, len(l)) + b"".join(text(s) for s in l)
printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
alphabet, more = {}, 256
for b in range(256):
    alphabet[b] = chr(b) if b in printed else chr(more)
    more += b not in printed
pieces = [alphabet[b].encode() for b in range(256)] + [b"ab", b"abc", b"<|end|>", b"bad\xffpiece"]
kinds = [1] * 258 + [3, 1]
key = b"tokenizer.ggml."
values = [string(b"general.architecture", b"nobodyrunsthis"), string(key + b"model", b"gpt2"),
          string(key + b"pre", b"gpt-2"), strings(key + b"tokens", pieces),
          text(key + b"token_type") + struct.pack("<IIQ", 9, 5, len(kinds)) +
          struct.pack(f"<{len(kinds)}i", *kinds),
          strings(key + b"merges", [b"a b", b"ab c"]), number(key + b"eos_token_id", 258)]
open("odd.gguf", "wb").write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(values))
PY
t 0 '' 'abcab<|end|>\n' -m odd.gguf
[ "$(cat out)" = "257 256 258 10" ] || die "ids of an odd GGUF file"
t 0 '' 'ab<|end|>\n' -m odd.gguf --ids
[ "$(cat out)" = "256 258 10" ] || die "--ids"
t 0 '' 'ab\n\0\"' -m odd.gguf --pieces
printf '256\t"ab"\n10\t"\xc4\x8a"\n0\t"\xc4\x80"\n34\t"\\""\n' | cmp -s - out || die "--pieces"
t 0 '' '259,[258 256\t]\n,10' -m odd.gguf --decode
printf 'bad\xef\xbf\xbdpiece<|end|>ab\n' | cmp -s - out || die "--decode"
t 0 '' '' -m odd.gguf
[ "$(od -c out | head -1)" = "$(echo | od -c | head -1)" ] || die "no text: an empty line"
t 0 '' '' -m odd.gguf --decode
[ -s out ] && die "no ids: no text"
t 0 '' '[{"role": "user", "content": "ab"}]' -m odd.gguf --chat --chat-template <(
    printf '{{ messages[0].content }}{{ eos_token }}{{ x }}'
) --chat-template-kwargs '{"x": "abc"}'
[ "$(cat out)" = "256 258 257" ] || die "--chat"

t 1 'standard input: .*UTF-8.*(at byte 2)$' 'ab\xff' -m odd.gguf
t 1 'standard input: "260" is not in this vocabulary of 260 tokens (at byte 4)$' '[1, 260]' \
    -m odd.gguf --decode
t 1 'standard input: "-1" is not in this vocabulary' '[-1]' -m odd.gguf --decode
t 1 'standard input: "1x" is not in this vocabulary.* (at byte 2)$' '1 1x 2' -m odd.gguf --decode
t 1 'standard input: "99999999999999999999' '99999999999999999999' -m odd.gguf --decode
t 1 'standard input: the model has no chat template' '[{"role": "user"}]' -m odd.gguf --chat
printf '{{ messages[0].content }}\n\n{{ raise_exception("only so far") }}' >t.jinja
t 1 'standard input: chat template line 3 column .*: only so far' '[{}]' -m odd.gguf \
    --chat --chat-template t.jinja
t 1 'standard input: .*(at byte 2)$' '[}' -m odd.gguf --chat --chat-template t.jinja
t 1 "standard input: '.' or '{' expected" '7' -m odd.gguf --chat --chat-template t.jinja
t 1 'standard input: chat request: messages is not' '{}' -m odd.gguf --chat --chat-template t.jinja
printf 'a\n {{ x' >t.jinja
t 1 '^kvasir tokenize: --chat-template: t.jinja: chat template line 2 column ' '[]' -m odd.gguf \
    --chat --chat-template t.jinja
[ ! -e /dev/full ] || {
    echo ab | timeout 60 "$kvasir" tokenize -m odd.gguf >/dev/full 2>err
    [ $? = 1 ] || die "a full disk: exit code"
    grep -q 'standard output: No space' err || die "a full disk: no error"
}

# ---- JSON lines ----------------------------------------------------------------------------------

printf '%s\n' \
    '{"n": 12345678901, "text": "ab", "x": {"y": [null, 1.5]}, "ids": 7, "é": "\u00e9\u0000"}' \
    '' ' ' '{"messages": [{"role": "user", "content": "ab"}], "z": "abc"}' '{"ids": [256, 258]}' >in
printf '{{ messages[0].content }}{{ z }}{{ x }}' >t.jinja
"$kvasir" tokenize -m odd.gguf --jsonl --chat-template t.jinja <in >out || die "--jsonl"
printf '%s\n' '{"n":12345678901,"text":"ab","x":{"y":[null,1.5]},"é":"é\u0000","ids":[256]}' \
    '{"messages":[{"role":"user","content":"ab"}],"z":"abc","ids":[256,257]}' \
    '{"ids":[256,258],"text":"ab<|end|>"}' | cmp - out || die "--jsonl gives other lines"
"$kvasir" tokenize -m odd.gguf --jsonl --pieces <<<'{"text": "ab\n"}' >out || die "--pieces"
[ "$(cat out)" = '{"text":"ab\n","pieces":["ab","Ċ"],"ids":[256,10]}' ] || die "--jsonl --pieces"
"$kvasir" tokenize -m odd.gguf --jsonl <<<'{}' >out 2>err && die "{} is no line"

j() { t 1 "^kvasir tokenize: standard input: line $1" "$2" -m odd.gguf --jsonl "${@:3}"; }
j '2: .*(at byte 18)$' '{"text": "ab"}\n{"]\n'
[ "$(cat out)" = '{"text":"ab","ids":[256]}' ] || die "what came before a bad line"
j '1: is not a JSON object (at byte 0)$' '[1]\n'
j '3: has neither "text".* (at byte 4)$' '\n \r\n{"texts": "a"}'
j '1: "text" is not a string' '{"text": 1}'
j '1: "ids" is not an array' '{"ids": 1}'
j '1: "260" is not in this vocabulary' '{"ids": [260]}'
j '1: "a value of another kind" is not in this vocabulary' '{"ids": [1.5]}'
j '1: .*UTF-8\|1: unable to decode byte 0xff' '{"text": "\xff"}'
j '1: the model has no chat template' '{"messages": []}'
j '1: chat request: messages' '{"text": "a"}' --chat --chat-template <(printf x)

# answers line by line, and a long corpus in little memory
coproc "$kvasir" tokenize -m odd.gguf --jsonl
pid=$COPROC_PID
echo '{"text": "ab"}' >&"${COPROC[1]}"
read -r -t 60 answer <&"${COPROC[0]}" || die "no answer to the first line"
[ "$answer" = '{"text":"ab","ids":[256]}' ] || die "line by line: $answer"
exec {COPROC[1]}>&-
wait "$pid" || die "line by line: exit code"
python3 -c 'for i in range(100): print("{\"text\": \"" + "abc " * 100000 + "\"}")' >long
sanitized=$(grep -s '^KVASIR_SANITIZE:STRING=.' "$(dirname "$kvasir")/CMakeCache.txt")
(
    [ -n "$sanitized" ] || ulimit -v 200000 # the input has 40 MB, a line 400 KB
    timeout 100 "$kvasir" tokenize -m odd.gguf --jsonl <long >out 2>err || die "a long corpus"
)
[ "$(wc -l <out)" = 100 ] || die "a long corpus: lines"

# ---- goldens -------------------------------------------------------------------------------------

# golden MODEL FILE: ids without and with special tokens, and the text of ids
golden() {
    "$kvasir" tokenize -m "$1" --jsonl <"$2" >ids 2>err &&
        "$kvasir" tokenize -m "$1" --jsonl --add-special <"$2" >special 2>err &&
        "$kvasir" tokenize -m "$1" --jsonl --decode <"$2" >decoded 2>err ||
        die "goldens of $1: $(cat err)"
    python3 - "$2" <<'PY' || die "goldens of $1"
import json, sys
read = lambda name: [json.loads(line) for line in open(name, encoding="utf-8")]
golden, ids, special, decoded = read(sys.argv[1]), read("ids"), read("special"), read("decoded")
assert len(golden) == len(ids) == len(special) == len(decoded) > 80
for g, a, b, c in zip(golden, ids, special, decoded):
    assert a == g, (g["text"], a["ids"], g["ids"]) # nothing else changed
    assert b["ids"] == g["ids_special"], (g["text"], b["ids"], g["ids_special"])
    assert c["text"] == g["decoded"], (g["ids"], c["text"], g["decoded"])
PY
}
goldens=0
# vocabulary NAME MODEL LINES: its goldens, or a message that names the missing file
vocabulary() {
    local missing=
    [ -e "$2" ] || missing=$2
    [ -f "$3" ] || missing=$3
    if [ -n "$missing" ]; then
        echo "left out: goldens of $1: $missing is missing"
        return
    fi
    golden "$2" "$3"
    goldens=$((goldens + 1))
}
for name in gpt2 qwen3 llama3_1 gemma3; do
    vocabulary $name "$tokenizers/$name" "$tokenizers/$name/golden_encode.jsonl"
done
for model in smollm2-135m:SmolLM2-135M-Instruct.Q4_1 \
    qwen2.5-coder-0.5b:qwen2.5-coder-0.5b-instruct-q4_k_m; do
    vocabulary ${model%:*} "$MODELS_DIR/${model#*:}.gguf" \
        "$SHARED_DIR/goldens/${model%:*}/golden_encode.jsonl"
done

# Chats: the ids decode to the text that jinja2 rendered; errors have jinja2's messages.
[ -f "$templates/golden_renders.jsonl" ] && [ -d "$tokenizers/gpt2" ] || skip "no chat templates"
python3 - "$kvasir" "$SHARED_DIR" <<'PY' || die "chats"
import json, pathlib, subprocess, sys
kvasir, shared = sys.argv[1], pathlib.Path(sys.argv[2])
def tokenize(requests, *flags):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    p = subprocess.run([kvasir, "tokenize", "-m", shared / "tokenizers/gpt2", "--jsonl", *flags],
                       input=lines, capture_output=True, encoding="utf-8", timeout=100)
    return [json.loads(line) for line in p.stdout.splitlines()], p.returncode, p.stderr
cases = {}
for line in open(shared / "chat-templates/golden_renders.jsonl", encoding="utf-8"):
    golden = json.loads(line)
    cases.setdefault(golden["template"], []).append(golden)
renders = raises = 0
for name, goldens in cases.items():
    if name.startswith("tokenizer:"):
        config = shared / "tokenizers" / name[10:] / "tokenizer_config.json"
        template = pathlib.Path("template")
        template.write_text(json.loads(config.read_text())["chat_template"])
    else:
        template = shared / "chat-templates" / (name + ".jinja")
    if "strftime_now" in template.read_text():
        continue # the goldens' day is not today: tests/unit/test_template.c has them
    good = [g for g in goldens if "expect" in g]
    chats, code, err = tokenize([g["args"] for g in good], "--chat-template", template)
    assert code == 0, (name, err)
    texts, code, err = tokenize(chats, "--decode")
    for golden, chat, text in zip(good, chats, texts, strict=True):
        assert text["text"] == golden["expect"], (name, golden["case"], text["text"])
        renders += 1
    for golden in goldens:
        if "error" in golden:
            lines, code, err = tokenize([golden["args"]], "--chat-template", template)
            assert code == 1 and not lines and golden["error"].split(": ", 1)[1] in err, (name, err)
            assert "line 1: chat template line " in err, err
            raises += 1
print(f"{renders} chats as jinja2 renders them, {raises} fail as they must")
PY
[ $goldens = 6 ] || skip "only $goldens of 6 vocabularies are here"
exit 0
