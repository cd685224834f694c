# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: lines FILE|BEFORE|AFTER|what it breaks, FILE below ROOT, BEFORE a text in FILE.

mutants.py plant FILE BEFORE AFTER   plants one
mutants.py check ROOT LIST           prints each line of LIST that cannot be planted
"""
import os
import sys


def plant(path, before, after):
    text = open(path, encoding="utf-8").read()
    if before not in text:
        sys.exit(f"mutants: {path} does not contain '{before}'")
    open(path, "w", encoding="utf-8").write(text.replace(before, after, 1))


def check(root, name):
    for number, line in enumerate(open(name, encoding="utf-8").read().splitlines(), 1):
        place = f"{name}:{number}"
        fields = line.split("|")
        if len(fields) != 4:
            print(f"{place}: not FILE|BEFORE|AFTER|what it breaks")
            continue
        path = os.path.join(root, fields[0])
        text = open(path, encoding="utf-8").read() if os.path.exists(path) else ""
        if fields[1] not in text:
            print(f"{place}: {path} does not contain '{fields[1]}'")


if sys.argv[1] == "plant":
    plant(*sys.argv[2:])
else:
    check(*sys.argv[2:])
