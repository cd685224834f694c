# SPDX-License-Identifier: Apache-2.0
"""kvasir serve, and other commands, while the model's file is truncated, overwritten or replaced.

    model_changes.py PROGRAM MODEL

Works in the current folder.
"""
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time

PROGRAM, MODEL = sys.argv[1:]
WEIGHTS = "copy/model.safetensors"


def check(good, *what):
    if not good:
        raise AssertionError(what)


class Server:
    """On a fresh copy of the model, killed at the end of its `with` block."""

    def __init__(self, *flags):
        shutil.rmtree("copy", ignore_errors=True)
        shutil.copytree(MODEL, "copy")
        for name in os.listdir("copy"):
            os.chmod(os.path.join("copy", name), 0o600)
        with open("log", "w") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "-m", "copy", "--ctx", "50000", "--cache-memory-mb", "200",
                 "--port", "0", "--kv-bits", "f16", *flags], stderr=log, stdin=subprocess.DEVNULL)
        self.port = int(self.line(r"listening on http://[0-9.]+:(\d+)$")[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def line(self, pattern):
        end = time.time() + 60
        while time.time() < end:
            with open("log") as f:
                text = f.read()
            found = re.search(pattern, text, re.M)
            if found:
                return found
            check(self.process.poll() is None, "it ended", self.process.poll(), text)
            time.sleep(0.02)
        raise AssertionError(("no line", pattern, text))

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, body and json.dumps(body))
        r = c.getresponse()
        return r.status, r.read().decode()

    def complete(self, n=4):
        return self.ask("POST", "/v1/completions", {"prompt": "Once", "max_tokens": n,
                                                    "ignore_eos": True})


def ends_in_order(s, pattern):
    """/ready and requests are refused for a while, then it ends with its own exit code."""
    s.line(r"^kvasir serve: copy/model.safetensors: the file was " + pattern)
    for answer in (s.ask("GET", "/ready"), s.complete()):
        check(answer[0] == 503 and "model's files were changed" in answer[1], answer)
    check(s.ask("GET", "/health")[0] == 200, "/health")
    check(s.process.wait(60) == 3, "exit code", s.process.returncode)


def test_truncated_in_a_request():
    """A stream that runs ends with an error that names the file and the byte."""
    with Server() as s:
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps(
            {"prompt": "Once", "max_tokens": 40000, "ignore_eos": True, "stream": True}))
        r = c.getresponse()
        check(r.status == 200 and r.readline().startswith(b"data: {"), "no stream")
        os.truncate(WEIGHTS, 8192)
        rest = r.read().decode()
        check(re.search(r"copy/model.safetensors: the file was truncated while it was in use: "
                        r"byte \d+ is missing", rest), rest[-600:])
        ends_in_order(s, r"truncated while it was in use: byte \d+ is missing")


def test_truncated_before_a_request():
    with Server() as s:
        os.truncate(WEIGHTS, 8192)
        status, body = s.complete()
        check(status in (500, 503), status, body)
        ends_in_order(s, "truncated")


def test_overwritten():
    with Server() as s:
        with open(WEIGHTS, "r+b") as f:
            f.seek(100000)
            f.write(os.urandom(1000))
        ends_in_order(s, "changed while it was in use")


def test_unharmed():
    """A file that is replaced by another one, or was read into memory."""
    for flags in ([], ["--no-mmap"]):
        with Server(*flags) as s:
            first = s.complete()
            if flags:
                os.truncate(WEIGHTS, 10)
            else:
                shutil.copy(WEIGHTS, "new")
                os.rename("new", WEIGHTS)
            time.sleep(2.5)  # it looks every second
            again = s.complete()
            check(first[0] == again[0] == 200, first, again)
            texts = [json.loads(a[1])["choices"][0]["text"] for a in (first, again)]
            check(texts[0] == texts[1], texts)
            check(s.ask("GET", "/ready")[0] == 200, "/ready")
            s.process.terminate()
            check(s.process.wait(60) == 0, "exit code", s.process.returncode)


def run_changed(change, command, *flags, feed=b""):
    """Starts the command, changes the file once it is mapped, ends its input. (exit code, stdout,
    stderr)"""
    shutil.rmtree("copy", ignore_errors=True)
    shutil.copytree(MODEL, "copy")
    os.chmod(WEIGHTS, 0o600)
    bits = [] if command in ("calibrate", "bench-kv-cache") else ["--kv-bits", "f16"]
    p = subprocess.Popen([PROGRAM, command, "-m", "copy", "-q", *bits, *flags],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.time() + 60
    while time.time() < end and p.poll() is None:
        with open(f"/proc/{p.pid}/task/{p.pid}/maps") as f:
            if "model.safetensors" in f.read():
                break
    time.sleep(0.3)  # it has opened its files, and compared them for the first time
    change()
    out, err = p.communicate(feed, timeout=120)
    return p.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def touch():
    """What the file says stays as it is, so that nothing else fails."""
    os.utime(WEIGHTS, (1, 1))


def truncate():
    os.truncate(WEIGHTS, 8192)


def test_other_commands():
    with open("long.txt", "w") as f:
        f.write("Once upon a time there was a dog. " * 1000)
    with open("longer.txt", "w") as f:
        f.write("Once upon a time there was a dog. " * 8000)
    request = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {
        "prompt": "Once", "max_tokens": 8, "ignore_eos": True}}).encode() + b"\n"
    shutil.rmtree("made", ignore_errors=True)
    os.mkdir("made")
    cases = (
        (b"", "generate", "-p", "Once", "-n", "6000", "--ctx", "8000", "--ignore-eos", "--raw"),
        (b"", "perplexity", "-f", "longer.txt", "--window", "512", "--windows", "100"),
        (b"", "cache-prompt", "-f", "long.txt", "--ctx", "30000", "-o", "made/prompt.safetensors"),
        (request, "batch", "-i", "-", "-o", "made/results", "--cache-memory-mb", "64"),
        (b"", "calibrate", "-f", "longer.txt", "--tokens", "8000", "-o", "made/centres"),
        (b"", "bench", "--depth", "0", "-n", "3000", "--prompt-tokens", "0", "-r", "1"),
        (b"", "bench-kv-cache", "-f", "longer.txt", "--seq-len", "8000"),
        (b"Once\n", "chat", "--cache-memory-mb", "64", "--ctx", "512", "-n", "8",
         "--chat-template", "chat.jinja"),
    )
    with open("chat.jinja", "w") as f:
        f.write("{{ messages[0].content }}")
    for feed, *command in cases:
        for change, why in ((touch, "changed while it was in use$"),
                            (truncate, r"truncated while it was in use: byte \d+ is missing$")):
            code, out, err = run_changed(change, *command, feed=feed)
            said = re.findall(rf"^kvasir {command[0]}: copy/model.safetensors: the file was {why}",
                              err, re.M)
            check(code == 1 and len(said) == 1, command[0], change.__name__, code, err)
            figures = command[0] in ("perplexity", "bench", "bench-kv-cache")
            check(not figures or not out, "figures of a changed model", out)
            for made in "prompt.safetensors", "centres":
                check(not os.path.exists("made/" + made), "a file of a changed model", made)
            shutil.rmtree("made")
            os.mkdir("made")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print(name)
