# SPDX-License-Identifier: Apache-2.0
"""kill -9 of servers with --cache-dir at random moments while clients ask them.

    tier_kills.py PROGRAM MODEL [--kills N] [--worlds N] [--seed N] [--sure SECONDS]

Each world is one folder and one server after another. Clients ask for prompts under new and old
salts, so that pages are written most of the time. After each kill `kvasir cache verify` finds the
folder clean, the next server opens it, and every answer that had ended SURE seconds (1) before the
kill is found: all whole pages of its prompt come from the folder, as far as its limit allows. Every
answer, of any moment, is that of a server without a cache, in every digit. Every second world has a
limit so small that segments end, are carried and removed all the time. Works in the current folder.
"""
import argparse
import collections
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from served import PAGE, Server, check, prompt, verify, whole_pages  # noqa: E402

CLIENTS = 3
PROMPTS = 60
LIFE = 2.2       # seconds, at most
CHECKS = 24      # answers of earlier servers that a new one is asked for
PAGE_BYTES = 64 << 10  # of a record on disk, at least
# What a client meets when its server is killed.
GONE = (OSError, http.client.HTTPException, json.JSONDecodeError)

Answer = collections.namedtuple("Answer", "prompt salt ended sure")


def make_prompts(seed):
    """Two to five whole pages and a few tokens more, so that a restarted server computes too little
    at a time to learn that computing is faster than loading. Some have a beginning in common."""
    r = random.Random(seed)
    made = []
    for i in range(PROMPTS):
        n = r.randrange(2, 6) * PAGE + r.randrange(1, 20)
        shared = r.choice(made)[:r.randrange(n)] if made and r.random() < 0.4 else []
        made.append(shared + prompt(n - len(shared), seed + i))
    return made


class World:
    """A folder and its servers, one after the other."""

    def __init__(self, args, number, prompts, want):
        self.args, self.number, self.prompts, self.want = args, number, prompts, want
        self.random = random.Random(args.seed * 1000 + number)
        self.folder = f"world{number}"
        self.gigabytes = (0.25, 0.03)[number % 2]
        self.lock = threading.Lock()
        self.answers = []  # that are stored, or may be; the oldest first
        self.salts = 0
        self.figures = collections.Counter()

    def start(self):
        return Server(self.args.model, "--cache-dir", self.folder, "--cache-disk-gb",
                      str(self.gigabytes), memory=32, threads=1)

    def ask(self, server, which, salt):
        cached, said = server.answer(self.prompts[which], n=3, cache_salt=salt)
        check(said == self.want[which], "another answer", self.folder, which, salt, cached)
        return cached

    def newest(self):
        """As many answers as a quarter of the limit has room for: those are not removed to make
        room, whatever is carried."""
        room = self.gigabytes * 2**30 / 4
        for i, a in reversed(list(enumerate(self.answers))):
            room -= len(self.prompts[a.prompt]) // PAGE * PAGE_BYTES
            if room < 0:
                return self.answers[i + 1:]
        return self.answers

    def check_found(self, server):
        """What earlier servers answered is found by this one."""
        self.answers = self.newest()
        sure = [a for a in self.answers if a.sure]
        newest, others = sure[-CHECKS // 2:], sure[:-CHECKS // 2]
        asked = newest + self.random.sample(others, min(CHECKS // 2, len(others)))
        for a in asked:
            cached = self.ask(server, a.prompt, a.salt)
            whole = whole_pages(len(self.prompts[a.prompt]) - 1)
            check(cached >= whole, "not found", self.folder, a, cached, whole, server.text())
        self.figures["found"] += len(asked)

    def client(self, server, seed, answers, failures):
        r = random.Random(seed)
        try:
            while True:
                with self.lock:
                    known = answers if answers and r.random() < 0.5 else self.answers
                    a = r.choice(known) if known and r.random() < 0.3 else None
                    if not a:
                        self.salts += 1
                        a = Answer(r.randrange(PROMPTS), f"salt {self.salts}", 0, False)
                try:
                    self.ask(server, a.prompt, a.salt)
                except GONE:
                    return  # it was killed
                with self.lock:
                    answers.append(a._replace(ended=time.monotonic()))
                time.sleep(r.random() * 0.03)
        except BaseException as e:  # whatever a thread meets ends the test
            failures.append(e)

    def live(self):
        """One server, from its start to its kill."""
        answers, failures = [], []
        with self.start() as server:
            self.check_found(server)
            clients = [threading.Thread(target=self.client,
                                        args=(server, self.random.random(), answers, failures))
                       for _ in range(CLIENTS)]
            for c in clients:
                c.start()
            time.sleep(self.random.random() * LIFE)
            killed = time.monotonic()
            server.process.kill()
            for c in clients:
                c.join()
            ended = server.process.wait()
        if failures:
            raise failures[0]
        check(ended == -9, "the server ended by itself", ended, server.text())
        self.answers += [a._replace(sure=a.ended + self.args.sure <= killed) for a in answers]
        self.figures["answers"] += len(answers)
        os.remove(server.log)

    def die_early(self):
        """A server that is killed while it starts."""
        process = subprocess.Popen([Server.program, "serve", "-m", self.args.model, "--port", "0",
                                    "--cache-dir", self.folder, "--cache-disk-gb",
                                    str(self.gigabytes), "-q"],
                                   stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(self.random.random() * 0.1)
        process.kill()
        process.wait()

    def run(self, kills):
        for _ in range(kills):
            if self.random.random() < 0.1 and os.path.isdir(self.folder):
                self.die_early()
            else:
                self.live()
            self.figures["kills"] += 1
            code, text = verify(self.folder)
            check(code == 0, "kvasir cache verify", self.folder, code, text)
        with self.start() as server:
            self.check_found(server)
            server.end()
        code, text = verify(self.folder)
        check(code == 0, "kvasir cache verify", self.folder, code, text)


def cold_answers(name, prompts):
    with Server(name, "--no-prefix-cache", threads=1) as s:
        want = []
        for p in prompts:
            cached, said = s.answer(p, n=3)
            check(cached == 0, "a server without a cache")
            want.append(said)
        s.end()
    return want


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--worlds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sure", type=float, default=1)
    args = parser.parse_args()
    Server.program = args.program
    begin = time.monotonic()
    prompts = make_prompts(args.seed)
    want = cold_answers(args.model, prompts)
    worlds = [World(args, i, prompts, want) for i in range(args.worlds)]
    failures = []

    def run(world):
        share = args.kills // args.worlds + (world.number < args.kills % args.worlds)
        try:
            world.run(share)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(w,)) for w in worlds]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    sums = sum((w.figures for w in worlds), collections.Counter())
    seconds = time.monotonic() - begin
    print(f"{sums['kills']} kills of servers in {seconds:.0f} s; {sums['answers']} answers before "
          f"them, all as without a cache; {sums['found']} times one was found that had ended "
          f"{args.sure:g} s before a kill")
    if failures:
        print(f"FAILED: {failures[0]!r}")
        return 1
    return 0


sys.exit(main())
