#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir quality` with random weights and a tokenizer of 512 tokens: the same figures as
# `kvasir perplexity --base`, depths, a run that is continued, the plot, and what is refused;
# tools/retrieval.py.
. "$(dirname "$0")/../support/api.bash"
tiny_model
text=$SHARED_DIR/text/wikitext-2-raw/wiki.test.raw
[ -f "$text" ] || skip "no text: $text"
head -c 3000 "$text" | iconv -c -f utf-8 -t utf-8 >short
mkdir model
cp "$tiny"/{config.json,model.safetensors} "$SHARED_DIR"/models/stories260K/hf/tokenizer* model/

q() { good quality -m model -f short --window 160 --windows 2 --threads 1 "$@"; }
bad() {
    expect "$1" "^kvasir quality: $2" quality -m model -f short --window 160 --threads 1 "${@:3}"
}

# other sizes of steps, several formats at once: the same bits as perplexity's
q --kv-bits 8,4 4 f16 --depths 100,0 --prefill-chunk 48 --json -q --svg plot.svg
[ -s err ] && die "--quiet speaks"
mv out quality.json
p() {
    good perplexity -m model -f short --window 160 --windows 2 --act-bits 16 --threads 1 --json \
        --kv-bits "$@" -q
}
p f32 --save-base base
mv out f32.json
p 4 --base base
python3 - <<'PY' || die "not the figures of perplexity"
import json, math
o, base, four = (json.load(open(f)) for f in ("quality.json", "f32.json", "out"))
rows = {(r["kv_bits"], r["depth"]): r for r in o["results"]}
assert list(rows) == [(b, d) for b in ("f32", "8,4", "4", "f16") for d in (0, 100)]
assert o["windows"] == 2 and o["window"] == 160 and o["machine"]["act_bits"] == 16
for (bits, depth), r in rows.items():
    assert r["tokens"] == 2 * (159 - depth) and r["tokens_per_second"] > 0
    assert ("kld_mean" in r) == (bits != "f32")
    assert r["page_bytes_per_token"] * 64 % 4096 == 0
    assert r["page_bytes_per_token"] >= r["kv_bytes_per_token"], r
    assert abs(r["ppl"] / rows["f32", depth]["ppl"] / r["ppl_ratio"] - 1) < 1e-9
close = lambda a, b: abs(a - b) <= 1e-6 * abs(b) # kept as float32
assert close(rows["f32", 0]["nll_mean"], base["nll_mean"]), "exact loss"
for key in ("nll_mean", "kld_mean", "kld_median", "kld_p99", "kld_max", "same_top"):
    assert close(rows["4", 0][key], four[key]), (key, rows["4", 0][key], four[key])
assert rows["f16", 0]["kld_mean"] < 1e-4 < rows["8,4", 0]["kld_mean"] < rows["4", 0]["kld_mean"]
assert rows["4", 0]["bits_per_value"] == 4.5 and rows["f16", 0]["bits_per_value"] == 16
assert rows["4", 0]["kld_mean"] != rows["4", 100]["kld_mean"]
PY

# tile formats have an exact start, whose bytes count; explicitly without one they have none
q --kv-bits t4 --json -q && mv out tiles.json
q --kv-bits t4 --quantized-kv-start 0 --json -q
python3 - <<'PY' || die "the exact start of tiles"
import json
start, none = ([r for r in json.load(open(f))["results"] if r["kv_bits"] == "t4"][0]
               for f in ("tiles.json", "out"))
