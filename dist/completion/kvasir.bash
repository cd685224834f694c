# SPDX-License-Identifier: Apache-2.0
# bash: commands, their flags, files, and names of models that were pulled. The program is asked.
_kvasir() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words
    local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]}
    if [ "$COMP_CWORD" = 1 ] || { [ "$COMP_CWORD" = 2 ] && [ "$command" = help ]; }; then
        words="$("$program" help 2>/dev/null | sed -n 's/^  \([a-z-]*\)  .*/\1/p') help version"
    elif [[ $word == -* ]]; then
        words=$("$program" "$command" --help=flags 2>/dev/null | cut -f1)
    elif [[ $before == -m || $before == --model || $command == rm || $command == show ]]; then
        words=$("$program" list 2>/dev/null | cut -c13-)
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [ ${#COMPREPLY[@]} = 0 ] || [[ $before == -m || $before == --model ]]; then
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
    # a colon separates words in bash: only what comes after the last one is inserted
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}
complete -o filenames -F _kvasir kvasir
