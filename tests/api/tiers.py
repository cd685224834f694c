# SPDX-License-Identifier: Apache-2.0
"""kvasir serve --cache-dir and --cache-remote: answers behind pages from a folder or from a Redis
are those of a server that computed all, in every number, and nothing else is found.

    tiers.py PROGRAM FIXTURES [FLAG ...]

FIXTURES has tiny models; all servers get the flags. Works in the current folder.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from served import REDIS, Redis, Server, check, prompt, verify, whole_pages  # noqa: E402

PROGRAM, FIXTURES, *FLAGS = sys.argv[1:]
Server.program, Server.flags = PROGRAM, FLAGS


def model(name):
    return os.path.join(FIXTURES, name)


def prompts_of_a_test():
    """Short and long ones, some with a common beginning; lengths at and beside a page's end."""
    first = prompt(400, 1)
    return [first, first[:200] + prompt(120, 2), prompt(129, 3), prompt(128, 4), prompt(700, 5),
            prompt(40, 6)]


def cold(name, flags, prompts, **more):
    with Server(name, *flags, "--no-prefix-cache") as s:
        said = [s.answer(p, **more) for p in prompts]
        check(all(cached == 0 for cached, _ in said), "a server without a cache")
        s.end()
    return [x for _, x in said]


def is_clean(folder):
    code, text = verify(folder)
    check(code == 0, "kvasir cache verify", folder, text)


def segments(folder):
    return sorted(glob.glob(folder + "/*.kvs"))


# ---- restarts ----------------------------------------------------------------------------------

KINDS = [
    ("llama", ["--kv-bits", "f16"]),
    ("llama", ["--kv-bits", "8,4", "--key-centre", "off"]),
    ("qwen2", ["--kv-bits", "8,4", "--key-centre", "auto"]),
    ("llama", ["--kv-bits", "f16", "--max-kv-size", "256", "--kv-keep", "64"]),
    ("gemma3", ["--kv-bits", "8,4"]),
    ("qwen3_next", ["--kv-bits", "f16", "--snapshot-tokens", "64"]),
    ("lfm2", ["--kv-bits", "8,4", "--snapshot-tokens", "64"]),
]


def test_restart():
    """What a server computed, the next one finds: whole pages, bit-identical answers behind."""
    for name, flags in KINDS:
        shutil.rmtree("restart", ignore_errors=True)
        prompts = prompts_of_a_test()
        want = cold(model(name), flags, prompts)
        flags = [*flags, "--cache-dir", "restart", "--cache-disk-gb", "1"]
        with Server(model(name), *flags) as s:
            for i, p in enumerate(prompts):
                check(s.answer(p)[1] == want[i], name, flags, "first", i)
            had = [s.answer(p) for p in prompts]
            check([said for _, said in had] == want, name, flags, "from memory")
            s.end()
        is_clean("restart")
        for first in (0, 4, 2, 3):  # later ones find also what these did not write again
            order = [*range(first, len(prompts)), *range(first)]
            with Server(model(name), *flags) as s:
                got = {i: s.answer(prompts[i]) for i in order}
                check([got[i][1] for i in range(len(prompts))] == want, name, flags, first)
                # Whether to load others depends on how long computing and loading took before.
                check(got[first][0] == whole_pages(had[first][0]), name, flags, "of", had[first][0],
                      "tokens", got[first][0])
                s.end()
        is_clean("restart")


def test_kill():
    """Two seconds after an answer its pages are in the folder, however the process ends."""
    p = prompt(500, 20)
    want = cold(model("llama"), [], [p])
    for _ in range(2):  # the second time there is a folder that was not closed
        with Server(model("llama"), "--cache-dir", "kill") as s:
            s.answer(p)
            time.sleep(2)
            s.process.kill()
            s.process.wait()
        with Server(model("llama"), "--cache-dir", "kill") as s:
            cached, said = s.answer(p)
            check(cached >= 448 and [said] == want, "after SIGKILL", cached)
            s.process.kill()
            s.process.wait()
        p = p[:200] + prompt(300, 21)
        want = cold(model("llama"), [], [p])
    check(verify("kill")[0] == 0, verify("kill"))


