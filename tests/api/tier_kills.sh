#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kill -9 of servers with --cache-dir at random moments: a minute of what `make soak` does 1,000
# times (tests/soak/tier_kills.py).
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
timeout "$(limit 200)" python3 "$SOURCE_DIR/tests/soak/tier_kills.py" "$kvasir" "$tiny" \
    --kills 8 --sure 2
