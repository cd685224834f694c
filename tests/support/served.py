# SPDX-License-Identifier: Apache-2.0
"""Servers as processes, kvasir's and Redis', for tests that start, ask, kill and restart them."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PAGE = 64  # tokens


def check(good, *what):
    if not good:
        raise AssertionError(what)


class Process:
    """A `kvasir serve` with its log in a file, killed at the end of its `with` block."""

    def __init__(self, command, log, seconds=60):
        self.log = log
        with open(log, "w") as f:  # a file, so that nothing has to read along
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=f)
        try:
            listening = self.line(r"^server: listening on http://([0-9.]+):(\d+)$", seconds)
        except AssertionError:
            self.__exit__()
            raise
        self.host, self.port = listening[1], int(listening[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def text(self):
        with open(self.log) as f:
            return f.read()

    def line(self, pattern, seconds=60):
        """Waits for a line of the log."""
        end = time.time() + seconds
        while True:
            ended = self.process.poll() is not None
            found = re.search(pattern, self.text(), re.M)
            if found:
                return found
            check(not ended and time.time() < end, "no line", pattern, self.text())
            time.sleep(0.02)

    def ask(self, method, path, body=None, seconds=60):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        c.request(method, path, body and json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text


class Server(Process):
    """One of many, with a log of its own in the current folder."""
    program = None  # set these two before the first one is started
    flags = []      # of all servers

    def __init__(self, model, *flags, memory=64, threads=2):
        fd, log = tempfile.mkstemp(prefix="log", dir=".")
        os.close(fd)
        super().__init__(
            [self.program, "serve", "-m", model, "--port", "0", "--threads", str(threads),
             "--max-model-len", "4096", "--cache-memory-mb", str(memory), *self.flags, *flags],
            log)

    def answer(self, prompt, n=6, **more):
        """(cached tokens, all that the model said, with the logprobs as they were written)"""
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 3,
                "ignore_eos": True, **more}
        status, text = self.ask("POST", "/v1/completions", body)
        check(status == 200, status, text)
        a = json.loads(text, parse_float=str)  # bit for bit
        said = [[c["text"], c["logprobs"], c["finish_reason"]] for c in a["choices"]]
        check(len(said[0][1]["token_logprobs"]) == n, text)
        return a["usage"]["prompt_tokens_details"]["cached_tokens"], said

    def end(self):
        """SIGTERM, as a service manager ends it."""
        self.process.send_signal(signal.SIGTERM)
        check(self.process.wait(60) == 0, "exit code", self.process.returncode, self.text())


REDIS = shutil.which("redis-server") or shutil.which("valkey-server")


class Redis:
    """A redis-server without a file, killed at the end of its `with` block."""

    def __init__(self, folder="."):
        self.folder = folder
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [REDIS, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly",
             "no", "--dir", self.folder], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        end = time.time() + 20
        while self.keys() is None:
            check(time.time() < end and self.process.poll() is None, "redis-server")
            time.sleep(0.02)

    def keys(self):
        """How many there are; None: it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 5) as s:
                s.sendall(b"DBSIZE\r\n")
                return int(s.recv(100)[1:])
        except (OSError, ValueError):
            return None

    def settled(self):
        """Waits until nothing has been written for a while."""
        last, since = -1, time.time()
        while time.time() - since < 0.5:
            now = self.keys()
            if now != last:
                last, since = now, time.time()
            time.sleep(0.05)
        return last

    def lives(self):
        """The seconds that all keys have left."""
        script = ("local t = {} for _, k in ipairs(redis.call('keys', '*')) do "
                  "t[#t + 1] = redis.call('ttl', k) end return table.concat(t, ' ')")
        with socket.create_connection(("127.0.0.1", self.port), 5) as s:
            s.sendall(f'EVAL "{script}" 0\r\n'.encode())
            answer = s.makefile("rb")
            answer.readline()  # its length
            return [int(x) for x in answer.readline().split()]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def prompt(n, seed):
    ids, r = [], seed * 7919 + 1
    for _ in range(n):
        r = (r * 1664525 + 1013904223) % 2**32
        ids.append(r // 65536 % 480 + 8)
    return ids


def whole_pages(tokens):
    return tokens // PAGE * PAGE


def verify(folder):
    """kvasir cache verify: (exit code, what it says)"""
    p = subprocess.run([Server.program, "cache", "verify", folder], capture_output=True, text=True,
                       timeout=60)
    return p.returncode, p.stdout + p.stderr
