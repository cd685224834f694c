#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The command line itself, without a model: help, version, wrong flags and values; every flag is in
# its man page, and no page has a flag that does not exist; the lists of flags in the documents
# match the program.
. "$(dirname "$0")/../support/api.bash"

good --version
grep -qx 'kvasir [0-9.]*' out || die "--version"
good --help
commands=$(sed -n 's/^  \([a-z-]*\)  *.*/\1/p' out)
for command in generate chat serve cache-prompt batch perplexity quality bench bench-kv-cache \
    calibrate info tokenize convert simulate cache grammar embed exactness pull list show \
    rm demo top; do
    grep -qx "$command" <<<"$commands" || die "--help does not tell of $command"
done
run
[ $? = 2 ] || die "no command"
expect 2 'unknown command "frobnicate"' frobnicate
expect 2 'unknown command "--frob"' --frob
expect 2 'unknown command "servee": did you mean serve? See kvasir help' servee
expect 2 'unknown command "gen": did you mean generate?' gen
good version
grep -qx 'kvasir [0-9.]*' out || die "version"
good help
grep -q '^  serve ' out || die "help"
good help serve
grep -q '^usage: kvasir serve ' out || die "help serve"
expect 2 'unknown command "frobnicate"' help frobnicate

for command in $commands; do
    good $command --help
    [ -s err ] && die "$command --help writes to standard error"
    awk 'length > 100 { bad = 1 } END { exit bad }' out || die "$command --help: a long line"
    page=$SOURCE_DIR/docs/man/kvasir-$command.1
    flags=$(grep -oE '^  (-., )?--[a-z-]*(, --[a-z-]*)?' out | grep -o -e '--[a-z-]*')
    [ -n "$flags" ] || die "$command --help lists no flags"
    for flag in $flags; do
        grep -q "Fl -${flag#--}\b" "$page" || die "$flag is not in $page"
    done
    for flag in $(grep '^\.It Fl' "$page" | grep -o 'Fl -[a-z-]*' | sed 's/Fl -/--/'); do
        grep -q -e "$flag\b" out || die "$page tells of $flag, kvasir $command does not know it"
    done
    expect 2 'unknown flag "--frob"' $command --frob
done

"$SOURCE_DIR/tools/flags.py" --check "$kvasir" || die "lists of flags in the documents"

