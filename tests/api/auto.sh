#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve --kv-bits auto: what the start says, figures and usage as memory fills, errors.
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
plan() { serve_plan=(serve -m "$tiny" --cache-memory-mb 8 --dry-run -q "$@"); }
plan --kv-bits auto --kv-floor t2
expect 2 '--kv-floor: "t2" is not one of' "${serve_plan[@]}"
plan --kv-bits r8,4 --kv-floor t4
expect 2 '--kv-floor: only kv_bits "auto" has' "${serve_plan[@]}"
plan --kv-bits auto --kv-cache-quantization-bits 4
expect 2 '--kv-cache-quantization-bits: with' "${serve_plan[@]}"
start_server -m "$tiny" --kv-bits auto --cache-memory-mb 4 --prefill-chunk 64 --ctx 2048
grep -q 'kv-bits auto: pages take .* different answers' "$log" || die "the start"
python3 - "$url" <<'PY' || die "as memory fills"
import json, re, sys, urllib.request
url = sys.argv[1]
def get(path):
    return urllib.request.urlopen(url + path).read().decode()
def ask(seed, n, stream):
    body = {"prompt": [(seed * 31 + i * 7) % 500 for i in range(n)], "max_tokens": 2,
            "stream": stream, "stream_options": {"include_usage": True}}
    if not stream:
        del body["stream_options"]
    answer = urllib.request.urlopen(url + "/v1/completions", json.dumps(body).encode()).read()
    if stream:
        answer = answer.decode().split("data: ")[-2]
    return json.loads(answer)["usage"]
assert "requantized_pages" not in ask(1, 100, False)
for seed in range(2, 12):
    last = [ask(seed, 1200, stream) for stream in (False, True)]
assert last[0]["requantized_pages"] > 0 and last[1]["requantized_pages"] > 0, last
for stream in (False, True): # other protocols: unit tests; this model has no tokenizer
    asked = {"prompt": [(20 * 31 + i * 7) % 500 for i in range(1200)], "n_predict": 2,
             "stream": stream}
    answer = urllib.request.urlopen(url + "/completion", json.dumps(asked).encode()).read()
    assert re.search(r'"requantized_pages": ?[1-9]', answer.decode()), answer[-400:]
text = get("/metrics")
figure = lambda name: float(re.search(r"^%s (\S+)$" % re.escape(name), text, re.M)[1])
assert figure("kvasir_requantized_pages_total") > 20
assert re.search(r'^kvasir_cache_bytes\{.*t3.*\} [1-9]', text, re.M), text
stats = json.loads(get("/v1/cache/stats"))
assert stats["requantized_pages"] == figure("kvasir_requantized_pages_total")
assert any(re.search("t3", f["format"]) for f in stats["by_format"]), stats["by_format"]
PY
end_server TERM 0
