#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# `make check` finds violations: each kind is planted alone in a scratch tree that keeps every rule,
# and must be reported with its file.
set -euo pipefail
: "${SOURCE_DIR:?}"
for program in git clang-format g++ pmccabe; do
    command -v "$program" >/dev/null || {
        echo "skipped: no $program"
        exit 77
    }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
spdx='/* SPDX-License-Identifier: Apache-2.0 */'

mkdir -p include src/{util,quant,text,backend/cpu/ref,cache,server,cli} tools
git init -q .
cp "$SOURCE_DIR/.clang-format" .
cp "$SOURCE_DIR"/include/*.h include/
for folder in util quant text backend cache server; do
    echo "$spdx" >"src/$folder/$folder.h"
done
echo "$spdx" >src/cache/page.h
printf '%s\n#include <stdio.h>\n\n#include "backend/backend.h"\n#include "cache/page.h"\n' "$spdx" \
    >src/cache/cache.c
printf '%s\n#include "cli.h"\n#include "server/server.h"\n\n#include <kvasir.h>\n' "$spdx" \
    >src/cli/main.c
printf '%s\n#include "server/server.h"\n\nvoid *f(void) {\n    return malloc(1);\n}\n' "$spdx" \
    >src/server/server.c
echo "$spdx" >src/cli/cli.h
cp src/cache/cache.c good.c

check() { "$SOURCE_DIR/tools/check.sh" "$scratch"; }
check >out 2>&1 || {
    cat out
    echo "the tree without a violation does not pass"
    exit 1
}

planted=0
# plant FILE PATTERN TEXT...: FILE gets an SPDX line and the lines TEXT; the check must fail with a
# line that matches PATTERN.
plant() {
    local file=$1 pattern=$2
    shift 2
    printf '%s\n' "$spdx" "$@" >"$file"
    if check >out 2>&1 || ! grep -q "$pattern" out; then
        cat out
        echo "not found: $file: $*"
        exit 1
    fi
    rm "$file"
    planted=$((planted + 1))
}

mkdir -p docs
plant docs/threat-model.md '^docs/threat-model.md: no test unit.nothing' '| `unit.nothing` |'
plant docs/threat-model.md '^docs/threat-model.md: no stage nothing' '| stage `nothing` |'
plant src/util/x.c '^src/util/x.c:2: .*util (0) must not include quant' '#include "quant/quant.h"'
plant src/quant/x.c '^src/quant/x.c:3: .*must not include text' '' '#include "text/text.h"'
plant src/backend/cpu/ref/x.c '^src/backend/cpu/ref/x.c:2:' '#include "cache/cache.h"'
plant src/backend/cpu/x.h '^src/backend/cpu/x.h:2:' '#  include <cache/cache.h>'
plant src/backend/x.c 'only the front header' '#include "quant/hidden.h"'
plant src/cache/x.c 'no \.\.' '#include "../quant/quant.h"'
plant src/cache/x.c 'must be written out' '#include HEADER'
plant src/cli/x.c '^src/cli/x.c:2: .*cli sees' '#include "quant/quant.h"'
plant src/cli/x.c '^src/cli/x.c:2: .*cli sees' '#include <engine/engine.h>'
plant src/cli/x.c '^src/cli/x.c:2: .*only the front' '#include "server/internal.h"'
plant src/server/x.c '^src/server/x.c:2: .*server sees' '#include "text/text.h"'
plant src/server/x.c '^src/server/x.c:2: .*must not include cli' '#include "cli/cli.h"'
plant src/server/x.c '^src/server/x.c:2: .*as a whole' '#include "kvasir_text.h"'
plant src/cache/x.c '^src/cache/x.c:2: .*must not include server' '#include "server/server.h"'
mkdir src/misc
plant src/misc/x.c 'place in the order' 'int x;'

plant src/cache/x.c '^src/cache/x.c:3: exit()' 'void f(void) {' '    exit(1);' '}'
plant src/server/x.c '^src/server/x.c:2: printf()' 'int x = printf("x");'
plant src/server/x.c '^src/server/x.c:2: exit()' 'int x = exit(1);'
plant src/cache/x.c '^src/cache/x.c:2: malloc()' 'char *p = /* " */ malloc(3);'
plant src/cache/x.c '^src/cache/x.c:2: getenv()' "char *p = '\"' + getenv(\"HOME\");"
plant src/cache/x.c '^src/cache/x.c:2: printf()' 'int x = y ? printf("x") : 0;'
plant src/backend/x.cuh '^src/backend/x.cuh:2: malloc()' 'char *p = malloc(3);'

