# SPDX-License-Identifier: Apache-2.0
"""A kvasir server as a process, for tests that start, ask, kill and restart it."""
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time

PAGE = 64  # tokens


def check(good, *what):
    if not good:
        raise AssertionError(what)


class Server:
    """A server process, killed at the end of its `with` block. Its log is in the current folder."""
    program = None  # set these two before the first one is started
    flags = []      # of all servers

    def __init__(self, model, *flags, memory=64, threads=2):
        fd, self.log = tempfile.mkstemp(prefix="log", dir=".")
        with open(fd, "w") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", "-m", model, "--port", "0", "--threads", str(threads),
                 "--max-model-len", "4096", "--cache-memory-mb", str(memory), *self.flags, *flags],
                stdin=subprocess.DEVNULL, stderr=log)
        try:
            self.port = int(self.line(r"^server: listening on http://[0-9.]+:(\d+)$")[1])
        except AssertionError:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def text(self):
        with open(self.log) as f:
            return f.read()

    def line(self, pattern, seconds=60):
        end = time.time() + seconds
        while True:
            ended = self.process.poll() is not None
            found = re.search(pattern, self.text(), re.M)
            if found:
                return found
            check(not ended and time.time() < end, "no line", pattern, self.text())
            time.sleep(0.02)

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, body and json.dumps(body))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

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
