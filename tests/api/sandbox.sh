#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve --sandbox: sandbox.py, with a library that is loaded into the server and tries what
# must be refused (sandbox_probe.c).
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -d "$stories" ] || skip "no model: $stories"
unset "${!KVASIR_@}"
s() { expect 2 "^kvasir serve: $1" serve "${@:2}"; }
s '--sandbox: "yes" is none of auto, on, off' -m "$stories" --sandbox yes

run serve -m "$stories" --kv-bits f16 --cache-memory-mb 64 --sandbox on --dry-run -q
if grep -q 'impossible in a build with sanitizers' err; then
    start_server -m "$stories" --kv-bits f16 --cache-memory-mb 64
    grep -q '^server: sandbox: off in a build with sanitizers or coverage$' "$log" || die "no line"
    end_server TERM 0
    echo "a build with sanitizers or coverage: only that it says so was checked"
    exit 0
fi
cc -O1 -shared -fPIC -o probe.so "$SOURCE_DIR/tests/api/sandbox_probe.c" -ldl -pthread ||
    die "the probe does not compile"
demo_model
timeout 250 python3 "$SOURCE_DIR/tests/api/sandbox.py" "$kvasir" "$stories" "$demo"
