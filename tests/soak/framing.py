# SPDX-License-Identifier: Apache-2.0
"""framing.py PROGRAM [--cases N] [--seed N]: kvasir serve behind nginx and HAProxy frames every
request as they do.

Raw HTTP, bent and with requests hidden in it (the corpus of api.http_corpus, cases of
tests/attack/raw.py and bent corpus), is sent straight to the server and through each proxy. Each
proxy runs twice: as Debian sets it, and as lenient as it can be, passing bodies on unread. They
keep connections to the server open and share them among clients. Between proxy and server lies a
tap that stores the bytes of both directions. Each request that the proxy forwards bears a mark that
clients do not know, so the marks in the bytes are the requests as the proxy framed them.

Findings:
* an answer on a connection without a mark that came before it, or a mark without an answer although
  the proxy kept the connection open;
* a hidden request that was answered or logged: the proxies refuse its path, so it has no mark;
* an accepted request in the server's log that does not come through the proxy's header;
* an honest request after a case, on a connection of its own, with another answer than its own;
* a case that is read whole both straight and through the proxy, with other numbers of answers.

Before that, all of it runs against a server that reads no lengths, where findings must appear.
"""
import argparse
import contextlib
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "attack"), os.path.join(HERE, "..", "api")]
import http_corpus  # noqa: E402
import raw  # noqa: E402
import target  # noqa: E402

MARK = b"x-framed: " + secrets.token_hex(8).encode()
CLIENT = "203.0.113.7"  # what the proxies say that the client's address is
WORKERS = 12
REFUSALS = {400, 408, 411, 413, 414, 417, 426, 431, 500, 501, 502, 503, 504, 505}
HIDDEN = b"GET /v1/models/smuggled HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: secret\r\n\r\n"
SMUGGLED = b'model \\"smuggled'


def split(data, closed):
    """The final answers in data as (status, body, whether the connection closes), and what is left
    of one that is cut."""
    found = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        if not end:
            break
        first = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        if not first:
            raise ValueError(data[:200])
        status = int(first[1])
        length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.I)
        if status < 200:
            data = rest
            continue
        if status == 204:
            n = 0
        elif length:
            n = int(length[1])
        elif closed:
            n = len(rest)
        else:
            break
        if len(rest) < n:
            break
        close = re.search(rb"\r\nconnection: *close", head, re.I) is not None
        found.append((status, rest[:n], close))
        data = rest[n:]
    return found, data


class Tap:
    """Listens for a proxy, passes bytes on to the server's port and stores them."""

    def __init__(self, port):
        self.port, self.lock, self.findings = port, threading.Lock(), []
        self.requests = self.answers = self.connections = 0
        self.open = set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.own_port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.port))
                for s in (near, far):
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                c = {"near": near, "far": far, "up": b"", "down": b"", "answers": 0, "marks": 0,
                     "tail": b"", "left": b"", "gone": False, "bad": False}
                with self.lock:
                    self.open.add(id(c))
                    self.connections += 1
                threading.Thread(target=self._up, args=(c,), daemon=True).start()
                threading.Thread(target=self._down, args=(c,), daemon=True).start()

    def finding(self, c, what):
        with self.lock:
            if not c["bad"]:
                self.findings.append(f"{what}: {c['up'][-3000:]!r} -> {c['down'][-1000:]!r}")
        c["bad"] = True

    def _up(self, c):
        with contextlib.suppress(OSError):
            while data := c["near"].recv(1 << 16):
                text = c["tail"] + data.lower()
                n = text.count(MARK)
                cut = text.rfind(MARK) + len(MARK) if n else 0
                c["tail"] = text[max(cut, len(text) - len(MARK) + 1):]
                c["up"] = (c["up"] + data)[-100000:]
                c["marks"] += n  # before the server can answer
                with self.lock:
                    self.requests += n
                c["far"].sendall(data)
        c["gone"] = True
        with contextlib.suppress(OSError):
            c["far"].shutdown(socket.SHUT_RDWR)

    def _down(self, c):
        closed = False
        while not closed:
            try:
                data = c["far"].recv(1 << 16)
            except OSError:
                data = b""
            closed = not data
            c["down"] = (c["down"] + data)[-100000:]
            try:
                found, c["left"] = split(c["left"] + data, False)
            except ValueError as e:
                self.finding(c, f"an answer is not HTTP: {e}")
                found = []
            c["answers"] += len(found)
            with self.lock:
                self.answers += len(found)
            if c["answers"] > c["marks"]:
                self.finding(c, f"{c['answers']} answers to {c['marks']} requests of the proxy")
            if any(SMUGGLED in body for _, body, _ in found):
                self.finding(c, "a hidden request is answered")
            with contextlib.suppress(OSError):
                c["near"].sendall(data)
        if c["answers"] < c["marks"] - c["gone"] and not c["bad"]:
            self.finding(c, f"{c['answers']} answers to {c['marks']} requests of the proxy")
        for s in (c["near"], c["far"]):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self.open.discard(id(c))

    def close(self):
        self.listener.close()


