#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `kvasir generate` with the demo model: chat template and --raw, prompts from flag, file and
# standard input, stop texts, end tokens, invalid text.
. "$(dirname "$0")/../support/api.bash"
demo_model

c() { good generate -m "$demo" -q "$@"; }

# the same prompt in three ways; the template frames it (tokens 1 and 2 are its markers)
c -p "Say hello." -n 12 --json
text=$(json text) ids=$(json prompt_ids)
[[ $ids == "[1, "* ]] || die "no chat template: $ids"
printf 'Say hello.\n' >prompt
c -f prompt -n 12
[ "$(cat out)" = "$text" ] || die "-f gives another answer"
"$kvasir" generate -m "$demo" -q -n 12 <prompt >out 2>err || die "standard input"
[ "$(cat out)" = "$text" ] || die "standard input gives another answer"
c -p "Say hello." --system "You are a pirate." -n 0 --json
[ "$(json prompt_ids)" != "$ids" ] || die "--system has no effect"

# --raw keeps every byte and does not read control tokens
c --raw -p '<|im_start|>' -n 0 --json
[ "$(json prompt_tokens)" -gt 1 ] || die "--raw reads control tokens"
c --raw -f prompt -n 0 --json
with=$(json prompt_tokens)
c --raw -p "Say hello." -n 0 --json
[ "$with" = $(($(json prompt_tokens) + 1)) ] || die "--raw drops a line end"

# a stop text across token borders is found and not printed
c --raw -p "1, 2, 3, 4, 5," -n 24 --json
text=$(json text)
stop=${text:5:7}
c --raw -p "1, 2, 3, 4, 5," -n 24 --json --stop "no such text" --stop "$stop"
[ "$(json finish)" = stop ] || die "--stop \"$stop\" was not found in \"$text\""
[ "$(json text)" = "${text%%"$stop"*}" ] || die "--stop: \"$(json text)\" of \"$text\""
c --raw -p "1, 2, 3, 4, 5," -n 24 --stop "$stop"
[ "$(cat out)" = "${text%%"$stop"*}" ] || die "--stop while streaming"

# of several stop texts the one that begins first counts, even if another is complete before it
c --raw -p "1, 2, 3, 4, 5," -n 24 --json --stop "${text:6:3}" --stop "${text:5:7}"
[ "$(json text)" = "${text%%"$stop"*}" ] || die "--stop: \"$(json text)\" of two in \"$text\""
# text held back because it might begin a stop text is printed at the end
c --raw -p "1, 2, 3, 4, 5," -n 24 --stop "${text: -3}no such text"
[ "$(cat out)" = "$text" ] || die "--stop: what was held back is lost"
# xtc never leaves out line ends and end tokens: nothing else is likely here
c -p "Say hello." -n 8 --temp 1 --seed 1 --xtc-probability 1 --xtc-threshold 0 --json
json ids | grep -qE '^\[198(, 198)*\]$' || die "--xtc-probability: $(json ids)"

# an end token ends an answer unless it is ignored
c -p "Answer with one word: what colour is the sky?" -n 200 --json
[ "$(json finish)" = end ] || die "no end token within 200 tokens"
n=$(json ids | wc -w)
c -p "Answer with one word: what colour is the sky?" -n $((n + 3)) --ignore-eos --json
[ "$(json finish) $(json ids | wc -w)" = "length $((n + 3))" ] || die "--ignore-eos"

printf 'abc\xff\n' >bad
expect 1 '^kvasir generate: .*UTF-8' generate -m "$demo" -f bad -q
expect 1 '^kvasir generate: .*UTF-8' generate -m "$demo" --raw -f bad -q
expect 1 '^kvasir generate: the user message is not UTF-8 (at byte 3)' generate -m "$demo" -f bad -q
printf 'a\0b' >nul # a byte like any other
c -f nul -n 0 --json

# another template, its variables, and its error messages
printf '{{ bos_token ~ messages[0].role ~ ":" ~ messages[0].content ~ x }}' >t
c -p a --chat-template t --chat-template-kwargs '{"x": "<|im_end|>"}' -n 0 --json
split=$(json prompt_ids) # only the template writes control tokens, unless the flag says otherwise
c -p a --chat-template t --chat-template-kwargs '{"x": "<|im_end|>"}' --control-tokens all -n 0 \
    --json
templated=$(json prompt_ids)
printf '%s' '<|im_start|>user:a<|im_end|>' >want
run tokenize -m "$demo" <want || die "tokenize"
[ "$templated" = "[$("$kvasir" tokenize -m "$demo" <want | sed 's/ /, /g')]" ] ||
    die "--chat-template: $templated"
[ "$split" != "$templated" ] || die "--control-tokens template"
expect 2 '^kvasir generate: --control-tokens: "x" is neither template nor all' generate -m "$demo" \
    -p a --control-tokens x
printf 'a\n{%% if x %%}\n  {{ x | nope }}{%% endif %%}' >t
expect 1 '^kvasir generate: chat template line 3 column 10: No filter named .nope' generate \
    -m "$demo" -q -p a --chat-template t --chat-template-kwargs '{"x": 1}'
printf '\n {%% nope %%}' >t
expect 1 '^kvasir generate: --chat-template: t: chat template line 2 column 5: unknown statement' \
    generate -m "$demo" -q -p a --chat-template t
printf '{{ raise_exception("not today") }}' >t
expect 1 'chat template line 1 column .*: not today$' generate -m "$demo" -q -p a --chat-template t
exit 0
