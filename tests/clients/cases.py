# SPDX-License-Identifier: Apache-2.0
"""Shared by the clients, openai_client.py and others: the list of cases by part, the scripted
answers of scripts.json, the server's status.

    XXX_client.py PART URL [KEY...]      runs the cases of a part against a server
"""
import asyncio
import inspect
import json
import os
import sys
import time
import traceback
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = json.load(open(os.path.join(HERE, "scripts.json"), encoding="utf-8"))["scripts"]
PLAIN = SCRIPTS["plain"]
REASONING, FOUR = SCRIPTS["think"].removeprefix("<think>").split("</think>")

_cases = []


def case(part):
    """Decorator: makes a function of the server, which may be async, a case of `part`."""
    def add(function):
        _cases.append((part, function))
        return function
    return add


class Server:
    def __init__(self, url, keys):
        self.url, self.keys = url, keys

    def get(self, path):
        headers = {"Authorization": "Bearer " + self.keys[0]} if self.keys else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def running(self):
        status = self.get("/v1/status")
        return status["num_running"] + status["num_waiting"]

    def wait_running(self, n, seconds=20):
        """Waits until n requests are running or waiting; returns the seconds."""
        begin = time.monotonic()
        while self.running() != n:
            assert time.monotonic() - begin < seconds, f"{self.running()} requests, not {n}"
            time.sleep(0.02)
        return time.monotonic() - begin

    def wait_started(self, seconds=20):
        """Waits until no request waits for the engine."""
        begin = time.monotonic()
        while self.get("/v1/status")["num_waiting"]:
            assert time.monotonic() - begin < seconds, "a request still waits"
            time.sleep(0.02)


def raises(kind, call, *args, **kwargs):
    """Returns the error that call(...) raises, which must be of exactly that kind."""
    try:
        call(*args, **kwargs)
    except Exception as e:
        assert type(e) is kind, f"{type(e).__name__}: {e}"
        return e
    raise AssertionError(f"no {kind.__name__}")


def main():
    part, url, keys = sys.argv[1], sys.argv[2], sys.argv[3:]
    chosen = [f for p, f in _cases if p == part]
    assert chosen, f"no cases of {part}"
    for function in chosen:
        try:
            result = function(Server(url, keys))
            if inspect.isawaitable(result):
                asyncio.run(result)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            sys.exit(f"{os.path.basename(sys.argv[0])}: FAILED: {part}: {function.__name__}")
    print(f"{os.path.basename(sys.argv[0])}: {part}: {len(chosen)} cases")