def test_other_weights():
    """The model's files are replaced: in the same folder, of the same size, even the same times."""
    shutil.copytree(model("llama"), "changing")
    file = "changing/model.safetensors"
    os.chmod("changing", 0o700)
    os.chmod(file, 0o600)
    p = prompt(300, 30)
    flags = ["--cache-dir", "weights"]
    with Server("changing", *flags) as s:
        first = s.answer(p)
        s.end()
    with open(file, "rb") as f:
        data = bytearray(f.read())
    middle = len(data) // 2
    for at in range(middle, middle + 40000, 2):  # low bits of many weights, no exponent
        data[at] ^= 0x1f
    times = os.stat(file)
    with open("new", "wb") as f:
        f.write(data)
    shutil.copy(file, "old")
    os.utime("new", ns=(times.st_atime_ns, times.st_mtime_ns))
    os.rename("new", file)
    [want] = cold("changing", [], [p])
    check(want != first[1], "the weights matter")
    with Server("changing", *flags) as s:
        cached, said = s.answer(p)
        check((cached, said) == (0, want), "other weights", cached, said == first[1])
        check(s.answer(p)[0] > 250, "its own pages")
        s.end()
    os.rename("old", file)  # both are there now
    with Server("changing", *flags) as s:
        cached, said = s.answer(p)
        check(cached >= 256 and said == first[1], "the first weights again", cached)
        s.end()
    is_clean("weights")


def test_other_formats():
    """Pages of other formats, rotations or centres are not those that are wanted."""
    p = prompt(300, 40)
    sets = [["--kv-bits", "f16"], ["--kv-bits", "8,4"], ["--kv-bits", "8"],
            ["--kv-bits", "8,4", "--max-kv-size", "200"], ["--kv-bits", "8,4", "--act-bits", "16"],
            ["--kv-bits", "8,4", "--kv-group-size", "32"]]
    want = [said for flags in sets for said in cold(model("llama"), flags, [p])]
    for again in (False, True):
        for flags, said in zip(sets, want):
            with Server(model("llama"), *flags, "--cache-dir", "formats") as s:
                cached, got = s.answer(p)
                check(got == said, "an answer", flags, again)
                check(cached >= 256 if again else cached == 0, flags, again, cached)
                s.end()
    is_clean("formats")


# ---- damage, space, ownership --------------------------------------------------------------------

def damaged_counter(s):
    found = re.findall(r"^kvasir_\w*tier\w*damaged\w*(?:\{[^}]*\})? (\S+)$",
                       s.ask("GET", "/metrics")[1], re.M)
    return sum(map(float, found)) if found else None


def test_damage():
    """A byte of a payload, of a head, of everything: right answers, and verify names the place."""
    p = prompt(640, 50)
    [want] = cold(model("llama"), [], [p])
    for what in ("payload", "end", "zeros"):
        shutil.rmtree("damage", ignore_errors=True)
        with Server(model("llama"), "--cache-dir", "damage") as s:
            s.answer(p)
            s.end()
        is_clean("damage")
        file = segments("damage")[-1]
        with open(file, "r+b") as f:
            data = f.read()
            heads = [m.start() for m in re.finditer(b"kvasirR1", data) if m.start() % 4096 == 0]
            check(len(heads) >= 9, "records", heads)
            at = heads[4] + 4096 + 1000 if what == "payload" else len(data) - 20
            f.seek(at)
            if what == "zeros":
                f.seek(heads[4])
                f.write(bytes(len(data) - heads[4]))
            else:
                f.write(bytes([data[at] ^ 0x10]))
        code, text = verify("damage")
        if what == "payload":
            check(code == 1, "verify", code, text)
            check(re.search(rf"^{os.path.basename(file)} at {heads[4]}: \d+ bytes damaged$", text,
                            re.M), "the place", heads[4], text)
            check("damage: damaged in 1 places" in text, text)
        with Server(model("llama"), "--cache-dir", "damage") as s:
            cached, said = s.answer(p)
            check(said == want, "an answer", what)
            check(cached >= 576 if what == "end" else 128 <= cached < 576, what, cached)
            count = damaged_counter(s)
            check(count is None or count > 0 or what != "payload", "metrics", what, count)
            check(s.answer(p)[1] == want, "an answer", what)
            s.end()
        with Server(model("llama"), "--cache-dir", "damage") as s:
            cached, said = s.answer(p)
            check(said == want and cached >= 576, "it was computed and stored again", what, cached)
            s.end()


