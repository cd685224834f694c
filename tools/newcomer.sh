#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# newcomer.sh [--answers] [N]
#
# Draws N (20) functions of src/ with the commit as the seed and prints their signatures: can a
# reader who knows only README.md and ARCHITECTURE.md say in which folder each one is? --answers
# prints the folders, too. docs/decisions/repository.md has the results of such readers.
set -euo pipefail
cd "$(dirname "$0")/.."
answers=
[ "${1:-}" != --answers ] || { answers=1; shift; }
git ls-files 'src/*.c' | xargs pmccabe 2>/dev/null |
    ANSWERS=$answers N=${1:-20} SEED=$(git rev-parse HEAD) python3 -c '
import os, random, re, sys

found = []
for line in sys.stdin:
    match = re.match(r"(\S+)\((\d+)\): (\w+)", line.rstrip("\n").split("\t")[5])
    if match:
        found.append(match.groups())
drawn = random.Random(os.environ["SEED"]).sample(found, int(os.environ["N"]))
for n, (path, at, name) in enumerate(drawn, 1):
    text = "\n".join(open(path).read().split("\n")[int(at) - 1:][:8])
    head = re.sub(r"\s+", " ", text.split("{")[0]).strip()
    folder = "  -> " + os.path.dirname(path) if os.environ["ANSWERS"] else ""
    print(f"{n:2}. {head}{folder}")
'
