# SPDX-License-Identifier: Apache-2.0
"""The program under attack: a server of its own, its memory, raw bytes to and from it."""

import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

KEY = "secret"
HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTED = os.path.join(HERE, "..", "support", "scripted_model.py")
SCRIPTS = {
    "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "scripts": {"hi": "hello there", "long": " ".join(f"word{i}" for i in range(40)),
                "fim_prefix": "before", "fim_suffix": "behind", "fim_middle": "between"},
    "endless": ["long"],
}


class Finding(Exception):
    """What an attack found wrong."""


def scripted_model(folder):
    with open("scripts.json", "w", encoding="utf-8") as f:
        json.dump(SCRIPTS, f)
    subprocess.run([sys.executable, SCRIPTED, folder, "scripts.json"], check=True)


def is_sanitized(program):
    with open(program, "rb") as f:
        return re.search(rb"lib[atu]b?san\.so", f.read(1 << 20)) is not None


class Server:
    """`kvasir serve` with these flags on a free port. Ends with `with`."""

    def __init__(self, program, *flags, key=KEY, env=None):
        command = [program, "serve", "--port", "0", "-q", *flags]
        command += ["--api-key", key] if key else []
        for _ in range(100):
            self._start(command, {**os.environ, **(env or {})})
            # With random addresses, only some starts of gcc 12's thread sanitizer succeed.
            if self.port or "unexpected memory mapping" not in "".join(self.log):
                break
            self.process.wait()
        if not self.port:
            raise Finding("the server does not start: " + "".join(self.log)[-500:])
        threading.Thread(target=self._read_log, daemon=True).start()

    def _start(self, command, env):
        self.log, self.port = [], None
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace", env=env
        )
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on http://.*:(\d+)$", line):
                self.port = int(found[1])
                break

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)
            del self.log[:-400]

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            self.process.kill()
        else:
            self.end()

    def end(self):
        self.alive()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Finding("SIGTERM does not end the server within 60 s") from None
        if code != 0:
            raise Finding(f"the server ends with code {code}: " + "".join(self.log)[-3000:])

    def alive(self):
        if self.process.poll() is not None:
            raise Finding(
                f"the server ended with code {self.process.returncode}: "
                + "".join(self.log)[-3000:]
            )

    def memory(self, name="VmRSS"):
        """MiB; VmHWM: the peak."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith(name))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1].decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])

    def ask(self, method, path, body=None, key=KEY, timeout=100, source=None):
        """Status and body; (0, reason) if the connection breaks."""
        c = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=timeout, source_address=source and (source, 0)
        )
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            c.request(method, path, body, headers)
            answer = c.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as e:
            return 0, repr(e).encode()
        finally:
            c.close()

    def connect(self, timeout=20, source=None):
        s = socket.socket()
        s.settimeout(timeout)
        if source:
            s.bind((source, 0))
        s.connect(("127.0.0.1", self.port))
        return s


def read_all(s, most=1 << 22):
    """Until the server closes; (bytes, whether it has closed)."""
    data = b""
    try:
        while len(data) < most:
            piece = s.recv(65536)
            if not piece:
                return data, True
            data += piece
    except TimeoutError:
        return data, False
    except OSError:
        return data, True
    return data, False


class Clock:
    """A part's share of the time, and its counts. Any thread may use it."""

    def __init__(self, seconds, goal=0):
        self.end, self.goal = time.monotonic() + seconds, goal
        self.counts, self.lock = {}, threading.Lock()

    def left(self):
        return self.end - time.monotonic()

    def goes_on(self, what):
        """Counts one more, unless the time is over or the goal (0: none) is reached."""
        with self.lock:
            n = self.counts.get(what, 0)
            if self.left() <= 0 or (self.goal and n >= self.goal):
                return False
            self.counts[what] = n + 1
            return True

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + n


def in_threads(n, rnd, work, *arguments):
    """work(rnd, *arguments, findings) in n threads; raises the first finding."""
    findings = []
    threads = [
        threading.Thread(target=work, args=(random.Random(rnd.random()), *arguments, findings))
        for _ in range(n)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if findings:
        raise findings[0]
