#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# embed.sh PROGRAM: `kvasir embed` prints what /v1/embeddings answers, of one text or a file's
# lines, in more than one wave; wrong input gets one line that names it.
. "$(dirname "$0")/../support/api.bash"
model=$SOURCE_DIR/../shared/models/stories260K/stories260K-f32.gguf
[ -e "$model" ] || skip "no $model"

for i in $(seq 150); do echo "text $i is about $((i * i))"; done >texts
good embed -q -m "$model" --kv-bits f16 -f texts --json
cp out lines
[ "$(wc -l <lines)" = 150 ] || die "not 150 lines"
start_server -q -m "$model" --kv-bits f16
python3 - "$url" <<'END' || die "other numbers than the server's"
import json, sys, urllib.request
texts = open("texts").read().splitlines()
lines = [json.loads(line) for line in open("lines")]
body = json.dumps({"input": texts}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/embeddings", body,
                                 {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(request))
assert [x["index"] for x in lines] == list(range(150))
for ours, served in zip(lines, answer["data"], strict=True): # printed with 12 digits
    for a, b in zip(ours["embedding"], served["embedding"], strict=True):
        assert abs(a - b) < 1e-11
assert sum(x["tokens"] for x in lines) == answer["usage"]["prompt_tokens"]
assert all(abs(sum(v * v for v in x["embedding"]) - 1) < 1e-5 for x in lines)
END
end_server TERM 0

good embed -q -m "$model" --kv-bits f16 -p 'text 1 is about 1'
[ "$(wc -lw <out | tr -s ' ')" = " 1 64" ] || die "not 64 numbers on a line"
python3 - <<'END' || die "-p gives other numbers than -f"
import json
first = json.loads(open("lines").readline())["embedding"]
numbers = open("out").read().split() # with 9 digits
assert max(abs(a - float(b)) for a, b in zip(first, numbers, strict=True)) < 1e-8
END
e() { expect "$1" "^kvasir embed: $2" embed "${@:3}"; }
e 2 'either -p TEXT or -f FILE' -m "$model"
e 2 'either -p TEXT or -f FILE' -m "$model" -p a -f b
e 1 '-f: absent: No such file' -q -m "$model" --kv-bits f16 -f absent
python3 -c 'print("short\n" + "word " * 2000)' >long
expect 1 '-f: line 2: a prompt of' embed -q -m "$model" --kv-bits f16 -f long --ctx 512
