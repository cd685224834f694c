#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir perplexity` with the demo model on a short text: keys, windows, --nll, base files and bad
# base files. golden.* checks whether the figures are right.
. "$(dirname "$0")/../support/api.bash"
demo_model
text=$SHARED_DIR/text/wikitext-2-raw/wiki.test.raw
[ -f "$text" ] || skip "no text: $text"
head -c 1500 "$text" | iconv -c -f utf-8 -t utf-8 >short

p() { good perplexity -m "$demo" -f short --window 48 --windows 2 "$@"; }
keys() { python3 -c 'import json; print(*sorted(json.load(open("out"))))'; }

p --json --kv-bits f16 --save-base base --nll nll
[ "$(keys)" = "kv_bytes_per_token nll_mean ppl tokens" ] || die "keys: $(keys)"
[ "$(json tokens) $(json kv_bytes_per_token)" = "94 23040" ] || die "tokens or bytes"
grep -q '^window 2 of 2' err || die "no progress"
python3 - <<'PY' || die "--nll"
import json, math, struct
def load(path):
    data = open(path, "rb").read()
    n, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + n]), data[8 + n:]
head, data = load("nll")
assert head["nll"]["shape"] == [2, 47] and head["nll"]["dtype"] == "F32"
nll = struct.unpack("<94f", data)
out = json.load(open("out"))
mean = sum(nll) / 94
assert abs(mean - out["nll_mean"]) < 1e-5 and abs(math.exp(mean) / out["ppl"] - 1) < 1e-5
# the base file holds the same losses
head, data = load("base")
assert head["ids"]["shape"] == [2, 48] and head["logits"]["shape"] == [2, 47, 49152]
ids = struct.unpack("<96i", data[:384])
for i in (0, 46, 47, 93):
    row = struct.unpack("<49152f", data[384 + i * 49152 * 4:384 + (i + 1) * 49152 * 4])
    m = max(row)
    loss = m + math.log(sum(math.exp(x - m) for x in row)) - row[ids[i // 47 * 48 + i % 47 + 1]]
    assert abs(loss - nll[i]) < 1e-4, i
PY

all="kld_max kld_mean kld_median kld_p99 kld_p999 kv_bytes_per_token nll_mean ppl same_top tokens"
mean=$(json nll_mean)
p --json --kv-bits f16 --base base
[ "$(keys)" = "$all" ] || die "keys with --base: $(keys)"
[ "$(json kld_max) $(json same_top) $(json nll_mean)" = "0.0 1.0 $mean" ] || die "against itself"
p --json --kv-bits 8,4 --base base
python3 - <<'PY' || die "8,4 against f16"
import json
o = json.load(open("out"))
assert 0 < o["kld_median"] <= o["kld_p99"] <= o["kld_p999"] <= o["kld_max"], o
assert 0 < o["kld_mean"] < 0.5 and 0.5 < o["same_top"] <= 1, o
PY
good perplexity -m "$demo" -f short --window 48 --windows 1 --kv-bits f16 --base base -q
grep -q '^KL from base mean 0,' out || die "fewer windows than the base has"

# base files that do not fit are refused
bad() { expect "$1" "^kvasir perplexity: $2" perplexity -m "$demo" --kv-bits f16 -q "${@:3}"; }
bad 2 '--base: base has windows of 48' -f short --window 40 --windows 2 --base base
bad 2 '--base: base has 2 windows, this run has 3' -f short --window 48 --windows 3 --base base
{ printf 'Another beginning. '; cat short; } >other
bad 2 '--base: base was saved for another text' -f other --window 48 --windows 2 --base base
head -c 5000000 base >cut
bad 1 '--base: cut: tensor logits: data_offsets end at' -f short --window 48 --windows 2 --base cut
head -c 5 base >cut
bad 1 '--base: cut: the file ends inside' -f short --window 48 --windows 2 --base cut
bad 1 '--base: nll: has no tensor "ids"' -f short --window 48 --windows 2 --base nll
printf '\x10\0\0\0\0\0\0\0{"ids":[1,2,3]} ' >cut
bad 1 '--base: cut: tensor ids must be an object' -f short --window 48 --windows 2 --base cut
printf '\xff\xff\xff\xff\xff\xff\xff\x7f{}' >cut
bad 1 '--base: cut: the header.s length' -f short --window 48 --windows 2 --base cut
bad 1 '--base: short: ' -f short --window 48 --windows 2 --base short
bad 1 '--base: none: No such file' -f short --window 48 --windows 2 --base none
bad 1 '-f: short has [0-9]* tokens, one window needs 4000' -f short --window 4000
: >empty
bad 1 '-f: empty: the text is empty' -f empty
printf 'abc\xff' >invalid
bad 1 '.*UTF-8' -f invalid
[ -e /dev/full ] && bad 1 '--save-base: cannot write /dev/full: No space' -f short --window 48 \
    --windows 1 --save-base /dev/full
# Ctrl-C leaves no half-written file
timeout --foreground 60 "$kvasir" perplexity -m "$demo" -f "$text" --save-base big >out 2>err &
pid=$!
for _ in $(seq 100); do
    ls big.tmp-* >/dev/null 2>&1 && break
    sleep 0.1
done
kill -INT $pid
wait $pid
[ $? = 130 ] || die "Ctrl-C: exit code"
[ -e big ] && die "Ctrl-C leaves the base file"
ls ./*.tmp-* >/dev/null 2>&1 && die "a .tmp file is left"
exit 0
