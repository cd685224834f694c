#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""shared_redis.py PROGRAM MODEL [--tokens N] [--prompts N] [--least X] [-- FLAG ...]

Two servers over one Redis: how much sooner the first token of a long prefix comes on a server that
never saw it, because another one computed it.

    redis-server (loopback, memory only) <-- server A computes prompts, each a prefix of N tokens
                                         --> server B, another process, is asked for the same

Prints the seconds to the first token for each prompt on A (computed) and on B (loaded), and the
ratio of the medians. Exits with 1 if that is below X (5), if B did not load its prefixes, or if an
answer differs in its token or in a digit of its logprobs. Both servers get the FLAGs, and answer a
short prompt first, so that the model is in memory. Only Python's standard library is used.
"""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "support"))
from served import PAGE, REDIS, Process, Redis  # noqa: E402


def fail(*what):
    sys.exit(" ".join(["shared_redis:", *map(str, what)]))


class Server(Process):
    def __init__(self, args, redis, name, folder):
        super().__init__(
            [args.program, "serve", "-m", args.model, "--port", "0", "--cache-remote",
             f"redis://127.0.0.1:{redis.port}", *args.flags], os.path.join(folder, name),
            seconds=600)
        self.ask(prompt(args.vocab, 40, 0))

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        c.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        if r.status != 200:
            fail(method, path, r.status, text)
        return text

    def ask(self, ids):
        """(seconds to an answer of one token, cached tokens, the token and its logprobs)"""
        begin = time.monotonic()
        text = self.call("POST", "/v1/completions",
                         {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 3})
        seconds = time.monotonic() - begin
        a = json.loads(text, parse_float=str)  # digit for digit
        usage = a["usage"]["prompt_tokens_details"]["cached_tokens"]
        return seconds, usage, [a["choices"][0]["text"], a["choices"][0]["logprobs"]]

    def figure(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.call("GET", "/metrics"),
                               re.M)[1])


def prompt(vocab, n, seed):
    ids, r = [], seed * 7919 + 1
    for _ in range(n):
        r = (r * 1664525 + 1013904223) % 2**32
        ids.append(r // 65536 % (vocab - 1000) + 500)  # control tokens are at the ends
    return ids


def wait_written(server, records):
    end = time.monotonic() + 120
    while server.figure('kvasir_tier_writes_total{tier="remote"}') < records:
        if time.monotonic() > end:
            fail("the first server does not write its pages")
        time.sleep(0.1)


def main():
    p = argparse.ArgumentParser(usage=__doc__.splitlines()[0])
    p.add_argument("program")
    p.add_argument("model")
    p.add_argument("--tokens", type=int, default=8000)
    p.add_argument("--prompts", type=int, default=3)
    p.add_argument("--least", type=float, default=5)
    p.add_argument("--vocab", type=int, default=32000)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = p.parse_args(sys.argv[1:split])
    args.flags = sys.argv[split + 1:]
    if not REDIS:
        print("shared_redis: skipped, no redis-server")
        sys.exit(77)
    prompts = [prompt(args.vocab, args.tokens, 1 + i) for i in range(args.prompts)]
    whole = (args.tokens - 1) // PAGE * PAGE
    with tempfile.TemporaryDirectory() as folder, Redis(folder) as redis:
        with Server(args, redis, "a.log", folder) as a:
            cold = []
            for i, ids in enumerate(prompts):
                cold.append(a.ask(ids))
                wait_written(a, (i + 1) * (args.tokens // PAGE))
        with Server(args, redis, "b.log", folder) as b:
            found = [b.ask(ids) for ids in prompts]
            load = b.figure('kvasir_tier_read_bytes_total{tier="remote"}')
    print(f"{'prompt':>8} {'computed s':>11} {'loaded s':>9} {'loaded tokens':>14}")
    for i, (c, f) in enumerate(zip(cold, found)):
        print(f"{i + 1:8} {c[0]:11.3f} {f[0]:9.3f} {f[1]:14}")
        if c[1] > PAGE:
            fail("the first server did not compute prompt", i + 1)
        if f[1] != whole:
            fail("prompt", i + 1, "has", f[1], "tokens from the store, not", whole)
        if c[2] != f[2]:
            fail("another answer to prompt", i + 1, c[2], f[2])
    middle = [statistics.median(x[0] for x in of) for of in (cold, found)]
    ratio = middle[0] / middle[1]
    print(f"medians {middle[0]:.3f} s and {middle[1]:.3f} s: {ratio:.1f} x sooner; "
          f"{load / 2**20 / args.prompts:.0f} MiB a prompt")
    if ratio < args.least:
        fail(f"{ratio:.2f} is below {args.least}")


if __name__ == "__main__":
    main()
