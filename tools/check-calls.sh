#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check-calls.sh [ROOT]: outside util/ and cli/ nothing may print, read the environment, end the
# process or, in the library, allocate memory without util.h's functions. Comments and strings are
# ignored.
set -euo pipefail
root=${1:-$(dirname "$0")/..}
cd "$root"

find src \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) \
    -not -path 'src/util/*' -not -path 'src/cli/*' | sort |
    xargs awk '
    BEGIN {
        says = "exit|_exit|_Exit|quick_exit|abort|getenv|secure_getenv|setenv|printf|fprintf|" \
               "vprintf|vfprintf|dprintf|puts|fputs|putchar|fputc|perror"
        takes = "malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup|asprintf|" \
                "vasprintf"
    }
    FNR == 1 {
        comment = 0
        calls = "(" says (FILENAME ~ /^src\/(server|http|api|lab)\// ? "" : "|" takes) ")"
    }
    {
        line = $0
        code = ""
        while (line != "") {
            if (comment) {
                end = index(line, "*/")
                if (!end)
                    break
                line = substr(line, end + 2)
                comment = 0
            } else if (match(line, /\/\*|\/\/|"|\047/)) {
                code = code substr(line, 1, RSTART - 1)
                what = substr(line, RSTART, RLENGTH)
                line = substr(line, RSTART + RLENGTH)
                if (what == "/*")
                    comment = 1
                else if (what == "//")
                    break
                else { # a string or a character: up to its own quote, over escaped ones
                    if (what == "\"")
                        match(line, /^([^"\\]|\\.)*"/)
                    else
                        match(line, /^([^\047\\]|\\.)*\047/)
                    if (RSTART == 0)
                        break
                    line = substr(line, RSTART + RLENGTH)
                    code = code " "
                }
            } else {
                code = code line
                break
            }
        }
        # A member of that name (x->exit) is not meant, and format(printf, 1, 2) is not a call.
        if (match(code, "(^|[^A-Za-z0-9_.>])" calls "[ \t]*\\(")) {
            name = substr(code, RSTART, RLENGTH)
            gsub(/[^A-Za-z0-9_]/, "", name)
            printf "%s:%d: %s() belongs to util/ and cli/\n", FILENAME, FNR, name
            broken = 1
        }
    }
    END { exit broken }
    '
