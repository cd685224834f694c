#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve and the official clients of OpenAI's, Anthropic's and ollama's APIs
# (tools/clients.sh), sync and async, streaming and not, and llama-server's endpoints, on a model
# with scripted answers; the HTTP requests of mlx-lm's and vllm-mlx's tests: tests/clients.
. "$(dirname "$0")/../support/api.bash"
python=$SOURCE_DIR/.venv-clients/bin/python
[ -f "${python%/bin/*}/requirements.txt" ] || skip "no clients (tools/clients.sh fetches them)"
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY OPENAI_API_KEY ANTHROPIC_API_KEY \
    OLLAMA_API_KEY OLLAMA_HOST
model=$api_scratch/scripted
python3 "$SOURCE_DIR/tests/support/scripted_model.py" "$model" \
    "$SOURCE_DIR/tests/clients/scripts.json" || die "scripted_model.py"

client() { # CLIENT PART [KEY...]
    timeout 200 "$python" -B "$SOURCE_DIR/tests/clients/$1_client.py" "$2" "$url" "${@:3}" ||
        die "$1, $2; the end of the log: $(tail -n 3 "$log")"
}
good_log() { ! grep -E 'status=5|finish=error' "$log" || die "the server failed"; }
cases() { # PART [KEY...]: with all clients
    for name in openai anthropic ollama native; do
        client "$name" "$@"
    done
    good_log
}

start_server -q --drain-timeout 0 -m "$model"
cases open
client mlx vllm_mlx_bench
start_server -q --drain-timeout 0 -m "$model" --served-model-name scripted --api-key first \
    --api-key second
cases keys first second
start_server -q --drain-timeout 0 -m "$model" --max-num-seqs 1 --max-waiting 1
cases full

# ---- mlx-lm and vllm-mlx: mlx-lm's tests use a model whose template joins texts, like this ----
stories=$SHARED_DIR/models/stories260K/hf
if [ -d "$stories" ]; then
    cp -r "$stories" stories
    chmod -R u+w stories
    cat >joins.jinja <<'END'
{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}
{% endfor %}{{ '<|im_start|>assistant\n' }}
END
    flags=(-m stories --kv-bits f16 --chat-template joins.jinja)
    start_server -q --drain-timeout 0 "${flags[@]}"
    client mlx vllm_mlx
    start_server -q --drain-timeout 0 "${flags[@]}" --compat mlx
    client mlx mlx
    good_log
    WEIGHTS=stories/model.safetensors client mlx mlx_gone
else
    echo "skipped: mlx-lm's requests, no model: $stories"
fi

smollm2=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$smollm2" ]; then
    start_server -q --drain-timeout 0 -m "$smollm2" --cache-memory-mb 256
    client openai json
else
    echo "skipped: JSON by force, no demo model (make demo fetches it): $smollm2"
fi
exit 0
