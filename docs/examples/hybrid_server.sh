#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# hybrid_server.sh: models with layers of several kinds behind one cache of 8 bits: layers that see
# a window (Gemma 3, Gemma 4), recurrent ones (Qwen3.5, Qwen3-Next, LFM2), experts or none.
#
#   MODEL=model.gguf docs/examples/hybrid_server.sh
#   MODEL=checkpoint PROMPT='[1, 2, 3]' docs/examples/hybrid_server.sh     (without a tokenizer)
#
# Pages that a window has passed are given back; a recurrent layer has a state of fixed size, which
# the prefix tree keeps, too. So a prompt that comes again is found whole, and its answer does not
# change by that: bit for bit, as the log-probabilities show.
#
# PROMPT is JSON: a text or token ids. BITS are --kv-bits.
. "$(dirname "$0")/common.bash"
need_model gemma3-270m-q4_k_m.gguf
prompt=${PROMPT:-'"The three largest oceans of the world are"'}

serve --kv-bits "${BITS:-8}"
grep -E '^(model|cache|note): ' "$scratch/log"

complete() { # PROMPT
    printf '{"prompt": %s, "max_tokens": 24, "logprobs": 1, "temperature": 0}' "$1" |
        ask /v1/completions
}
# Cold; again, from the cache; and twice at once, in a batch.
complete "$prompt" >"$scratch/cold"
complete "$prompt" >"$scratch/again"
complete "$prompt" >"$scratch/batch1" & first=$!
complete "$prompt" >"$scratch/batch2" & second=$!
wait "$first" && wait "$second"

field choices 0 text <"$scratch/cold"
for answer in cold again batch1 batch2; do
    [ "$(field choices 0 logprobs token_logprobs <"$scratch/$answer")" = \
        "$(field choices 0 logprobs token_logprobs <"$scratch/cold")" ] ||
        { echo "$answer: another answer" >&2 && exit 1; }
    echo "$answer: $(field usage prompt_tokens_details cached_tokens <"$scratch/$answer") of" \
        "$(field usage prompt_tokens <"$scratch/$answer") prompt tokens from the cache"
done
echo "all four answers are the same, bit for bit; in the cache now:"
status | python3 -c '
import json, sys
for part in json.load(sys.stdin)["cache"]["by_format"]:
    if part["kind"] == "stored":
        print("  %-20s %10d bytes" % (part["format"], part["bytes"]))'
