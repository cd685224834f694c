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
unset "${!OTEL_@}"
expect 2 '^kvasir serve: --otlp-headers-file: only allowed with --otlp-endpoint$' serve -m x \
    --otlp-headers-file headers
with_headers() { # PATTERN TEXT: in the file; no value of it is quoted
    printf '%b' "$2" >headers
    expect 2 "^kvasir serve: --otlp-headers-file: headers: $1" serve -m x \
        --otlp-endpoint http://127.0.0.1:4318 --otlp-headers-file headers
    grep -q s3cret err && die "an error quotes a value"
}
with_headers 'line 2: is not "Name: value"$' '# s3cret\ns3cret'
with_headers 'line 1: its name is empty' ': s3cret'
with_headers 'line 1: its name is empty or has characters' 'a b: s3cret'
with_headers 'line 1: its value is empty' 'a:  '
with_headers 'line 3: its value is empty or has control characters$' 'a: b\n\nc: s3\001cret'
with_headers 'line 1: this header is set by kvasir itself$' 'content-type: s3cret'
with_variable() { # PATTERN VALUE
    OTEL_EXPORTER_OTLP_HEADERS=$2 expect 2 "^kvasir serve: OTEL_EXPORTER_OTLP_HEADERS: $1" \
        serve -m x --otlp-endpoint http://127.0.0.1:4318
}
with_variable 'header 2: is not name=value$' 'a=b,s3cret'
with_variable 'header 1: its value is empty or has control characters$' 'a=b%0d%0aHost:%20c'
with_variable 'header 1: its value is empty' 'a='
limit=$(limit 120)
timeout "$limit" python3 "$SOURCE_DIR/tests/api/traces.py" "$kvasir" "$tiny" >out 2>err ||
    die "traces.py"
