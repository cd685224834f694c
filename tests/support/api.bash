# SPDX-License-Identifier: Apache-2.0
#
# Shared by the tests of the program (tests/api/*.sh). A test sources this with the program's path
# as $1 and works in a folder of its own.
#
#   expect CODE PATTERN ARG...   runs `kvasir ARG...`: exit code CODE; standard output and standard
#                                error are kept in ./out and ./err. If CODE is not 0, standard
#                                error is one line and matches PATTERN, standard output is empty.
#   good ARG...                  expect 0
#   json KEY                     the value of KEY in ./out, a JSON object on one line
#   start_server ARG...          `kvasir serve ARG...` on a free port: $pid, $url; standard error is
#                                kept in $log; it ends with the test
#   end_server SIGNAL CODE       ends the last one; CODE is its exit code
#   die TEXT                     ends the test as failed
#   limit SECONDS                a time limit of a test whose programs a sanitizer slows down much
set -uo pipefail
kvasir=$(realpath "$1")
api_scratch=$(mktemp -d)
servers=()
api_end() {
    if [ ${#servers[@]} != 0 ]; then
        kill "${servers[@]}"
        wait "${servers[@]}"
    fi 2>/dev/null
    rm -rf "$api_scratch"
}
trap api_end EXIT
# A python3 that is a shim (pyenv) looks for the interpreter each time, in ten processes.
PATH=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))'):$PATH
cd "$api_scratch" || exit 1
export XDG_CACHE_HOME=$api_scratch/cache # for calibrations

die() {
    echo "FAILED: $*" | cut -c 1-400
    [ -f err ] && sed 's/^/  stderr: /' err | head -20
    [ -f out ] && head -c 600 out | sed 's/^/  stdout: /'
    exit 1
}

skip() {
    echo "skipped: $*"
    exit 77
}

limit() { echo $(($1 * ${TIMEOUT_FACTOR:-1})); }

# No command of these tests needs a minute; one that hangs is a failure.
run() { timeout 100 "$kvasir" "$@" >out 2>err </dev/null; }

expect() {
    local code=$1 pattern=$2 got
    shift 2
    run "$@"
    got=$?
    [ "$got" = "$code" ] || die "exit code $got, not $code: kvasir $*"
    if [ "$code" != 0 ]; then
        [ "$(wc -l <err)" = 1 ] || die "not one line of error: kvasir $*"
        [ -s out ] && die "an error, and standard output: kvasir $*"
    fi
    grep -q -e "$pattern" err || die "no \"$pattern\" on standard error: kvasir $*"
}

good() {
    run "$@" || die "exit code $?: kvasir $*"
}

# `timeout` ends a server whose test was killed.
start_server() {
    log=server${#servers[@]}.log
    : >"$log"
    timeout --foreground -k 5 900 "$kvasir" serve --port 0 "$@" >serve.out 2>"$log" </dev/null &
    pid=$!
    servers+=($pid)
    for _ in {1..600}; do
        url=$(sed -n 's/^server: listening on \(http:.*\)$/\1/p' "$log")
        [ -z "$url" ] || return 0
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    cp "$log" err
    die "it does not listen: kvasir serve $*"
}

end_server() {
    kill -"$1" $pid
    wait $pid
    local got=$?
    [ $got = "$2" ] || die "exit code $got, not $2: kvasir serve, $1"
}

json() {
    python3 -c 'import json, sys
v = json.load(open("out"))[sys.argv[1]]
print(v if isinstance(v, str) else json.dumps(v))' "$1"
}

# The demo model and a tiny one without a tokenizer, or a skip.
demo_model() {
    demo=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
    [ -f "$demo" ] || skip "no demo model (make demo fetches it): $demo"
}
tiny_model() {
    tiny=$SHARED_DIR/fixtures/tiny/llama
    [ -d "$tiny" ] || skip "no fixtures: $tiny"
}