def test_full():
    """The limit holds at every moment, whatever is asked, and the newest pages are found."""
    limit = int(0.02 * (1 << 30))
    most, stop = [0], threading.Event()

    def watch():
        while not stop.is_set():
            try:
                most[0] = max(most[0], sum(e.stat().st_size for e in os.scandir("full")))
            except FileNotFoundError:
                pass
            time.sleep(0.002)

    os.makedirs("full", exist_ok=True)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        written = 0
        with Server(model("llama"), "--kv-bits", "f32", "--cache-dir", "full", "--cache-disk-gb",
                    "0.02", memory=100) as s:
            for i in range(14):
                s.answer(prompt(1000, 60 + i), n=1)
                size = sum(e.stat().st_size for e in os.scandir("full"))
                check(size <= limit, "after an answer", size, limit)
                written += 15 * 64 * 4 * 2 * 2 * 64 * 4  # 15 pages, 4 layers, K and V
            time.sleep(1)
            s.end()
    finally:
        stop.set()
        thread.join()
    check(written > 2 * limit, "more than fits", written)
    check(limit / 2 < most[0] <= limit, "the limit", most[0], limit)
    is_clean("full")
    last = prompt(1000, 60 + 13)
    [want] = cold(model("llama"), ["--kv-bits", "f32"], [last])
    with Server(model("llama"), "--kv-bits", "f32", "--cache-dir", "full", "--cache-disk-gb",
                "0.02") as s:
        cached, said = s.answer(last)
        check(said == want and cached >= 448, "the newest", cached)
        s.end()


def refused_start(want, *flags):
    p = subprocess.run([PROGRAM, "serve", "-m", model("llama"), "--port", "0", "-q",
                        "--cache-memory-mb", "64", *flags], capture_output=True, text=True,
                       timeout=60)
    lines = [x for x in p.stderr.splitlines() if " server: " not in f" {x}"]
    check(p.returncode in (1, 2) and len(lines) == 1 and re.search(want, lines[0]), want, p)


def test_folders():
    """One server has a folder; folders that cannot be used are named."""
    p = prompt(300, 80)
    with Server(model("llama"), "--cache-dir", "held") as s:
        s.answer(p)
        refused_start(f"held.*in use by process {s.process.pid}\\b", "--cache-dir", "held")
        for action in ("gc", "clear"):
            c = subprocess.run([PROGRAM, "cache", action, "held"], capture_output=True, text=True,
                               timeout=60)
            check(c.returncode == 1 and str(s.process.pid) in c.stderr, action, c)
        is_clean("held")  # while it is used
        check(s.answer(p)[0] > 256, "the first server goes on")
        s.end()
    check(os.stat("held").st_mode & 0o777 == 0o700, "mode of the folder")
    check(all(os.stat(f).st_mode & 0o777 == 0o600 for f in segments("held")), "modes of files")
    with open("file", "w"):
        pass
    refused_start("--cache-dir.*file: .*Not a directory", "--cache-dir", "file")
    refused_start("--cache-dir.*nowhere/x: ", "--cache-dir", "nowhere/x")
    refused_start("at least", "--cache-dir", "small", "--cache-disk-gb", "0.001")
    refused_start("--cache-dir", "--cache-dir", "held", "--no-prefix-cache")
    refused_start("--cache-host-mb: is for models on a GPU", "--cache-host-mb", "64")
    refused_start("--cache-host-mb: not allowed with", "--cache-host-mb", "64", "--no-prefix-cache")
    if os.getuid() != 0:  # root may write
        os.chmod("held", 0o500)
        refused_start("held.*Permission denied", "--cache-dir", "held")
        os.chmod("held", 0o700)


