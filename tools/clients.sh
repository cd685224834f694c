#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# clients.sh: installs the official clients of OpenAI's and Anthropic's APIs, at the versions of
# tests/clients/requirements.txt, from PyPI into .venv-clients, unless they are installed; for
# tests/api/clients.sh. Prints one line and exits with 1 if that fails.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=tests/clients/requirements.txt venv=.venv-clients
! cmp -s $requirements $venv/requirements.txt || exit 0
rm -rf $venv
python3 -m venv $venv
if ! timeout 180 $venv/bin/pip install --quiet --disable-pip-version-check --retries 1 \
    -r $requirements >$venv/log 2>&1; then
    echo "clients: PyPI has not given what $requirements names: $(tail -n 1 $venv/log)" >&2
    exit 1
fi
cp $requirements $venv/requirements.txt
