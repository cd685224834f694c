#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The scripts of docs/examples, at small sizes: each ends by itself, prints what it is meant to
# show, leaves no process and no file, and fails if there is no model. The programs there give the
# same answers in C and in Python.
. "$(dirname "$0")/../support/api.bash"
command -v curl >/dev/null || skip "no curl"
examples=$SOURCE_DIR/docs/examples
unset "${!KVASIR_@}"
export KVASIR=$kvasir TMPDIR=$api_scratch/tmp
mkdir "$TMPDIR"
ran=0

example() { # NAME ARG...: its output is in ./out
    timeout 250 "$examples/$1.sh" "${@:2}" >out 2>err </dev/null || die "$1: exit code $?"
    [ -z "$(ls "$TMPDIR")" ] || die "$1 leaves files"
    ran=$((ran + 1))
}
has() { # PATTERN
    grep -q -e "$1" out || die "no \"$1\""
}

# ---- layers of several kinds: fixtures without a tokenizer ---------------------------------------

ids=[$(seq -s, 1 200)]
for model in gemma3 gemma4 qwen3_5_moe; do
    if [ ! -d "$SHARED_DIR/fixtures/tiny/$model" ]; then
        echo "skipped: hybrid_server: no fixture $model"
        continue
    fi
    MODEL=$SHARED_DIR/fixtures/tiny/$model PROMPT=$ids example hybrid_server
    has '^cache: .*K 8 g64, V 8 g64'
    has '^again: 199 of 200 prompt tokens from the cache$'
    has '^all four answers are the same'
    has '^  K 8 g64, V 8 g64 .* bytes$'
    [ $model != qwen3_5_moe ] || has '^  states .* bytes$'
done
MODEL=/nowhere/model timeout 60 "$examples/hybrid_server.sh" >out 2>err </dev/null &&
    die "an example without a model"
grep -q '^no model at /nowhere/model' err || die "no word about the missing model"

# ---- SmolLM2 -------------------------------------------------------------------------------------

MODEL=$MODELS_DIR/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -f "$MODEL" ]; then
    export MODEL
    SIZE=64 TOKENS=150 example rotating_cache
    has '^--kv-bits 8,4 --max-kv-size 64  *[0-9]*  *64 '
    has '^kvasir serve with these flags: the same 150 tokens$'
    BYTES=1500 TOKENS=8 example batched_histories
    has '^11: [1-9][0-9]* tokens from the file$'
    has '^each answer is that of its question alone$'
    BYTES=2000 example prefix_cache
    python3 - <<'PY' || die "the table of prefix_cache"
rows = {l.split()[0]: [float(x) for x in l.split()[1:]] for l in open("out").readlines()[2:]}
small, exact = rows["8,4"], rows["f16"]
assert small[1] == exact[1] > 300 and small[0] > small[1]
assert 2.2 < exact[4] / small[4] < 2.7, rows
PY
else
    echo "skipped: rotating_cache, batched_histories, prefix_cache: no $MODEL"
fi

# ---- the library, in C and in Python: the same answers -------------------------------------------

library=$(dirname "$kvasir")/libkvasir.so.0 python=$SOURCE_DIR/.venv-python/bin/python
text="The lighthouse is 46 metres high and was built in 1858."
questions=(" The year it was built:" " It is")
if [ ! -f "$MODEL" ] || [ ! -e "$library" ] || nm -D "$library" | grep -qE '__[at]san'; then
    echo "skipped: answers.c, answers.py: no model, or no library without a sanitizer"
    [ $ran != 0 ] || exit 77
    exit 0
fi
cc -Wall -Wextra -Werror -I "$SOURCE_DIR/include" "$examples/answers.c" "$library" -o answers ||
    die "answers.c"
LD_LIBRARY_PATH=$(dirname "$library") timeout 60 ./answers "$MODEL" "$text" "${questions[@]}" \
    >out || die "answers"
has '^ The year it was built: 1858'
has '^ It is .* '
if [ -x "$python" ]; then
    cp -r "$SOURCE_DIR/python" .
    "$python" python/build_api.py "$SOURCE_DIR/include" python/kvasir/_api.h || die "build_api.py"
    KVASIR_LIBRARY=$library PYTHONPATH=python timeout 60 "$python" "$examples/answers.py" "$MODEL" \
        "$text" "${questions[@]}" >python.out || die "answers.py"
    head -n "$(wc -l <out)" python.out | cmp - out || die "answers.py answers otherwise"
else
    echo "skipped: answers.py: no $python"
fi
