#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""recording.py demo|chat|top [--out FILE] KVASIR MODEL    what a terminal shows, as an SVG

  demo  docs/demo.svg: `kvasir demo` as a film, at the speed at which it was seen: all screens one
        below the other, moved by CSS behind a window of one
  chat  docs/chat.svg: two questions to `kvasir chat`
  top   docs/top.svg: `kvasir top` beside a server that answers four clients

The programs run on a terminal of 100 columns; pyte (0.8.2, from PyPI) reads what they write.
Needs a quiet machine: the figures are those of this run.
"""
import argparse
import fcntl
import html
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request

import pyte

COLUMNS, LINE, WIDTH = 100, 19, 8.4
FRAMES, LAST_SECONDS = 40, 6  # of a film; how long its end stays
COLOURS = {"green": "#7ec07e", "red": "#e07a6a", "brown": "#d8b45a", "cyan": "#6ab7c9"}
DEMO_QUESTION = "Summarize this conversation."  # of `make demo`
QUESTIONS = ["Reverse a string in Python, in one line.", "How does it work? One sentence."]
PREFIX = "You are a helpful assistant who answers in few words. " * 12


class Terminal:
    """A program on a terminal, and its screen."""

    def __init__(self, argv, rows, errors=True):
        self.screen = pyte.Screen(COLUMNS, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            if not errors:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.environ["TERM"] = "xterm-256color"
            os.execv(argv[0], argv)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))

    def read(self, seconds):
        """Shows what comes next; False: nothing came in time, None: the program has ended."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return None
        self.seen += data
        self.stream.feed(data)
        return True

    def until(self, text, seconds):
        end = time.monotonic() + seconds
        start = len(self.seen)
        while text not in self.seen[start:]:
            if not self.read(1) and time.monotonic() > end:
                sys.exit(f"recording: no {text!r} within {seconds} s: {self.seen[-200:]!r}")

    def write(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        while self.read(10):
            pass
        status = os.waitpid(self.pid, 0)[1]
        if status != 0:
            sys.exit(f"recording: the program ends with status {status}")

    def lines(self):
        """[[(colour, text)]]: the screen's lines, in pieces of one colour."""
        out = []
        for y in range(self.screen.lines):
            pieces = []
            for x in range(COLUMNS):
                c = self.screen.buffer[y][x]
                if pieces and pieces[-1][0] == c.fg:
                    pieces[-1][1] += c.data
                else:
                    pieces.append([c.fg, c.data])
            out.append(pieces)
        return out


def text_of(pieces, x, y):
    spans = "".join(f'<tspan fill="{COLOURS[c]}">{html.escape(t)}</tspan>' if c in COLOURS
                    else html.escape(t) for c, t in pieces)
    return f'<text x="{x}" y="{y}">{spans.rstrip()}</text>'


def draw(frames, command, title):
    """frames: [(seconds, lines)]; one is a still."""
    rows = max(max((i + 1 for i, p in enumerate(lines) if "".join(t for _, t in p).strip()),
                   default=1) for _, lines in frames)
    height, width = (rows + 3) * LINE, int(COLUMNS * WIDTH) + 24
    steps, texts, total = [], [], frames[-1][0] + LAST_SECONDS
    for i, (at, lines) in enumerate(frames):
        steps.append(f"{100 * at / total:.2f}%{{transform:translateY({-i * height}px)}}")
        for k, pieces in enumerate([[["default", "$ " + command]], []] + lines[:rows]):
            if "".join(t for _, t in pieces).strip():
                texts.append(text_of(pieces, 12, i * height + (k + 1) * LINE))
    film = (f".film{{animation:film {total:.1f}s step-end infinite}}"
            f"@keyframes film{{{''.join(steps)}}}" if len(frames) > 1 else "")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">\n'
            f"<title>{html.escape(title)}</title>\n"
            f"<style>text{{font:14px monospace;fill:#ddd;white-space:pre}}{film}</style>\n"
            f'<rect width="{width}" height="{height}" rx="8" fill="#1b1f24"/>\n'
            '<g class="film">\n' + "\n".join(texts) + "\n</g>\n</svg>\n")


def record_demo(kvasir, model):
    t = Terminal([kvasir, "demo", "-m", model, "-f", "docs/examples/war-and-peace.txt", "-p",
                  DEMO_QUESTION, "--temp", "0", "--repetition-penalty", "1.1"],
                 rows=20, errors=False)
    frames, start = [], None
    while True:
        came = t.read(120)
        if not came:
            break
        start = start or time.monotonic()
        frames.append((time.monotonic() - start, t.lines()))
    t.end()
    every = max(1, len(frames) // FRAMES)
    return draw(frames[:-1:every] + frames[-1:],
                f"kvasir demo -m smollm2:135m -f war-and-peace.txt -p '{DEMO_QUESTION}'",
                "kvasir demo: one question, a 16-bit and a quantized cache")


def record_chat(kvasir, model):
    t = Terminal([kvasir, "chat", "-m", model, "--temp", "0", "-n", "120", "--ctx", "4096"],
                 rows=36)
    for text in QUESTIONS + ["/stats"]:
        t.until(b"> ", 300)
        t.write(text + "\r")
    t.until(b"> ", 300)
    lines = t.lines()
    t.write("\x04")
    t.end()
    return draw([(0, lines)], "kvasir chat -m qwen2.5-coder:0.5b", "kvasir chat")


def ask(url, i, stop):
    n = 0
    while not stop.is_set():
        n += 1
        body = {"messages": [{"role": "system", "content": PREFIX},
                             {"role": "user", "content": f"Name {2 + n % 5} rivers. {i}"}],
                "max_tokens": 60}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode())
        urllib.request.urlopen(request).read()


def record_top(kvasir, model):
    stop, folder = threading.Event(), tempfile.TemporaryDirectory()
    server = subprocess.Popen([kvasir, "serve", "-m", model, "--port", "0", "--ctx", "4096",
                               "--cache-memory-mb", "64", "--cache-dir", folder.name],
                              stderr=subprocess.PIPE, text=True)
    url = ""
    while not url:
        line = server.stderr.readline()
        url = (re.findall(r"listening on (http://\S+)", line) or [""])[0]
        if not line:
            sys.exit("recording: the server has ended")
    threading.Thread(target=server.stderr.read, daemon=True).start()
    clients = [threading.Thread(target=ask, args=(url, i, stop)) for i in range(4)]
    for c in clients:
        c.start()
    time.sleep(20)
    t = Terminal([kvasir, "top", "--url", url, "-s", "4"], rows=12)
    for _ in range(3):
        t.until(b"memory", 30)
    lines = t.lines()
    os.kill(t.pid, signal.SIGINT)
    t.end()
    stop.set()
    for c in clients:
        c.join()
    server.terminate()
    server.wait()
    folder.cleanup()
    return draw([(0, lines)], "kvasir top", "kvasir top")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("what", choices=["demo", "chat", "top"])
    parser.add_argument("--out")
    parser.add_argument("kvasir")
    parser.add_argument("model")
    o = parser.parse_args()
    record = {"demo": record_demo, "chat": record_chat, "top": record_top}[o.what]
    svg = record(os.path.abspath(o.kvasir), o.model)
    out = o.out or f"docs/{o.what}.svg"
    with open(out, "w", encoding="utf-8") as f:
        f.write(svg)
    print(f"recording: {out}, {len(svg)} bytes")


main()
