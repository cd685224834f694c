#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir demo` with the demo model: two answers beside each other and the sentence of conclusion,
# the same as those of generate; columns on a terminal, errors.
. "$(dirname "$0")/../support/api.bash"
demo_model

head -c 1000 "$SOURCE_DIR/docs/glossary.md" >text
question="What is a page? Answer in one sentence."
d() { good demo -m "$demo" -f text -p "$question" -n 12 --temp 0 "$@"; }

side() { # 0|1 KEY: of ./out
    python3 -c 'import json, sys
print(json.load(open("out"))["sides"][int(sys.argv[1])][sys.argv[2]])' "$@"
}

d --json
[ "$(side 0 kv_bits) $(side 1 kv_bits)" = "f16 8,4" ] || die "formats"
[ "$(side 0 tokens)" -le 12 ] || die "-n"
[ "$(($(side 1 cache_bytes) * 2))" -lt "$(side 0 cache_bytes)" ] || die "cache bytes"
left=$(side 0 text) right=$(side 1 text)
{ cat text; printf '\n\n%s' "$question"; } >prompt
for bits in f16 8,4; do
    good generate -m "$demo" -f prompt -n 12 --temp 0 --kv-bits $bits --json -q
    [ "$(json text)" = "$([ $bits = f16 ] && echo "$left" || echo "$right")" ] ||
        die "generate --kv-bits $bits answers otherwise: $(json text)"
done

# the same formats: the same answer; the order of standard output
d --kv-bits f16
grep -q '^f16 cache  *| f16 cache$' out || die "no columns: $(cat out)"
grep -q 'tokens/s, .*MiB  *| .*tokens/s' out || die "no figures"
conclusion() { # PATTERN: of its two lines
    tail -n 2 out | tr '\n' ' ' | grep -Eq "$1" || die "no conclusion: $(tail -n 2 out)"
}
conclusion '1.0 times less, .*Both answers are the same. $'
d --kv-bits 2
grep -q '^2 cache' out && die "the order of the columns"
conclusion 'the 2 cache takes .* instead of .*The answers are the same for [0-9]+ characters. $'

# on a terminal the columns are drawn again and again
script -qec "\"$kvasir\" demo -m \"$demo\" -f text -p \"$question\" -n 6 --temp 0" /dev/null \
    >screen </dev/null || die "on a terminal"
[ "$(grep -c 'tokens/s' screen)" -ge 6 ] || die "the columns are not drawn again"

# Ctrl-C, a text that does not fit, flags that are missing
expect 2 '^kvasir demo: -f: missing' demo -m "$demo" -p x
expect 2 '^kvasir demo: -p: missing' demo -m "$demo" -f text
expect 2 '^kvasir demo: --kv-bits' demo -m "$demo" -f text -p x --kv-bits 9
expect 2 '^kvasir demo: --beside' demo -m "$demo" -f text -p x --beside 9
expect 1 "^kvasir demo: .* do not fit the context of 64" demo -m "$demo" -f text -p x --ctx 64