class Logged(target.Server):
    """Counts what the log says of requests that did not come through a proxy."""

    def _read_log(self):
        self.accepted = self.models = self.lines = 0
        for line in self.process.stderr:
            self.log.append(line)
            del self.log[:-400]
            found = re.search(r"route=(\S+) status=(\d+).* client=(\S+)", line)
            if found:
                self.lines += 1
                if found[3] != CLIENT:
                    self.accepted += int(found[2]) < 400
                    self.models += found[1] == "models"


class Deaf:
    """A server that reads no lengths: whatever looks like a request is one."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                s = self.listener.accept()[0]
                threading.Thread(target=self._serve, args=(s,), daemon=True).start()

    @staticmethod
    def _serve(s):
        data = b""
        with contextlib.suppress(OSError):
            while got := s.recv(1 << 16):
                data += got
                while found := re.search(rb"(?:GET|POST) /(?:v1/models/)?(\S*) HTTP/1[^\n]*\n"
                                         rb"(?:[^\r\n]+\r\n)*\r\n", data):
                    data = data[found.end():]
                    body = b'model \\"' + found[1] + b'\\" not found'
                    s.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) +
                              body)

    def close(self):
        self.listener.close()


# ---- proxies -------------------------------------------------------------------------------------

NGINX = """pid nginx.pid; error_log nginx.log; daemon off; master_process off;
events { worker_connections 500; }
http {
    access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f;
    uwsgi_temp_path u; scgi_temp_path s; client_max_body_size 32m; client_body_timeout 5s;
    client_header_timeout 5s;
    upstream kvasir { server 127.0.0.1:%(to)d; keepalive 8; }
    server {
        listen 127.0.0.1:%(port)d;
        %(more)s
        location ~ ^/v1/models/smuggled { return 404; }
        location / {
            proxy_pass http://kvasir; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For %(client)s;
            proxy_set_header X-Framed %(mark)s; proxy_read_timeout 20s;
        }
    }
}
"""
NGINX_LENIENT = """proxy_request_buffering off; proxy_buffering off; ignore_invalid_headers off;
        underscores_in_headers on; merge_slashes off; large_client_header_buffers 4 64k;"""
HAPROXY = """global
    maxconn 500
    %(global)s
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 20s
    timeout http-request 5s
    http-reuse always
frontend in
    bind 127.0.0.1:%(port)d
    %(more)s
    http-request deny deny_status 404 if { path_beg /v1/models/smuggled }
    http-request set-header X-Forwarded-For %(client)s
    http-request set-header X-Framed %(mark)s
    default_backend kvasir
backend kvasir
    server kvasir 127.0.0.1:%(to)d
