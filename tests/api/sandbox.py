# SPDX-License-Identifier: Apache-2.0
"""kvasir serve --sandbox: with every feature on all of them work, in all threads what no feature
needs is refused, and a kernel that cannot restrict is reported.

    sandbox.py PROGRAM MODEL DEMO

Works in the current folder, which has probe.so (sandbox_probe.c).
"""
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

PROGRAM, MODEL, DEMO = sys.argv[1:]
LIBC = ctypes.CDLL(None, use_errno=True)
LANDLOCK = LIBC.syscall(444, None, ctypes.c_size_t(0), 1) > 0  # landlock_create_ruleset: version
MODE = "on" if LANDLOCK else "auto"


def check(good, *what):
    if not good:
        raise AssertionError(what)


class Server:
    """A server process, killed at the end of its `with` block."""

    def __init__(self, *flags, mode=MODE, probe=False, before=None, host=(), model=("-m", "copy"),
                 **environment):
        command = [PROGRAM, "serve", *model, "--kv-bits", "f16", "--chat-template",
                   "template", "--ctx", "20000", "--cache-memory-mb", "100", "--port", "0",
                   *host, *flags]
        command += ["--sandbox", mode] if mode else []
        if probe:
            environment["LD_PRELOAD"] = os.path.abspath("probe.so")
        self.path = host[1][5:] if host and host[1].startswith("unix:") else None
        with open("log", "w") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log,
                                            env={**os.environ, **environment}, preexec_fn=before)
        self.port = 0 if self.path else int(
            self.line(r"^server: listening on http://[a-z0-9.]+:(\d+)$")[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def line(self, pattern, seconds=60):
        end = time.time() + seconds
        while True:
            ended = self.process.poll() is not None
            with open("log") as f:
                text = f.read()
            found = re.search(pattern, text, re.M)
            if found:
                return found
            check(not ended and time.time() < end, "no line", pattern, text)
            time.sleep(0.02)

    def ask(self, method, path, body=None, key=None, port=None):
        """Status and text."""
        c = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)
        if self.path and not port:
            c.sock = socket.socket(socket.AF_UNIX)
            c.sock.connect(self.path)
        c.request(method, path, body and json.dumps(body),
                  {"Authorization": "Bearer " + key, "Host": "localhost"} if key else
                  {"Host": "localhost"})
        r = c.getresponse()
        return r.status, r.read().decode()

    def chat(self, text, key=None):
        return self.ask("POST", "/v1/chat/completions", chat_body(text, 8), key)

    def states(self, field):
        """Of every thread. One that ends while it is looked at does not count."""
        folder = f"/proc/{self.process.pid}/task"
        found = set()
        for task in os.listdir(folder):
            try:
                with open(f"{folder}/{task}/status") as f:
                    text = f.read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.add(re.search(rf"^{field}:\t(\d+)$", text, re.M)[1])
        return found

    def probed(self, thread):
        self.line(f"^probe {thread} end good$")
        with open("log") as f:
            return dict(re.findall(rf"^probe {thread} (\S+) (\S+)$", f.read(), re.M))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        check(self.process.wait(60) == 0, "exit code", self.process.returncode)


def chat_body(text, max_tokens, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens,
            "temperature": 0, "ignore_eos": True, **more}


def write(path, text):
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def uses_requests(s, key=None):
    """Streams, JSON, tools, long prompts, choices, token ids, a cancelled request, counts."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    long = "Once upon a time there was a girl. " * 200
    for body in (chat_body("Once", 8), chat_body("Once", 8, stream=True),
                 chat_body("Once", 100, ignore_eos=False,
                           response_format={"type": "json_object"}),
                 chat_body("Once", 8, tools=[tool]), chat_body("Once", 8, n=3, temperature=1),
                 chat_body(long, 8), chat_body("Once", 8, logprobs=True, top_logprobs=3)):
        status, text = s.ask("POST", "/v1/chat/completions", body, key)
        check(status == 200, status, body, text)
        check(not body.get("stream") or text.rstrip().endswith("data: [DONE]"), text)
    usage = json.loads(s.chat(long, key)[1])["usage"]
    check(usage["prompt_tokens_details"]["cached_tokens"] > 500, usage)
    for path, body in (("/v1/messages", chat_body("Once", 4)), ("/tokenize", {"content": long}),
                       ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4}),
                       ("/v1/messages/count_tokens", chat_body("Once", 1))):
        body.pop("ignore_eos", None)
        check(s.ask("POST", path, body, key)[0] == 200, path)
    for path in ("/", "/health", "/ready", "/version", "/v1/models", "/v1/status",
                 "/v1/cache/stats"):
        check(s.ask("GET", path, None, key)[0] == 200, path)
    # all of the server's figures: to the admin key where there is one
    status, text = s.ask("GET", "/metrics", None, key and "root")
    resident = re.search(r"^process_resident_memory_bytes (\S+)$", text, re.M)
    check(status == 200 and resident and float(resident[1]) > 1 << 20, "resident memory", text)


def is_refused(found, expected):
    for what, result in expected.items():
        check(found.get(what) == result, what, "is", found.get(what), "not", result)


# ---- all features ------------------------------------------------------------------------------

ALWAYS = {"socket:inet": "EPERM", "listen": "EPERM", "mmap:code": "EPERM", "mprotect:code": "EPERM",
          "mprotect:data": "good", "fork": "EPERM", "clone3": "ENOSYS", "kill": "EPERM",
          "setuid": "EPERM", "io_uring": "EPERM", "thread": "good", "mkdir": "EPERM",
          "rename": "EPERM", "chmod": "EPERM"}
OUTSIDE = "EACCES" if LANDLOCK else "good"


def test_keys():
    """A key file that is replaced, an admin port, a service manager, a log of prompts."""
    write("keys/keys", "first\n")
    write("keys/other", "other\n")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind("manager")
    manager.settimeout(60)
    with Server("--api-key-file", "keys/keys", "--admin-port", "0", "--admin-key", "root",
                "--log-prompts", "--cors-origin", "*", probe=True,
                NOTIFY_SOCKET=os.path.abspath("manager")) as s:
        s.line("^server: sandbox: files %srestricted.*, system calls restricted$" %
               ("" if LANDLOCK else "not "))
        check(s.states("Seccomp") == {"2"} and s.states("NoNewPrivs") == {"1"}, "threads")
        check(manager.recv(100) == b"READY=1" and manager.recv(100) == b"WATCHDOG=1", "manager")
        for thread in ("main", "http"):
            is_refused(s.probed(thread), {
                **ALWAYS, "read:keys/keys": "good", "read:copy/config.json": "good",
                "read:/etc/passwd": OUTSIDE, "read:/proc/self/maps": OUTSIDE,
                "read:outside/file": OUTSIDE, "write": OUTSIDE, "create": OUTSIDE,
                "remove:keys": "EPERM", "socket:unix": "good"})
        admin = int(s.line(r"^server: health and metrics are also on port (\d+)$")[1])
        uses_requests(s, "first")
        check("process_resident_memory_bytes" in s.ask("GET", "/metrics", None, "first", admin)[1],
              "the admin port")
        check(s.ask("DELETE", "/v1/cache", None, "root")[0] == 200, "the cache is emptied")

        write("keys/keys", "second\nthird weight=2\n")
        s.process.send_signal(signal.SIGHUP)
        s.line("^server: SIGHUP: 2 API keys$")
        check([s.chat("Once", k)[0] for k in ("first", "second", "third")] == [401, 200, 200],
              "new keys")
        if LANDLOCK:  # the file is no longer in its folder
            os.remove("keys/keys")
            os.symlink(os.path.abspath("outside/file"), "keys/keys")
            s.process.send_signal(signal.SIGHUP)
            s.line("^kvasir serve: --api-key-file: keys/keys: Permission denied$")
            s.line("^server: SIGHUP: the API keys stay as they were: --sandbox hides the file, "
                   "because it moved to another folder; restart$")
            check([s.chat("Once", k)[0] for k in ("outside", "second")] == [401, 200], "old keys")
            os.remove("keys/keys")
        s.end()
    manager.close()


def test_links():
    """A key file and weights that are links to other folders, as on clusters and in hubs; a host
    that is a name; a model that is read into memory."""
    os.makedirs("blobs/keys-1")
    os.makedirs("hub")
    write("blobs/keys-1/keys", "linked\n")
    os.symlink("keys-1", "blobs/data")
    os.symlink("../blobs/data/keys", "hub/keys")
    for i, name in enumerate(os.listdir("copy")):
        shutil.copy("copy/" + name, f"blobs/{i}")
        os.symlink(f"../blobs/{i}", "hub/" + name)
    for flags in ([], ["--no-mmap"], ["-m", os.path.abspath("hub")]):
        with Server("-m", "hub", "--api-key-file", "hub/keys", *flags,
                    host=("--host", "localhost")) as s:
            check(s.chat("Once", "linked")[0] == 200, "a request")
            write("blobs/keys-1/keys", "linked\nanother\n")
            s.process.send_signal(signal.SIGHUP)
            s.line("^server: SIGHUP: 2 API keys$")
            check(s.chat("Once", "another")[0] == 200, "a new key")
            s.end()


def test_key_means():
    """A file of key means is read after files are restricted; its neighbours cannot be."""
    os.makedirs("means")
    subprocess.run([PROGRAM, "calibrate", "-m", "copy", "-n", "128", "-o", "means/file", "-q"],
                   check=True, timeout=60)
    shutil.copy("means/file", "means/other")
    write("keys/keys", "key\n")
    with Server("--key-centre", "means/file", "--api-key-file", "keys/keys", probe=True) as s:
        s.line("^server: sandbox: ")
        for thread in ("main", "http"):
            is_refused(s.probed(thread), {"read:means/file": "good", "read:means/other": OUTSIDE})
        check(s.chat("Once", "key")[0] == 200, "a request")
        s.end()


def test_calibrations():
    """A tile format: the calibration is kept in the user's folder for caches, which is made; of
    several models while the server runs."""
    folder = "/kvasir/calibrations"
    flags = ("--kv-bits", "t4", "--device", "cpu")
    with Server(*flags, model=("-m", "several/one.gguf"), probe=True,
                XDG_CACHE_HOME=os.path.abspath("first")) as s:
        s.line("^note: +calibrated one.gguf for t4: .* written to .*/first" + folder)
        is_refused(s.probed("main"), {**ALWAYS, "create": "EPERM"})
        s.end()
    with Server("--models", os.path.abspath("several"), *flags, model=(),
                XDG_CACHE_HOME=os.path.abspath("second")) as s:
        body = {**chat_body("Once", 8), "model": "one"}
        check(s.ask("POST", "/v1/chat/completions", body)[0] == 200, "a request")
        s.line("^server: calibrated one for t4: .* written to .*/second" + folder)
        s.end()
    check(os.listdir("first" + folder) == os.listdir("second" + folder), "names")
    check(len(os.listdir("first" + folder)) == 1, "files")


def test_socket():
    os.makedirs("socket")
    write("socket/other", "")
    with Server(host=("--host", "unix:socket/at"), probe=True) as s:
        s.line("^server: sandbox: ")
        for thread in ("main", "http"):
            is_refused(s.probed(thread), {**ALWAYS, "read:keys/keys": "EPERM", "create": "EPERM",
                                          "read:/etc/passwd": "EPERM", "socket:unix": "EPERM",
                                          "remove:keys": "EACCES" if LANDLOCK else "good"})
        removed = sorted(s.probed(thread)["remove:socket"] for thread in ("main", "http"))
        check(removed == ["ENOENT", "good"], "its own folder", removed)  # by whoever was first
        uses_requests(s)
        s.end()
        check(not os.path.exists("socket/at"), "the socket's file is removed")


def test_nothing_more():
    """Without files to read again no name is opened or removed."""
    with Server(probe=True) as s:
        found = s.probed("main")
        is_refused(found, {**ALWAYS, "socket:unix": "EPERM", "remove:socket": "EPERM"})
        check({v for k, v in found.items() if k.startswith("read:")} == {"EPERM"}, found)
        s.end()


def test_deadly():
    for what in ("execve", "ptrace"):
        with Server(probe=True, PROBE_DEADLY=what) as s:
            check(s.process.wait(60) == -signal.SIGSYS, what, s.process.returncode)


# ---- modes and kernels -------------------------------------------------------------------------

def test_modes():
    with Server(mode=None) as s:  # auto
        s.line("^server: sandbox: ")
        check(s.states("Seccomp") == {"2"}, "auto")
        s.end()
    with Server(mode="off") as s:
        with open("/proc/self/status") as f:
            own = re.search(r"^NoNewPrivs:\t(\d)$", f.read(), re.M)[1]
        check(s.states("NoNewPrivs") == {own}, "off")
        check(s.chat("Once")[0] == 200, "off")
        s.end()
        with open("log") as f:
            check("sandbox" not in f.read(), "off says nothing")


def without(*calls):
    """A kernel without these system calls, for a child process."""
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    allow, no_such_call = 0x7FFF0000, 0x00050000 | 38

    def restrict():
        f = ctypes.c_void_p(lib.seccomp_init(allow))
        for name in calls:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            lib.seccomp_rule_add(f, no_such_call, number, 0)
        lib.seccomp_load(f)
    return restrict


def test_kernels():
    for calls, pattern in ((["landlock_create_ruleset"], "files not restricted: Function not "
                            "implemented, system calls restricted"),
                           (["landlock_restrict_self"], "files not restricted: .*"),
                           (["seccomp"], "files .*restricted.*, system calls not restricted: .*")):
        with Server(mode="auto", before=without(*calls)) as s:
            s.line(f"^server: sandbox: {pattern}$")
            check(s.chat("Once")[0] == 200, calls)
            s.end()
    for calls, want in ((["landlock_create_ruleset"], "cannot restrict files: Function not impl"),
                        (["seccomp"], "cannot restrict system calls: ")):
        if calls == ["seccomp"] and not LANDLOCK:
            continue
        p = subprocess.run([PROGRAM, "serve", "-m", "copy", "--kv-bits", "f16", "-q", "--port", "0",
                            "--sandbox", "on"], capture_output=True, text=True, timeout=60,
                           preexec_fn=without(*calls))
        lines = [x for x in p.stderr.splitlines() if not x.startswith("server: listening")]
        check(p.returncode == 1 and len(lines) == 1, p)
        check(lines[0].startswith("kvasir serve: --sandbox on: " + want), p)


shutil.copytree(MODEL, "copy")
os.makedirs("several")
shutil.copy(DEMO, "several/one.gguf")
os.makedirs("keys")
os.makedirs("outside")
write("outside/file", "outside\n")
write("template", "{% for m in messages %}{{ m.content }}{% endfor %}")
test_keys()
test_links()
test_key_means()
test_calibrations()
test_socket()
test_nothing_more()
test_deadly()
test_modes()
test_kernels()
if not LANDLOCK:
    print("this kernel has no Landlock: access to files was not checked")
