#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir top: one page about a server of ours, and about one that has vLLM's names only; on a
# terminal, with and without colours; servers that do not answer, ask for a key, or are none.
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
mkdir tier
start_server -m "$tiny" --cache-memory-mb 64 --cache-dir tier
for _ in 1 2; do
    curl -sf "$url/v1/completions" -d '{"prompt": [1,2,3,4,5,6,7,8,9,10], "max_tokens": 20,
        "ignore_eos": true}' >/dev/null || die "a request"
done
good top --url "$url/" --once -s 0.2
grep -qE "^kvasir [0-9.]+  $url  llama  up 0 min$" out || die "the head"
grep -q '^requests     0 running, 0 waiting; 0.0 answered, 0.0 refused a second$' out ||
    die "requests"
grep -q '^tokens       0.0 generated, 0.0 of prompts a second$' out || die "tokens"
grep -qE '^latency      [0-9.]+ ms to the first token, [0-9.]+ ms between tokens' out ||
    die "latency"
grep -qF 'reuse        [#########-----------] 45 % of prompt tokens, 45 % since the start' out ||
    die "reuse: the second prompt had 9 of 20 tokens"
grep -qE '^cache        \[#*-*\] [0-9.]+ .iB of 64.0 MiB, [0-9.]+ .iB stored prefixes$' out ||
    die "cache"
grep -qE '^disk         \[-*\] [0-9.]+ .?i?B of 16.0 GiB, [0-9]+ records' out || die "disk"
grep -q '^memory ' out || die "memory"
grep -q $'\033' out && die "colours without a terminal"

# a terminal: drawn until Ctrl-C, which puts the screen back
page() { # NO_COLOR?
    TERM=xterm timeout 60 script -qec \
        "$1 timeout --preserve-status -s INT 1.5 $kvasir top --url $url -s 0.2" /dev/null \
        >out </dev/null
}
if command -v script >/dev/null; then
    page ""
    [ "$(grep -c 'since the start' out)" -ge 2 ] || die "it is not drawn again"
    grep -q $'\033\[32m' out || die "no colours on a terminal"
    grep -q $'\033\[?1049l' out || die "the screen is not put back"
    page NO_COLOR=1
    grep -q $'\033\[32m' out && die "colours in spite of NO_COLOR"
fi

port=${url##*:}
end_server TERM 0
expect 1 "^kvasir top: $url/metrics: .*\"kvasir serve\" starts one$" top --url "$url" --once
expect 2 '^kvasir top: --url: "localhost:80" begins with neither http:// nor' top --url localhost:80
expect 2 '^kvasir top: --seconds: 0 is out of range' top --seconds 0
start_server -m "$tiny" --cache-memory-mb 64 --api-key secret
expect 2 "^kvasir top: --api-key: $url asks for a key$" top --url "$url" --once
expect 2 "^kvasir top: --api-key: $url asks for another key$" top --url "$url" --once --api-key x
good top --url "$url" --once --api-key secret -s 0.1
expect 1 'HTTP status 404, not the metrics of Kvasir or vLLM' top --url "$url/v2" --once \
    --api-key secret
end_server TERM 0

# vLLM's names, of two models
cat >metrics <<'TEXT'
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\"b"} 3.0
vllm:num_requests_running{engine="0",model_name="c"} 4.0
vllm:num_requests_waiting{engine="0",model_name="c"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="c"} 0.5
vllm:prefix_cache_queries_total{engine="0",model_name="c"} 200.0
vllm:prefix_cache_hits_total{engine="0",model_name="c"} 50.0
vllm:inter_token_latency_seconds_sum{model_name="c"} 3
vllm:inter_token_latency_seconds_count{model_name="c"} 100
TEXT
python3 -m http.server --bind 127.0.0.1 "$port" >/dev/null 2>&1 &
servers+=($!)
for _ in {1..50}; do
    curl -sf "http://127.0.0.1:$port/metrics" >/dev/null && break
    sleep 0.1
done
good top --url "http://127.0.0.1:$port" --once -s 0.1
grep -q "^server  http://127.0.0.1:$port  2 models$" out || die "the head of another server"
grep -q '^requests     7 running, 2 waiting' out || die "two models"
grep -qF '[#####---------------] 25 % of prompt tokens' out || die "its reuse"
grep -qF '[##########----------] 50 % in use' out || die "its cache"
grep -q '30 ms between tokens' out || die "its latency"
exit 0