"""
PROXIES = {
    "nginx": (NGINX, {"more": ""}),
    "nginx, lenient": (NGINX, {"more": NGINX_LENIENT}),
    "HAProxy": (HAPROXY, {"more": "", "global": ""}),
    "HAProxy, lenient": (HAPROXY, {"more": "option accept-invalid-http-request",
                                   "global": "tune.bufsize 65536"}),
}


@contextlib.contextmanager
def proxy(name, to):
    """The port of a proxy in front of the port `to`."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    folder = tempfile.mkdtemp(dir=".")
    template, more = PROXIES[name]
    config = os.path.abspath(os.path.join(folder, "config"))
    with open(config, "w", encoding="ascii") as f:
        f.write(template % {"to": to, "port": port, "client": CLIENT,
                            "mark": MARK.decode().split()[1], **more})
    command = (["nginx", "-p", os.path.abspath(folder), "-c", config] if template is NGINX else
               ["haproxy", "-db", "-f", config])
    with open(os.path.join(folder, "err"), "w", encoding="ascii") as err:
        process = subprocess.Popen(command, stdout=err, stderr=err)
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        else:
            sys.exit(f"framing: {name} does not start; see {config}")
        yield port
        if process.poll() is not None:
            sys.exit(f"framing: {name} has ended with code {process.returncode}")
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# ---- cases ---------------------------------------------------------------------------------------


def make_cases(seed, n):
    """(bytes, whether in pieces): the whole corpus, then drawn ones."""
    rnd = random.Random(seed)
    corpus = [c[1] for c in http_corpus.REFUSED + http_corpus.TAKEN + http_corpus.LAST]
    cases = [(data + HIDDEN, False) for data in corpus]
    short = [data for data in corpus if len(data) < 2000]
    while len(cases) < n:
        if rnd.random() < 0.6:
            data = raw.one_case(rnd, HIDDEN)
            if rnd.random() < 0.5:  # 404 for any body, where /tokenize would refuse it
                data = data.replace(b"/tokenize ", b"/nothing ", 1)
        else:
            data = raw.bend(rnd, rnd.choice(short))
        data += HIDDEN * (rnd.random() < 0.5)
        cases.append((data, rnd.random() < 0.2))
    return cases[:n]


def exchange(port, data, pieces, patience):
    """The answers (split) until the other side closes or is silent."""
    came, closed = b"", False
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.settimeout(5)
        with contextlib.suppress(OSError):
            for at in range(0, len(data), 37 if pieces else 1 << 16):
                s.sendall(data[at:at + (37 if pieces else 1 << 16)])
        s.settimeout(patience)
        try:
            while got := s.recv(1 << 16):
                came += got
                s.settimeout(patience / 3)
            closed = True
        except TimeoutError:
            pass
    try:
        return split(came, closed)[0]
    except ValueError:
        return [(0, came, True)]  # HTTP/0.9 of a proxy


def honest(port, number):
    """None, the status of a proxy's refusal, or what is wrong."""
    name = b"honest-%d" % number
    got = exchange(port, b"GET /v1/models/" + name + b" HTTP/1.1\r\nHost: localhost\r\n"
                   b"X-Api-Key: secret\r\nConnection: close\r\n\r\n", False, 15)
    if len(got) == 1 and b'\\"' + name + b'\\" ' in got[0][1]:
        return None
    if len(got) == 1 and got[0][0] in (502, 503, 504):
        return got[0][0]
    return f"an honest request, {number}, is answered with {got}"


