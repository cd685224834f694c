# SPDX-License-Identifier: Apache-2.0
#
# What the tests of the program (tests/api/*.sh) share. A test sources this with the program's path
# as $1 and works in a folder of its own.
#
#   expect CODE PATTERN ARG...   runs `kvasir ARG...`: exit code CODE; standard output and standard
#                                error are kept in ./out and ./err. Where CODE is not 0, standard
#                                error is one line and matches PATTERN, standard output is empty.
#   good ARG...                  expect 0
#   json KEY                     the value of KEY in ./out, a JSON object on one line
#   die TEXT                     ends the test as failed
set -uo pipefail
kvasir=$(realpath "$1")
api_scratch=$(mktemp -d)
trap 'rm -rf "$api_scratch"' EXIT
cd "$api_scratch" || exit 1

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
