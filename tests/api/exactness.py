# SPDX-License-Identifier: Apache-2.0
"""A server for exactness.sh whose answers depend on the prompt alone, but for one fault:

    exactness.py PORT honest|warm-rounds|warm-short|batch-other|texts|fails
"""
import http.server
import json
import sys
import threading
import time
import zlib

FAULT = sys.argv[2]
seen, running, lock = set(), [0], threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, {"data": [{"id": "fake"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if FAULT == "fails":
            return self.reply(500, {"error": {"message": "broken"}})
        assert body["model"] == "fake" and body["temperature"] == 0, body
        prompt = body["messages"][0]["content"]
        with lock:
            running[0] += 1
            warm = prompt in seen
            seen.add(prompt)
            batched = running[0] > 1
        time.sleep(0.4 if FAULT == "batch-other" else 0)  # so that others are there
        batched = batched or running[0] > 1
        n = body["max_tokens"] - (warm and FAULT == "warm-short")
        tokens = [{"token": f"t{i}", "logprob": -zlib.crc32(f"{prompt} {i}".encode()) / 2**32}
                  for i in range(n)]
        if warm and FAULT == "warm-rounds":
            tokens[2]["logprob"] += 1e-4
        if batched and FAULT == "batch-other":
            tokens[4:] = [{"token": "other", "logprob": -1}]
        text = "".join(t["token"] for t in tokens)
        if FAULT == "texts" and warm:
            text += "!"
        with lock:
            running[0] -= 1
        self.reply(200, {"choices": [{
            "message": {"content": text}, "finish_reason": "length",
            **({} if FAULT == "texts" else {"logprobs": {"content": tokens}})}]})


http.server.ThreadingHTTPServer.allow_reuse_address = True
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