plant src/cache/x.c '^src/cache/x.c:2: not formatted' 'int  x;'
plant src/backend/x.cu '^src/backend/x.cu:2: not formatted' 'int  x;'
plant src/backend/x.cu 'more than 800 lines' "$(seq -f '// %.0f' 800)"
plant src/cache/x.c '^src/cache/x.c:2:' "/* $(printf '%099d' 0) */"
plant src/cache/x.c '^src/cache/x.c:2:' '/* blank */ '
plant src/cache/x.c 'more than 800 lines' "$(seq -f '/* %.0f */' 800)"
plant src/cache/x.c '^src/cache/x.c:2: a flag' 'const char *s = "raise --ctx";'
plant src/server/x.c '^src/server/x.c:2: a flag' 'const char *s = "--api-key: x"; /* x */'
plant tools/x.sh 'not executable' '# x'
plant tools/y.sh 'y.sh: line' 'if x'

plant src/cache/x.c 'f: 72 lines' 'int f(int x) {' "$(seq -f '    x += %.0f;' 69)" \
    '    return x;' '}'
plant src/cache/x.c 'f: complexity 31' 'int f(int x) {' \
    "$(seq -f '    if (x == %.0f)
        return 1;' 30)" '    return x;' '}'
plant src/cache/x.c '^src/cache: 0 assertions in 2' "$(seq -f 'int v%.0f;' 250)"
plant src/cache/x.c '^src/cache/x.c:2:/' '/* see ../shared/README.md */'
plant src/cache/x.c '^src/cache/x.c:2:/' '/* I1 of DESIGN.md */'
echo "$spdx" >src/text/x.c
plant src/cache/x.c 'the same name' 'int x;'
rm src/text/x.c
mkdir tests
plant tests/mutants.txt 'does not contain' 'cache/cache.c|no such text|;|nothing|unit.cache'
plant tests/mutants.txt 'no test unit.nothing' 'cache/cache.c|||nothing|unit.nothing'
rmdir tests

echo 'int x;' >src/cache/x.c
echo 'int y;' >>src/cache/x.c
! check >out 2>&1 && grep -q '^src/cache/x.c: no SPDX' out || { cat out && exit 1; }
rm src/cache/x.c
cp include/kvasir.h good.h
echo 'size_t class(size_t new);' >>include/kvasir.h
! check >out 2>&1 && grep -q 'compiles alone as C++' out || { cat out && exit 1; }
cp include/kvasir_status.h good_status.h
sed 's/#include <stddef.h>//' good_status.h >include/kvasir_status.h
! check >out 2>&1 && grep -q 'compiles alone as C' out || { cat out && exit 1; }
cp good.h include/kvasir.h
cp good_status.h include/kvasir_status.h
seq -f '/* %.0f */' 400 >>include/kvasir.h
! check >out 2>&1 && grep -q '400 lines or more' out || { cat out && exit 1; }
cp good.h include/kvasir.h

# Recorded bits: a hash may change together with its versions only, in this commit and in the last.
mkdir -p tests/golden
bits() { # VERSIONS HASH
    printf '# x\nllama ref 8,4 16 %s %s\n' "$1" "$2" >tests/golden/bits.txt
}
commit() {
    git add tests/golden/bits.txt
    git -c user.name=x -c user.email=x@example.org commit -qm x
}
bits 1.2.1 00aa && commit
bits 1.2.1 00bb
! check >out 2>&1 && grep -q '^tests/golden/bits.txt:2: not the hash of HEAD,' out ||
    { cat out && exit 1; }
commit
! check >out 2>&1 && grep -q '^tests/golden/bits.txt:2: not the hash of HEAD^,' out ||
    { cat out && exit 1; }
bits 1.3.1 00cc && commit
check >out 2>&1 || { cat out && exit 1; }
bits 1.3.2 00dd
check >out 2>&1 || { cat out && exit 1; }
git rm -qf tests/golden/bits.txt

# Text that only looks like a violation: names in comments, strings and longer names, members.
printf '%s\n' "$spdx" '/* exit(1);' ' * malloc(2) */' 'int my_exit(int x);' \
    'const char *s = "a \" printf(1)";' 'int y = ops->exit(1) + mem_malloc(2);' \
    "int z = '\"'; /* getenv(x) */" '/* "--ctx" */' 'const char *t = "<!-- x -->";' \
    >src/cache/x.c
clang-format -i src/cache/x.c
check >out 2>&1 || { cat out && exit 1; }
echo "$planted kinds of violation found, none invented"
