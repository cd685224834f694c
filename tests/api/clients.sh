#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve and the official clients of OpenAI's, Anthropic's and ollama's APIs
# (tools/clients.sh), sync and async, streaming and not, and llama-server's endpoints, on a model
# with scripted answers: tests/clients.
. "$(dirname "$0")/../support/api.bash"
python=$SOURCE_DIR/.venv-clients/bin/python
[ -f "${python%/bin/*}/requirements.txt" ] || skip "no clients (tools/clients.sh fetches them)"
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY OPENAI_API_KEY ANTHROPIC_API_KEY \
    OLLAMA_API_KEY OLLAMA_HOST
model=$api_scratch/scripted
python3 "$SOURCE_DIR/tests/support/scripted_model.py" "$model" \
    "$SOURCE_DIR/tests/clients/scripts.json" || die "scripted_model.py"

cases() { # PART [KEY...]: with all clients
    for client in openai anthropic ollama native; do
        timeout 200 "$python" -B "$SOURCE_DIR/tests/clients/${client}_client.py" "$1" "$url" \
            "${@:2}" || die "$client, $1; the end of the log: $(tail -n 3 "$log")"
    done
    ! grep -E 'status=5|finish=error' "$log" || die "the server failed"
}

start_server -q --drain-timeout 0 -m "$model"
cases open
start_server -q --drain-timeout 0 -m "$model" --served-model-name scripted --api-key first \
    --api-key second
cases keys first second
start_server -q --drain-timeout 0 -m "$model" --max-num-seqs 1 --max-waiting 1
cases full

smollm2=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$smollm2" ]; then
    start_server -q --drain-timeout 0 -m "$smollm2" --cache-memory-mb 256
    timeout 200 "$python" -B "$SOURCE_DIR/tests/clients/openai_client.py" json "$url" ||
        die "json; the end of the log: $(tail -n 3 "$log")"
else
    echo "skipped: JSON by force, no demo model (make demo fetches it): $smollm2"
fi
exit 0
