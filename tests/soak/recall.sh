#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# recall.sh PROGRAM: the model recalls a fact at the start of a long prompt with 8-bit keys and
# 4-bit values: Qwen2.5-Coder-0.5B through `kvasir serve`, 22,000 tokens, minutes (`make soak`).
#
# Qwen2.5 has large key biases, which is why its quantized keys are centred (docs/quality.md).
# TOKENS is the length of the prompt.
KVASIR=$(realpath "$1")
. "$(dirname "$0")/../../docs/examples/common.bash"
MODEL=${MODEL:-$MODELS_DIR/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf}
[ -f "$MODEL" ] || { echo "skipped: no model at $MODEL (make models)" && exit 77; }
tokens=${TOKENS:-22000} fact='blue heron 4417'

log_book() { # ENTRIES: the fact, and unrelated lines
    python3 - "$1" "$fact" <<'PY'
import json, sys
places = "harbour", "lighthouse", "north pier", "boat house", "signal station", "old mill"
weather = "calm", "fog", "a fresh breeze", "rain", "drifting ice", "a clear sky", "a swell"
print(f"The pass phrase of the lighthouse is \"{sys.argv[2]}\". What follows is the log book.")
for i in range(int(sys.argv[1])):
    print(f"Entry {i + 1}: at the {places[i * 7 % 6]} there was {weather[i * 5 % 7]}, "
          f"{(i * 37) % 31 - 5} degrees and {(i * 13) % 11} boats.")
PY
}
count() { # ENTRIES: how many tokens they have
    printf '{"prompt": %s}' "$(log_book "$1" | quote)" | ask /tokenize | field count
}
serve --kv-bits 8,4 --ctx $((tokens + 1024)) "${@:2}"
entries=$((1000 * tokens / $(count 1000))) # late entries have more digits
while [ "$(count $entries)" -lt "$tokens" ]; do
    entries=$((entries + entries / 100 + 1))
done
{
    log_book $entries
    echo "That was the log book. What is the pass phrase of the lighthouse? Answer with it alone."
} >"$scratch/prompt"
printf '{"messages": [{"role": "user", "content": %s}], "max_tokens": 24, "temperature": 0}' \
    "$(quote <"$scratch/prompt")" | ASK_SECONDS=7200 ask /v1/chat/completions >"$scratch/answer"
answer=$(field choices 0 message content <"$scratch/answer")
echo "recall: $(field usage prompt_tokens <"$scratch/answer") tokens, then: $answer"
grep -E ' id=.* route=chat ' "$scratch/log" | sed 's/^.* request_id=/recall: request_id=/'
if [[ $answer != *"$fact"* ]]; then
    echo "recall: the answer is not \"$fact\"" >&2
    exit 1
fi
