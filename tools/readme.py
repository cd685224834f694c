#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""readme.py [--check]: the figures of README.md, from the newest bench/results/speed-*.txt

Writes docs/speed.svg, a chart of decoding at 8,000 tokens, and the lines of README.md between
<!-- figures --> and <!-- end of figures -->. With --check nothing is written: what differs is
named, and the exit code is 1.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = "SmolLM2-135M-Instruct.Q4_1"
DEPTH = 8000
# bytes of a token: `kvasir info`; llama.cpp's blocks of 32 have a 16-bit scale (q4_0: 18 bytes)
VALUES = 30 * 3 * 64
BITS = {"f16": 16, "8": 8.5, "4": 4.5, "q8_0": 8.5, "q4_0": 4.5}
BARS = [  # row of the results, or the best of an engine; label; bits of K and V; our colour
    ("best of llama", "llama.cpp, its best setting", None, False),
    ("best of ik", "ik_llama.cpp, its best setting", None, False),
    ("kvasir f16", "Kvasir, 16 bits", ("f16", "f16"), True),
    ("kvasir 8,4", "Kvasir, keys 8 bits, values 4 (default)", ("8", "4"), True),
    ("kvasir 4", "Kvasir, 4 bits", ("4", "4"), True),
]


def read(path):
    """Rows of decoding at DEPTH: {"kvasir 8,4": tokens/s}, and the machine's line."""
    text = path.read_text()
    part = text[text.index(MODEL + ":"):].split("\n\n")[0]
    rows = {}
    for m in re.finditer(r"^tg depth +(\d+)  (\S+) +(.*?) +median +([\d.]+)", part, re.M):
        if int(m[1]) == DEPTH:
            rows[f"{m[2]} {m[3].strip()}"] = float(m[4])
    return rows, re.search(r"^machine: (.*?); (\d+) threads; kvasir tier (\w+)", part, re.M)


def best(rows, engine):
    name = max((n for n in rows if n.startswith(engine + " ")), key=lambda n: rows[n])
    formats = name.split()[1].split("/")
    return rows[name], (formats[0], formats[-1])


def values(rows):
    """[(label, tokens/s, MiB of the cache, ours)]"""
    out = []
    for row, label, bits, ours in BARS:
        if row.startswith("best of "):
            speed, bits = best(rows, row[8:])
            label += f" ({'/'.join(bits)})"
        else:
            speed = rows[row]
        size = VALUES * (BITS[bits[0]] + BITS[bits[1]]) / 8 * DEPTH / 2**20
        out.append((label, speed, size, ours))
    return out


def chart(bars, machine):
    left, top, height, wide = 300, 46, 30, 330
    most = max(b[1] for b in bars)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 '
             f'{top + height * len(bars) + 34}" font-family="sans-serif" font-size="13" '
             'role="img" aria-label="tokens per second at 8,000 tokens">',
             "<style>text{fill:#444}@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>",
             f'<text x="10" y="20" font-size="15">Decoding after {DEPTH:,} tokens: tokens/s, and '
             'memory of the cache</text>']
    for i, (label, speed, size, ours) in enumerate(bars):
        y = top + i * height
        long = round(wide * speed / most)
        lines += [f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{label}</text>',
                  f'<rect x="{left}" y="{y}" width="{long}" height="20" rx="3" '
                  f'fill="{"#2a7ab8" if ours else "#9aa4ad"}"/>',
                  f'<text x="{left + long + 8}" y="{y + 15}">{speed:.0f} tokens/s, '
                  f'{size:.0f} MiB</text>']
    lines += [f'<text x="10" y="{top + height * len(bars) + 18}" font-size="11">{MODEL}, '
              f'{machine[1].split(",")[0]}, {machine[2]} threads, {machine[3]}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


def figures(bars, source):
    by = {b[0]: b for b in bars}
    ours = by["Kvasir, keys 8 bits, values 4 (default)"]
    f16, four = by["Kvasir, 16 bits"], by["Kvasir, 4 bits"]
    llama = next(b for b in bars if b[0].startswith("llama.cpp"))
    faster, smaller = ours[1] / f16[1], f16[2] / ours[2]
    return (f"  At {DEPTH:,} tokens the default cache decodes {ours[1] / llama[1]:.1f} times as "
            f"fast as llama.cpp at its best setting and {faster:.1f} times as fast\n"
            f"  as our own 16-bit cache, in {smaller:.1f} times less memory; 4 bits: "
            f"{four[1] / f16[1]:.1f} times as fast, {f16[2] / four[2]:.1f} times less memory\n"
            "  (SmolLM2-135M, two cores, "
            f"[{source.name}](bench/results/{source.name})).\n")


def main():
    check = sys.argv[1:] == ["--check"]
    source = sorted(ROOT.glob("bench/results/speed-*-avx2.txt"))[-1]
    rows, machine = read(source)
    bars = values(rows)
    readme = ROOT / "README.md"
    text = readme.read_text()
    new = re.sub(r"(<!-- figures[^>]*-->\n).*?( *<!-- end of figures -->)",
                 lambda m: m[1] + figures(bars, source) + m[2], text, flags=re.S)
    bad = 0
    for path, made in (readme, new), (ROOT / "docs/speed.svg", chart(bars, machine)):
        if path.exists() and path.read_text() == made:
            continue
        if check:
            print(f"{path.relative_to(ROOT)}: not the figures of {source.name}: "
                  "run tools/readme.py")
            bad = 1
        else:
            path.write_text(made)
    return bad


sys.exit(main())
