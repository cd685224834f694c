# SPDX-License-Identifier: Apache-2.0
#
# What the examples share; sourced by them.
#
#   $kvasir            the program: $KVASIR, or what `make` built, or the one that is installed
#   need_model FILE    MODEL is FILE (in the tree) unless it is set
#   serve FLAG...      starts `kvasir serve -m $MODEL` on a free port of loopback; sets url. One at a
#                      time; it ends with the script
#   stop               ends it: SIGTERM, and open requests may finish
#   ask PATH           posts standard input there; the answer is on standard output, what an error
#                      says on standard error
#   status             what the server says of itself, once nothing runs any more
#   field KEY...       that member of the JSON on standard input
#   quote              standard input as a JSON string
#   $scratch           a folder that is removed at the end
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kvasir=${KVASIR:-$tree/build/kvasir}
[ -x "$kvasir" ] || kvasir=$(command -v kvasir) || {
    echo "no kvasir: run \`make\` in $tree, or set KVASIR to the program" >&2
    exit 1
}
scratch=$(mktemp -d)
server=
url=

stop() {
    [ -n "$server" ] || return 0
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    server=
}
trap 'stop; rm -rf "$scratch"' EXIT

need_model() {
    MODEL=${MODEL:-$tree/models/$1}
    [ -e "$MODEL" ] || {
        echo "no model at $MODEL: \`make models\` fetches it, or set MODEL to another" >&2
        exit 1
    }
}

serve() {
    stop
    : >"$scratch/log"
    "$kvasir" serve -m "$MODEL" --host 127.0.0.1 --port 0 "$@" 2>"$scratch/log" </dev/null &
    server=$!
    for _ in {1..600}; do
        url=$(sed -n 's/^server: listening on //p' "$scratch/log")
        [ -z "$url" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "kvasir serve did not start:" >&2
    cat "$scratch/log" >&2
    exit 1
}

ask() {
    local answer
    answer=$(curl -sS --fail-with-body --noproxy '*' --max-time "${ASK_SECONDS:-600}" \
        -H 'Content-Type: application/json' --data-binary @- "$url$1") ||
        { echo "$answer" >&2 && return 1; }
    echo "$answer"
}

status() {
    local now
    for _ in {1..100}; do
        now=$(curl -sS --fail --noproxy '*' --max-time 60 "$url/v1/status")
        [ "$(field num_running <<<"$now")" != 0 ] || break
        sleep 0.1
    done
    echo "$now"
}

field() {
    python3 -c '
import json, sys
value = json.load(sys.stdin)
for key in sys.argv[1:]:
    value = value[int(key)] if isinstance(value, list) else value[key]
print(value if isinstance(value, str) else json.dumps(value))' "$@"
}

quote() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))'; }
