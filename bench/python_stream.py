#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python_stream.py [--pairs 16] [--tokens 1000] [--threads 1] [--build build-ci] MODEL

What does a stream through the Python module cost over `kvasir generate`? Of each pair both answer
the same prompt with the same tokens, each in a process of its own, in turns of a fifth of a second
(SIGSTOP), so that other programs slow both alike. Compared are processor seconds, less those of
processes that stop at the first token: with one thread they are the time that an idle machine
takes. Prints the median of module / program over all pairs and its 95 % interval (bootstrap).
Runs itself with .venv-python (tools/clients.sh), which has cffi and numpy.
"""
import argparse
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-python/bin/python"
PROMPT = "Once upon a time there was a little girl who lived by the sea."
NEVER = -1000.0  # the bias of tokens that would end the answer
TURN = 0.2


def stream(model_path, ends, tokens, threads):
    """The module's part."""
    import kvasir
    sampling = kvasir.Sampling(logit_bias={i: NEVER for i in ends})
    with kvasir.Model(model_path) as model, \
            model.context(threads=threads, ctx=2048) as context:
        for piece in model.stream(PROMPT, raw=True, max_tokens=tokens, context=context,
                                  sampling=sampling):
            print(piece, end="", flush=True)
    print()


class Side:
    """One program of a pair, which runs only in its turns."""

    def __init__(self, argv):
        self.out = tempfile.TemporaryFile("w+")
        self.seconds = None
        self.process = subprocess.Popen(argv, stdout=self.out, stderr=subprocess.DEVNULL)
        self.process.send_signal(signal.SIGSTOP)

    def turn(self):
        """False: it has ended."""
        os.kill(self.process.pid, signal.SIGCONT)
        time.sleep(TURN)
        pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
        if pid == 0:
            os.kill(self.process.pid, signal.SIGSTOP)
            return True
        if status != 0:
            sys.exit(f"python_stream: {self.process.args[0]} ends with status {status}")
        self.process.returncode = 0
        self.seconds = used.ru_utime + used.ru_stime
        return False

    def text(self):
        self.out.seek(0)
        return self.out.read().rstrip("\n")


def race(argvs):
    """Processor seconds of both."""
    sides = [Side(argv) for argv in argvs]
    while any([s.seconds is None and s.turn() for s in sides]):
        pass
    assert sides[0].text() == sides[1].text(), "the module's text is not the program's"
    return [s.seconds for s in sides]


def interval(ratios):
    drawn = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(10000))
    return (f"{statistics.median(ratios):.4f}, 95 % interval {drawn[250]:.4f} to {drawn[9749]:.4f}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})")


def measure(o):
    import kvasir
    with kvasir.Model(o.model) as model:
        ends = [i for i in range(model.tokenizer.size) if model.tokenizer.is_end(i)]

    def commands(tokens):
        same = ["--threads", str(o.threads)]
        return ([str(ROOT / o.build / "kvasir"), "generate", "-q", "-m", o.model, *same,
                 "--raw", "-p", PROMPT, "-n", str(tokens), "--ctx", "2048",
                 "--generation-config", "none", "--logit-bias",
                 ",".join(f"{i}:{NEVER:g}" for i in ends)],
                [sys.executable, __file__, *same, "--ends", ",".join(map(str, ends)),
                 "--tokens", str(tokens), o.model])

    ratios, extra = [], []
    for i in range(o.pairs):
        order = ((0, 1), (1, 0))[i % 2]
        seconds = [0.0, 0.0]
        for tokens, sign in (1, -1), (o.tokens, 1):
            for which, used in zip(order, race([commands(tokens)[k] for k in order])):
                seconds[which] += sign * used
        ratios.append(seconds[1] / seconds[0])
        extra.append(1e6 * (seconds[1] - seconds[0]) / o.tokens)
        print(f"pair {i + 1}: program {seconds[0]:.2f} s, module {seconds[1]:.2f} s", flush=True)
    random.seed(1)
    print(f"module / program {interval(ratios)}; {statistics.median(extra):+.0f} us a token")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--build", default="build-ci")
    parser.add_argument("--ends", help=argparse.SUPPRESS)  # the module's part of a pair
    parser.add_argument("model")
    o = parser.parse_args()
    if o.ends is not None:
        stream(o.model, map(int, o.ends.split(",")), o.tokens, o.threads)
    elif "KVASIR_LIBRARY" in os.environ:
        measure(o)
    else:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(ROOT / "python", folder, dirs_exist_ok=True)
            subprocess.run([sys.executable, ROOT / "python/build_api.py", ROOT / "include",
                            f"{folder}/kvasir/_api.h"], check=True)
            env = {**os.environ, "PYTHONPATH": folder,
                   "KVASIR_LIBRARY": str(ROOT / o.build / "libkvasir.so.0")}
            sys.exit(subprocess.run([PYTHON, __file__, *sys.argv[1:]], env=env, check=False)
                     .returncode)


main()