def each_case(cases, work):
    """work(number, data, pieces) of all, WORKERS at a time; their results in order."""
    results, numbers, lock = [None] * len(cases), iter(range(len(cases))), threading.Lock()

    def run():
        while True:
            with lock:
                i = next(numbers, None)
            if i is None:
                return
            results[i] = work(i, *cases[i])

    threads = [threading.Thread(target=run) for _ in range(WORKERS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


def read_whole(answers):
    """Whether nothing is refused and the connection does not close before the rest is read: Kvasir
    closes after HTTP/1.0, nginx wherever Connection contains "close"."""
    return (bool(answers) and not answers[-1][2]
            and all(status and status not in REFUSALS for status, *_ in answers))


def straight(port, cases):
    """How many answers there are to each case, or None if it is not read whole; and findings."""
    findings = []

    def work(_, data, pieces):
        got = exchange(port, data, pieces, 0.4)
        hidden = sum(SMUGGLED in body for _, body, _ in got)
        allowed = sum(b" /v1/models/smuggled" in x for x in raw.strict_requests(data))
        if hidden > allowed:
            findings.append(f"a hidden request is answered: {data!r}")
        return len(got) if read_whole(got) else None

    return each_case(cases, work), findings


def through(name, to, cases, expected):
    """Counts and findings of the cases through a proxy to the port `to`."""
    tap, findings, counts = Tap(to), [], {"refused": 0, "unavailable": 0, "compared": 0}
    with proxy(name, tap.own_port) as port:
        def work(i, data, pieces):
            got = exchange(port, data, pieces, 0.4)
            if expected and expected[i] and read_whole(got) and len(got) != expected[i]:
                got = exchange(port, data, pieces, 4)  # slow, or really another number?
                if read_whole(got) and len(got) != expected[i]:
                    findings.append(f"{len(got)} answers, {expected[i]} straight: {data!r}")
            counts["compared"] += bool(expected and expected[i] and read_whole(got))
            counts["refused"] += any(status in REFUSALS for status, *_ in got)
            wrong = honest(port, i)
            if isinstance(wrong, str):
                findings.append(wrong)
            counts["unavailable"] += isinstance(wrong, int)

        each_case(cases, work)
    for _ in range(100):
        if not tap.open:
            break
        time.sleep(0.1)
    tap.close()
    counts.update(forwarded=tap.requests, answers=tap.answers, connections=tap.connections)
    findings += tap.findings
    if counts["unavailable"] > len(cases) / 100:
        findings.append(f"{counts['unavailable']} honest requests got no answer")
    return counts, findings


def report(what, cases, counts, findings):
    for text in findings[:5]:
        print(f"framing: FINDING: {what}: {text}")
    texts = "".join(f", {n} {name}" for name, n in counts.items())
    print(f"framing: {what}: {len(cases)} cases{texts}: "
          f"{f'{len(findings)} FINDINGS' if findings else 'held'}", flush=True)
    return len(findings)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--proxy", action="append", help="only this one")
    o = parser.parse_args()
    program, failed = os.path.abspath(o.program), 0
    os.environ["PATH"] += ":/usr/sbin"
    for need in ("nginx", "haproxy"):
        if not shutil.which(need):
            sys.exit(f"framing: {need} is not installed: run tools/deps.sh soak")
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        cases, names = make_cases(o.seed, o.cases), o.proxy or list(PROXIES)
        for name in names:
            deaf = Deaf()
            some = cases[-200:]
            counts, findings = through(name, deaf.port, some, None)
            deaf.close()
            if not any("requests of the proxy" in f for f in findings):
                sys.exit(f"framing: through {name} nothing is found in a server without lengths")
            print(f"framing: {name}, before a server that reads no lengths: {len(some)} cases, "
                  f"{len(findings)} findings, as there must be")
        target.scripted_model("model")
        with Logged(program, "-m", "model") as server:
            expected, findings = straight(server.port, cases)
            failed += report(f"straight, seed {o.seed}", cases,
                             {"read whole": sum(e is not None for e in expected)}, findings)
        for name in names:
            with Logged(program, "-m", "model", "--trusted-proxies", "127.0.0.1") as server:
                counts, findings = through(name, server.port, cases, expected)
                server.alive()
                counts["lines of the log"] = server.lines
                if server.accepted or server.models:
                    findings.append(f"{server.accepted} requests that no proxy forwarded are "
                                    f"accepted, {server.models} ask for models")
                failed += report(f"{name}, seed {o.seed}", cases, counts, findings)
        os.chdir("/")
    print("framing: held" if not failed else f"framing: {failed} findings")
    sys.exit(failed != 0)


main()
