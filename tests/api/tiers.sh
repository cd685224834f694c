#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve --cache-dir and --cache-remote: what outlives a server or is shared with another
# (tiers.py), with --sandbox where this machine can restrict a server.
. "$(dirname "$0")/../support/api.bash"
tiny_model
unset "${!KVASIR_@}"
sandbox=(--sandbox on)
run serve -m "$tiny" --cache-memory-mb 64 "${sandbox[@]}" --dry-run -q || sandbox=()
[ ${#sandbox[@]} != 0 ] || echo "not in a sandbox: $(head -1 err)"
timeout "$(limit 250)" python3 "$SOURCE_DIR/tests/api/tiers.py" "$kvasir" "${tiny%/*}" \
    "${sandbox[@]}"
