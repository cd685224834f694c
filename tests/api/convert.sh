#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir convert: folders appear complete or not at all, options, refused input.
. "$(dirname "$0")/../support/api.bash"
tiny_model

c() { expect 2 "^kvasir convert: $1" convert "${@:2}"; }
c 'IN: missing'
c 'OUT: missing' "$tiny"
c 'one OUT only, then came "third"' "$tiny" a third
c '--bits: 7 is not 2, 3, 4, 5, 6 or 8' "$tiny" a --bits 7
c '--bits: 9 is out of range' "$tiny" a --bits 9
c '--group-size: 48 is not 32, 64 or 128' "$tiny" a --bits 4 --group-size 48
c '--dtype: "f8" is not bf16, f16 or f32' "$tiny" a --dtype f8
mkdir there
c 'there: already exists' "$tiny" there/
expect 1 'nowhere: No such file' convert nowhere a
expect 1 'cannot create a folder' convert "$tiny" no/such/folder/a
[ -z "$(ls -d a* no* 2>/dev/null)" ] || die "a refused run left something"

# Converting to the model's own type changes nothing: f32 of f32 is the same model.
good convert "$tiny" plain --dtype f32
good convert plain/ again --dtype f32
cmp plain/model.safetensors again/model.safetensors || die "a second conversion differs"
good convert plain q8 --bits 8 --group-size 32 --dtype f32
good convert q8 q8-again --bits 8 --group-size 32 --dtype f32
cmp q8/model.safetensors q8-again/model.safetensors || die "codes changed on the way"
good info q8 --json
json weight_types | grep -q AFFINE8 || die "no AFFINE8 in the quantized folder"

# A killed run leaves nothing under the final name, an interrupted one nothing at all.
demo_model

# Memory, apart from the mapped input: 1.5 times the largest tensor, the embedding (49152 x 576 in
# Q8_0, 30 MB). A sanitizer's own mappings would count, too, so its builds skip this.
if ! grep -qs '^KVASIR_SANITIZE:STRING=.' "$(dirname "$kvasir")/CMakeCache.txt"; then
    for flags in '--bits 4' '--dtype f32'; do
        # shellcheck disable=SC2086 # words
        (ulimit -d 45000 && timeout 100 "$kvasir" convert "$demo" small $flags) >out 2>err ||
            die "convert $flags in 45 MB"
        rm -r small
    done
fi

# writes PID NAME: waits until the run writes NAME's temporary folder; a signal before that, or
# after the end, would test nothing.
writes() {
    for _ in $(seq 3000); do
        ls -d "$2".tmp-* >/dev/null 2>&1 && return
        kill -0 "$1" 2>/dev/null || die "$2: ended, and no temporary folder was seen"
        sleep 0.02
    done
    die "$2: no temporary folder after a minute"
}
"$kvasir" convert "$demo" killed --bits 4 >/dev/null 2>err &
pid=$!
writes "$pid" killed
kill -KILL "$pid"
wait "$pid" 2>/dev/null
[ -e killed ] && die "killed, and a folder under the final name"
ls -d killed.tmp-* >/dev/null 2>&1 || die "killed, and not while it wrote"
# (A shell starts background commands with Ctrl-C ignored.)
env --default-signal=INT "$kvasir" convert "$demo" stopped --bits 4 >/dev/null 2>err &
pid=$!
writes "$pid" stopped
kill -INT "$pid"
wait "$pid"
code=$?
[ $code = 130 ] || die "interrupted: exit code $code, not 130"
[ -z "$(ls -d stopped* 2>/dev/null)" ] || die "interrupted, and something is left"
exit 0
