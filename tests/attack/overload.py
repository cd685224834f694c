# SPDX-License-Identifier: Apache-2.0
"""Hostile bodies, 64 at once of each kind, and thousands of connections, beside honest clients:
memory stays within what the flags say and comes back, /health answers, streams go on.

Without limits on time (on a machine shared with other work) only memory and answers are checked;
the rest is printed. The clients are processes: threads of one Python program would measure it.
"""

import glob
import json
import multiprocessing
import os
import resource
import time

from target import Finding, Server, is_sanitized, read_all, scripted_model

ACCOUNT, CACHE = 256, 64  # MiB
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
START = b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"chat_template_kwargs":{"x":['


def many(before, item, n, after):
    return before + b",".join([item] * n) + after


def bodies(scale):
    n = int(1000000 * scale)
    return {
        "objects": (CHAT, many(START, b"{}", 10 * n, b"]}}")),
        "arrays": (CHAT, many(START, b"[[]]", n, b"]}}")),
        "unknown members": (
            TEXT,
            many(b'{"prompt":"a","max_tokens":1,"nonsense":[', b'""', 10 * n, b"]}"),
        ),
        "messages": (CHAT, many(b'{"messages":[', b'{"role":"user","content":"a"}', n, b"]}")),
        "ids": ("/detokenize", many(b'{"tokens":[', b"9", 15 * n, b"]}")),
        "digits": ("/tokenize", b'{"return_token_strs":true,"prompt":"' + b"1" * 30 * n + b'"}'),
        "stop ids": (
            TEXT,
            many(b'{"prompt":"a","max_tokens":1,"stop_token_ids":[', b"9", 15 * n, b"]}"),
        ),
        "long text": (CHAT, b'{"messages":[{"role":"user","content":"' + b" a" * 15 * n + b'"}]}'),
        "letters": (TEXT, b'{"prompt":"' + os.urandom(15 * n).hex().encode() + b'"}'),
        "model": (TEXT, b'{"prompt":"a","stream":true,"model":"' + b"m" * 30 * n + b'"}'),
    }


def send_one(server, path, body, out):
    os.nice(15)  # an attacker's own work is done elsewhere
    status, answer = server.ask("POST", path, body, timeout=200)
    out.put((status, answer[:160].decode("utf-8", "replace")))


def honest_stream(server, prompt, stop, out):
    """One stream after the other; puts (seconds to the first event, gaps, events)."""
    first, gaps, events = [], [], 0
    body = json.dumps({"prompt": prompt, "max_tokens": 200, "stream": True, "ignore_eos": True})
    head = (
        f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    while not stop.is_set():
        s = server.connect(timeout=100, source="127.0.0.3")
        s.sendall(head + body.encode())
        last, begun = time.monotonic(), False
        while not stop.is_set():
            data = s.recv(65536)
            now = time.monotonic()
            if not data:
                break
            if b"data: {" in data:
                (gaps if begun else first).append(now - last)
                begun, last = True, now
                events += data.count(b"data: {")
        s.close()
    out.put((first, gaps, events))


def health(server, stop, out):
    seconds = []
    while not stop.is_set():
        start = time.monotonic()
        s = server.connect(timeout=100, source="127.0.0.2")
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        data = read_all(s)[0]
        s.close()
        seconds.append(time.monotonic() - start if b" 200 OK" in data[:20] else 1000.0)
        time.sleep(0.02)
    out.put(seconds)


class Watch:
    """Honest clients and probes for as long as the `with` takes; figures after it."""

    def __init__(self, server, prompt, streams=4):
        self.stop, self.start = multiprocessing.Event(), 0.0
        self.out, self.health_out = multiprocessing.Queue(), multiprocessing.Queue()
        jobs = [
            (honest_stream, (server, f"{i} {prompt}", self.stop, self.out)) for i in range(streams)
        ] + [(health, (server, self.stop, self.health_out))]
        self.workers = [multiprocessing.Process(target=t, args=a) for t, a in jobs]

    def __enter__(self):
        self.start = time.monotonic()
        for w in self.workers:
            w.start()
        return self

    def __exit__(self, *_):
        seconds = time.monotonic() - self.start
        self.stop.set()
        every = [self.out.get(timeout=120) for _ in self.workers[1:]]
        probes = sorted(self.health_out.get(timeout=120))
        for w in self.workers:
            w.join()
        self.gap = max([g for _, gaps, _ in every for g in gaps] or [1000.0])
        self.rate = sum(n for _, _, n in every) / seconds
        self.health99 = probes[int(len(probes) * 0.99)] if probes else 1000.0
        self.health_worst = probes[-1] if probes else 1000.0

    def __str__(self):
        return (
            f"worst gap {self.gap * 1000:.0f} ms, {self.rate:.0f} events/s, /health 99 % "
            f"{self.health99 * 1000:.1f} ms, worst {self.health_worst * 1000:.1f} ms"
        )


def at_once(server, n, path, body):
    out = multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=send_one, args=(server, path, body, out)) for _ in range(n)
    ]
    for w in workers:
        w.start()
    answers = [out.get(timeout=300) for _ in workers]
    for w in workers:
        w.join()
    return answers


def expect(findings, what, good):
    if not good:
        findings.append(what)
        print(f"attack: overload: NOT HELD: {what}", flush=True)


def judge(findings, name, alone, beside, limits):
    print(f"attack: overload: {name}: {beside}", flush=True)
    if not limits:
        return
    expect(
        findings,
        f"{name}: gap {beside.gap:.3f} s, alone {alone.gap:.3f} s",
        beside.gap <= max(0.2, 3 * alone.gap),
    )
    expect(findings, f"{name}: /health {beside.health99:.3f} s", beside.health99 <= 0.05)
    expect(
        findings,
        f"{name}: {beside.rate:.0f} of {alone.rate:.0f} events/s",
        beside.rate >= 0.7 * alone.rate,
    )


def hostile(server, program, clock, limits, alone, prompt, findings):
    sanitized = is_sanitized(program)
    ready = server.memory()
    for name, (path, body) in bodies(1 if limits else 0.3).items():
        if clock.left() <= 0:
            break
        with Watch(server, prompt) as beside:
            answers = at_once(server, 64 if limits else 16, path, body)
        server.alive()
        statuses = [status for status, _ in answers]
        counts = {s: statuses.count(s) for s in sorted(set(statuses))}
        print(
            f"attack: overload: {name}, {len(body) >> 10} KiB: statuses {counts}, resident "
            f"{server.memory():.0f} MiB, most {server.memory('VmHWM'):.0f} MiB; {answers[0][1]}",
            flush=True,
        )
        expect(findings, f"{name}: statuses {counts}", set(counts) <= {0, 200, 400, 413, 429, 503})
        judge(findings, name, alone, beside, limits)
        clock.count("hostile bodies", len(statuses))
    bound = (ready + CACHE + ACCOUNT) * 1.1
    peak = server.memory("VmHWM")
    expect(
        findings, f"resident at most {peak:.0f} MiB, bound {bound:.0f}", sanitized or peak <= bound
    )
    for _ in range(40):
        left = server.memory() - server.metric("kvasir_cache_resident_bytes") / (1 << 20)
        if left <= ready * 1.05:
            break
        time.sleep(0.25)
    expect(
        findings,
        f"{left:.0f} MiB beside the cache afterwards, {ready:.0f} when ready",
        sanitized or left <= ready * 1.05 + 2,
    )
    clock.count("peak MiB", round(peak))


def legal(server, findings, clock):
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 2,
            "metadata": {"x": "y" * 200000},
        }
    ).encode()
    answers = at_once(server, 64, CHAT, body)
    expect(
        findings,
        f"64 legal bodies: {sorted(set(answers))}",
        [status for status, _ in answers] == [200] * 64,
    )
    clock.count("legal bodies", 64)


