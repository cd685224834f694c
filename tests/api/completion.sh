#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# dist/completion/: bash completes commands, flags and names of models; fish and zsh read their
# and complete flags, where they are installed.
. "$(dirname "$0")/../support/api.bash"
mkdir bin models
ln -s "$kvasir" bin/kvasir
export PATH=$PWD/bin:$PATH KVASIR_MODELS_DIR=$PWD/models HF_HOME=$PWD/hf
dist=$SOURCE_DIR/dist/completion
echo x >models/tiny.gguf
zeros=$(printf "0%.0s" {1..64})
echo "{\"name\": \"pypi:tiny:tiny.gguf\", \"sha256\": \"$zeros\"}" >models/tiny.gguf.json

good generate --help=flags
grep -qP '^--max-tokens\t[A-Z]*\t.' out || die "--help=flags"

# as readline calls it: words, and the place of the last one
cat >complete <<'BASH'
. "$1"
shift
COMP_WORDBREAKS=$' \t\n"\'><=;|&(:' COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_kvasir
printf '%s\n' "${COMPREPLY[@]}"
BASH
bash_completes() { bash --norc complete "$dist/kvasir.bash" "$@" | sort >got; }
bash_completes kvasir gen
[ "$(cat got)" = generate ] || die "bash: commands: $(cat got)"
bash_completes kvasir serve --max-num
[ "$(tr '\n' ' ' <got)" = '--max-num-batched-tokens --max-num-seqs ' ] ||
    [ "$(cat got)" = --max-num-seqs ] || die "bash: flags: $(cat got)"
bash_completes kvasir generate -m pypi:ti
[ "$(cat got)" = tiny:tiny.gguf ] || die "bash: models: $(cat got)"
bash_completes kvasir generate -m models/ti
grep -qx models/tiny.gguf got || die "bash: files: $(cat got)"

if command -v fish >/dev/null; then
    fish --no-config -c "source $dist/kvasir.fish; complete -C 'kvasir gen'" >got || die "fish"
    grep -qP '^generate\tanswer a prompt$' got || die "fish: commands: $(cat got)"
    fish --no-config -c "source $dist/kvasir.fish; complete -C 'kvasir generate --max-tok'" >got
    grep -qP '^--max-tokens\t' got || die "fish: flags: $(cat got)"
    fish --no-config -c "source $dist/kvasir.fish; complete -C 'kvasir generate -m pypi'" >got
    grep -q '^pypi:tiny:tiny.gguf' got || die "fish: models: $(cat got)"
fi
! command -v zsh >/dev/null || zsh -n "$dist/_kvasir" || die "zsh: syntax"
