# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: lines FILE|BEFORE|AFTER|what it breaks, FILE below ROOT, BEFORE a text in FILE.

mutants.py plant FILE BEFORE AFTER     plants one
mutants.py check ROOT LIST [TESTS]     prints each line of LIST that cannot be planted; with TESTS,
                                       the folder of tests, a line ends in |TEST, which must exist
"""
import os
import re
import sys

SOURCES = {"unit": "unit/test_{}.c", "sim": "sim/{}.c", "golden": "golden/{}.c",
           "api": "api/{}.sh"}


def plant(path, before, after):
    text = open(path, encoding="utf-8").read()
    if before not in text:
        sys.exit(f"mutants: {path} does not contain '{before}'")
    open(path, "w", encoding="utf-8").write(text.replace(before, after, 1))


def is_test(tests, name):
    found = re.fullmatch(r"([a-z]+)\.([a-z_0-9]+)", name)
    return (found is not None and found[1] in SOURCES
            and os.path.exists(os.path.join(tests, SOURCES[found[1]].format(found[2]))))


def check(root, name, tests=None):
    form = "FILE|BEFORE|AFTER|what it breaks" + ("|TEST" if tests else "")
    for number, line in enumerate(open(name, encoding="utf-8").read().splitlines(), 1):
        place = f"{name}:{number}"
        fields = line.split("|")
        if len(fields) != form.count("|") + 1:
            print(f"{place}: not {form}")
            continue
        path = os.path.join(root, fields[0])
        text = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if fields[1] not in text:
            print(f"{place}: {path} does not contain '{fields[1]}'")
        if tests and not is_test(tests, fields[4]):
            print(f"{place}: no test {fields[4]}")


if sys.argv[1] == "plant":
    plant(*sys.argv[2:])
else:
    check(*sys.argv[2:])