g() { expect 2 "^kvasir generate: $1" generate "${@:2}"; }
g '-m: missing' -p hello
g '-m: needs a value' -m
g '-m: needs a value' -m --json
g '--model: needs a value' --model
g '--json: takes no value' --json=1
g 'unexpected argument "hello"' -m x hello
g '-n: "abc" is not a whole number' -m x -n abc
g '-n: "" is not a whole number' -m x -n ''
g '-n: "1e3" is not a whole number' -m x -n 1e3
g '-n: -1 is out of range' -m x -n -1
g '--max-tokens: 99999999999 is out of range' -m x --max-tokens=99999999999
g '-n: 99999999999999999999999 is out of range' -m x -n 99999999999999999999999
g '--temp: "warm" is not a number' -m x --temp warm
g '--temp: "nan" is not a number' -m x --temp nan
g '--temp: "0x1" is not a number' -m x --temp 0x1
g '--temp: -1 is out of range' -m x --temp -1
g '--top-p: 1.5 is out of range' -m x --top-p 1.5
g '--top-k: -3 is out of range' -m x --top-k -3
g '--xtc-probability: 2 is out of range' -m x --xtc-probability 2
g '--xtc-threshold: 0.6 is out of range' -m x --xtc-threshold 0.6
g '--min-tokens-to-keep: 0 is out of range' -m x --min-tokens-to-keep 0
g '--presence-penalty: "much" is not a number' -m x --presence-penalty much
g '--frequency-penalty: -2000 is out of range' -m x --frequency-penalty -2000
g '--repetition-penalty: -1 is out of range' -m x --repetition-penalty -1
g '--presence-context-size: -1 is out of range' -m x --presence-context-size -1
g '--logit-bias: "" at place 1 is not ID:BIAS' -m x -p a --logit-bias ''
g '--logit-bias: "5" at place 1 is not ID:BIAS' -m x -p a --logit-bias 5
g '--logit-bias: "-5:1" at place 1 is not' -m x -p a --logit-bias=-5:1
g '--logit-bias: "x:1" at place 5 is not' -m x -p a --logit-bias 5:1,x:1
g '--logit-bias: "6:" at place 5 is not' -m x -p a --logit-bias 5:1,6:
g '--logit-bias: "6:nan" at place 5 is not' -m x -p a --logit-bias 5:1,6:nan
g '--logit-bias: "" at place 5 is not' -m x -p a --logit-bias 5:1,
g '--logit-bias: "5: 1" at place 1 is not' -m x -p a --logit-bias '5: 1'
g '--logit-bias: "5:1;6:1" at place 1 is not' -m x -p a --logit-bias '5:1;6:1'
g '--logit-bias: "99999999999:1" at place 1 is not' -m x -p a --logit-bias 99999999999:1
g '--stop: the text is not UTF-8 at byte 1' -m x -p a --stop good --stop $'a\xff'
g '--prefill-chunk: -1 is out of range' -m x --prefill-chunk -1
g '--prefill-chunk: 4097 is out of range' -m x --prefill-chunk 4097
g '--seed: "-1"' -m x -p a --seed -1
g '--stop: the text is empty' -m x -p a --stop ''
g '-p, -f and --tokens: give one' -m x -p a -f b
g '--system: only allowed with' -m x -p a --raw --system b
g '--chat-template: only allowed with' -m x -p a --raw --chat-template f
g '--chat-template-kwargs: only allowed with' -m x --tokens 1 --chat-template-kwargs '{}'
g '--chat-template-kwargs: invalid JSON at byte 5: ' -m x -p a --chat-template-kwargs '{"a":'
g '--chat-template-kwargs: not a JSON object: \[1\]' -m x -p a --chat-template-kwargs '[1]'
g '-p: the prompt is empty' -m x -p ''
g 'standard input: the prompt is empty' -m x
g '--tokens: the prompt is empty' -m x --tokens ''
g '--tokens: "x,2" at place 3' -m x --tokens 1,x,2
g '--tokens: ",2" at place 3' -m x --tokens 1,,2
g '--tokens: "2," at place 3' -m x --tokens 1,2,
g '--tokens: 9999999999 is not a token' -m x --tokens 9999999999
long=$(printf 'x%.0s' $(seq 3000))
g 'unknown flag' -m x "--$long"
g 'unknown flag "--a?b"' -m x $'--a\nb'
expect 1 '^kvasir generate: /nowhere/m.gguf: No such file' generate -m /nowhere/m.gguf -p a
expect 1 '^kvasir generate: -f: /nowhere/t: No such file' generate -m x -f /nowhere/t
expect 1 '^kvasir generate: -f: \.: is a folder' generate -m x -f .
expect 1 '^kvasir generate: --chat-template: /nowhere/t: No such file' generate -m x -p a \
    --chat-template /nowhere/t
expect 1 '^kvasir generate: --logits: cannot write /nowhere/l' generate -m x -p a \
    --logits /nowhere/l
expect 1 '^kvasir generate: --logits: cannot write .*: Is a directory' generate -m x -p a --logits .
: >empty
expect 2 '^kvasir generate: -f: the prompt is empty' generate -m x -f empty

p() { expect 2 "^kvasir perplexity: $1" perplexity "${@:2}"; }
p '-m: missing' -f x
p '-f: missing' -m x
p '--window: 1 is out of range' -m x -f x --window 1
p '--base and --save-base: give one' -m x -f x --base a --save-base b
expect 1 '--save-base: cannot write /nowhere/b' perplexity -m x -f x --save-base /nowhere/b

b() { expect 2 "^kvasir bench-kv-cache: $1" bench-kv-cache "${@:2}"; }
b '--bits: .*"7"' --bits 7
b '--bits: .*"7"' --bits 8 7
b '--bits: needs a value' --bits
b '--group-size: "48"' --group-size 48
b '--group-size: .*96' --head-dim 96 --layers 1
b '--group-size: .*100' --head-dim 100
b '--head-dim: 8192 is out of range' --head-dim 8192
b '-m and -f: one needs the other' -m x
b '--layers, --heads and --head-dim follow' -m x -f y --layers 3
expect 2 '^kvasir calibrate: -m: missing' calibrate
expect 2 '^kvasir calibrate: -n: 127 is out of range' calibrate -m x -n 127
expect 1 '^kvasir calibrate: x: No such file' calibrate -m x
expect 2 '^kvasir info: MODEL: missing' info
expect 2 '^kvasir info: one MODEL only' info a b
expect 1 '^kvasir info: a: No such file' info a
exit 0
