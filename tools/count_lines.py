# SPDX-License-Identifier: Apache-2.0
"""Part of count-lines.sh: counts lines of code and assertions below a folder."""
import collections
import pathlib
import re
import sys

ASSERTIONS = re.compile(r"\b(?:ASSERT|DEBUG_ASSERT|_Static_assert|static_assert)\s*\(([^;]*)")
NULL_CHECK = re.compile(r"^\s*!?[\w.>\[\]-]+(?:\s*[!=]=\s*NULL)?\s*\)$")
TIER_SOURCES = re.compile(r"^second_tier\((.*?)\)", re.M | re.S)


def code_of(text):
    """Lines that are neither blank nor comment. String literals are emptied first, so that none
    looks like the start of a comment."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return [line for line in text.split("\n") if line.strip()]


def count(root):
    lines, assertions = collections.Counter(), collections.Counter()
    root = pathlib.Path(root)
    for top in ("src", "include"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".c", ".h", ".inl", ".cu", ".cuh"):
                continue
            parts = path.relative_to(root).parts
            folder = "/".join(parts[:2]) if top == "src" else top
            code = code_of(path.read_text(errors="replace"))
            lines[folder] += len(code)
            if path.name == "assert.h":
                continue  # defines the assertions
            for found in ASSERTIONS.finditer("\n".join(code)):
                assertions[folder] += not NULL_CHECK.match(found.group(1))
    cmake = root / "CMakeLists.txt"
    if cmake.exists():
        for found in TIER_SOURCES.finditer(cmake.read_text()):
            lines["generated"] += sum(word.endswith(".c") for word in found.group(1).split())
    return lines, assertions


def main():
    lines, assertions = count(sys.argv[1])
    if "--floor" in sys.argv:
        floor = float(sys.argv[sys.argv.index("--floor") + 1])
        for folder in sorted(lines):
            rate = 1000 * assertions[folder] / lines[folder] if lines[folder] else 0
            if folder not in ("src/cli", "include", "generated") and lines[folder] >= 200 and \
                    rate < floor:
                print(f"{folder}: {assertions[folder]} assertions in {lines[folder]} lines, "
                      f"{rate:.1f} for each 1,000; at least {floor:g} are required")
        return
    for folder in sorted(lines):
        print(f"{folder:14} {lines[folder]:6} lines {assertions[folder]:4} assertions, "
              f"{1000 * assertions[folder] / max(1, lines[folder]):5.1f} for each 1,000")
    print(f"{'all':14} {sum(lines.values()):6} lines {sum(assertions.values()):4} assertions")


main()
