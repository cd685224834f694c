#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve --warm-prompts (warm.py), with --sandbox where this machine can restrict a server.
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
sandbox=(--sandbox on)
run serve -m "$tiny" --cache-memory-mb 64 "${sandbox[@]}" --dry-run -q || sandbox=()
[ ${#sandbox[@]} != 0 ] || echo "not in a sandbox: $(head -1 err)"
timeout "$(limit 120)" python3 "$SOURCE_DIR/tests/api/warm.py" "$kvasir" "${tiny%/*}" \
    "${sandbox[@]}"
