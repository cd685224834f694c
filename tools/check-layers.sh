#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check-layers.sh [ROOT]: checks that the include graph is the one of docs/design.md. Prints
# file:line of every #include that breaks it.
#
#   util 0   quant 1  text 1   files 2  grammar 2  backend 2   cache 3   model 4   engine 5
#   lab 6    http 6   api 6    hub 6    server 7   cli 8
#
# A folder may include only folders of lower numbers, and of another folder only FOLDER/FOLDER.h.
# Everything below src/backend/ counts as backend; each of its folders X also has a header X/X.h for
# others, which creates that backend. http, api, hub, server and cli use the library as any program
# does, through <kvasir.h>: of its folders they see util/ only, and each other by number. cli also
# sees lab/, which sees every header of engine/, because it experiments with its parts.
#
# kvasir.h itself includes its own kvasir_X.h and system headers only and is allowed everywhere.
# Every header of util/ is a front header, and so is files/safetensors.h, which cli/ sees, too.
# Names without a folder mean the including file's own folder; paths with .. are refused.
set -euo pipefail
root=${1:-$(dirname "$0")/..}
cd "$root"

find src include \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) | sort |
    xargs awk '
    BEGIN {
        n = split("util 0 quant 1 text 1 files 2 grammar 2 backend 2 cache 3 model 4 engine 5 " \
                  "lab 6 http 6 api 6 hub 6 server 7 cli 8", w, " ")
        for (i = 1; i < n; i += 2)
            level[w[i]] = w[i + 1]
        n = split("http api hub server cli", w, " ")
        for (i = 1; i <= n; i++)
            user[w[i]] = 1
    }
    # A folder of the program may see only util/ and the program, and cli/ also lab/.
    function beyond_wall(own, folder) {
        return own in user && !(folder in user) && folder != "util" &&
               !(own == "cli" && (folder == "lab" || header == "files/safetensors.h"))
    }
    # Headers that create a backend: backend/cpu/cpu.h, ...
    function creates_backend(header,  part) {
        return split(header, part, "/") == 3 && part[1] == "backend" && part[3] == part[2] ".h"
    }
    function bad(why) {
        printf "%s:%d: %s: %s\n", FILENAME, FNR, header, why
        broken = 1
    }
    FNR == 1 {
        split(FILENAME, part, "/")
        own = part[1] == "include" ? "include" : part[2]
        if (part[1] == "src" && !(own in level)) {
            header = FILENAME
            bad("not in a folder that has a place in the order")
        }
    }
    /^[ \t]*#[ \t]*include/ {
        header = $0
        sub(/^[ \t]*#[ \t]*include(_next)?[ \t]*/, "", header)
        quoted = header ~ /^"/
        if (!quoted && header !~ /^</) {
            bad("the name must be written out")
            next
        }
        header = substr(header, 2)
        sub(/[">].*/, "", header)
        if (header == "kvasir.h" || (own == "include" && header ~ /^kvasir_[a-z]+\.h$/))
            next
        folder = header
        sub(/\/.*/, "", folder)
        ours = folder != header && folder in level
        if (header ~ /\.\./)
            bad("no .. in an include")
        else if (own == "include" && (quoted || ours))
            bad("the public header stands alone")
        else if (ours && beyond_wall(own, folder))
            bad(own " sees the library as <kvasir.h> and util/ only")
        else if (own in user && header ~ /^kvasir_[a-z]+\.h$/)
            bad("include <kvasir.h> as a whole")
        else if (!ours)
            next # a system header, or one of the same folder
        else if (folder == own)
            next
        else if (level[folder] >= level[own])
            bad(own " (" level[own] ") must not include " folder " (" level[folder] ")")
        else if (own == "lab" && folder == "engine")
            next
        else if (header != folder "/" folder ".h" && folder != "util" &&
                 header != "files/safetensors.h" && !creates_backend(header))
            bad("only the front header " folder "/" folder ".h may be included from " own)
    }
    END { exit broken }
    '
