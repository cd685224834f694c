#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# kvasir serve: what requests own is bounded, whatever they contain (sec-H1, H2, M2, L3 of the
# attack's review), comes back afterwards, and leaves room for legal requests.
. "$(dirname "$0")/../support/api.bash"
echo '{"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
       "scripts": {"hi": "hello there"}}' >scripts.json
python3 "$SOURCE_DIR/tests/support/scripted_model.py" model scripts.json || die "scripted_model.py"
python3 - "$kvasir" <<'PY' || die "request_memory.sh"
import atexit, http.client, json, re, signal, socket, subprocess, sys, threading, time

ACCOUNT = 128  # MiB
p = subprocess.Popen([sys.argv[1], "serve", "-m", "model", "--port", "0", "-q", "--cache-memory-mb",
                      "64", "--request-memory-mb", str(ACCOUNT), "--text-timeout", "180"],
                     stderr=subprocess.PIPE, text=True)
atexit.register(p.kill)
port = next(int(m[1]) for m in (re.search(r":(\d+)$", line) for line in p.stderr) if m)
threading.Thread(target=lambda: [None for _ in p.stderr], daemon=True).start()
with open(f"/proc/{p.pid}/maps") as maps:  # a sanitizer keeps memory of its own
    sanitized = re.search("lib[atu]b?san", maps.read()) is not None

def memory(name):
    with open(f"/proc/{p.pid}/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(name))

def ask(path, body, method="POST"):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
    try:
        c.request(method, path, body)
        r = c.getresponse()
        return r.status, r.read().decode(), r.getheader("Retry-After")
    except (ConnectionError, http.client.HTTPException):  # refused while it was still sent
        return 0, "", None
    finally:
        c.close()

def metric(name):
    return float(re.search(rf"^{name} (\S+)$", ask("/metrics", None, "GET")[1], re.M)[1])

def many(n, path, body):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(path, body))) for _ in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return answers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
def listed(before, item, n, after):
    return before + ",".join([item] * n) + after
KWARGS = '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"chat_template_kwargs":{"x":['
HOSTILE = {
    "objects": (CHAT, listed(KWARGS, "{}", 5000000, "]}}")),
    "arrays": (CHAT, listed(KWARGS, "[[]]", 500000, "]}}")),
    "strings": (TEXT, listed('{"prompt":"a","metadata":[', '""', 5000000, "]}")),
    "messages": (CHAT, listed('{"messages":[', '{"role":"user","content":"a"}', 300000, "]}")),
    "ids": ("/detokenize", listed('{"tokens":[', "9", 1900000, "]}")),
    "token_strs": ("/tokenize", '{"return_token_strs":true,"prompt":"%s"}' % ("1" * 9000000)),
    "stops": (TEXT, listed('{"prompt":"a","stop_token_ids":[', "9", 9000000, "]}")),
    "text": (CHAT, '{"messages":[{"role":"user","content":"%s"}]}' % (" a" * 8000000)),
    "model": (TEXT, '{"prompt":"a","stream":true,"model":"%s"}' % ("m" * 9000000)),
}
assert ask(TEXT, '{"prompt":"<|hi|>","max_tokens":9}')[0] == 200
ready = memory("VmRSS")
# what is not read needs no memory: bodies of 30 MB whose trees would take 3 GB
for item in "{}", "[[]]", '""':
    n = (30 << 20) // (len(item) + 1)
    for path, body in ((CHAT, '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"x":['),
                       (TEXT, '{"prompt":"a","max_tokens":1,"x":[')):
        assert ask(path, listed(body, item, n, "]}"))[0] == 200, (path, item)
peak = metric("kvasir_request_memory_peak_bytes")
assert peak <= 34 << 20, peak
status, text, _ = ask(TEXT, listed('{"max_tokens":1,"prompt":[', "9", 3000000, "]}"))
assert status == 400 and "context" in text, (status, text[:300])  # ids are 4 bytes each
peak = metric("kvasir_request_memory_peak_bytes")
assert peak <= 64 << 20, peak
statuses = set()
for name, (path, body) in HOSTILE.items():
    for status, text, retry in many(6, path, body):
        statuses.add(status)
        assert status in (0, 200, 400, 413, 429), (name, status, text[:300])
        assert (status == 429) == (retry is not None), (name, status, retry)
        if status == 413:
            assert f"more than {ACCOUNT * 512} KiB" in text, text[:300]
assert 413 in statuses, statuses

# bodies that never end
sockets = []
head = f"POST {TEXT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {30 << 20}\r\n\r\n".encode()
for _ in range(8):
    s = socket.create_connection(("127.0.0.1", port))
    s.settimeout(1)
    try:
        s.sendall(head + b'{"prompt":"' + b"a" * (29 << 20))
    except OSError:
        pass
    sockets.append(s)
assert metric("kvasir_request_memory_used_bytes") > 50 << 20
status, text, retry = ask(TEXT, '{"prompt":"%s"}' % ("a" * (30 << 20)))
assert status in (0, 429), (status, text[:200])
assert 'reason="memory"} 0' not in ask("/metrics", None, "GET")[1]
[s.close() for s in sockets]
assert metric("kvasir_request_memory_limit_bytes") == ACCOUNT << 20
assert metric("kvasir_request_memory_peak_bytes") <= ACCOUNT << 20
bound = ready + ACCOUNT * 1.1 + 16  # 16: the cache that is filled meanwhile
assert sanitized or memory("VmHWM") <= bound, (ready, memory("VmHWM"), bound)
for _ in range(40):
    if memory("VmRSS") <= ready * 1.05 + 2:
        break
    time.sleep(0.25)
assert sanitized or memory("VmRSS") <= ready * 1.05 + 2, (ready, memory("VmRSS"))
assert metric("kvasir_request_memory_used_bytes") < 1 << 20

legal = json.dumps({"messages": [{"role": "user", "content": "hello <|hi|>"}], "max_tokens": 2,
                    "metadata": {"x": "y" * 200000}})
assert [status for status, _, _ in many(64, CHAT, legal)] == [200] * 64
p.send_signal(signal.SIGTERM)
assert p.wait(60) == 0
PY
exit 0
