#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve on a model without a tokenizer: prompts of ids are answered, texts are refused with
# the name of their field, and neither is in the log. (serve.sh tests all else of the program.)
. "$(dirname "$0")/../support/api.bash"
tiny_model
python3 - "$kvasir" "$tiny" <<'PY' || die "serve_ids.sh"
import atexit, http.client, json, re, signal, subprocess, sys, threading

class Server:
    def __init__(self, *flags):
        self.p = subprocess.Popen([sys.argv[1], "serve", "-m", sys.argv[2], "--port", "0", "-q",
                                   "--cache-memory-mb", "256", "--max-model-len", "60000", *flags],
                                  stderr=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)$", self.p.stderr.readline())[1])
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.p.stderr), daemon=True)
        atexit.register(self.p.kill)
        self.reader.start()

    def ask(self, method, path, body=None, headers={}):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        c.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body),
                  headers)
        return c, c.getresponse()

    def said(self, *a, **k):
        c, r = self.ask(*a, **k)
        text = r.read().decode()
        c.close()
        return r.status, text

    def ends(self, code):
        got = self.p.wait(60)
        self.reader.join()
        assert got == code, (got, self.lines)
        return "".join(self.lines)

def ids(n, **more):
    return {"prompt": [1] * n, "ignore_eos": True, **more}

s = Server("--max-tokens", "3")
assert s.said("POST", "/v1/completions", ids(2, user="SECRET", metadata={"x": "SECRET"}))[0] == 200
for path, body, field in (
        ("/v1/completions", {"prompt": "SECRET"}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "SECRET"}]}, "messages"),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "SECRET"}]},
         "messages"),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "SECRET"}]},
         "messages"),
        ("/tokenize", {"prompt": "SECRET"}, "prompt"),
        ("/detokenize", {"tokens": [1]}, "tokens"),
        ("/apply-template", {"messages": [{"role": "user", "content": "SECRET"}]}, "messages"),
        ("/v1/completions", ids(2, stop=["SECRET"]), ""),
        ("/v1/completions", ids(2, response_format={"type": "json_object"}), ""),
        ("/v1/completions", ids(2, xtc_probability=0.5, temperature=1), ""),
        ("/v1/completions", '{"prompt": "SECRET" SECRET', "")):
    status, text = s.said("POST", path, body)
    assert 400 <= status < 500 or "xtc" in str(body), (path, status, text)
    assert "SECRET" not in text and field in text, (path, text)
assert s.said("GET", "/health")[0] == 200
s.p.send_signal(signal.SIGTERM)
log = s.ends(0)
assert "SECRET" not in log, log
assert log.count("route=completions status=200") >= 1, log

s = Server("--log-prompts", "--max-tokens", "3")
assert s.said("POST", "/v1/completions", ids(2, user="SECRET\r\nid=false"))[0] == 200
s.p.send_signal(signal.SIGTERM)
log = s.ends(0)
assert "SECRET" in log and "\nid=false" not in log, log
PY
exit 0
