# SPDX-License-Identifier: Apache-2.0
"""A server that speaks just enough of OpenAI's streamed chats and of /v1/status for tests of
`kvasir chat --url` and of the page. Prints its port, ends with its standard input or after five
minutes.

    fake_server.py [--page FILE] [--key KEY] [--log FILE]

--log gets a JSON line for each request. The answer depends on the last message: a word of ANSWERS
below picks one, any other message is repeated.
"""
import argparse
import base64
import hashlib
import http.server
import json
import os
import re
import sys
import threading
import time

args = None
lock = threading.Lock()
served = {"prompt": 0, "cached": 0, "tokens": 0, "running": 0, "steps": 0}
start = time.time()


def policy(page):
    """The Content-Security-Policy of page.h with the page's own hashes (page.c)."""
    with open(os.path.join(os.path.dirname(__file__), "../../src/server/page.h")) as f:
        text = f.read().split("#define SERVER_PAGE_POLICY", 1)[1].split("const char")[0]

    def hashes(tag):
        return "".join(
            " 'sha256-" + base64.b64encode(hashlib.sha256(part).digest()).decode() + "'"
            for part in re.findall(f"<{tag}>(.*?)</{tag}>".encode(), page, re.S))
    return "".join(re.findall('"([^"]*)"', text)) % (hashes("style"), hashes("script"))


def chunk(delta=None, finish=None, **more):
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "fake",
            "choices": choices}
    body.update(more)
    return body


def words(text, key="content"):
    parts = text.split(" ")
    for i, part in enumerate(parts):
        yield chunk({key: part + (" " if i + 1 < len(parts) else "")})


def think():
    yield from words("Let me think of it.", "reasoning_content")
    yield from words("\n\nIt is done.")


def fail():
    yield from words("This goes")
    yield {"error": {"message": "the engine failed", "type": "server_error"}}


def slow():
    for i in range(2000):
        yield chunk({"content": f"{i} "})
        time.sleep(0.03)


def code():
    yield from words("Look:\n```c\nint main(void) { return '<b>&' != 0; }\n```\n"
                     "<img src=x onerror=alert(1)> `<i>` is **text**.")


def hostile():
    yield from words("Before <script>window.hacked = 1</script> <img src=x onerror='hacked = 2'> "
                     "[a](javascript:hacked=3) [b](data:text/html,x) "
                     "![c](http://127.0.0.1:1/c.png) "
                     "<svg/onload=hacked=4> &lt;b&gt; `</code><script>hacked = 5</script>`\n\n"
                     "```html\n</code></pre><script>hacked = 6</script>\n```\n\n"
                     "$\\href{javascript:hacked=7}{x}$ $\\text{<img src=x onerror=hacked=8>}$\n\n"
                     "<style>body { display: none }</style><form action='http://127.0.0.1:1/'>\n\n"
                     "| <b onclick=hacked=9>x |\n|---|\n| <iframe src='http://127.0.0.1:1/'> |\n")


def flood():
    """One line of 1 MiB."""
    for _ in range(64):
        yield chunk({"content": "<b>*_[($`" * 1820})


MARKDOWN = """## Weights

A **bold** word, a [link](https://example.org/a), `code` and $\\boxed{E = mc^2}$; $5 or $6.

| n | square |
|--:|--------|
| 2 | $2^2$ |

1. first
   - inner

- [x] done
- [ ] open

\\[
\\int_0^1 x\\,dx = \\frac{1}{2}
\\]

```python
def half(x):
    return x / 2  # a comment
```
""".replace("\\\\", "\\")
CACHE = ("It keeps the *keys* and *values* of all tokens so far, so that the next token attends to "
         "them without computing them again:\n\n```\nscores = q @ K.T / sqrt(d)\n"
         "out    = softmax(scores) @ V\n```\nIt grows with the text: `--kv-bits 8,4` makes it 2.5 "
         "times smaller than 16 bits.")
PAGE = ("64 tokens of one sequence: K and V of every layer and head, in the format that they were "
        "encoded to when they were produced. Attention reads these very bytes.")
