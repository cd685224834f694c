#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir calibrate` and --key-centre with the demo model: the file appears whole or not at all,
# auto finds it, a damaged file or one of another model is refused, and Ctrl-C leaves nothing.
. "$(dirname "$0")/../support/api.bash"
demo_model
ln -s "$demo" model.gguf
file=model.gguf.key-centre.safetensors

good calibrate -m model.gguf --json -n 128
[ "$(json tokens) $(json rotary_pairs) $(json file)" = "124 32 $file" ] || die "figures"
[[ $(json heads) -gt 0 && $(json gain) > 1 ]] || die "bases"
[ -s "$file" ] || die "no file"
ls ./*.tmp-* >/dev/null 2>&1 && die "a .tmp file is left"

# auto uses the file, off does not; exact keys are never centred; the fingerprints differ
p() { good generate -m model.gguf -p Hello -n 2 --ctx 128 --temp 0 --json "$@"; }
p
grep -q '^note: *keys are centred by the calibration file beside the model: ' err || die "auto"
auto=$(json fingerprint)
p --key-centre "./$file"
[ "$(json fingerprint)" = "$auto" ] || die "the same centres, another fingerprint"
p --key-centre off
grep -q centred err && die "off centres"
off=$(json fingerprint)
[ "$off" != "$auto" ] || die "other centres, the same fingerprint"
p --kv-bits f16
grep -q centred err && die "f16 keys are centred"
p --kv-bits f16 --key-centre "$file"
grep -q '^note: *--key-centre has no effect' err || die "f16 keys: no word"

# another text gives another file; a text that is too short gives none
seq 1 400 >numbers
cp "$file" first
good calibrate -m model.gguf -n 128 -f numbers -q
cmp -s "$file" first && die "the text makes no difference"
echo short >short
expect 2 '^kvasir calibrate: .* tokens are too few' calibrate -m model.gguf -f short -o none -q
[ -e none ] && die "a file of too few tokens"
expect 1 '-o: cannot write no/such/folder' calibrate -m model.gguf -o no/such/folder/f -q

# bad files are refused, also if auto finds them
bad() { expect "$1" "^kvasir generate: --key-centre: .*$2" generate -m model.gguf -p a "${@:3}"; }
good calibrate -m model.gguf -n 128 -q
head -c 20000 "$file" >cut
bad 2 'cut: ' --key-centre cut
bad 2 'none: No such file' --key-centre none
bad 2 'numbers: ' --key-centre numbers
python3 - "$file" <<'PY'
import re, sys
data = open(sys.argv[1], "rb").read()
open("other", "wb").write(re.sub(rb'"model":"[0-9a-f]{16}"', b'"model":"0123456789abcdef"', data))
damaged = bytearray(data)
damaged[-100] ^= 4
open(sys.argv[1], "wb").write(damaged)
PY
bad 2 'other was made with another model' --key-centre other
bad 2 'checksum'
p --key-centre off
expect 2 '^kvasir generate: --key-centre: the model has no key biases' \
    generate -m model.gguf -p a --key-centre bias

# a tile format: the first start measures and says so, the next ones use that; not if told not to,
# not for other formats, and not if `kvasir calibrate` was run
mv "$file" kept
kept=("$XDG_CACHE_HOME"/kvasir/calibrations/*.safetensors)
[ -e "${kept[0]}" ] && die "calibrated before"
p --kv-bits t4 --calibrate off
grep -q '^note: *keys are rotated, not balanced: ' err || die "off: no word of what it costs"
p --kv-bits 8
off=$(json fingerprint)
p --kv-bits t4
kept=("$XDG_CACHE_HOME"/kvasir/calibrations/*.safetensors)
grep -q "^note: *calibrated model.gguf for t4: [0-9.]* s, written to ${kept[0]}$" err ||
    die "no line"
grep -q '^note: *keys are balanced with queries by a calibration made for this model$' err ||
    die "own"
[ "$(ls "${kept[0]%/*}")" = "${kept[0]##*/}" ] || die "more than one file"
own=$(json fingerprint)
p --kv-bits t4
grep -q calibrated err && die "calibrated twice"
[ "$(json fingerprint)" = "$own" ] || die "kept, another fingerprint"
p --kv-bits 8
[ "$(json fingerprint)" = "$off" ] || die "a calibration nobody asked for counts for 8 bits"
XDG_CACHE_HOME=/dev/null p --kv-bits t4
grep -q '^note: *calibrated .* kept in memory only: /dev/null' err || die "no folder: no word"
[ "$(json fingerprint)" = "$own" ] || die "in memory, another fingerprint"
rm "${kept[0]}"
good calibrate -m model.gguf -n 128 -q
p --kv-bits t4
grep -q '^note: *keys are balanced with queries by the calibration file beside the model$' err ||
    die "the user's file"
[ -e "${kept[0]}" ] && die "calibrated beside the user's file"
mv kept "$file"

# Ctrl-C leaves the old file
cp "$file" before
timeout --foreground 60 "$kvasir" calibrate -m model.gguf -n 8192 \
    -f "$SHARED_DIR/text/wikitext-2-raw/wiki.test.raw" >out 2>err &
pid=$!
for _ in $(seq 100); do
    ls "$file".tmp-* >/dev/null 2>&1 && break
    sleep 0.1
done
sleep 0.5
kill -INT $pid
wait $pid
[ $? = 130 ] || die "Ctrl-C: exit code"
cmp -s "$file" before || die "Ctrl-C changes the file"
ls ./*.tmp-* >/dev/null 2>&1 && die "a .tmp file is left"
exit 0
