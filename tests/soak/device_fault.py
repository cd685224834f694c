#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPU that fails under a server: what its clients are told.

    device_fault.py KVASIR MODEL LIBRARY

LIBRARY is tools/cuda_fault.cpp, compiled. Clients stream answers from `kvasir serve --device cuda`
when a kernel writes to an address that is not mapped. Each stream ends with the device's error, so
does every later request; /health and /ready answer 503 with it, /metrics and /v1/models as before;
SIGTERM still ends the server. Works in the current folder.
"""
import http.client
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from served import Process, check  # noqa: E402

CLIENTS = 4
SECONDS = 20  # in which every answer ends


def streams(server, which, ends):
    """One after the other, until one ends with an error, which goes into `ends`."""
    answers = 0
    while not ends[which]:
        c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
        c.request("POST", "/v1/completions", json.dumps(
            {"prompt": [5 + which] * 70, "max_tokens": 3900, "ignore_eos": True, "stream": True}))
        text = c.getresponse().read().decode()
        c.close()
        if '"error"' in text:
            ends[which] = (answers, text[text.rindex('{"error"'):].strip())
        answers += 1


def main():
    program, model, library = (os.path.abspath(a) for a in sys.argv[1:4])
    fault = os.path.abspath("fault")
    if os.path.exists(fault):
        os.remove(fault)
    os.environ.update(CUDA_INJECTION64_PATH=library, FAULT=fault)
    with Process([program, "serve", "-m", model, "--port", "0", "--device", "cuda",
                  "--cache-memory-mb", "256"], "fault.log") as server:
        for path in "/health", "/ready":
            status, text = server.ask("GET", path)
            check(status == 200, path, status, text)
        ends = [None] * CLIENTS
        clients = [threading.Thread(target=streams, args=(server, i, ends), daemon=True)
                   for i in range(CLIENTS)]
        for c in clients:
            c.start()
        time.sleep(2)
        with open(fault, "w"):
            pass
        for c in clients:
            c.join(SECONDS)
            check(not c.is_alive(), "a stream does not end", server.text())
        check(all(answers for answers, _ in ends), "the first answers fail", ends)
        print(f"after {[answers for answers, _ in ends]} whole answers:", ends[0][1])
        for method, path, body, want in (
                ("POST", "/v1/completions", {"prompt": [5] * 9, "max_tokens": 2}, None),
                ("GET", "/health", None, 503), ("GET", "/ready", None, 503),
                ("GET", "/metrics", None, 200), ("GET", "/v1/models", None, 200)):
            status, text = server.ask(method, path, body, SECONDS)
            print(method, path, status, text[:300] if status != 200 else "")
            check(status == want if want else status >= 500, path, status, text)
            check(status == 200 or "CUDA" in text or "device" in text, path, text)
        server.process.terminate()
        print("exit code after SIGTERM:", server.process.wait(SECONDS))
    print("device_fault: held")


if __name__ == "__main__":
    main()
