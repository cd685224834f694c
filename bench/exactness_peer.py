#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""exactness_peer.py PEER MODEL PORT    a server of another project, for bench/exactness.sh

PEER   llama-server        llama.cpp's, from PyPI's xllamacpp: 8 slots of 4,096 tokens, a thread
       llama-server-q8     the same with --cache-type-k q8_0 --cache-type-v q8_0
       llama-server-reuse  the same with --cache-reuse 256
       mistral.rs          PyPI's mistralrs has no server: its Runner behind a few lines of HTTP,
                           one request at a time, since it refuses concurrent calls
"""
import http.server
import json
import sys
import threading


def llama_server(model, port, setting):
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.port, p.verbosity, p.fit_params = model, port, -1, False
    p.n_parallel, p.n_ctx = 8, 8 * 4096
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1  # more would spin on a busy machine
    if setting == "q8":
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    elif setting == "reuse":
        p.n_cache_reuse = 256
    elif setting:
        sys.exit(f"no setting is called {setting}")
    return xllamacpp.Server(p)


def mistral_rs(model, port):
    import mistralrs
    runner = mistralrs.Runner(which=mistralrs.Which.Plain(model_id=model))

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, body):
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer({"data": [{"id": "default"}]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            r = runner.send_chat_completion_request(mistralrs.ChatCompletionRequest(
                model="default", messages=body["messages"], max_tokens=body["max_tokens"],
                temperature=0.0, logprobs=True, top_logprobs=1))
            choice = r.choices[0]
            self.answer({
                "choices": [{"message": {"content": choice.message.content},
                             "finish_reason": choice.finish_reason,
                             "logprobs": {"content": [{"token": t.token, "logprob": t.logprob}
                                                      for t in choice.logprobs.content]}}],
                "usage": {"prompt_tokens": r.usage.prompt_tokens}})

        def log_message(self, *_):
            pass

    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def main():
    peer, model, port = sys.argv[1:]
    if peer == "mistral.rs":
        mistral_rs(model, int(port))
    if not peer.startswith("llama-server"):
        sys.exit(f"no peer is called {peer}")
    server = llama_server(model, int(port), peer[len("llama-server-"):])
    print(server.listening_address, flush=True)
    threading.Event().wait()


main()
