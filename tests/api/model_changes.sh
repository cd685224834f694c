#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Files of a model that are truncated, changed or replaced while it is in use (model_changes.py, by
# a server), and the flags for how they are held.
. "$(dirname "$0")/../support/api.bash"
stories=$SHARED_DIR/models/stories260K/hf
[ -d "$stories" ] || skip "no model: $stories"
unset "${!KVASIR_@}"

# ---- --mlock and --no-mmap change no result ----
for command in "generate -m $stories -p Once -n 8 --temp 0 -q --raw --kv-bits f16" "info $stories" \
    "perplexity -m $stories -f $stories/config.json --window 64 -q --json --kv-bits f16"; do
    good $command && sed 's/"[a-z_]*seconds[a-z_]*": *[0-9.e-]*//g' out >mapped
    good $command --no-mmap && sed 's/"[a-z_]*seconds[a-z_]*": *[0-9.e-]*//g' out >read
    cmp -s mapped read || die "other results: $command --no-mmap"
done
good convert "$stories" converted --no-mmap
if [ "$(id -u)" != 0 ]; then # root has no limit
    (ulimit -l 4 && expect 2 "^kvasir info: --mlock: .*ulimit -l" info "$stories" --mlock) || exit 1
fi
[ "$(id -u)" != 0 ] || good info "$stories" --mlock

timeout "$(limit 200)" python3 "$SOURCE_DIR/tests/api/model_changes.py" "$kvasir" "$stories"
