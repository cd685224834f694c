#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check.sh [ROOT]      checks the rules on the text of the tree (CONTRIBUTING.md) that a script can
#                      check. Prints every violation; tests/api/checks.sh plants one of each kind.
# check.sh --files-c   lists the C files that it checks
set -uo pipefail
tools=$(cd "$(dirname "$0")" && pwd)
root=$tools/..
case ${1:-} in
--files-c) ;;
?*) root=$1 ;;
esac
cd "$root" || exit 2
export LC_ALL=C.UTF-8 # so that columns count characters, not bytes

failed=0
# rule NAME COMMAND: whatever the command prints breaks the rule.
rule() {
    local name=$1 output
    shift
    output=$("$@" 2>&1)
    if [ -n "$output" ]; then
        printf '%s\n' "$output" "check: broken: $name"
        failed=1
    fi
}
files() { # PATTERN...: tracked and new files, without ignored and deleted ones
    git ls-files --cached --others --exclude-standard -- "$@" | sort -u |
        while IFS= read -r f; do [ ! -f "$f" ] || echo "$f"; done
}
c_files() { files '*.c' '*.h' '*.cu' '*.cuh'; }
own_text() {
    c_files
    files '*.sh' '*.py' '*.js' '*.css' '*.cmake' '*CMakeLists.txt' Makefile '*.in' .ci/run
}

