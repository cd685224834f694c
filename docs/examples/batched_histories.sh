#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# batched_histories.sh: long histories are evaluated once, kept as prompt-cache files with quantized
# keys and values, and questions about them answered in one batch.
#
#   MODEL=model.gguf docs/examples/batched_histories.sh [FILE FILE]
#
# The sequences of a batch have any lengths and start from any files: there is no padding, and an
# answer is the one that the same question gets alone, which is looked at in the end.
#
# FILEs are the histories; BYTES of each are taken. TOKENS is the length of an answer.
. "$(dirname "$0")/common.bash"
need_model SmolLM2-135M-Instruct.Q4_1.gguf
histories=("${1:-$tree/ARCHITECTURE.md}" "${2:-$tree/docs/deploy.md}")
questions=($'\n\nWhat is this text about?' $'\n\nName one thing that the text says.')
bytes=${BYTES:-12000} tokens=${TOKENS:-48}

# Each history is the beginning of what a user says; a question goes on behind it.
for i in 0 1; do
    head -c "$bytes" "${histories[i]}" | iconv -c -t UTF-8 >"$scratch/history$i"
    "$kvasir" cache-prompt -m "$MODEL" --kv-bits 8,4 -q \
        -f "$scratch/history$i" -o "$scratch/$i.cache"
    echo "history $i: $(stat -c %s "$scratch/$i.cache") bytes of cache of ${histories[i]}"
done

# One line for each history and question, in OpenAI's batch format.
for i in 0 1; do
    for q in 0 1; do
        printf '{"custom_id": "%s", "method": "POST", "url": "/v1/chat/completions", "body": {' $i$q
        printf '"prompt_cache": "%s", "max_tokens": %d, ' "$scratch/$i.cache" "$tokens"
        printf '"messages": [{"role": "user", "content": %s}]}}\n' \
            "$(printf %s "${questions[q]}" | quote)"
    done
done >"$scratch/requests"
# A file's keys are not centred (mlx-lm reads them, too), so those behind them are not either.
"$kvasir" batch -m "$MODEL" --kv-bits 8,4 --key-centre off --order input \
    -i "$scratch/requests" -o "$scratch/results"

while read -r line; do
    id=$(field custom_id <<<"$line")
    answer=$(field response body choices 0 message content <<<"$line")
    cached=$(field response body usage prompt_tokens_details cached_tokens <<<"$line")
    printf '\n%s: %d tokens from the file\n%s\n' "$id" "$cached" "$answer"
    alone=$("$kvasir" generate -m "$MODEL" --prompt-cache "$scratch/${id:0:1}.cache" \
        -p "${questions[${id:1:1}]}" -n "$tokens" --json -q | field text)
    [ "$answer" = "$alone" ] || { echo "alone the answer is another: $alone" >&2 && exit 1; }
done <"$scratch/results"
printf '\neach answer is that of its question alone\n'
