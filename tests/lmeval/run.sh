#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh PROGRAM: EleutherAI's lm-eval (`lm_eval` in PATH, with transformers) scores 50 questions
# through /v1/completions: echo, log-probabilities of the prompt, lists of prompts. The scores of
# all answers are the same with one request at a time as with four, each of eight prompts; the model
# knows most answers.
. "$(dirname "$0")/../support/api.bash"
command -v lm_eval >/dev/null || skip "lm-eval is not installed"
model=$(echo "$SOURCE_DIR"/models/SmolLM2-*.gguf)
[ -e "$model" ] || skip "no demo model"
cp "$SOURCE_DIR/tests/lmeval/facts.yaml" "$SOURCE_DIR/tests/lmeval/facts.jsonl" .
good convert "$model" tokenizer # lm-eval counts tokens itself
start_server -q -m "$model" --ctx 2048
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME=$PWD/hf TOKENIZERS_PARALLELISM=false

evaluate() { # FOLDER CONCURRENT BATCH
    local args="base_url=$url/v1/completions,model=smollm2,tokenizer=tokenizer"
    args+=",tokenizer_backend=huggingface,num_concurrent=$2,max_length=2048"
    lm_eval run --model local-completions --model_args "$args" --batch_size "$3" --tasks facts \
        --include_path . --output_path "$1" --log_samples >lm_eval.log 2>&1 ||
        { tail -20 lm_eval.log && die "lm_eval"; }
}
scores() { # FOLDER: of each answer, by question
    python3 - "$1" <<'END'
import glob, json, sys
(path,) = glob.glob(sys.argv[1] + "/**/samples_facts_*.jsonl", recursive=True)
for line in sorted(map(json.loads, open(path)), key=lambda s: s["doc_id"]):
    print(line["doc_id"], line["acc"], line["filtered_resps"])
END
}
evaluate alone 1 1
scores alone >alone.txt
evaluate together 4 8
scores together >together.txt
[ "$(wc -l <alone.txt)" = 50 ] || die "not 50 questions"
cmp alone.txt together.txt || die "scores depend on what runs beside"
right=$(awk '{ n += $2 } END { print n }' alone.txt)
echo "lm-eval: $right of 50 right"
[ "${right%.*}" -ge 30 ] || die "only $right of 50 are right"
end_server TERM 0