# ---- forgetting ----------------------------------------------------------------------------------

def forget_records(folder):
    count = 0
    for name in segments(folder):
        with open(name, "rb") as f:
            count += f.read().count(b"kvasirR1\x03\0\0\0")
    return count


def test_forget():
    """Salts share nothing, not even on disk; DELETE /v1/cache is for all of them, and for good."""
    p = prompt(300, 90)
    flags = ["--cache-dir", "forget"]
    with Server(model("llama"), *flags) as s:
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}):
            check(s.answer(p, **salt)[0] == 0, "a salt's first request", salt)
        s.end()
    with Server(model("llama"), *flags) as s:
        check(s.answer(p, cache_salt="a")[0] >= 256, "a salt after a restart")
        check(s.answer(p, cache_salt="c")[0] == 0, "another salt")
        status, text = s.ask("DELETE", "/v1/cache")
        check(status == 200 and json.loads(text)["pending"] is False, status, text)
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "c"}):
            check(s.answer(p[:299], **salt)[0] == 0, "forgotten", salt)
        check(s.ask("DELETE", "/v1/cache")[0] == 200, "again")
        new = prompt(300, 91)
        s.answer(new)
        s.end()
    with Server(model("llama"), *flags) as s:
        check(s.answer(new)[0] >= 256, "what came later")
        for salt in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "c"}):
            check(s.answer(p, **salt)[0] == 0, "forgotten after a restart", salt)
        before = forget_records("forget")
        s.ask("DELETE", "/v1/cache")
        check(forget_records("forget") > before, "DELETE is answered before it is on disk")
        s.process.kill()
        s.process.wait()
    with Server(model("llama"), *flags) as s:
        cached = s.answer(new)[0]
        check(cached == 0, "forgotten before SIGKILL", cached)
        s.end()


def forget(s, query="", body=None):
    status, text = s.ask("DELETE", "/v1/cache" + query, body)
    check(status == 200, status, text)
    return json.loads(text)["forgotten"]


def check_salts(flags, p, there, gone):
    """What a server finds below memory. Each has one request: whether later ones load depends on
    how long it took. A request must not store what the next server is asked for."""
    for salt in [*there, *gone]:
        with Server(model("llama"), *flags) as s:
            cached = s.answer(p, cache_salt=salt, cache={"no_store": True})[0]
            check(cached >= 256 if salt in there else cached == 0, salt, cached)
            s.end()


def forget_salts(flags):
    """One salt is forgotten, in memory and below, by either spelling; the others stay."""
    p, nothing = prompt(300, 92), {"entries": 0, "tokens": 0, "bytes": 0}
    with Server(model("llama"), *flags) as s:
        for salt in ("", "a", "b", "c d"):
            check(s.answer(p, cache_salt=salt)[0] == 0, "a salt's first request", salt)
        found = forget(s, "?salt=a")
        check(found["tokens"] >= 300 and found["bytes"] > 0 and found["entries"] == 1, found)
        check(forget(s, body={"salt": "b"}) == found, "the other spelling")
        for query, body in (("?salt=a", None), ("?salt=nobody", None), ("", {"salt": "x"})):
            check(forget(s, query, body) == nothing, query, body)
        for salt in ("", "c d"):
            check(s.answer(p, cache_salt=salt)[0] >= 256, "another salt", salt)
        for path, body in (("?sal=a", None), ("?salt=a&salt=b", None), ("?salt=%zz", None),
                           ("?salt=a%00", None), ("?tenant=x", None), ("", {"salt": 5}),
                           ("", {"salt": None}), ("", {"slat": "a"}), ("?salt=a", {"salt": "b"}),
                           ("", ["a"])):
            status, text = s.ask("DELETE", "/v1/cache" + path, body)
            check(status == 400, path, body, status, text)
        check(s.ask("DELETE", "/v1/cache?salt=a&tenant=x")[0] == 404, "an unknown tenant")
        s.end()
    check_salts(flags, p, ["", "c d"], ["a", "b"])
    with Server(model("llama"), *flags) as s:
        check(forget(s, "?salt=c+d") == nothing, "memory has nothing")
        s.end()
    check_salts(flags, p, [""], ["a", "c d"])
    with Server(model("llama"), *flags) as s:
        check(forget(s, "?salt=") == nothing, "memory has nothing")
        s.answer(p, cache_salt="a")
        s.end()
    check_salts(flags, p, ["a"], ["", "b", "c d"])


