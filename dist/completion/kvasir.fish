# SPDX-License-Identifier: Apache-2.0
# fish: commands, their flags with help, files, and names of models that were pulled. The program is
# asked.
function __kvasir_command
    set -l words (commandline -opc)
    test (count $words) -ge 2; and echo $words[2]
end
function __kvasir_flags
    set -l command (__kvasir_command)
    test -n "$command"; or return
    kvasir $command --help=flags 2>/dev/null | string replace -r '^([^\t]*)\t[^\t]*\t' '$1\t'
end
complete -c kvasir -n '__fish_use_subcommand' -f \
    -a "(kvasir help 2>/dev/null | string replace -rf '^  ([a-z-]+)  +(.*)' '\$1\t\$2')"
complete -c kvasir -n '__fish_use_subcommand' -f -a help -d 'list the commands'
complete -c kvasir -n '__fish_use_subcommand' -f -a version -d 'print the version'
complete -c kvasir -n 'not __fish_use_subcommand; and string match -q -- "-*" (commandline -ct)' \
    -a '(__kvasir_flags)'
complete -c kvasir -s m -l model -r -a '(kvasir list 2>/dev/null | string sub -s 13)'
complete -c kvasir -n '__fish_seen_subcommand_from rm show' -f \
    -a '(kvasir list 2>/dev/null | string sub -s 13)'