def crowd(server, n, findings, clock, limits, alone, prompt):
    """n connections from one address: some idle, some that send a byte now and then."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(n + 200, most), most))
    opened = []
    with Watch(server, prompt) as beside:
        for i in range(n):
            try:
                s = server.connect(timeout=5)
                if i % 2:
                    s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
                opened.append(s)
            except OSError:
                clock.count("connections refused")
            if i % 500 == 0:
                for s in opened[1::20]:
                    try:
                        s.send(b"a")
                    except OSError:
                        pass
        time.sleep(3)
        held = server.metric("kvasir_connections")
    for s in opened:
        s.close()
    server.alive()
    clock.count("connections", n)
    judge(findings, f"{n} connections, {held:.0f} held", alone, beside, limits)
    return held


def all_held(program, model, n, clock, limits, prompt, findings):
    """The same, with a server that has room for all of them at once."""
    flags = ["--max-connections", str(n + 500), "--head-timeout", "600", "--idle-timeout", "600"]
    with Server(program, "-m", model, "--ctx", "2048", *flags) as server:
        with Watch(server, prompt) as alone:
            time.sleep(10 if limits else 2)
        print(f"attack: overload: alone: {alone}", flush=True)
        held = crowd(server, n, findings, clock, limits, alone, prompt)
        expect(findings, f"{held:.0f} of {n} connections are held", held >= n)


def attack(program, rnd, clock, limits):
    models = glob.glob(os.path.join(os.environ.get("MODELS_DIR", "models"), "SmolLM2*.gguf"))
    if limits and not models:
        raise Finding("limits on time are for SmolLM2, which is not in models/ (make models)")
    prompt = "stories were told, and the first of them" if limits else "<|long|>"
    if not limits:
        scripted_model("overload-model")
    findings = []
    flags = ["--cache-memory-mb", str(CACHE), "--request-memory-mb", str(ACCOUNT), "--ctx", "2048"]
    with Server(program, "-m", models[0] if limits else "overload-model", *flags) as server:
        with Watch(server, prompt) as alone:
            time.sleep(20 if limits else 2)
        print(f"attack: overload: alone: {alone}", flush=True)
        legal(server, findings, clock)
        hostile(server, program, clock, limits, alone, prompt, findings)
        crowd(server, 10000 if limits else 1500, findings, clock, limits, alone, prompt)
        legal(server, findings, clock)
    all_held(
        program,
        models[0] if limits else "overload-model",
        10000 if limits else 1500,
        clock,
        limits,
        prompt,
        findings,
    )
    if findings:
        raise Finding(f"{len(findings)} limits not held: " + "; ".join(findings))
    del rnd
