#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A minute of attacks (tools/attack.sh; `make soak` runs it longer, also under sanitizers):
# bent model files and requests, hostile templates and bodies, killed batches.
. "$(dirname "$0")/../support/api.bash"
seconds=25
[ "${TIMEOUT_FACTOR:-1}" = 1 ] || seconds=15
python3 "$SOURCE_DIR/tests/attack/attack.py" "$kvasir" $seconds --seed "${KVASIR_ATTACK_SEED:-1}" ||
    die "the attack found something"
exit 0