# gcc only parses; -pedantic finds C++ comments and the like.
header_alone() { # COMPILER LANGUAGE STANDARD
    "$1" -x "$2" -std="$3" -Wall -Wextra -pedantic -Werror -fsyntax-only - \
        <<<'#include "include/kvasir.h"'
}
format() { # the first place of each file; `make format` fixes them all
    c_files | xargs -r clang-format --dry-run -Werror 2>&1 | awk -F: '
        /error: code should be clang-formatted/ && !seen[$1]++ { print $1 ":" $2 ": not formatted" }
        /error/ && !/clang-formatted/ { print }'
}
columns() { own_text | xargs -r grep -HnE '^.{101,}'; }
length() {
    own_text | xargs -r awk '
        FNR == 801 { print FILENAME ": more than 800 lines" }
        FILENAME ~ /^include\// && FNR == 400 { print FILENAME ": 400 lines or more" }'
}
licence() {
    own_text | xargs -r awk '
        FNR == 1 { found = 0 }
        FNR <= 2 && /SPDX-License-Identifier: Apache-2\.0/ { found = 1 }
        FNR == 2 && !found { print FILENAME ": no SPDX line first" }'
}
spaces() { own_text | xargs -r grep -HnE '[[:blank:]]+$'; }
# Flags belong to cli/: errors below it name a field (kvasir_error.field). Comments may.
flags() {
    files 'src/*.[ch]' 'src/*.inl' 'src/*.cu' 'src/*.cuh' | grep -v '^src/cli/' |
        xargs -r awk '{ line = $0; gsub(/\/\*.*(\*\/|$)/, "", line) }
            line ~ /^ \* / { next }
            line ~ /"([^"\\]|\\.)*--[a-z]/ { print FILENAME ":" FNR ": a flag in a text" }'
}
# Lines and cyclomatic complexity of functions: pmccabe's columns 5 and 2.
functions() {
    files 'src/*.[ch]' 'src/*.inl' 'src/*.cu' 'src/*.cuh' | xargs -r pmccabe | awk '
        $5 > 70 { print $6, $7 ": " $5 " lines" }
        $2 > 30 { print $6, $7 ": complexity " $2 }'
}
assertions() { "$tools/count-lines.sh" --floor 5 .; }
own_references() { # the repository stands alone; tests and benchmarks use the shared data
    files 'src/*' 'include/*' 'docs/*.md' README.md ARCHITECTURE.md CONTRIBUTING.md |
        xargs -r grep -HnE '\.\./shared|(^|[^[:alnum:]_-])shared/[a-z]|DESIGN(\.md| section)'
}
file_names() { # each file of src/ has a name of its own; tiers and devices share theirs
    files 'src/*.[ch]' | grep -v '^src/backend/' | awk -F/ '
        $NF in seen { print $0 ": the same name as " seen[$NF] }
        { seen[$NF] = $0 }'
}
mutants() { # every bug of tests/mutants.txt can still be planted
    [ ! -f tests/mutants.txt ] || python3 "$tools/mutants.py" check src tests/mutants.txt tests
    [ ! -f tests/opcheck/mutants.txt ] ||
        python3 "$tools/mutants.py" check src/backend/cuda tests/opcheck/mutants.txt
}
recorded_bits() { # a recorded hash changes only together with its versions (tests/golden/bits.c)
    local base file=tests/golden/bits.txt
    [ -f $file ] || return 0
    for base in HEAD HEAD^; do
        git show "$base:./$file" 2>/dev/null | awk -v base="$base" '
            { key = $1 " " $2 " " $3 " " $4 " " $5 }
            /^#/ || NF != 6 { next }
            NR == FNR { hash[key] = $6; next }
            key in hash && hash[key] != $6 {
                print FILENAME ":" FNR ": not the hash of " base ", with the same versions: " \
                      "raise KV_ARITHMETIC_VERSION or MODEL_ARITHMETIC_VERSION" }
        ' - $file
    done
}
figures() { # README.md has those of the newest results
    [ ! -f tools/readme.py ] || tools/readme.py --check
}
links() { # between documents, and to headings
    python3 - <<'PY'
import pathlib, re
def anchors(path):
    text = re.sub(r"^( {4}|```).*", "", path.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-")
            for h in re.findall(r"^#+ +(.*?)(?: \{#.*)?$", text, re.M)}
for path in sorted([*pathlib.Path(".").glob("*.md"), *pathlib.Path("docs").rglob("*.md"),
                    *pathlib.Path("python").glob("*.md")]):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        to = path.parent / name if name else path
        if not to.exists():
            print(f"{path}: no {link}")
        elif anchor and to.suffix == ".md" and anchor not in anchors(to):
            print(f"{path}: no heading {link}")
PY
}
named_tests() { # the threat model's tests and stages of soak.sh exist
    local name file=docs/threat-model.md
    [ ! -f $file ] || grep -oE '`(unit|api|fuzz|sim|golden)\.[a-z_]+`' $file | tr -d '`' | sort -u |
        while IFS= read -r name; do
            compgen -G "tests/${name/.//test_}.c" >/dev/null ||
                compgen -G "tests/${name/.//}.*" >/dev/null || echo "$file: no test $name"
        done
    [ ! -f $file ] || grep -oE 'stage `[a-z]+`' $file | cut -d'`' -f2 | sort -u |
        while IFS= read -r name; do
            grep -q "^    $name)" "$tools/soak.sh" || echo "$file: no stage $name"
        done
}
scripts() {
    local f
    for f in $(files '*.sh' .ci/run); do bash -n "$f"; done
}
scripts_run() {
    local f
    for f in $(files 'tools/*.sh' .ci/run); do
        [ -x "$f" ] || echo "$f: not executable"
    done
}

if [ "${1:-}" = --files-c ]; then
    c_files
    exit
fi
rule "layers" "$tools/check-layers.sh" .
rule "calls that belong to util/ and cli/" "$tools/check-calls.sh" .
rule "kvasir.h compiles alone as C" header_alone gcc c c11
rule "kvasir.h compiles alone as C++" header_alone g++ c++ c++11
rule "clang-format" format
rule "100 columns" columns
rule "no blanks at line ends" spaces
rule "file length" length
rule "SPDX line" licence
rule "no flags in texts below cli/" flags
rule "functions: 70 lines, complexity 30" functions
rule "assertions: 5 for each 1,000 lines" assertions
rule "no references to shared/, which a clone lacks" own_references
rule "file names are unique" file_names
rule "mutants can be planted" mutants
rule "recorded bits change only with their versions" recorded_bits
rule "the threat model names tests that exist" named_tests
rule "figures of README.md" figures
rule "links of documents" links
rule "scripts parse" scripts
rule "scripts are executable" scripts_run

[ "$failed" -ne 0 ] || echo "check: all rules hold"
exit "$failed"
