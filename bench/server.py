#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""server.py MODE PORT ...: drives a chat server on loopback and prints what it measured.

    chats PORT NAME [N]          16 (N) clients that share a system prompt of 2,000 tokens, 5 turns
                                 each
    streams PORT PID PROMPT N    16 streams at once, 4 answers of N tokens at most each; CPU of the
                                 server's threads per token
    idle PORT PID N              N connections that have had an answer each; growth of the server
    summary FILE                 medians and ratios of the lines that chats wrote

chats writes one line, NAME and key=value. Every answer has the same number of tokens on every
server: the end tokens are biased away. Only Python's standard library is used. One thread, one
event loop: reading a chunk costs about 20 us, the same for both servers.
"""
import asyncio
import json
import os
import resource
import statistics
import sys
import time

CLIENTS, TURNS, ANSWER, SYSTEM_WORDS = 16, 5, 48, 1990
WORDS = ("the of and to in is for that with as it on by this are be from at or an not have which "
         "can all when more use how one some what time many over also people new way").split()
TOPICS = ("rain bread maps music bridges tea clocks snow gardens trains letters stars boats "
          "paper glass birds").split()
ASKS = ("Tell me about {}.", "Why do people like {}?", "Say more about the history of {}.",
        "What should a child know about {}?", "Sum up all you said about {}.")


def system_prompt():
    """Words that are one token each, in pseudorandom order, so that nothing repeats."""
    x, words = 12345, []
    for _ in range(SYSTEM_WORDS):
        x = (1103515245 * x + 12345) % 2**31
        words.append(WORDS[(x >> 16) % len(WORDS)])
    return " ".join(words)


class Connection:
    """A keep-alive connection; reads whole answers, or streams as the data of their events."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None
        self.pieces = 0  # number of chunks that the server sent

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    def close(self):
        self.writer.close()

    async def send(self, method, path, body=None):
        text = json.dumps(body).encode() if body is not None else b""
        request = (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                   "Content-Type: application/json\r\n"
                   f"Content-Length: {len(text)}\r\n\r\n").encode() + text
        self.writer.write(request)
        line = await self.reader.readline()
        if not line:  # llama-server closes a connection after a stream
            self.close()
            await self.open()
            self.writer.write(request)
            line = await self.reader.readline()
        status, headers = int(line.split()[1]), {}
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    async def chunks(self, headers):
        if "content-length" in headers:
            yield await self.reader.readexactly(int(headers["content-length"]))
            return
        while size := int(await self.reader.readline(), 16):
            self.pieces += 1
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()

    async def answer(self, method, path, body=None):
        status, headers = await self.send(method, path, body)
        return status, b"".join([c async for c in self.chunks(headers)])

    async def events(self, path, body):
        """The data of each event as JSON, and its time of arrival."""
        status, headers = await self.send("POST", path, body)
        left = b""
        async for chunk in self.chunks(headers):
            now = time.monotonic()
            if status != 200:
                raise RuntimeError(chunk[:300].decode())
            *lines, left = (left + chunk).split(b"\n")
            for line in lines:
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    yield json.loads(line[6:]), now


async def run_turn(connection, messages, figures):
    body = {"model": "m", "messages": messages, "stream": True, "max_tokens": ANSWER,
            "stream_options": {"include_usage": True}, "temperature": 0,
            "logit_bias": {"0": -100, "1": -100, "2": -100}}
    begun, first, text, usage = time.monotonic(), None, "", None
    async for event, now in connection.events("/v1/chat/completions", body):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                first = first or now
                text += piece
    figures["first"].append(first - begun)
    figures["prompt"].append(usage["prompt_tokens"])
    figures["tokens"] += usage["completion_tokens"]
    return text


async def run_client(port, i, figures):
    messages = [{"role": "system", "content": system_prompt()}]
    connection = Connection(port)
    await connection.open()
    for turn in range(TURNS):
        messages.append({"role": "user", "content": ASKS[turn].format(TOPICS[i % len(TOPICS)])})
        try:
            text = await run_turn(connection, messages, figures[turn])
        except Exception as e:  # counted; the other clients continue
            figures[turn]["errors"] += 1
            print(f"client {i}, turn {turn}: {e!r}", file=sys.stderr)
            break
        messages.append({"role": "assistant", "content": text})
    connection.close()


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))] if values else float("nan")


