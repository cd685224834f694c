#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# clients.sh: installs from PyPI, each into an environment of its own unless it is there:
#   .venv-clients      the official clients of OpenAI's, Anthropic's and ollama's APIs, at the
#                      versions of tests/clients/requirements.txt, for tests/api/clients.sh
#   .venv-python       what the module in python/ needs, and mypy, for tests/api/python.sh
#   .venv-frameworks   frameworks over them, at those of frameworks.txt, for tests/api/frameworks.sh
# Prints one line for each that fails, and exits with 1 then.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

fetch() { # ENVIRONMENT REQUIREMENTS SECONDS
    local venv=$1 requirements=tests/clients/$2
    ! cmp -s "$requirements" "$venv/requirements.txt" || return 0
    rm -rf "$venv"
    if ! python3 -m venv "$venv" || ! timeout "$3" "$venv/bin/pip" install --quiet \
        --disable-pip-version-check --retries 1 -r "$requirements" >"$venv/log" 2>&1; then
        echo "clients: PyPI has not given what $requirements names: $(tail -n 1 "$venv/log")" >&2
        return 1
    fi
    cp "$requirements" "$venv/requirements.txt"
}
fetch .venv-clients requirements.txt 400
clients=$?
fetch .venv-python python.txt 400 || clients=1
fetch .venv-frameworks frameworks.txt 600 && exit $clients
exit 1
