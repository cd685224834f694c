#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rotating_cache.sh: a cache that is quantized and stops growing.
#
#   MODEL=model.gguf docs/examples/rotating_cache.sh
#
# `--kv-bits 8,4` stores keys in 8 and values in 4 bits, `--max-kv-size N` lets a token see the
# first 4 tokens (--kv-keep) and the newest, N together: pages that nobody will see again are given
# back whole, nothing is moved, nothing is quantized a second time. The answer here is longer than
# the cache, so that it wraps more than once.
#
# SIZE is N, TOKENS the length of the answer.
. "$(dirname "$0")/common.bash"
need_model SmolLM2-135M-Instruct.Q4_1.gguf
size=${SIZE:-256} tokens=${TOKENS:-700}
question="Tell me a long story about a lighthouse keeper."

generate() { # FLAG...: one JSON object; the end token does not end the answer
    "$kvasir" generate -m "$MODEL" -p "$question" -n "$tokens" --ignore-eos --json -q "$@"
}
row() { # NAME: of the JSON on standard input
    python3 -c '
import json, sys
o = json.load(sys.stdin)
seen = o["prompt_tokens"] + len(o["ids"])
print("%-32s %8d %10d %12d %12d" % (sys.argv[1], seen, o["cache_tokens"], o["cache_bytes"],
                                    o["cache_bytes_16bit"]))' "$1"
}

printf '%-32s %8s %10s %12s %12s\n' cache tokens 'it holds' bytes 'at 16 bits'
generate --kv-bits f16 | row '16 bits, all tokens'
generate --kv-bits 8,4 | row '--kv-bits 8,4'
generate --kv-bits 8,4 --max-kv-size "$size" >"$scratch/rotated"
row "--kv-bits 8,4 --max-kv-size $size" <"$scratch/rotated"

# The server takes the same flags, and gives the same answer.
serve --kv-bits 8,4 --max-kv-size "$size"
printf '{"messages": [{"role": "user", "content": %s}], "max_tokens": %d, "ignore_eos": true,
         "temperature": 0}' "$(printf %s "$question" | quote)" "$tokens" |
    ask /v1/chat/completions >"$scratch/served"
if [ "$(field choices 0 message content <"$scratch/served")" != \
    "$(field text <"$scratch/rotated")" ]; then
    echo "the server's answer is another" >&2
    exit 1
fi
echo "kvasir serve with these flags: the same $tokens tokens"
