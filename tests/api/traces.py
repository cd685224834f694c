#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logs and traces of kvasir serve: lines as JSON, levels, ids in and out; spans as a collector gets
them, with its ids, parents and times; a collector that fails or hangs delays no request.

traces.py KVASIR MODEL"""
import datetime
import http.client
import http.server
import json
import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from served import check  # noqa: E402

PROGRAM, MODEL = sys.argv[1:]
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Keeps what is posted; while `hang` is set it does not answer; else it answers `status`."""

    def __init__(self):
        self.spans, self.status, self.hang = [], 200, threading.Event()
        self.headers = {}  # of the last one
        self.answers = threading.Event()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers = self.headers
                if collector.hang.is_set():
                    collector.answers.wait(60)
                if collector.status == 200:
                    check(self.path == "/v1/traces", self.path)
                    check(self.headers["Content-Type"] == "application/json", self.headers)
                    collector.take(json.loads(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.http.server_port
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def take(self, body):
        (resource,) = body["resourceSpans"]
        about = attributes(resource["resource"])
        check(about["service.name"] == "kvasir" and about["service.version"], about)
        (scope,) = resource["scopeSpans"]
        self.spans += scope["spans"]

    def wait(self, trace, n):
        """n spans of the trace, by name."""
        end = time.time() + 20
        while time.time() < end:
            found = [s for s in list(self.spans) if s["traceId"] == trace]
            if len(found) >= n:
                check(len(found) == n, found)
                return {s["name"]: s for s in found}
            time.sleep(0.05)
        raise AssertionError(("not", n, "spans of", trace, self.spans))


def attributes(of):
    plain = {}
    for a in of["attributes"]:
        ((kind, value),) = a["value"].items()
        plain[a["key"]] = int(value) if kind == "intValue" else value
    return plain


class Server:
    def __init__(self, *flags, **environment):
        self.lines, self.log = [], open("log", "w+")
        self.p = subprocess.Popen(
            [PROGRAM, "serve", "-m", MODEL, "--port", "0", "--cache-memory-mb", "64", *flags],
            stderr=self.log, env={**os.environ, **environment})
        said = self.line(lambda x: "listening on" in x.get("message", ""))
        self.port = int(said["message"].rsplit(":", 1)[1])

    def text(self):
        with open("log") as f:
            return f.read()

    def all(self):
        return [json.loads(x) for x in self.text().splitlines()]

    def line(self, good, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            text = self.text()
            for x in text[: text.rfind("\n") + 1].splitlines():
                if good(json.loads(x)):
                    return json.loads(x)
            check(self.p.poll() is None, text)
            time.sleep(0.05)
        raise AssertionError(self.text())

    def ask(self, method, path, body=None, **headers):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        names = {k.replace("_", "-"): v for k, v in headers.items()}
        c.request(method, path, body and json.dumps(body), names)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, r.getheader("X-Request-Id"), text

    def wait_figure(self, name, value):
        end = time.time() + 10
        while self.figure(name) != value and time.time() < end:
            time.sleep(0.05)
        check(self.figure(name) == value, name, self.figure(name))

    def figure(self, name):
        text = self.ask("GET", "/metrics")[2]
        (found,) = [x for x in text.splitlines() if x.startswith(name + " ")]
        return float(found.split()[-1])

    def end(self):
        self.p.terminate()
        return self.p.wait(60)


def near(s, since):
    now = datetime.datetime.now(datetime.timezone.utc)
    at = datetime.datetime.fromisoformat(s.replace("Z", "+00:00"))
    check(since <= at <= now + datetime.timedelta(seconds=1), s)


def test_log():
    since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
    s = Server("--log-format", "json", "--log-level", "debug")
    ids = {"prompt": [1] * 5, "max_tokens": 3, "ignore_eos": True}
    status, own, text = s.ask("POST", "/v1/completions", ids, x_request_id="web-17.a:b",
                              traceparent=f"00-{TRACE}-{PARENT}-00")
    check(status == 200 and own == "web-17.a:b", status, own)
    one = s.line(lambda x: x.get("route") == "completions" and x["status"] == 200)
    check(one["level"] == "info" and one["request_id"] == own, one)
    check(one["trace_id"] == TRACE and one["id"] == json.loads(text)["id"], one)
    check(one["client"] == "127.0.0.1" and one["new"] == 3 and one["prompt"] == 5, one)
    check(isinstance(one["total_ms"], int) and one["hit"] == "miss", one)
    near(one["time"], since)
    # ids that are too long or have other characters are replaced
    for bad in ("x" * 64, "a b", 'a"b', "a\tb"):
        status, own, _ = s.ask("POST", "/v1/completions", ids, x_request_id=bad)
        check(status == 200 and own != bad and own.startswith("cmpl-"), own)
    check(s.ask("POST", "/v1/completions", {"prompt": "text"})[0] == 400, "a model of ids only")
    bad = s.line(lambda x: x.get("status") == 400)
    check(bad["level"] == "warn" and bad["why"] and bad["path"] == "/v1/completions", bad)
    status, own, _ = s.ask("GET", "/health")
    health = s.line(lambda x: x.get("route") == "health")
    check(health["level"] == "debug" and health["request_id"] == own, health)
    check(s.end() == 0, "exit code")
    check([x["message"] for x in s.all() if "message" in x][-1].startswith("SIGTERM"), s.text())

    s = Server("--log-format", "json", "--log-level", "info")
    check(s.ask("GET", "/health")[0] == 200 and s.ask("GET", "/nowhere")[0] == 404, "asked")
    s.line(lambda x: x.get("status") == 404)
    check(s.end() == 0 and not [x for x in s.all() if x.get("route") == "health"], s.text())


def check_tree(spans, parent):
    """The request's span, whose children are in order and within it."""
    (root,) = [s for s in spans.values() if s["kind"] == 2]
    check(root.get("parentSpanId") == parent, root)
    ids = {s["spanId"] for s in spans.values()}
    check(len(ids) == len(spans) and all(len(i) == 16 and int(i, 16) for i in ids), ids)
    at = int(root["startTimeUnixNano"])
    check(abs(at / 1e9 - time.time()) < 60, root)
    for name in ("queue", "prefix", "prefill", "decode"):
        s = spans.get(name)
        if s:
            check(s["parentSpanId"] == root["spanId"], s)
            check(at <= int(s["startTimeUnixNano"]) <= int(s["endTimeUnixNano"]), name, s)
            at = int(s["endTimeUnixNano"])
    check(at <= int(root["endTimeUnixNano"]), root)
    return root


def test_spans(collector):
    s = Server("--log-format", "json", "--otlp-endpoint", collector.url + "/")
    ids = {"prompt": [1 + i % 100 for i in range(200)], "max_tokens": 20, "ignore_eos": True}
    began = time.time()
    status, _, text = s.ask("POST", "/v1/completions", ids, x_request_id="mine",
                            traceparent=f"00-{TRACE}-{PARENT}-01")
    took = time.time() - began
    check(status == 200, text)
    spans = collector.wait(TRACE, 5)
    root = check_tree(spans, PARENT)
    a = attributes(root)
    check(root["name"] == "text_completion " + a["gen_ai.request.model"], root)
    check(a["gen_ai.usage.input_tokens"] == 200 and a["gen_ai.usage.output_tokens"] == 20, a)
    check(a["gen_ai.usage.cache_read.input_tokens"] == 0 and a["kvasir.request_id"] == "mine", a)
    check(a["gen_ai.response.id"] == json.loads(text)["id"], a)
    check(a["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "length"}]}, a)
    check(a["http.response.status_code"] == 200 and a["gen_ai.operation.name"] ==
          "text_completion", a)
    length = (int(root["endTimeUnixNano"]) - int(root["startTimeUnixNano"])) / 1e9
    check(0 < length <= took + 0.5, length, took)
    # found in the cache, in a stream; this trace begins here, and the log has its id
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({**ids, "stream": True}))
    check(b"[DONE]" in c.getresponse().read(), "a stream")
    c.close()
    line = s.line(lambda x: x.get("cached", 0) > 0)
    spans = collector.wait(line["trace_id"], 5)
    root = check_tree(spans, None)
    check(attributes(root)["gen_ai.usage.cache_read.input_tokens"] == line["cached"] > 190, root)
    check(attributes(spans["prefix"])["kvasir.prefix.hit"] == line["hit"], spans["prefix"])
    # refused: a span alone. Not sampled: none
    check(s.ask("POST", "/v1/completions", {"prompt": "x"},
                traceparent=f"00-{'a' * 32}-{PARENT}-01")[0] == 400, "refused")
    root = check_tree(collector.wait("a" * 32, 1), PARENT)
    check(attributes(root)["http.response.status_code"] == 400, root)
    s.ask("POST", "/v1/completions", ids, traceparent=f"00-{'b' * 32}-{PARENT}-00")
    s.ask("POST", "/v1/completions", ids, traceparent=f"00-{'c' * 32}-{PARENT}-01")
    collector.wait("c" * 32, 5)
    check(not [x for x in collector.spans if x["traceId"] == "b" * 32], "not sampled")
    s.wait_figure('kvasir_traces_total{result="sent"}', 4)  # counted after it has come

    # one that fails is said once, and counted; then it works again
    collector.status = 503
    for _ in range(2):
        s.ask("POST", "/v1/completions", ids)
        time.sleep(1.5)
    s.wait_figure('kvasir_traces_total{result="failed"}', 2)
    check(len([x for x in s.all() if "503" in x.get("message", "")]) == 1, s.text())
    collector.status = 200
    s.ask("POST", "/v1/completions", ids, traceparent=f"00-{'d' * 32}-{PARENT}-01")
    collector.wait("d" * 32, 5)
    s.line(lambda x: "takes spans again" in x.get("message", ""))

    # one that hangs delays neither answers nor, for long, the end
    collector.hang.set()
    s.ask("POST", "/v1/completions", ids)
    time.sleep(1.5)
    began = time.time()
    for _ in range(5):
        check(s.ask("POST", "/v1/completions", ids)[0] == 200, "an answer")
    check(time.time() - began < 5, "requests waited for the collector")
    began = time.time()
    check(s.end() == 0 and time.time() - began < 10, "the end waited for the collector")
    collector.answers.set()


def headers_sent(collector, *flags, **environment):
    """The headers of a request with spans."""
    s = Server("--log-format", "json", "--otlp-endpoint", collector.url, *flags, **environment)
    n = len(collector.spans)
    s.ask("POST", "/v1/completions", {"prompt": [1, 2], "max_tokens": 1})
    check(s.end() == 0 and len(collector.spans) > n, "no spans")
    check("s3cret" not in s.text(), s.text())
    return collector.headers


def test_headers(collector):
    with open("headers", "w") as f:
        f.write("# for the collector\n\n Authorization : Bearer s3cret=1\t\r\nX-Scope:a b")
    given = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20s3cret, x-team = a%2Cb ,"}
    sent = headers_sent(collector, **given)
    check(sent["Authorization"] == "Basic s3cret" and sent["X-Team"] == "a,b", sent)
    sent = headers_sent(collector, "--otlp-headers-file", "headers", **given)
    check(sent["Authorization"] == "Bearer s3cret=1" and sent["X-Scope"] == "a b", sent)
    check("X-Team" not in sent, sent)
    given["OTEL_EXPORTER_OTLP_TRACES_HEADERS"] = "x-only=traces"
    sent = headers_sent(collector, **given)
    check(sent["X-Only"] == "traces" and "Authorization" not in sent, sent)
    check("Authorization" not in headers_sent(collector), "headers from nowhere")


test_log()
test_spans(Collector())
test_headers(Collector())
