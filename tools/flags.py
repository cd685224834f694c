#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""flags.py [--check] PROGRAM    writes the lists of flags in docs/man/ and docs/flags.md

A list is between two lines, in a man page

    .\\" flags of COMMAND: tools/flags.py
    .\\" end of flags

and in docs/flags.md <!-- flags of COMMAND: tools/flags.py --> and <!-- end of flags -->. Each is
replaced by the output of `PROGRAM COMMAND --help=man` or --help=markdown. In a man page the text
below .\\" more in an item is kept; "some flags" keeps its present items and gets no others. With
--check nothing is written: lists that differ are named, and the exit code is 1.
"""
import pathlib
import re
import subprocess
import sys

MORE = '.\\" more'
BEGIN = re.compile(r'^(?:\.\\"|<!--) (some flags|flags) of ([a-z-]+): tools/flags\.py(?: -->)?$')
END = re.compile(r"^(?:\.\\\"|<!--) end of flags(?: -->)?$")


def ask(program, command, form):
    out = subprocess.run([program, command, "--help=" + form], capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"{program} {command} --help={form}: exit code {out.returncode}")
    return out.stdout.splitlines()


def items(lines):
    """[(name, lines)] of a list's items; lists within an item are part of it."""
    found, depth = [], 0
    for line in lines:
        if line.startswith(".It ") and depth == 0:
            name = re.search(r"Fl (-[a-z0-9-]+)|It Ar (\w+)", line)
            found.append((name.group(0), [line]))
        elif found:
            found[-1][1].append(line)
        depth += line.startswith(".Bl") - line.startswith(".El")
    return found


def man_list(old, made, some):
    body = old[1:-1]  # without .Bl and .El
    kept = {}
    for name, lines in items(body):
        kept[name] = lines[lines.index(MORE) :] if MORE in lines else []
    out = [old[0]]
    for name, lines in items(made):
        if name in kept or not some:
            out += lines + kept.get(name, [])
    return out + [old[-1]]


def rewrite(text, program):
    out, lines = [], iter(text.splitlines())
    for line in lines:
        out.append(line)
        begin = BEGIN.match(line)
        if not begin:
            continue
        old = []
        for line in lines:
            if END.match(line):
                break
            old.append(line)
        if out[-1].startswith("<!--"):
            out += ["", "| flag | default | what |", "|---|---|---|"]
            out += ask(program, begin.group(2), "markdown") + [""]
        else:
            some = begin.group(1) == "some flags"
            out += man_list(old, ask(program, begin.group(2), "man"), some)
        out.append(line)
    return "\n".join(out) + "\n"


def main():
    check = sys.argv[1:2] == ["--check"]
    program = str(pathlib.Path(sys.argv[1 + check]).resolve())
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = []
    for path in sorted(root.glob("docs/man/*.1")) + [root / "docs/flags.md"]:
        text = path.read_text()
        new = rewrite(text, program)
        if new == text:
            continue
        if check:
            bad.append(f"{path.relative_to(root)}: its flags are not the program's: "
                       f"run tools/flags.py build/kvasir")
        else:
            path.write_text(new)
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


sys.exit(main())
