#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir bench`: what its JSON says of bytes and multiply-adds, against `kvasir info` and the
# tensors of the file; the table, the plot, wrong lists, Ctrl-C.
. "$(dirname "$0")/../support/api.bash"
tiny_model

b() { expect 2 "^kvasir bench: $1" bench "${@:2}"; }
b '-m: missing'
b '--depth: "" is not a whole number' -m x --depth ''
b '--depth: "" is not a whole number' -m x --depth 0,
b '--depth: "a" is not a whole number' -m x --depth 0,a,5
b '--depth: " 5" is not a whole number' -m x --depth '0, 5'
b '--depth: -1 is out of range' -m x --depth 0,-1
b '-d: 99999999 is out of range, it goes from 0 to 16777216' -m x -d 99999999
b '--depth: more than 16 numbers' -m x --depth "$(seq -s , 17)"
b '--batch: 0 is out of range' -m x --batch 0
b '-r: 0 is out of range' -m x -r 0
b '--kv-bits: 8 is given twice' -m x --kv-bits 8 4 8
b '--kv-bits: more than 8 formats' -m x --kv-bits 8 6 5 4 3 2 f16 bf16 f32
b '--prompt-tokens and --max-tokens: both are 0' -m x --prompt-tokens 0 --max-tokens 0
b '--kv-bits: .*"7"' -m "$tiny" -q --kv-bits 7
b '--device: .*gpu' -m "$tiny" -q --device gpu
expect 1 '^kvasir bench: /nowhere: ' bench -m /nowhere
expect 1 '^kvasir bench: --svg: cannot write /nowhere/x' bench -m "$tiny" --svg /nowhere/x
expect 1 'the caches of all formats need .* of memory are free: give fewer' \
    bench -m "$tiny" -q --depth 4000000 --batch 64 --prompt-tokens 0 -n 1

# the list is sorted, and repeats count once; a depth that is no whole page, and one after it
good bench -m "$tiny" --kv-bits 8,4 f16 --depth 640,0,100,1000,0 --prompt-tokens 70,3 -n 5 \
    --batch 3,1 -r 2 --threads 1 --prefill-chunk 32 --json --svg plot.svg
grep -q '^cache:' err || die "nothing about the cache"
python3 - "$tiny" "$kvasir" <<'PY' || die "bench --json"
import json, subprocess, sys, xml.etree.ElementTree as xml
tiny, kvasir = sys.argv[1:]
o = json.load(open("out"))
info = json.loads(subprocess.run([kvasir, "info", tiny, "--json"], capture_output=True).stdout)
kv = {(f["kv_bits"], f["kv_group_size"]): f["bytes_per_token"] for f in info["kv_formats"]}
token = {"8,4": kv["8,4", "64"], "f16": kv["f16", None]}
assert o["weight_bytes"] == info["weight_bytes"] and o["parameters"] == info["parameters"]
assert {f["kv_bits"]: f["kv_bytes_per_token"] for f in o["formats"]} == token
m = o["machine"]
assert m["kind"] == "cpu" and m["threads"] == 1 and m["prefill_chunk"] == 32
assert m["multiply_kind"] == "float32", m # its weights are bf16
read, peak = m["read_bytes_per_second"], m["multiply_adds_per_second"]
for f in (read, peak) if m["tier"] != "ref" else (read,):
    assert 0 < f["min"] <= f["median"] <= f["max"]
cells = [("prompt", 3, 1), ("prompt", 70, 1), ("decode", 5, 1), ("decode", 5, 3)]
depths = [0, 100, 640, 1000]
assert [(r["depth"], r["phase"], r["tokens"], r["batch"], r["kv_bits"]) for r in o["results"]] == [
    (d, *c, f) for d in depths for c in cells for f in ("8,4", "f16")]
