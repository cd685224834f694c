#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir bench-kv-cache` and `kvasir info`: bytes that can be worked out by hand, a real text, and
# the figures of a tiny model.
. "$(dirname "$0")/../support/api.bash"
tiny_model

good bench-kv-cache --layers 1 --seq-len 128 --heads 2 --head-dim 128
[ -s out ] || die "no table"
grep -q '^8 .*1\.88x' out || die "8 bits do not save 1.88x"
grep -q '^4 .*3\.56x' out || die "4 bits do not save 3.56x"
good bench-kv-cache --layers 2 --seq-len 100 --heads 3 --head-dim 64 --group-size 32 --json -q \
    --bits 8 6 5 4 3 2 f16 8,4
[ -s err ] && die "--quiet speaks"
python3 - <<'PY' || die "bench-kv-cache --json"
import json
o = json.load(open("out"))
assert (o["layers"], o["seq_len"], o["heads"], o["head_dim"]) == (2, 100, 3, 64)
assert o["data"] == "normal"
bits = {"8": 9, "6": 7, "5": 6, "4": 5, "3": 4, "2": 3, "f16": 16, "8,4": 7}
values = 2 * 2 * 100 * 3 * 64
rows = {r["format"]: r for r in o["formats"]}
assert list(rows) == list(bits)
for name, b in bits.items():
    r = rows[name]
    assert r["bytes"] == values * b // 8 and r["bytes_16bit"] == values * 2, r
    assert abs(r["ratio"] - 16 / b) < 1e-9
    assert 0 < r["mean_error"] < r["max_error"] and r["encode_gb_s"] > 0 and r["decode_gb_s"] > 0
error = [rows[b]["mean_error"] for b in ("f16", "8", "6", "5", "4", "3", "2")]
assert error == sorted(error)
PY
# one layer of a long, wide cache: constant memory (65,536 x 4,096 floats alone would be 1 GiB)
[ -z "${KVASIR_SOAK:-}" ] || (
    ulimit -v 400000
    good bench-kv-cache --layers 1 --seq-len 65536 --heads 1 --head-dim 4096 --bits 4 -q
)

good info "$tiny"
grep -q '^KV cache' out || die "info: no table"
grep -q 'up to 128.0 KiB; so are those of --kv-exact-tail, 2.0 KiB each' out ||
    die "info: no open page"
good info "$tiny" --json
python3 - <<'PY' || die "info --json"
import json, os
o = json.load(open("out"))
assert 1 <= o["threads"] <= o["cores"] <= o["cpus"] == len(os.sched_getaffinity(0)), o
assert o["arch"] == "llama" and o["layers"] == 4 and o["kv_heads"] == 2 and o["head_dim"] == 64, o
f = {(k["kv_bits"], k["kv_group_size"]): k for k in o["kv_formats"]}
values = 4 * 2 * 64 * 2
for (bits, group), k in f.items():
    one = lambda b: {"f32": 32, "f16": 16, "bf16": 16}.get(b) or int(b) + 32 / int(group or 64)
    want = sum(one(b) for b in (bits.strip("rt").split(",") * 2)[:2]) / 2
    assert k["bytes_per_token"] == values * want / 8, k
    assert k["open_page_bytes"] == (64 * values * 2 if bits[0] in "rt" else 0), k
assert ("8,4", "64") in f and ("2", "32") in f and ("f16", None) in f
assert ("r8,4", "64") in f and ("t4", None) in f
PY
timeout 20 "$kvasir" info "$tiny" >/dev/full 2>err
[ $? = 1 ] || die "info to a full disk"
mkdir folder
expect 1 '^kvasir info: .*folder' info folder
: >empty.gguf
expect 1 '^kvasir info: empty.gguf: ' info empty.gguf
head -c 3000 /dev/urandom >noise.gguf
expect 1 '^kvasir info: noise.gguf' info noise.gguf

demo_model
text=$SHARED_DIR/text/wikitext-2-raw/wiki.test.raw
[ -f "$text" ] || skip "no text: $text"
head -c 400 "$text" >short
good bench-kv-cache -m "$demo" -f short --seq-len 70 --bits f32 8 4 --json -q
python3 - <<'PY' || die "bench-kv-cache of a text"
import json
o = json.load(open("out"))
assert (o["layers"], o["heads"], o["head_dim"], o["seq_len"]) == (30, 3, 64, 70)
assert o["data"] == "text"
f32, q8, q4 = o["formats"]
assert f32["mean_error"] == 0 and 0 < q8["mean_error"] < q4["mean_error"] < 1
PY
exit 0
