#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir simulate`: a small trace whose hits can be worked out by hand, budgets, refusals, random
# programs; the first requests of the conversation trace if it exists.
. "$(dirname "$0")/../support/api.bash"

# Four turns of one conversation, an hour apart, then the first prompt again. Blocks of 512 tokens.
cat >trace <<'T'
{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 3600000, "input_length": 1536, "output_length": 10, "hash_ids": [1, 2, 3]}
{"timestamp": 7200000, "input_length": 2000, "output_length": 10, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 10800000, "input_length": 2560, "output_length": 10, "hash_ids": [1, 2, 3, 5, 6]}
{"timestamp": 14400000, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
T
good simulate --trace trace --json -q --budget 400% --model-shape 2,2,64
[ -s err ] && die "--quiet speaks"
python3 - <<'PY' || die "simulate --json"
import json
o = json.load(open("out"))
assert o["requests"] == 5 and o["prompt_tokens"] == 1024 + 1536 + 2000 + 2560 + 1024
# the last token of a prompt is always evaluated
assert o["cached_tokens"] == 1024 + 1536 + 1536 + 1023, o
# an answer follows each stored prompt, and the next prompt diverges from it; the last is all stored
assert o["hits"] == {"miss": 1, "exact": 0, "prefix": 0, "supersequence": 1, "common_prefix": 3}
assert o["generated_tokens"] == 50 and o["preemptions"] == 0 and o["evicted_pages"] == 0
# 2 layers, 2 heads of 64, K 8.5 and V 4.5 bits a value: 416 bytes a token, pages of whole 4 KiB
assert o["page_bytes"] == 28672 and o["kv_bytes_per_token"] == 448
# blocks 1 to 3, the full pages of 4, those of 5 and 6; a page after each prompt
assert o["all_pages"] == 24 + 7 + 16 + 5
assert o["all_bytes"] == o["all_pages"] * o["page_bytes"]
assert o["peak_bytes"] <= o["budget_bytes"]
# in whole pages all of the last prompt is stored; the tree still evaluates its last token
for key, hits in (("belady_hit_rate", 5120), ("lru_hit_rate", 5120), ("hit_rate", 5119)):
    assert abs(o[key] - hits / 8144) < 1e-9, key
for key in ("queued_seconds", "first_token_seconds", "total_seconds"):
    s = o[key]
    assert 0 <= s["p50"] <= s["p90"] <= s["p99"] <= s["max"], s
assert o["queued_seconds"]["max"] == 0 and o["first_token_seconds"]["p50"] > 0
assert 14400 < o["virtual_seconds"] < 14401 and o["busy_seconds"] < 1
PY
# the same without a cache; then all at once: nothing is computed twice, since requests wait
good simulate --trace trace --json -q --no-prefix-cache --model-shape smollm2-135m
[ "$(json cached_tokens)" = 0 ] || die "hits without a prefix cache"
timeout 100 "$kvasir" simulate --trace - --json -q --speed 0 --budget 1G --model-shape qwen3-0.6b \
    <trace >out 2>err || die "standard input"
figures() {
    for key in virtual_seconds cached_tokens steps peak_bytes budget_bytes; do json $key; done
}
once=$(figures)
good simulate --trace trace --json -q --speed 0 --budget 1024M --model-shape qwen3-0.6b
[ "$(figures)" = "$once" ] || die "two runs differ"
[ "$(json cached_tokens)" = $((1024 + 1536 + 1536 + 1023)) ] || die "a prefix is computed twice"
good simulate --trace trace --limit 2 --window 128 --window-layers 1 --model-shape 4,2,64 \
    --kv-bits f16 --budget 3.5M
grep -q '^trace: *2 requests' out || die "--limit"
grep -q '4 layers (1 with a window)' out || die "--window"
grep -q 'K f16, V f16' out || die "--kv-bits"
grep -q '^hits: .* Belady' out || die "no table"

# Policies. If nobody waits all are the same; of three at once, with a place for one, the shortest
# goes first.
good simulate --trace trace --json -q --policy equal,fcfs,shortest --model-shape 2,2,64
python3 - <<'PY' || die "simulate --policy"
import json
p = json.load(open("out"))["policies"]
assert [o["policy"] for o in p] == ["equal", "fcfs", "shortest"]
for o in p:
    for key in ("policy", "wall_seconds", "engine_seconds", "peak_memory_bytes"):
        del o[key]
assert p[0] == p[1] == p[2]
PY
cat >three <<'T'
{"timestamp": 0, "input_length": 2048, "output_length": 10, "hash_ids": [1, 2, 3, 4]}
{"timestamp": 0, "input_length": 1536, "output_length": 10, "hash_ids": [5, 6, 7]}
{"timestamp": 0, "input_length": 512, "output_length": 10, "hash_ids": [8]}
T
good simulate --trace three --json -q --policy fcfs,shortest --max-num-seqs 1 --model-shape 2,2,64 \
    --compute 0.01
python3 - <<'PY' || die "the shortest first"
import json
fcfs, shortest = (o["first_token_seconds"] for o in json.load(open("out"))["policies"])
assert shortest["mean"] < 0.8 * fcfs["mean"] and shortest["max"] <= 1.1 * fcfs["max"], shortest
PY
good simulate --trace three --policy fcfs,shortest -q --model-shape 2,2,64
grep -q '^policy .* mean' out && grep -q '^shortest ' out && grep -q '^fcfs ' out || die "a table"

# A target for the time of steps; without one the longest tenth takes 26 ms.
good simulate --trace three --json -q --model-shape llama3-8b --bandwidth 20000 --compute 300 \
    --target-step-ms 5
python3 - <<'PY' || die "--target-step-ms"
import json
o = json.load(open("out"))
assert 0 < o["step_seconds"]["p90"] < 0.01
PY

# Stores below the memory. Two conversations that do not fit the memory together: each finds in
# memory what the other one left of it, and the rest in the stores, but not its last page.
cat >two <<'T'
{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 3600000, "input_length": 2560, "output_length": 10, "hash_ids": [10, 11, 12, 13, 14]}
{"timestamp": 7200000, "input_length": 1536, "output_length": 10, "hash_ids": [1, 2, 3]}
{"timestamp": 10800000, "input_length": 2560, "output_length": 10, "hash_ids": [10, 11, 12, 13, 14]}
{"timestamp": 14400000, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
T
two() { # NAME FLAG...; a slow computer: 10^10 operations a second
    good simulate --trace two --json -q --budget 1400K --model-shape 2,2,64 --compute 0.01 "${@:2}"
    cp out "$1.json"
}
two memory
two disk --disk 100M
two host --host 100M
two both --disk 1M --remote 100M
two slow --disk 100M --disk-bandwidth 0.000001
two again --disk 1M --remote 100M
python3 - <<'PY' || die "simulate with stores"
import json
memory, disk, host, both, slow, again = (json.load(open(n + ".json")) for n in
                                         ("memory", "disk", "host", "both", "slow", "again"))
all_tokens = 1024 + 2560 + 1536 + 2560 + 1024
pages = 16 + 40 + 8  # whole ones of prompts, each once
assert "tiers" not in memory and memory["cached_tokens"] < 2560
for o in (disk, host, both):
    assert o["cached_tokens"] == 1024 + (2560 - 64) + (1024 - 64), o
    assert abs(o["hit_rate"] - 4480 / all_tokens) < 1e-9
    parts = o["memory_hit_rate"] + sum(t["hit_rate"] for t in o["tiers"])
    assert abs(parts - o["hit_rate"]) < 1e-9, o
    # one cache of the size of all holds everything: all but each page's first use
    assert abs(o["belady_hit_rate_all"] - (1024 + 2560 + 1024) / all_tokens) < 1e-9, o
    assert o["belady_hit_rate"] == memory["belady_hit_rate"] < o["belady_hit_rate_all"]
    assert o["tier_loads"] == 3 and o["tier_loads_late"] == o["tier_unwritten_pages"] == 0
    assert o["peak_bytes"] <= o["budget_bytes"]
record = 28672 + 4096
[only] = disk["tiers"]
assert only["tier"] == "disk" and only["records"] == pages and only["dropped_records"] == 0
assert only["bytes"] == only["written_bytes"] == pages * record
assert only["read_bytes"] == round(only["hit_rate"] * all_tokens / 64) * record
[only] = host["tiers"]
assert only["tier"] == "host" and only["bytes"] == only["records"] * (28672 + 512)
assert only["records"] == pages
first, second = both["tiers"]
assert (first["tier"], second["tier"]) == ("disk", "remote")
assert first["records"] == 32 and first["bytes"] == 32 * record == first["limit_bytes"]
assert first["dropped_records"] >= 32 and first["hit_rate"] > 0 and second["hit_rate"] > 0
assert second["records"] == pages and second["bytes"] == pages * (28672 + 512)
# a store that needs a minute for a page: what it begins is given up and teaches how slow it is
assert slow["tier_loads_late"] == slow["tier_loads"] == 1 and slow["tiers"][0]["hit_rate"] == 0
assert slow["tier_loads_slow"] == 2, slow
assert slow["generated_tokens"] == 50
for o in (both, again):  # what depends on the machine
    del o["wall_seconds"], o["engine_seconds"], o["peak_memory_bytes"]
assert both == again
PY

# Formats that encode a page when it is full: bytes of the page alone, not of its 16-bit shadow.
# With tile formats the first page of all prompts is at 16 bits.
for format in r8,4:28672 t4:20480 t3:16384; do
    good simulate --trace trace --json -q --budget 9M --model-shape 2,2,64 --kv-bits "${format%:*}"
    [ "$(json page_bytes)" = "${format#*:}" ] || die "a page of $format"
    start=0
    [ "${format%:*}" = r8,4 ] || start=$((65536 - ${format#*:}))
    [ "$(json all_bytes)" = $(($(json all_pages) * ${format#*:} + start)) ] ||
        die "all pages of $format"
done

# auto: more fits than of r8,4, never below the floor, and at a floor of r8,4 all is as with r8,4.
cat >turns <<'T'
{"timestamp": 0, "input_length": 2560, "output_length": 10, "hash_ids": [1, 2, 3, 4, 5]}
{"timestamp": 3600000, "input_length": 2560, "output_length": 10, "hash_ids": [10, 11, 12, 13, 14]}
{"timestamp": 7200000, "input_length": 1536, "output_length": 10, "hash_ids": [20, 21, 22]}
{"timestamp": 10800000, "input_length": 2560, "output_length": 10, "hash_ids": [1, 2, 3, 4, 5]}
{"timestamp": 14400000, "input_length": 2560, "output_length": 10, "hash_ids": [10, 11, 12, 13, 14]}
T
turns=(simulate --trace turns -q --model-shape 2,2,64 --prefill-chunk 64 --budget)
auto() { # NAME BUDGET FLAG...
    good "${turns[@]}" "$2" --json "${@:3}"
    cp out "$1.json"
}
auto new 1800K --kv-bits r8,4
auto same 1800K --kv-bits auto --kv-floor r8,4
auto t4 1800K --kv-bits auto --kv-floor t4
auto t3 1800K --kv-bits auto
auto again 1800K --kv-bits auto
auto large 8M --kv-bits auto
python3 - <<'PY' || die "simulate --kv-bits auto"
import json
names = ("new", "same", "t4", "t3", "again", "large")
new, same, t4, t3, again, large = all_of = [json.load(open(n + ".json")) for n in names]
for o in all_of:  # what depends on the machine
    del o["wall_seconds"], o["engine_seconds"], o["peak_memory_bytes"]
    assert o["peak_bytes"] <= o["budget_bytes"] and o["page_bytes"] == 28672
assert same == new and "requantized" not in new and t3 == again
assert new["cached_tokens"] < t4["cached_tokens"] < t3["cached_tokens"]
assert new["evicted_pages"] > t4["evicted_pages"] > t3["evicted_pages"]
[rung] = t4["requantized"]
assert rung["format"] == t4["lowest_format"] == "K t4, V t4" and rung["pages"] > 0
first, second = t3["requantized"]
assert second["format"] == t3["lowest_format"] == "K t3, V t3", t3
assert first["pages"] >= second["pages"] > 0
assert t3["requantized_pages"] == first["pages"] + second["pages"]
assert large["requantized_pages"] == 0 and large["lowest_format"] == large["kv_format"]
# three chains begin with a page at 16 bits
for o, page in ((t4, 20480), (t3, 16384)):
    n = o["all_pages"]
    assert o["all_bytes"] == n * 28672 + 3 * (65536 - 28672)
    assert o["budget_pages"] == int(1800 * 1024 * n / (n * page + 3 * (65536 - page))), o
assert t3["hit_rate"] <= t3["belady_hit_rate"]
PY
good "${turns[@]}" 1800K --kv-bits auto
grep -q '^auto: .* pages to K t4, V t4, .* pages to K t3, V t3; the lowest was K t3' out ||
    die "no line of auto"

# a trace that cannot fit is refused with the numbers, before anything runs
expect 2 '--budget: 1048576 bytes are .* its request 4, .* 2560 tokens .* 10, needs [0-9]*' \
    simulate --trace trace --budget 1M --model-shape smollm2-135m
s() { expect 2 "$1" simulate "${@:2}"; }
s '--trace or --random' --json
s '--trace or --random' --trace trace --random 3
s '--budget: "lots" is neither' --trace trace --budget lots
s '--budget: "5%%" is neither' --trace trace --budget 5%%
s '--budget: "5g" is neither' --trace trace --budget 5g
s '--budget: "" is neither' --trace trace --budget ''
s '--budget: "nan" is neither' --trace trace --budget nan
s '--budget: 0%' --trace trace --budget 0%
s '--budget: 0 is not between' --trace trace --budget 0
s '--disk: "5%" is not a number of bytes' --trace trace --disk 5%
s '--remote: 0 is not between' --trace trace --remote 0
s '--disk-bandwidth: 0 is out of range' --trace trace --disk 1G --disk-bandwidth 0
s '--host: needs stored prefixes' --trace trace --host 1G --no-prefix-cache
s '--disk: needs stored prefixes' --trace trace --disk 1G --no-prefix-cache
s '--remote: needs stored prefixes' --trace trace --remote 1G --no-prefix-cache
s '--model-shape: "gpt" is neither' --trace trace --model-shape gpt
s '--model-shape: "1,2" is neither' --trace trace --model-shape 1,2
s '--model-shape: "1,2,64,4" is neither' --trace trace --model-shape 1,2,64,4
s '--model-shape: "1,2,64," is neither' --trace trace --model-shape 1,2,64,
s '--model-shape: layers 0 is not' --trace trace --model-shape 0,2,64
s '--model-shape: head_dim 513 is not' --trace trace --model-shape 1,2,513
s '--model-shape: 3 heads cannot' --trace trace --model-shape 1,2,64,3,1,1,1
s '--window-layers: ' --trace trace --window-layers 2
s '--window-layers: 33 is more than' --trace trace --window 5 --window-layers 33
s '--max-num-seqs: 9 is not between 1 and the 8' --trace trace --max-num-seqs 9 --prefill-chunk 8
s '--kv-bits: ' --trace trace --kv-bits 7
s '--kv-floor: "t2" is not one of' --trace trace --kv-bits auto --kv-floor t2
s '--kv-floor: only kv_bits "auto" has' --trace trace --kv-floor t4
s '--kv-group-size: ' --trace trace --kv-group-size 128 --model-shape smollm2-135m
s '--policy: "lifo" is none of' --trace trace --policy equal,lifo
s '--policy: "" is none of' --trace trace --policy equal,
s '--policy: several need a --trace' --trace - --policy equal,fcfs
s '--target-step-ms: 60001' --trace trace --target-step-ms 60001
s '--speed: ' --trace trace --speed -1
expect 1 'missing: ' simulate --trace missing
echo '{"timestamp": 0}' >bad
expect 1 'bad: line 1: field input_length is missing' simulate --trace bad
: >empty
expect 1 'empty: ' simulate --trace empty
timeout 20 "$kvasir" simulate --trace trace -q --model-shape 1,1,64 >/dev/full 2>err
[ $? = 1 ] || die "simulate to a full disk"

good simulate --random 40 --seed 7 -q --json
python3 - <<'PY' || die "simulate --random"
import json
o = json.load(open("out"))
assert o["programs"] == 40 and o["requests"] > 1000 and o["steps"] > 5000
assert o["requests"] >= o["refused"] and o["finished"] > 500
assert min(o[k] for k in ("cancelled", "refused", "hits", "preemptions", "evicted_pages")) > 10, o
assert o["tokens_checked"] > 1e6
PY
cp out first
good simulate --random 40 --seed 7 -q --json
cmp -s out first || die "the same seed, other figures"

trace=$SHARED_DIR/traces/mooncake-fast25/conversation_trace.jsonl
[ -f "$trace" ] || skip "no trace: $trace"
good simulate --trace "$trace" --limit 500 --budget 20% --json -q
python3 - <<'PY' || die "the conversation trace"
import json
o = json.load(open("out"))
assert o["requests"] == 500 and o["prompt_tokens"] == 7124855 and o["generated_tokens"] == 180942
assert o["peak_bytes"] <= o["budget_bytes"] and o["evicted_pages"] > 10000
assert o["belady_hit_rate"] > o["hit_rate"] >= o["lru_hit_rate"] > 0.04
PY
good simulate --trace "$trace" --limit 500 --budget 5% --disk 60G --remote 1T --json -q
python3 - <<'PY' || die "the conversation trace with stores"
import json
o = json.load(open("out"))
assert o["generated_tokens"] == 180942 and o["peak_bytes"] <= o["budget_bytes"]
assert o["lru_hit_rate"] < o["hit_rate"] < o["belady_hit_rate_all"], o
assert all(t["hit_rate"] > 0.005 and t["bytes"] <= t["limit_bytes"] for t in o["tiers"]), o
assert o["memory_hit_rate"] > 0 and o["tier_loads"] > 20
PY
# little memory: requests preempt each other, and all are served
good simulate --trace "$trace" --limit 500 --budget 8G --json -q
[ "$(json preemptions)" -gt 0 ] && [ "$(json generated_tokens)" = 180942 ] ||
    die "a budget of hardly one request"
good simulate --trace "$trace" --limit 500 --budget 20% --json -q --speed 0 --max-num-seqs 1 \
    --prefill-chunk 4096 --model-shape smollm2-135m
python3 - <<'PY' || die "one request after the other"
import json
o = json.load(open("out"))
assert o["hit_rate"] >= o["lru_hit_rate"]
PY
exit 0