def test_forget_salt():
    forget_salts(["--cache-dir", "salts"])
    is_clean("salts")


def no_store_and_ttl(flags, count):
    """What must not be stored is not; what may be stored for a while is found for that long."""
    p, q = prompt(300, 93), prompt(300, 94)
    [want] = cold(model("llama"), [], [p])
    with Server(model("llama"), *flags) as s:
        for i in range(2):
            check(s.answer(p, cache={"no_store": True}) == (0, want), "nothing is stored", i)
        check(len(s.answer(p, cache={"no_store": True}, n=6)[1]) == 1, "an answer")
        s.end()
    before = count()
    with Server(model("llama"), *flags) as s:
        check(s.answer(p, cache={"ttl": 1000}) == (0, want), "not even below")
        s.answer(q, cache={"ttl": 3})
        end = time.time() + 3
        s.end()
    check(count() > before, "records", count(), before)
    time.sleep(max(end - time.time(), 0))
    with Server(model("llama"), *flags) as s:
        cached, said = s.answer(p)
        check(cached >= 256 and said == want, "its time is not over", cached)
        s.end()
    with Server(model("llama"), *flags) as s:
        check(s.answer(q)[0] == 0, "its time is over")
        s.end()
    with Server(model("llama"), *flags) as s:
        check(s.answer(q)[0] >= 256, "stored again, for good")
        status, text = s.ask("POST", "/v1/cache/explain", {"prompt": p})
        x = json.loads(text)
        check(status == 200 and x["common_tokens"] == 0 and x["why"] == "never_seen", text)
        check(x["store_tokens"] == (256 if "--cache-dir" in flags else 0), text)
        s.end()


def test_no_store_and_ttl():
    no_store_and_ttl(["--cache-dir", "lives"], lambda: sum(map(os.path.getsize,
                                                               segments("lives"))))
    is_clean("lives")


# ---- a shared store ------------------------------------------------------------------------------

def test_remote():
    """Two servers, one Redis: it goes, it comes back, it has another secret."""
    p, q = prompt(400, 100), prompt(300, 101)
    want_p, want_q = cold(model("llama"), [], [p, q])
    for name, text in (("ours", "0123456789abcdef0123"), ("theirs", "0123456789abcdef0124")):
        with open(name, "w") as f:
            f.write(text)
    with Redis() as redis:
        remote = ["--cache-remote", f"redis://127.0.0.1:{redis.port}"]
        ours = [*remote, "--cache-remote-secret-file", "ours"]
        with Server(model("llama"), *ours) as a, Server(model("llama"), *ours) as b:
            check(a.answer(p) == (0, want_p), "the first server")
            check(redis.settled() > 0, "nothing was written")
            cached, said = b.answer(p)
            check(cached >= 384 and said == want_p, "the second server", cached)
            with Server(model("llama"), *remote, "--cache-remote-secret-file", "theirs") as c:
                check(c.answer(p) == (0, want_p), "another secret")
                c.end()
            with Server(model("llama"), *remote) as c:
                check(c.answer(p) == (0, want_p), "no secret")
                c.end()
            with Server(model("llama"), "--kv-bits", "f16", *ours) as c:
                check(c.answer(p)[0] == 0, "other formats")
                c.end()

            redis.kill()
            begin = time.time()
            check(a.answer(q) == (0, want_q), "an answer without the store")
            check(b.answer(q) == (0, want_q), "an answer without the store")
            check(time.time() - begin < 10, "they wait for the store")
            status, text = a.ask("DELETE", "/v1/cache")  # said again once the store is back
            check(status == 200 and json.loads(text)["pending"] is True, status, text)
            a.line("may not have forgotten all")
            redis.start()  # with nothing in it
            a.line("has forgotten now", 90)
            end = time.time() + 60
            for i in range(1000):  # a store that was down is tried again after a while
                a.answer(p[:64] + prompt(200, 200 + i), n=1)
                if redis.settled() > 0:
                    break
                check(time.time() < end, "the store is not written again", a.text())
            for i in range(1000):
                r = prompt(300, 400 + i)
                want = a.answer(r)[1]
                redis.settled()
                cached, said = b.answer(r)
                check(said == want, "an answer", i)
                if cached >= 256:
                    break
                check(time.time() < end, "the store is not read again", b.text())
            a.end()
            b.end()


