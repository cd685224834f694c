#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve from its start to its end, with stories260K: serve.py. (serve_options.sh: flags,
# keys, the service manager; sim/server.c: many clients.)
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -d "$stories" ] || skip "no model: $stories"
unset "${!KVASIR_@}"
exec timeout 250 python3 "$SOURCE_DIR/tests/api/serve.py" "$kvasir" "$stories"