pages = 3 # of 160 tokens
assert start["kld_mean"] < none["kld_mean"], (start, none)
assert start["bits_per_value"] > none["bits_per_value"] + (16 - 5) / pages, (start, none)
PY
# a run in three parts, of other windows and formats, ends with the same figures
cmp_to() { # without what depends on time
    python3 - "$1" out <<'PY' || die "continued: other figures than $1"
import json, sys
a, b = (json.load(open(f))["results"] for f in sys.argv[1:])
for r in a + b:
    del r["tokens_per_second"]
assert a == b, (a, b)
PY
}
q --kv-bits 4 --depths 0,100 --windows 1 --resume state --json
q --kv-bits 8,4 4 --depths 0,100 --windows 1 --resume state --json
grep -q '^window 1 of 1: .* KL 8,4 ' err || die "8,4 did not run"
grep -q '^window .* KL 4 ' err && die "4 ran again"
q --kv-bits 8,4 4 f16 --depths 0,100 --resume state --json
cmp_to quality.json
q --kv-bits 8,4 4 f16 --depths 0,100 --resume state --json -q
cmp_to quality.json
q --kv-bits 8,4 4 --depths 0,100 --resume state
grep -q '^window' err && die "finished windows ran again"
[ "$(grep -cE '^(f32|8,4|4) +(0|100) ' out)" = 6 ] || die "the table"
ls ./state.tmp-* >/dev/null 2>&1 && die "a .tmp file is left"
other='--resume: state is of another run'
bad 2 "$other (.* from position 0.*), this one is: .* from position 9" --depths 9 --resume state -q
bad 2 "$other" --act-bits 8 --resume state -q
head -c 4000 state >cut
bad 1 '--resume: cut: ' --resume cut -q
cp base other
bad 1 '--resume: other: not a file of kvasir quality' --resume other -q
bad 1 '--resume: short: ' --resume short -q
[ -e /dev/full ] && bad 1 '--resume: cannot write /nowhere/x' --resume /nowhere/x -q

# the plot
cat >peers.json <<'JSON'
{"peers": [{"name": "a & b", "model": "MOD", "source": "here",
            "points": [{"kv": "q", "bits": 8.5, "kld_mean": 0.01},
                       {"kv": "<r>", "bits": 4.5, "kld_mean": 0.5}]},
           {"name": "elsewhere", "model": "llama", "source": "there", "points": []}]}
JSON
q --kv-bits 8,4 4 --depths 0,100 --resume state --svg plot.svg --peers peers.json -q
python3 - <<'PY' || die "the plot"
import xml.etree.ElementTree as xml
svg = xml.parse("plot.svg").getroot()
tag = lambda name: list(svg.iter("{http://www.w3.org/2000/svg}" + name))
assert len(tag("polyline")) == 3 and len(tag("circle")) == 6
texts = [t.text for t in tag("text")]
assert "a & b" in texts and "<r>" in texts and "elsewhere" not in texts, texts
assert "Kvasir, from depth 100" in texts
PY
bad 2 '--peers: only allowed with --svg' --peers peers.json
echo '{"peers": [{"name": "x"}]}' >peers.json
bad 1 '--peers: peers.json: peers\[0\] needs name, model and source' --svg p.svg --peers peers.json
echo '[]' >peers.json
bad 1 '--peers: peers.json: it has no array "peers"' --svg p.svg --peers peers.json

bad 2 '--depths: a window of 160 tokens has no prediction behind 159 others' --depths 0,159
bad 2 '--kv-bits: f32 is the exact run' --kv-bits 8 f32 -q
bad 2 '--kv-bits: 8,8 and 8 are the same' --kv-bits 8 8,8 -q
bad 2 '--kv-bits: 4 is given twice' --kv-bits 4 8 4
bad 1 '-f: none: No such file' -f none -q

# questions about facts and sums: answers over a hit are those without
ask() { KVASIR=$kvasir python3 "$SOURCE_DIR/tools/retrieval.py" "$@" --formats f32 t4 >out 2>err; }
ask facts model --tokens 700 --cold 2 --text "$text" || die "facts"
[ "$(grep -c '^| .* of 10 | .* of 2 | 2 of 2 |$' out)" = 2 ] || die "facts: lines"
ask sums model --questions 3 --state sums || die "sums"
grep -q '^| f32 | [0-9]* | [0-3] of 3 | 0 | 0.0 % |$' out || die "sums: the exact run"
ls sums/model-sums-3-t4.out >/dev/null || die "sums: no answers are kept"

# Ctrl-C keeps what is finished
timeout --foreground 60 env --default-signal=INT "$kvasir" quality -m model -f "$text" --threads 1 \
    --windows 0 --resume big >out 2>err </dev/null &
pid=$!
for _ in {1..300}; do
    [ -e big ] && break
    sleep 0.1
done
kill -INT $pid # timeout passes it on
wait $pid
[ $? = 130 ] || die "Ctrl-C: exit code"
grep -q 'interrupted: big has the finished windows' err || die "Ctrl-C: no message"
[ -s out ] && die "Ctrl-C: results"
exit 0
