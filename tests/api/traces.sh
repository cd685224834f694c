#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Logs and traces of a server: traces.py.
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
expect 2 '^kvasir serve: --log-format: "xml" is neither text nor json$' serve -m x --log-format xml
expect 2 '^kvasir serve: --log-level: "loud" is none of error' serve -m x --log-level loud
expect 2 '^kvasir serve: --otlp-endpoint: "host:4318" is not a URL of http or https' serve -m x \
    --otlp-endpoint host:4318
limit=$(limit 120)
timeout "$limit" python3 "$SOURCE_DIR/tests/api/traces.py" "$kvasir" "$tiny" >out 2>err ||
    die "traces.py"
