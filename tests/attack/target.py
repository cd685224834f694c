# SPDX-License-Identifier: Apache-2.0
"""The program under attack: a server of its own, its memory, raw bytes to and from it."""

import http.client
import json
import os
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
    "scripts": {"hi": "hello there", "long": " ".join(f"word{i}" for i in range(40))},
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
        self.log, self.port = [], None
        command = [program, "serve", "--port", "0", "-q", *flags]
        self.process = subprocess.Popen(
            command + (["--api-key", key] if key else []),
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **(env or {})},
        )
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on http://.*:(\d+)$", line):
                self.port = int(found[1])
                break
        if not self.port:
            raise Finding("the server does not start: " + "".join(self.log)[-500:])
        threading.Thread(target=self._read_log, daemon=True).start()

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
    """A part's share of the time, and its counts."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.counts = {}

    def left(self):
        return self.end - time.monotonic()

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n
