#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The cases of the API tests of mlx_lm.server and vllm-mlx, run against kvasir serve: handlers,
# comments during a long prefill, prefix hits, limits of stored prefixes, stored prefixes at fewer
# bits. docs/source-cases.md says which case is where.
. "$(dirname "$0")/../support/api.bash"
model=$api_scratch/scripted
python3 "$SOURCE_DIR/tests/support/scripted_model.py" "$model" \
    "$SOURCE_DIR/tests/clients/scripts.json" || die "scripted_model.py"

cases() { # PART FLAG...: against a server with these flags
    start_server -q --drain-timeout 0 -m "$model" --cache-memory-mb 128 "${@:2}"
    timeout "$(limit 200)" python3 -B "$SOURCE_DIR/tests/api/source_cases.py" "$1" "$url" ||
        die "$1; the end of the log: $(tail -n 3 "$log")"
    ! grep -E 'status=5|finish=error' "$log" || die "the server failed"
}

cases handlers
cases long_prompts --prefill-chunk 1 --keepalive 1 --threads 1
cases prefixes
cases no_prefixes --no-prefix-cache
cases two_prompts --prompt-cache-size 2
cases few_bytes --prompt-cache-bytes 256KiB
cases stored_bits --kv-bits f16 --kv-cache-quantization
cases stored_4_bits --kv-bits f16 --kv-cache-quantization-bits 4 \
    --kv-cache-quantization-group-size 32 --kv-cache-min-quantize-tokens 0
exit 0
