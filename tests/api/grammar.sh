#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir grammar check`: its lines and exit codes, for schemas, expressions and GBNF grammars,
# instances in files, on standard input and in lines.
. "$(dirname "$0")/../support/api.bash"

# check CODE LINES ARG...: standard output is exactly LINES (a format of printf).
check() {
    local code=$1 lines=$2 got
    shift 2
    run grammar check "$@"
    got=$?
    [ "$got" = "$code" ] || die "exit code $got, not $code: kvasir grammar check $*"
    printf "$lines" | cmp -s - out || die "other lines: kvasir grammar check $*"
}

expect 2 '^kvasir grammar: ACTION: missing' grammar
expect 2 '^kvasir grammar: SCHEMA: missing' grammar check
expect 2 'unknown action "list"' grammar list x
expect 2 'SCHEMA: none: No such file' grammar check none
expect 2 'only one is allowed' grammar check x --gbnf --regex
expect 2 '^kvasir grammar: --jsonl: needs an INSTANCE' grammar check x --gbnf --jsonl

# ---- GBNF and regular expressions ----------------------------------------------------------------

echo 'root ::= "a"+ "b"?' >ab.gbnf
printf aaab >aaab
printf abb >abb
printf '' >empty
check 0 '' ab.gbnf --gbnf
check 0 'accept\n' ab.gbnf aaab --gbnf
check 1 'accept\nrefuse: byte 2\nrefuse: byte 0: the text must go on\n' \
    --gbnf ab.gbnf aaab abb empty
expect 2 'INSTANCE: none: No such file' grammar check ab.gbnf none --gbnf
echo 'root ::= "a' >cut.gbnf
expect 2 'cut.gbnf: line 2, column 1: the grammar ends' grammar check cut.gbnf --gbnf
echo 'root ::= "x" | root "a"' >left.gbnf
expect 3 'left.gbnf: not supported: rule root calls itself' grammar check left.gbnf --gbnf
printf '[a-z]+-\\d{2}\n' >id.regex
printf 'ab-12' >good
printf 'ab-1x' >bad
check 1 'accept\nrefuse: byte 4\n' id.regex good bad --regex
printf 'a-12\n\nb-3\nc-44\n' >lines
check 1 'accept\nrefuse: byte 3: the text must go on\naccept\n' id.regex lines --regex --jsonl
printf '(a' >open.regex
expect 2 'open.regex: ' grammar check open.regex --regex
printf 'a-12' | "$kvasir" grammar check id.regex - --regex >out 2>err || die "standard input"

# ---- 2,000 instances -----------------------------------------------------------------------------

check 0 "$(printf 'accept\\n%.0s' $(seq 2000))" ab.gbnf --gbnf $(yes aaab | head -2000)
