#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The commands of the tutorial and of the how-to pages run as they are written (documents.py).
. "$(dirname "$0")/../support/api.bash"
command -v curl >/dev/null || skip "no curl"
model=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
[ -f "$model" ] || skip "no model: $model"
timeout "$(limit 250)" python3 "$SOURCE_DIR/tests/api/documents.py" "$kvasir" "$SOURCE_DIR" \
    "$model" >out 2>err || die "a document's command"
cat out
