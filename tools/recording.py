#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recording.py [--out docs/demo.svg] [--frames N] KVASIR MODEL    records `kvasir demo` as an SVG

Runs the demo of `make demo` on a terminal of 100 columns and writes what is seen, at the speed at
which it was seen, as a film: all frames one below the other, moved by CSS behind a window of one
frame. Needs a quiet machine: the figures on it are those of this run.
"""
import argparse
import fcntl
import html
import os
import pty
import re
import struct
import sys
import termios
import time

COLUMNS, ROWS, LINE, WIDTH = 100, 20, 19, 8.4
LAST_SECONDS = 6  # that the end stays
UP = re.compile(r"\x1b\[(\d+)A")


def run(argv):
    """[(seconds, bytes)] of what the program writes to a terminal, standard error left out."""
    pid, fd = pty.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.execv(argv[0], argv)
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    seen = []
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        seen.append((time.monotonic(), data))
    _, status = os.waitpid(pid, 0)
    if status != 0:
        sys.exit(f"recording: {argv[0]} ends with status {status}")
    return seen


def frames_of(seen):
    """[(seconds since the first, lines)]: the screen after each piece of output."""
    lines, row, frames = [], 0, []
    for at, data in seen:
        text = data.decode("utf-8", "replace").replace("\r", "").replace("\x1b[K", "")
        for part in re.split(r"(\x1b\[\d+A|\n)", text):
            up = UP.fullmatch(part)
            if up:
                row = max(0, row - int(up.group(1)))
            elif part == "\n":
                row += 1
            elif part:
                lines += [""] * (row + 1 - len(lines))
                lines[row] = part
        frames.append((at - seen[0][0], list(lines)))
    return frames


def wrapped(lines):
    out = []
    for line in lines:
        while len(line) > COLUMNS:
            cut = line.rfind(" ", 0, COLUMNS) + 1 or COLUMNS
            out.append(line[:cut])
            line = line[cut:]
        out.append(line)
    return out[-ROWS:]


def draw(frames, command):
    """The film: one frame is ROWS + 2 lines high."""
    height, total = (ROWS + 2) * LINE, frames[-1][0] + LAST_SECONDS
    steps, texts = [], []
    for i, (at, lines) in enumerate(frames):
        steps.append(f"{100 * at / total:.2f}%{{transform:translateY({-i * height}px)}}")
        for k, line in enumerate(["$ " + command, ""] + wrapped(lines)):
            if line.strip():
                y = i * height + (k + 1) * LINE - 4
                texts.append(f'<text x="12" y="{y}">{html.escape(line)}</text>')
    width = int(COLUMNS * WIDTH) + 24
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n'
            "<title>kvasir demo: one question, a 16-bit and a quantized cache</title>\n"
            "<style>text{font:14px monospace;fill:#ddd;white-space:pre}"
            f".film{{animation:film {total:.1f}s step-end infinite}}"
            f"@keyframes film{{{''.join(steps)}}}</style>\n"
            f'<rect width="{width}" height="{height}" rx="8" fill="#1b1f24"/>\n'
            '<g class="film">\n' + "\n".join(texts) + "\n</g>\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--out", default="docs/demo.svg")
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    o = parser.parse_args()
    flags = ["-f", "docs/examples/war-and-peace.txt", "-p", "Summarize this conversation."]
    seen = run([o.kvasir, "demo", "-m", o.model, *flags, "--temp", "0",
                "--repetition-penalty", "1.1"])
    frames = frames_of(seen)
    every = max(1, len(frames) // o.frames)
    kept = frames[:-1:every] + frames[-1:]
    command = "kvasir demo -m smollm2:135m -f war-and-peace.txt -p 'Summarize this conversation.'"
    with open(o.out, "w", encoding="utf-8") as f:
        f.write(draw(kept, command))
    print(f"recording: {len(kept)} frames, {frames[-1][0]:.1f} s, {os.path.getsize(o.out)} bytes")


main()