async def run_chats(port, name, clients):
    figures = [{"first": [], "prompt": [], "tokens": 0, "errors": 0} for _ in range(TURNS)]
    warm = Connection(port)
    await warm.open()
    await warm.answer("POST", "/v1/completions", {"model": "m", "prompt": "Hi", "max_tokens": 2})
    begun = time.monotonic()
    await asyncio.gather(*(run_client(port, i, figures) for i in range(clients)))
    took = time.monotonic() - begun
    first = [t for f in figures for t in f["first"]]
    later = [t for f in figures[1:] for t in f["first"]]
    prompts = [t for f in figures for t in f["prompt"]]
    tokens = sum(f["tokens"] for f in figures)
    print(f"{name} requests={len(first)} errors={sum(f['errors'] for f in figures)} "
          f"seconds={took:.2f} requests_per_s={len(first) / took:.3f} "
          f"first_median_ms={1000 * percentile(first, .5):.0f} "
          f"first_p95_ms={1000 * percentile(first, .95):.0f} "
          f"first_turn_median_ms={1000 * percentile(figures[0]['first'], .5):.0f} "
          f"later_turns_median_ms={1000 * percentile(later, .5):.0f} "
          f"tokens={tokens} tokens_per_s={tokens / took:.1f} "
          f"prompt_tokens={min(prompts, default=0)}..{max(prompts, default=0)}", flush=True)


def summary(path):
    """Medians over rounds, and medians of the ratios of paired rounds."""
    rows = {}
    for line in open(path):
        name, *pairs = line.split()
        if "requests_per_s=" not in line:
            continue
        rows.setdefault(name, []).append(dict(p.split("=") for p in pairs))
    if len(rows) < 2:
        sys.exit("summary: no round of both was done in time (LIMIT)")
    (a, ours), (b, peer) = rows.items()
    for key, better in (("requests_per_s", 1), ("tokens_per_s", 1), ("first_median_ms", -1),
                        ("first_p95_ms", -1), ("first_turn_median_ms", -1),
                        ("later_turns_median_ms", -1)):
        x, y = ([float(r[key]) for r in side] for side in (ours, peer))
        ratios = [(p / q) ** better for p, q in zip(x, y)]
        print(f"{key}: {a} {statistics.median(x):g} [{min(x):g} .. {max(x):g}], "
              f"{b} {statistics.median(y):g} [{min(y):g} .. {max(y):g}], "
              f"{statistics.median(ratios):.2f} times better [{min(ratios):.2f} .. "
              f"{max(ratios):.2f}]")


# ---- the cost of the HTTP layer ------------------------------------------------------------------


def thread_times(pid):
    """CPU nanoseconds of each thread: {(name, id): ns}"""
    times = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm") as f:
            name = f.read().strip()
        with open(f"/proc/{pid}/task/{tid}/schedstat") as f:
            times[name, tid] = int(f.read().split()[0])
    return times


async def run_streams(port, pid, prompt, limit):
    async def one(tokens, answers):
        connection = Connection(port)
        await connection.open()
        for _ in range(answers):
            body = {"model": "m", "messages": [{"role": "user", "content": prompt}],
                    "stream": True, "max_tokens": limit, "temperature": 0,
                    "stream_options": {"include_usage": True}}
            async for event, _ in connection.events("/v1/chat/completions", body):
                if event.get("usage"):
                    tokens.append(event["usage"]["completion_tokens"])
        connection.close()
        return connection.pieces

    await one([], 1)  # loads the pages that are used
    tokens, before = [], thread_times(pid)
    begun = time.monotonic()
    pieces = sum(await asyncio.gather(*(one(tokens, 4) for _ in range(CLIENTS))))
    took, after = time.monotonic() - begun, thread_times(pid)
    n, by_name = sum(tokens), {}
    for key, ns in after.items():
        by_name[key[0]] = by_name.get(key[0], 0) + ns - before.get(key, 0)
    print(f"streams={len(tokens)} tokens={n} pieces={pieces} seconds={took:.2f} us_per_token: "
          + " ".join(f"{k}={v / n / 1000:.2f}" for k, v in sorted(by_name.items())), flush=True)


# ---- the cost of idle connections ----------------------------------------------------------------


def resident_kib(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


async def run_idle(port, pid, n):
    resource.setrlimit(resource.RLIMIT_NOFILE, (n + 100, n + 100))
    body = {"model": "m", "messages": [{"role": "user", "content": "<|short|>"}], "max_tokens": 4,
            "temperature": 0}
    connections = [Connection(port) for _ in range(n)]
    await connections[0].open()
    await connections[0].answer("POST", "/v1/chat/completions", body)
    before, good = resident_kib(pid), 0
    for i, c in enumerate(connections):
        if i:
            await c.open()
        good += (await c.answer("POST", "/v1/chat/completions", body))[0] == 200
    grown = resident_kib(pid) - before
    print(f"idle_connections={n} answered={good} before_mib={before / 1024:.1f} "
          f"grown_mib={grown / 1024:.1f} bytes_per_connection={1024 * grown // n}", flush=True)


def main():
    mode, rest = sys.argv[1], sys.argv[2:]
    if mode == "chats":
        asyncio.run(run_chats(int(rest[0]), rest[1], int(rest[2]) if rest[2:] else CLIENTS))
    elif mode == "streams":
        asyncio.run(run_streams(int(rest[0]), int(rest[1]), rest[2], int(rest[3])))
    elif mode == "idle":
        asyncio.run(run_idle(int(rest[0]), int(rest[1]), int(rest[2])))
    elif mode == "summary":
        summary(rest[0])
    else:
        sys.exit(__doc__)


main()