ANSWERS = {"think": think, "hostile": hostile, "flood": flood,
           "markdown": lambda: words(MARKDOWN), "fail": fail, "slow": slow, "code": code,
           "control": lambda: words("\033[2Jgone \u009b31m \x00\x07"),
           "long": lambda: words("too long"),
           "break": lambda: words("half of it"),
           "garbage": lambda: iter(["{no JSON"]),
           "What is a key-value cache?": lambda: words(CACHE),
           "And a page of it?": lambda: words(PAGE)}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def log(self, body=None, **more):
        if args.log:
            with lock, open(args.log, "a") as f:
                more.update(method=self.command, path=self.path, body=body,
                            key=self.headers.get("Authorization"))
                f.write(json.dumps(more) + "\n")

    def send(self, status, kind, data, **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def json(self, status, value):
        self.send(status, "application/json", json.dumps(value).encode())

    def allowed(self):
        if args.key and self.headers.get("Authorization") != "Bearer " + args.key:
            self.json(401, {"error": {"message": "a key is needed", "type": "auth"}})
            return False
        return True

    def do_GET(self):
        self.log()
        if self.path == "/" and args.page:
            with open(args.page, "rb") as f:
                page = f.read()
            self.send(200, "text/html; charset=utf-8", page, Content_Security_Policy=policy(page))
        elif not self.allowed():
            pass
        elif self.path == "/v1/models":
            self.json(200, {"object": "list", "data": [{"id": "fake-model", "object": "model",
                                                           "max_model_len": 4096}]})
        elif self.path == "/v1/status":
            self.json(200, self.status())
        else:
            self.json(404, {"error": {"message": "no such path"}})

    def status(self):
        with lock:
            s = dict(served)
        pages = 9360 * (s["prompt"] + s["tokens"])
        return {"status": "ok", "model": "fake-model", "version": "0.1.0",
                "uptime_s": time.time() - start, "num_running": s["running"], "num_waiting": 0,
                "steps_executed": s["steps"], "total_prompt_tokens": s["prompt"],
                "total_completion_tokens": s["tokens"], "total_cached_tokens": s["cached"],
                "generation_tps": 99.5 if s["running"] else 0.0, "prompt_tps": 1234.0,
                "cache": {"format": "K 8 g64, V 4 g64", "budget_bytes": 1 << 30,
                          "used_bytes": pages + 65536,
                          "resident_bytes": pages + 65536, "peak_bytes": pages + 65536,
                          "stored_bytes": pages,
                          "fixed_bytes": 65536,
                          "by_format": [{"format": "tables", "kind": "live", "bytes": 4096},
                                        {"format": "K 8 g64, V 4 g64", "kind": "stored",
                                         "bytes": pages}],
                          "hits": {"exact": 0, "prefix": 3, "supersequence": 0,
                                   "common_prefix": 1, "miss": 2},
                          "hit_rate": 0.95},
                "tiers": {"hit_tokens": 640, "stores": [
                    {"tier": "disk", "bytes": 3 << 20, "limit_bytes": 1 << 30, "hit_pages": 10,
                     "down": False}]}}

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.allowed():
            return
        body = json.loads(data)
        self.log(body)
        said = body["messages"][-1]["content"]
        if said == "refuse":
            self.json(400, {"error": {"message": "messages[0].content: is not wanted",
                                      "param": "messages[0].content"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with lock:
            served["running"] += 1
        try:
            self.stream(body, said)
        except (BrokenPipeError, ConnectionResetError):
            self.log(gone=True)
        finally:
            with lock:
                served["running"] -= 1

    def event(self, value):
        line = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        data = f"data: {line}\r\n\r\n".encode()
        half = len(data) // 2  # inside a line, perhaps inside a character
        for part in (data[:half], data[half:]):
            self.wfile.write(part)
            self.wfile.flush()

    def stream(self, body, said):
        self.wfile.write(b": keep-alive\n\n")
        self.event(chunk({"role": "assistant", "content": ""}))
        prompt = sum(len(m["content"].split()) for m in body["messages"])
        cached = prompt - len(said.split())
        n = 0
        answer = ANSWERS.get(said, lambda: words("You said: " + said))
        if body.get("continue_final_message"):
            def answer():
                return words(" and on.")
        for value in answer():
            self.event(value)
            n += 1
            time.sleep(0.01)
            with lock:
                served["tokens"] += 1
                served["steps"] += 1
        if said in ("break", "fail"):
            return
        self.event(chunk({}, "length" if said == "long" else "stop"))
        if body.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": prompt, "completion_tokens": n,
                     "total_tokens": prompt + n,
                     "prompt_tokens_details": {"cached_tokens": cached}}
            self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [],
                        "usage": usage})
        with lock:
            served["prompt"] += prompt
            served["cached"] += cached
        self.event("[DONE]")


def main():
    global args
    parser = argparse.ArgumentParser()
    for flag in "--page", "--key", "--log":
        parser.add_argument(flag)
    args = parser.parse_args()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    timer = threading.Timer(300, os._exit, [1])
    timer.daemon = True
    timer.start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
