# SPDX-License-Identifier: Apache-2.0
"""Part of circles.sh: reads the output of nm -A -P, prints circles of calls between files."""
import collections
import os
import re
import sys

defines = {}
uses = collections.defaultdict(set)
for line in sys.stdin:
    path, rest = line.split(": ", 1) if ": " in line else line.split(":", 1)
    symbol, kind = rest.split()[:2]
    name = re.sub(r"^.*?/src/", "", path)
    name = re.sub(r"\.o(\[.*)?$", "", name)
    if kind == "U":
        uses[name].add(symbol)
    elif kind.isupper():
        defines[symbol] = name

calls = collections.defaultdict(set)
for name, symbols in uses.items():
    for symbol in symbols:
        other = defines.get(symbol)
        if other and other != name:
            calls[name].add((other, symbol))


def components(nodes):
    """Tarjan's strongly connected components, without recursion."""
    index, low, on, stack, found, order = {}, {}, set(), [], [], 0
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(sorted({o for o, _ in calls[root]})))]
        index[root] = low[root] = order
        order += 1
        stack.append(root)
        on.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = order
                    order += 1
                    stack.append(other)
                    on.add(other)
                    work.append((other, iter(sorted({o for o, _ in calls[other]}))))
                    break
                if other in on:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    circle = set()
                    while True:
                        other = stack.pop()
                        on.discard(other)
                        circle.add(other)
                        if other == node:
                            break
                    if len(circle) > 1:
                        found.append(circle)
    return found


allowed = ""
text = open("ARCHITECTURE.md", encoding="utf-8").read()
match = re.search(r"^#+ Circles\n(.*?)(?=^#|\Z)", text, re.M | re.S)
if match:
    allowed = match.group(1)
for circle in components(sorted(uses)):
    folders = {os.path.dirname(f) for f in circle}
    named = all("`src/" + f + "`" in allowed for f in circle)
    if len(folders) == 1 and named and not os.environ.get("ALL"):
        continue
    print("a circle of calls between " + ", ".join(sorted(circle)) + ":")
    for name in sorted(circle):
        for other, symbol in sorted(calls[name]):
            if other in circle:
                print(f"    {name} calls {other}: {symbol}")
