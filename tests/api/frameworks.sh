#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve and frameworks over OpenAI's and Anthropic's clients (tools/clients.sh), with a model
# that knows tools: Qwen2.5-Coder, or the demo model with Qwen's chat template.
. "$(dirname "$0")/../support/api.bash"
python=$SOURCE_DIR/.venv-frameworks/bin/python
[ -f "${python%/bin/*}/requirements.txt" ] || skip "no frameworks (tools/clients.sh fetches them)"
unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY OPENAI_API_KEY \
    ANTHROPIC_API_KEY
coder=$MODELS_DIR/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
demo=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
template=$SHARED_DIR/chat-templates/Qwen-Qwen2.5-7B-Instruct.jinja
parts="openai anthropic langchain litellm instructor agents pydantic"
if [ -f "$coder" ]; then
    parts+=" prompted"
    start_server -q --drain-timeout 0 -m "$coder" --ctx 16384 --cache-memory-mb 512
elif [ -f "$demo" ] && [ -f "$template" ]; then
    start_server -q --drain-timeout 0 -m "$demo" --chat-template "$template" --cache-memory-mb 256
else
    skip "no model that calls tools"
fi
for part in $parts; do
    timeout 200 "$python" -B "$SOURCE_DIR/tests/clients/frameworks_client.py" "$part" "$url" ||
        die "$part; the end of the log: $(tail -n 3 "$log")"
done
pages=("$SOURCE_DIR"/docs/clients/{anthropic,instructor,langchain,litellm}.md
    "$SOURCE_DIR"/docs/clients/{openai-agents,openai,pydantic-ai}.md)
timeout 200 "$python" -B "$SOURCE_DIR/tests/clients/docs.py" "$url" "${pages[@]}" ||
    die "a page of docs/clients; the end of the log: $(tail -n 3 "$log")"
! grep -E 'status=5|finish=error' "$log" || die "the server failed"
exit 0
