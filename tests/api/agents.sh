#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first requests of recorded agents (tests/soak/traces): kvasir serve accepts what real clients
# send, and computes no more of it than it must. `make soak` has all of them (stage agents).
. "$(dirname "$0")/../support/api.bash"
[ -d "$SHARED_DIR/fixtures/tiny/lfm2" ] || skip "no fixtures: $SHARED_DIR/fixtures/tiny"
traces=$(cd "$SOURCE_DIR/tests/soak/traces" && printf '%s,' *.jsonl.xz)
traces=${traces//.jsonl.xz/}
timeout "$(limit 200)" python3 -B "$SOURCE_DIR/tests/soak/agent_traces.py" "$kvasir" "$SHARED_DIR" \
    --turns 4 --models lfm2 --traces "${traces%,}"