# of the shape: 4 layers of 128 dims, 4 heads of 64 for 2, ffn 256, 512 tokens (tied)
layers, head = 4 * 128 * (2 * 256 + 2 * 128 + 3 * 256), 512 * 128
for r in o["results"]:
    d, n, b, decode = r["depth"], r["tokens"], r["batch"], r["phase"] == "decode"
    ends, at = [], d
    while at < d + n:
        at += 1 if decode else min(32, d + n - at)
        ends.append(at)
    steps = len(ends)
    assert r["steps"] == steps, r
    close = lambda a, b: abs(a - b) <= 1e-6 * b
    heads = steps if decode else 1
    weights = info["weight_bytes"] - head * 2 * (1 - heads / steps)
    assert close(r["weight_bytes_per_step"], weights), r
    assert close(r["kv_bytes_per_step"], b * sum(ends) * token[r["kv_bits"]] / steps), r
    assert close(r["bytes_per_step"], r["weight_bytes_per_step"] + r["kv_bytes_per_step"])
    seen = sum(range(d + 1, d + n + 1))
    assert close(r["multiply_adds_per_step"],
                 b * (n * layers + heads * head + seen * 4 * 2 * 4 * 64) / steps), r
    s, seconds = r["tokens_per_second"], sorted(r["seconds"])
    assert len(seconds) == 2 and seconds[0] > 0
    speeds = [b * n / x for x in seconds]
    assert close(s["max"], speeds[0]) and close(s["min"], speeds[1]), r
    assert close(s["median"], sum(speeds) / 2)
    assert close(r["ms_per_token"], sum(seconds) / 2 / n * 1e3)
    p = r["roofline_percent"]
    assert r["bound"] in ("memory", "multiply") and 0 < p["min"] <= p["median"] <= p["max"]
    # the least time by the best the machine was seen to do is a lower bound of what was used
    least = r["bytes_per_step"] * steps / read["max"]
    assert p["max"] >= 100 * least / seconds[1] * 0.999, r
assert [(s["kv_bits"], s["batch"]) for s in o["slopes"]] == [
    ("8,4", 1), ("8,4", 3), ("f16", 1), ("f16", 3)]
assert all(s["ns_per_cached_token"]["min"] <= s["ns_per_cached_token"]["max"] for s in o["slopes"])
svg = xml.parse("plot.svg").getroot()
tag = lambda name: svg.iter("{http://www.w3.org/2000/svg}" + name)
assert len(list(tag("polyline"))) == len(cells) * 2
assert len(list(tag("circle"))) == len(o["results"])
texts = [t.text for t in tag("text")]
assert "decode, batch 3: tokens/s by depth" in texts and "prompt of 70: tokens/s by depth" in texts
PY

# experts, windows and an embedding that is not the head, from the file's own tensors
for model in qwen3_moe gemma3; do
    good bench -m "$SHARED_DIR/fixtures/tiny/$model" -q --kv-bits f16 --depth 0,200 -n 1 -r 1 \
        --prompt-tokens 0 --batch 1,2 --threads 1 --json
    python3 - "$SHARED_DIR/fixtures/tiny/$model" <<'PY' || die "bench of $model"
import json, struct, sys
o, c = json.load(open("out")), json.load(open(sys.argv[1] + "/config.json"))
with open(sys.argv[1] + "/model.safetensors", "rb") as f:
    tensors = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
tensors.pop("__metadata__", None)
size = lambda part: sum(t["data_offsets"][1] - t["data_offsets"][0]
                        for name, t in tensors.items() if part in name)
experts, table = size(".experts."), 0 if c["tie_word_embeddings"] else size("embed_tokens")
windows = [c["sliding_window"] if kind == "sliding_attention" else None
           for kind in c.get("layer_types", ["full"] * c["num_hidden_layers"])]
layer = 2 * 2 * c["num_key_value_heads"] * c["head_dim"]
assert len(o["results"]) == 4
for r in o["results"]:
    met = 0
    if experts:
        met = 1 - (1 - c["num_experts_per_tok"] / c["num_local_experts"]) ** r["batch"]
    want = o["weight_bytes"] - table - (1 - met) * experts
    assert abs(r["weight_bytes_per_step"] - want) < 1, (r, want)
    seen = sum(min(r["depth"] + 1, w or r["depth"] + 1) for w in windows)
    assert r["kv_bytes_per_step"] == r["batch"] * seen * layer, r
PY
done

good bench -m "$tiny" --kv-bits 8,4 --depth 0,1000 -n 2 --prompt-tokens 0 -r 1 -q
[ -s err ] && die "--quiet speaks"
grep -qE '^decode 2 +8,4 +1,000 +1 ' out || die "no row of the table"
grep -q '^ceiling  reads' out || die "no ceiling"
grep -q '^kv bits .* ns a cached token' out || die "no slopes"
good bench -m "$tiny" --depth 0 -n 2 --prompt-tokens 0 -r 1 -q --cpu-tier ref
grep -q '^ceiling  reads' out || die "the reference's tier: no bandwidth"
grep -q 'multiply-adds' out && die "a peak of the reference's tier"

timeout --foreground 60 env --default-signal=INT "$kvasir" bench -m "$tiny" --depth 0 -n 20000 \
    -r 64 --svg cut.svg >out 2>err </dev/null &
pid=$!
for _ in {1..300}; do
    grep -q '^cache:' err && break
    sleep 0.1
done
sleep 0.5
kill -INT $pid # timeout passes it on
wait $pid
[ $? = 130 ] || die "Ctrl-C: exit code"
grep -q 'interrupted: there are no results' err || die "Ctrl-C: no message"
[ -s out ] || [ -e cut.svg ] && die "Ctrl-C: results"
exit 0