def test_remote_and_disk():
    """Both: what the store lost is on disk, what the folder lacks is in the store."""
    p = prompt(400, 110)
    [want] = cold(model("gemma3"), [], [p])
    with Redis() as redis:
        both = ["--cache-remote", f"redis://127.0.0.1:{redis.port}", "--cache-dir"]
        with Server(model("gemma3"), *both, "one") as s:
            s.answer(p)
            s.end()
        with Server(model("gemma3"), *both, "two") as s:
            cached, said = s.answer(p)
            check(cached >= 384 and said == want, "from the store", cached)
            s.end()
        redis.kill()
        with Server(model("gemma3"), *both, "one") as s:
            cached, said = s.answer(p)
            check(cached >= 384 and said == want, "from the folder", cached)
            s.end()
        redis.start()


def test_remote_salts_and_lives():
    with Redis() as redis:
        flags = ["--cache-remote", f"redis://127.0.0.1:{redis.port}"]
        no_store_and_ttl(flags, redis.settled)
        forget_salts(flags)
        p = prompt(300, 95)
        with Server(model("llama"), *flags) as s:
            forget(s)
            while redis.settled():
                pass
            # a longer life is written once it is twice as long
            for ttl, least, most in ((500, 400, 500), (600, 400, 500), (5000, 4000, 5000),
                                     (600000, 500000, 600000), (None, 600000, 604800)):
                s.answer(p, cache={"ttl": ttl})
                count, lives = redis.settled(), redis.lives()
                check(count == len(lives) == 4, count, lives)
                check(all(least <= x <= most for x in lives), ttl, lives)
            s.end()


def test_remote_tenants():
    """A salt gets no more than --cache-remote-tenant-gb and a record, whatever others have."""
    with Redis() as redis:
        flags = ["--cache-remote", f"redis://127.0.0.1:{redis.port}"]
        with Server(model("llama"), *flags, "--cache-remote-tenant-gb", "0.000001") as s:
            for i, salt in enumerate(({}, {"cache_salt": "a"}, {"cache_salt": "b"})):
                s.answer(prompt(300, 97), **salt)
                count = redis.settled()
                check(count == 2 * (i + 1), "records and counters", count, salt)
            s.end()


TESTS = [test_restart, test_kill, test_other_weights, test_other_formats, test_damage, test_full,
         test_folders, test_forget, test_forget_salt, test_no_store_and_ttl]
if REDIS:
    TESTS += [test_remote, test_remote_and_disk, test_remote_salts_and_lives, test_remote_tenants]


def run(tests):
    for test in tests:
        if os.environ.get("ONLY", test.__name__) == test.__name__:
            begin = time.time()
            test()
            print(f"{test.__name__}: {time.time() - begin:.1f} s")


if __name__ == "__main__":
    if not REDIS:
        print("no redis-server: shared stores were not tested")
    run(TESTS)
