#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir exactness: a server of ours without a difference in every case; fake servers (exactness.py)
# that forget, round or fail, and are found out.
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -d "$stories" ] || skip "no model: $stories"
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY "${!KVASIR_@}"

x() { # CODE ARG...
    local want=$1
    shift
    run exactness "$@"
    local got=$?
    [ $got = "$want" ] || die "exit code $got, not $want: kvasir exactness $*"
}
port=$(python3 -c 'import socket
s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port
small=(--prompts 2 --words 60 -n 12 --strangers 3 --flood 3 --seed 7)

# ---- ours ----
ours="$kvasir serve -m $stories --kv-bits f16 --port $port -q"
x 0 --url "$url/v1/" --start "$ours" "${small[@]}" --api completions
for name in cold warm batched evicted fresh crowd prefix restored; do
    grep -q "^$name  *2 of 2 " out || die "no line of $name"
done
grep -q '^warm  *2 of 2  *[1-9]' out || die "warm is not"
grep -q '^seed:   7$' err || die "no seed"
x 0 --url "$url" --start "$ours" "${small[@]}" --api completions --json -q
python3 -c 'import json
r = json.load(open("out"))
assert r["seed"] == 7 and r["logprobs"] is True and len(r["cases"]) == 8, r
assert all(c["same"] == 2 and "first_difference" not in c for c in r["cases"]), r' || die "--json"
! kill -0 "$(pgrep -f "serve.*--port $port" | head -1)" 2>/dev/null || die "the server still runs"

# Ended by a signal, it ends the server, too.
"$kvasir" exactness --url "$url" --start "$ours" "${small[@]}" --api completions >out 2>err &
pid=$!
for _ in $(seq "$(limit 200)"); do
    ! curl -sf -o models "$url/v1/models" || break
    sleep 0.1
done
[ -s models ] || die "no server to be ended"
kill -TERM $pid
wait $pid && die "SIGTERM does not end it"
for _ in $(seq "$(limit 100)"); do
    pgrep -f "serve.*--port $port" >left || break
    sleep 0.1
done
[ ! -s left ] || die "the server is left"

# ---- others ----
fake() { echo "exec python3 $SOURCE_DIR/tests/api/exactness.py $port $1"; }
x 0 --url "$url" --start "$(fake honest)" "${small[@]}"
x 3 --url "$url" --start "$(fake warm-rounds)" "${small[@]}"
grep -q '^warm  *0 of 2 .*prompt 1, token 3: "t2" .*, now "t2" .*change by up to 0.0001' out ||
    die "a rounded log-probability: $(grep warm out)"
grep -q '^fresh  *2 of 2 ' out || die "fresh is not cold: $(grep fresh out)"
x 3 --url "$url" --start "$(fake batch-other)" "${small[@]}" --flood 0
grep -q '^batched  *[01] of 2 .*token 5: "t4" .*, now "other"' out || die "another token"
grep -q '^crowd  *[01] of 2 ' out || die "crowd"
x 3 --url "$url" --start "$(fake warm-short)" "${small[@]}"
grep -q '^warm .*another length or end' out || die "a shorter answer"
x 3 --url "$url" --start "$(fake texts)" "${small[@]}"
grep -q 'only texts were compared' out || die "no log-probabilities"
expect 1 "chat/completions: HTTP 500: .*broken" exactness --url "$url" --start "$(fake fails)" -q
expect 1 'ended before it listened' exactness --url "$url" --start 'exit 3' -q
expect 1 "$url/v1/models: no answer within 1 s" exactness --url "$url" --start 'exec sleep 60' \
    --start-seconds 1 -q
expect 2 '--api: "x" is neither' exactness --url "$url" --api x
expect 2 '--url: missing' exactness
