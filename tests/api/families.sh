#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Text in, text out, for every family: the tiny models, whose weights are random, with the tokenizer
# of stories260K (both have 512 tokens). This runs the command line's flags with every kind of
# layer; the goldens check what the answers should be.
. "$(dirname "$0")/../support/api.bash"
tiny_model
stories=$SHARED_DIR/models/stories260K/hf
text='Once upon a time' # its ids are those of llama2.c's own encoder, golden_encode_llama2c.json
ids='[1, 403, 407, 261, 378]'

# A sanitizer sees the default formats only.
formats=(f16 8,4)
[ "${TIMEOUT_FACTOR:-1}" = 1 ] || formats=(8,4)

for fixture in "$SHARED_DIR"/fixtures/tiny/*/; do
    name=$(basename "$fixture")
    mkdir "$name"
    ln -s "$fixture"{config.json,model.safetensors} "$stories"/tokenizer{,_config}.json "$name"
    group=$(python3 - "$name/config.json" <<'PY'
import json, sys
c = json.load(open(sys.argv[1]))
c = c.get("text_config", c)
dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
print(64 if dim % 64 == 0 else 32)
PY
)
    for bits in "${formats[@]}"; do
        good generate -m "$name" -p "$text" -n 40 --kv-bits $bits --kv-group-size "$group" --json
        answer=$(json ids)
        [ "$(json prompt_ids)" = "$ids" ] || die "$name: prompt_ids $(json prompt_ids)"
        case $name in # the first line names the format if all tokens of all layers have the same
            gemma* | gpt_oss | lfm2 | olmo3 | qwen3_5* | qwen3_next)
                grep -q '^note: .* layers\? sees\? .*: K .*B a token' err || die "$name: note"
                ;;
            *) grep -q '^cache:  K .*B a token' err || die "$name: the cache's line" ;;
        esac
        # Standard output without --json is the text itself, without the prompt. Tokens 3 to 258 are
        # single bytes; runs of them that are not UTF-8 have no unique text.
        good generate -m "$name" -p "$text" -n 40 --kv-bits $bits --kv-group-size "$group" -q
        python3 -c 'import sys
ids = [int(i) for i in sys.stdin.read().translate({ord(c): " " for c in "[],"}).split()]
bytes_at = [i for i, t in enumerate(ids) if 2 < t < 259]
print(*ids[1:bytes_at[0] if bytes_at else None])' <<<"$ids $answer" >plain
        timeout 100 "$kvasir" tokenize -m "$name" --decode <plain >decoded || die "$name: --decode"
        case $text$(tr -d "\0" <out) in
            "$(tr -d "\0" <decoded)"*) ;;
            *) die "$name $bits: not the text of its ids" ;;
        esac
        # The same in two runs with a prompt-cache file between them.
        printf %s "$text" >prompt
        good cache-prompt -m "$name" -f prompt --kv-bits $bits --kv-group-size "$group" -o c -q
        head=$(tr -d '[] ' <<<"$answer" | cut -d, -f1)
        good generate -m "$name" --tokens "$(tr -d '[] ' <<<"$ids"),$head" -n 8 --kv-bits $bits \
            --kv-group-size "$group" --json -q
        whole=$(json ids)
        good generate -m "$name" --prompt-cache c --tokens "$head" -n 8 --json -q
        [ "$(json ids)" = "$whole" ] || die "$name $bits: $(json ids) behind the file, not $whole"
    done
done
