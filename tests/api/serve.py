# SPDX-License-Identifier: Apache-2.0
"""kvasir serve as a process: readiness, answers, what the log has and must not have, keys and
settings from files, addresses that cannot be used, and all ways to end it.

    serve.py PROGRAM MODEL

MODEL has a tokenizer and no chat template. Works in the current folder.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from served import Process, check  # noqa: E402

PROGRAM, MODEL = sys.argv[1:]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
SECRET = "xyzzyplugh"  # part of prompts, must not be in the log
FIELDS = ("time level id request_id route status finish client prompt cached hit diverged_at "
          "common why new cache_bytes queue_ms first_token_ms total_ms").split()


class Server(Process):
    def __init__(self, *flags, port=0):
        command = [PROGRAM, "serve", "-m", MODEL, "--kv-bits", "f16", "--chat-template", "template",
                   "--ctx", "100000", "--cache-memory-mb", "200", *flags]
        if port is not None:
            command += ["--port", str(port)]
        super().__init__(command, "log")

    def requests(self, n):
        """Waits for n lines about requests; the last one as a dict."""
        self.line(r"(?s)( id=\S+ request_id=.*?$.*){%d}" % n)
        lines = [x for x in self.text().splitlines() if " id=" in x and " route=" in x]
        check(len(lines) == n, "not", n, "lines", lines)
        pairs = [pair.split("=", 1) for pair in lines[-1].split(" ")]
        check([k for k, _ in pairs] == FIELDS, "fields", lines[-1])
        return dict(pairs)

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=60)

    def ask(self, method, path, body=None, key=None, connection=None, **headers):
        """Status and JSON body."""
        c = connection or self.connect()
        if key:
            headers["Authorization"] = "Bearer " + key
        c.request(method, path, body if isinstance(body, (str, bytes)) or body is None
                  else json.dumps(body), {k.replace("_", "-"): v for k, v in headers.items()})
        r = c.getresponse()
        return r.status, json.loads(r.read())

    def chat(self, text, n=8, key=None, **headers):
        return self.ask("POST", "/v1/chat/completions", chat_body(text, n), key, **headers)

    def end(self):
        self.process.send_signal(signal.SIGTERM)

    def ended(self, seconds=60):
        return self.process.wait(seconds)


def chat_body(text, n, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": n, "temperature": 0,
            "ignore_eos": True, **more}


class Stream:
    """A streamed answer; the constructor waits for its first line."""

    def __init__(self, server, n):
        self.c = server.connect()
        self.c.request("POST", "/v1/chat/completions",
                       json.dumps(chat_body("Once upon a time", n, stream=True)))
        self.r = self.c.getresponse()
        check(self.r.status == 200, "stream", self.r.status)
        self.first = self.r.readline()
        check(self.first.startswith(b"data: {"), self.first)

    def rest(self):
        """The data of all events, to the end of the stream."""
        data = [line[6:] for line in [self.first, *self.r] if line.startswith(b"data: ")]
        return [json.loads(d) if d[0:1] == b"{" else d.decode().strip() for d in data]


# ---- answers and the log -------------------------------------------------------------------------

def test_log(prompts):
    flags = ["--log-prompts"] if prompts else []
    with Server(*flags) as s:
        check(s.ask("GET", "/ready") == (200, {"status": "ready"}), "/ready")
        status, a = s.chat("Once upon a time " + SECRET)
        check(status == 200 and len(a["choices"][0]["message"]["content"]) > 5, a)
        usage, one = a["usage"], s.requests(1)
        check(one["id"] == one["request_id"] == a["id"] and one["route"] == "chat", one)
        check((one["status"], one["finish"], one["hit"]) == ("200", "length", "miss"), one)
        check(one["prompt"] == str(usage["prompt_tokens"]) and one["new"] == "8", one)
        check(one["cached"] == one["diverged_at"] == "0" and int(one["cache_bytes"]) > 0, one)
        check(one["common"] == "0" and one["why"] == "never_seen", one)
        check(0 <= int(one["queue_ms"]) <= int(one["first_token_ms"]) <= int(one["total_ms"]), one)

        status, b = s.chat("Once upon a time " + SECRET, X_Request_Id="mine-1")
        two = s.requests(2)
        check(b["choices"] == a["choices"], "another answer from the cache", a, b)
        cached = b["usage"]["prompt_tokens_details"]["cached_tokens"]
        check(cached > 0 and two["cached"] == two["diverged_at"] == str(cached), two, b)
        check(two["request_id"] == "mine-1" and two["hit"] == "supersequence", two)
        check(two["common"] == two["prompt"] and two["why"] == "nothing", two)

        # a refused request has a line in the log, without its text
        for body, place in ((b'{"messages": "' + SECRET.encode(), "invalid JSON"),
                            (chat_body(SECRET, SECRET), "max_tokens"),
                            ({"messages": [{"role": SECRET, "content": SECRET}]}, "messages[0]")):
            status, error = s.ask("POST", "/v1/chat/completions", body)
            check(status == 400 and place in error["error"]["message"], status, error)
        check(s.ask("GET", "/v1/nowhere")[0] == 404, "a path that is not there")
        # Each connection queues its own line, so the four come in any order.
        s.line("(?s)(?=(.*?level=warn request_id=\\S+ route=chat status=400 client=127.0.0.1 "
               "method=POST path=/v1/chat/completions why=\"[^\"\n]+\"$){3})"
               ".*route=other status=404 ")
        s.line("(?m) route=other status=404 .* why=\"not found: GET /v1/nowhere\"$")
        s.line("(?m) why=\"max_tokens: is a string, not a whole number\"$")
        with socket.create_connection((s.host, s.port)) as gone:
            body = json.dumps(chat_body("Once", 50000, stream=True)).encode()
            gone.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                         b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            check(gone.recv(100).startswith(b"HTTP/1.1 200"), "a stream")
        check(s.requests(3)["finish"] == "client_gone", "a client that went away")
        s.end()
        check(s.ended() == 0, "exit code")
        s.line("^server: SIGTERM, (0 requests are|1 request is) open")  # of the client that left
        check((SECRET in s.text()) == prompts, "text of a prompt in the log:", prompts)
        check(len(re.findall(r' id=\S+ body="\{', s.text(), re.M)) == 3 * prompts, "bodies")


def test_fields():
    """Unknown fields, lengths that do not fit, seeds, ids, and pages of this machine."""
    ask = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 3, "temprature": 2}
    warning = 'temprature: unknown field, ignored; did you mean "temperature"?'
    with Server("--ctx", "256", "--seed", "5", "--temp", "1") as s:
        status, a = s.ask("POST", "/v1/chat/completions", ask)
        check(status == 200 and a["warnings"] == [warning], a)
        s.line("(?m) id=.* unknown_fields=temprature$")
        status, b = s.ask("POST", "/v1/chat/completions", {k: ask[k] for k in list(ask)[:2]})
        check(b["choices"] == a["choices"] and "warnings" not in b, "the same seed", a, b)
        for more in {}, {"stream_options": {"include_usage": True}}:
            c = s.connect()
            c.request("POST", "/v1/chat/completions", json.dumps({**ask, "stream": True, **more}))
            r = c.getresponse()
            check(r.getheader("X-Request-Id").startswith("chatcmpl-"), "the id of a stream")
            events = [x[6:] for x in r.read().split(b"\n\n") if x.startswith(b"data: {")]
            check([json.loads(e).get("warnings") for e in events[-2:]] == [None, [warning]], events)
        status, a = s.ask("POST", "/v1/messages", {**ask, "max_tokens": 32000})
        check(status == 200 and a["warnings"] == [warning], "clamped", a)
        check(a["stop_reason"] == "max_tokens" and 100 < a["usage"]["output_tokens"] < 256, a)
        status, a = s.ask("POST", "/v1/chat/completions", {**ask, "max_tokens": 32000})
        check(status == 400 and a["error"]["code"] == "context_length_exceeded", a)
        c = s.connect()
        mine = {"X-Request-Id": "m-1"}
        for path, headers in (("/health", {}), ("/nowhere", {}), ("/health", mine)):
            c.request("GET", path, headers={"Origin": "http://localhost:3000", **headers})
            r = c.getresponse()
            r.read()
            check(r.getheader("Access-Control-Allow-Origin") == "http://localhost:3000", path)
            id = r.getheader("X-Request-Id")
            check(id == "m-1" if headers else id.startswith("req_"), path, id)
        status, a = s.ask("GET", "/v1/models", Origin="http://example.org")
        check(status == 403 and "its option cors-origin" in a["error"]["message"], a)
        s.line("(?m) route=models status=403 .*why=\"pages of 'http://example.org' may not use")
    with Server("--strict-fields", "--clamp-max-tokens", "--ctx", "256") as s:
        status, a = s.ask("POST", "/v1/chat/completions", ask)
        check(status == 400 and a["error"]["param"] == "temprature", a)
        del ask["temprature"]
        status, a = s.ask("POST", "/v1/chat/completions", {**ask, "max_tokens": 32000})
        check(status == 200, "clamped", a)


def test_quotas():
    with open("quotas", "w") as f:
        f.write("old name=old expires=2020-02-29\nfew name=bob requests_per_minute=2 weight=3\n"
                "little tokens_per_minute=10 expires=2199-01-01\nfree\n")
    with Server("--api-key-file", "quotas") as s:
        status, answer = s.chat("Once", key="old")
        check(status == 401 and "expired" in answer["error"]["message"], answer)
        check([s.chat("Once", key="few")[0] for _ in range(3)] == [200, 200, 429], "requests")
        check([s.chat("Once upon a time", 20, key="little")[0] for _ in range(2)] == [200, 429],
              "tokens")
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps(chat_body("Once", 1)),
                  {"Authorization": "Bearer few"})
        r = c.getresponse()
        message = json.loads(r.read())["error"]["message"]
        check(r.status == 429 and 20 <= int(r.headers["Retry-After"]) <= 30, r.headers)
        check('"bob"' in message and '"requests_per_minute" of 2 ' in message, message)
        check([s.chat("Once", key="free")[0] for _ in range(4)] == [200] * 4, "no quota")
        check(s.ask("GET", "/v1/models", key="few")[0] == 200, "not an answer")
        s.end()
        check(s.ended() == 0, "exit code")


def test_keys_and_files():
    with open("keys", "w") as f:
        f.write("# ours\nalpha-key\n\n  beta-key  \n")
    with open("settings", "w") as f:
        json.dump({"api-key-file": "keys", "served-model-name": "tale", "quiet": True, "port": 0,
                   "max-tokens": 3, "log-prompts": True}, f)
    with Server("--config", "settings", port=None) as s:
        for key, want in ((None, 401), ("gamma", 401), ("alpha-ke", 401), ("alpha-key", 200),
                          ("beta-key", 200)):
            check(s.chat("Once", key=key)[0] == want, "key", key)
            check(s.ask("GET", "/v1/models", key=key)[0] == want, "models", key)
        check(s.ask("GET", "/v1/models", X_Api_Key="beta-key")[0] == 200, "X-Api-Key")
        check(s.ask("GET", "/ready")[0] == s.ask("GET", "/health")[0] == 200, "no key is needed")
        status, models = s.ask("GET", "/v1/models", key="beta-key")
        check(models["data"][0]["id"] == "tale", models)
        # a tenant finds its own prefixes only
        long = "Once upon a time there was a girl. " * 4
        cached = [s.chat(long, key=key)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
                  for key in ("alpha-key", "beta-key", "alpha-key")]
        check(cached[1] < 10 < cached[2], "tenants", cached)  # BOS and its earlier "Once"
        body = {"messages": chat_body(long, 0)["messages"], "ignore_eos": True}
        status, a = s.ask("POST", "/v1/chat/completions", body, "beta-key")
        check(a["usage"]["completion_tokens"] == 3 and a["model"] == "tale", a)
        body = dict(chat_body("Once", 1), model="another")
        check(s.ask("POST", "/v1/chat/completions", body, "beta-key")[0] == 404, "another model")
        s.end()
        check(s.ended() == 0, "exit code")
        check("alpha-key" not in s.text() and "gamma" not in s.text(), "a key in the log")
        check(not re.search("^(model|cache|note):", s.text(), re.M), "--quiet")
        check(len(re.findall(r" id=\S+ .* route=chat ", s.text())) == 6,
              "--quiet keeps the lines of requests")


# ---- addresses -----------------------------------------------------------------------------------

def refused_start(code, want, *flags):
    p = subprocess.run([PROGRAM, "serve", "-m", MODEL, "--kv-bits", "f16", "-q", *flags],
                       capture_output=True, text=True, timeout=60)
    check(p.returncode == code and p.stderr.count("\n") == 1 and want in p.stderr, want, p)


def test_addresses():
    with Server() as s:
        refused_start(1, f"127.0.0.1:{s.port}", "--port", str(s.port))
        check(s.ask("GET", "/ready")[0] == 200, "the first server goes on")
        s.end()
        check(s.ended() == 0, "exit code")
        port = s.port
    with Server(port=port) as s:  # at once, with old connections in TIME_WAIT
        check(s.port == port, "the same port")
    refused_start(1, "192.0.2.1:8080", "--host", "192.0.2.1", "--port", "8080", "--insecure-no-key")
    refused_start(2, "--host: cannot listen on nowhere.inv",
                  "--host", "nowhere.invalid", "--port", "0", "--insecure-no-key")


# ---- ends ----------------------------------------------------------------------------------------

def test_drain():
    """After SIGTERM open requests are answered to the end, new ones are refused."""
    with Server() as s:
        kept = [s.connect() for _ in range(4)]
        for c in kept:
            check(s.ask("GET", "/ready", connection=c)[0] == 200, "/ready")
        stream = Stream(s, 3000)
        s.end()
        s.line("^server: SIGTERM, 1 request is open; a second signal ends at once$")
        refused = {"message": "the server is shutting down", "type": "server_error", "param": None,
                   "code": None}
        for method, path, body in (("POST", "/v1/chat/completions", chat_body("a", 1)),
                                   ("GET", "/ready", None), ("GET", "/v1/models", None)):
            status, error = s.ask(method, path, body, connection=kept.pop())
            check(status == 503 and error == {"error": refused}, path, status, error)
        status, health = s.ask("GET", "/health", connection=kept.pop())
        check(status == 200 and health["status"] == "healthy", "/health", status, health)
        check(s.process.poll() is None, "the process waits for the stream")
        try:
            socket.create_connection((s.host, s.port), 10).close()
            check(False, "a new connection")
        except ConnectionRefusedError:
            pass
        came = stream.rest()
        check(came[-1] == "[DONE]", "the end of the stream", came[-3:])
        check(came[-2]["choices"][0]["finish_reason"] == "length", came[-2])
        check(s.ended(15) == 0, "exit code")  # well before --drain-timeout
        check(s.requests(1)["new"] == "3000", "all tokens")
        check("is cancelled" not in s.text(), "a deadline")


def test_deadline():
    with Server("--drain-timeout", "1") as s:
        stream = Stream(s, 90000)
        begin = time.time()
        s.end()
        check(s.ended() == 0, "exit code")
        check(time.time() - begin >= 1, "before the deadline")
        s.line("^server: 1 request is cancelled: --drain-timeout 1 is over$")
        check(s.requests(1)["finish"] == "cancelled", "the line of the log")
        check("error" in [x for x in stream.rest() if x != "[DONE]"][-1], "the stream's error")


def test_second_signal():
    with Server("--drain-timeout", "86400") as s:
        stream = Stream(s, 90000)
        s.end()
        s.line("^server: SIGTERM, 1 request is open")
        s.end()
        check(s.ended(10) == -signal.SIGTERM, "ended by the signal")
        try:
            check(stream.rest()[-1] != "[DONE]", "a stream that broke off")
        except (http.client.IncompleteRead, ConnectionError):
            pass


with open("template", "w") as file:
    file.write(TEMPLATE)
test_log(prompts=False)
test_log(prompts=True)
test_fields()
test_quotas()
test_keys_and_files()
test_addresses()
test_drain()
test_deadline()
test_second_signal()
