#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# prefix_cache.sh: requests with one long system prompt over a prefix cache that is quantized,
# beside one of 16 bits: memory and time to the first token.
#
#   MODEL=model.gguf docs/examples/prefix_cache.sh [SYSTEM]
#
# No flag is needed: a prompt's pages are stored as they fill, found token by token by every later
# request that begins alike, and shared, not copied. Their bytes are those that attention reads, so
# a smaller format saves memory of stored prefixes and of running requests alike.
#
# SYSTEM is a file with the system prompt, of which BYTES are taken.
. "$(dirname "$0")/common.bash"
need_model SmolLM2-135M-Instruct.Q4_1.gguf
system=$({
    echo "You answer questions about this manual."
    head -c "${BYTES:-8000}" "${1:-$tree/docs/deploy.md}" | iconv -c -t UTF-8
} | quote)
questions=("How do I start it?" "What is the default port?" "Where do keys belong?"
    "What happens on SIGTERM?" "Which proxy should I take?" "What does --dry-run print?")

# measure BITS: the server's log has a line for each request: times, and what came from the cache.
measure() {
    local question
    serve --kv-bits "$1"
    for question in "${questions[@]}"; do
        printf '{"messages": [{"role": "system", "content": %s},
                 {"role": "user", "content": "%s"}], "max_tokens": 16}' "$system" "$question" |
            ask /v1/chat/completions >/dev/null
    done
    status >"$scratch/status"
    stop
    python3 - "$1" "$scratch/log" "$scratch/status" <<'PY'
import json, re, statistics, sys
name, log, status = sys.argv[1:]
lines = [dict(re.findall(r"(\w+)=(\S+)", l)) for l in open(log) if " id=" in l]
first, later = lines[0], lines[1:]
cache = json.load(open(status))["cache"]
print("%-6s %9s %12s %12d %12.0f %14.2f" % (
    name, first["prompt"], later[-1]["cached"], int(first["first_token_ms"]),
    statistics.median(int(l["first_token_ms"]) for l in later),
    cache["stored_bytes"] / 2**20))
PY
}
echo "the first request, and the median of the $((${#questions[@]} - 1)) behind it:"
printf '%-6s %9s %12s %12s %12s %14s\n' \
    cache prompt 'from cache' 'first, ms' 'later, ms' 'stored, MiB'
measure 8,4
measure f16
