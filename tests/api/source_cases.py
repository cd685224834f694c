# SPDX-License-Identifier: Apache-2.0
"""source_cases.py PART URL: the cases of source_cases.sh, with Python's standard library only."""
import http.client
import json
import os
import random
import re
import socket
import sys
import time
import urllib.parse

PLAIN = "The quick brown fox jumps over the lazy dog."
HOST = urllib.parse.urlparse(sys.argv[2]).netloc
TIMEOUT = 120 * int(os.environ.get("TIMEOUT_FACTOR", 1))  # seconds; more under a sanitizer
asked = 0  # requests that were answered


def request(method, path, body=None):
    """(status, text)"""
    c = http.client.HTTPConnection(HOST, timeout=TIMEOUT)
    data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
    c.request(method, path, data)
    r = c.getresponse()
    got = r.status, r.read().decode()
    c.close()
    return got


def ask(path, **body):
    global asked
    status, text = request("POST", path, body)
    assert status == 200, (status, text)
    asked += 1
    return json.loads(text)


def cached(tokens, **more):
    """The number of stored tokens of the prompt. Afterwards exactly the prompt is stored."""
    usage = ask("/v1/completions", prompt=tokens, max_tokens=1, **more)["usage"]
    assert usage["prompt_tokens"] == len(tokens), usage
    return usage["prompt_tokens_details"]["cached_tokens"]


def get(path):
    status, text = request("GET", path)
    assert status == 200, text
    return json.loads(text)


def wait(what, seconds=20):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def stats():
    """Waits for the figures, which are updated after the step that gave the answer."""
    wait(lambda: get("/v1/status")["total_requests_processed"] == asked)
    return get("/v1/cache/stats")


def made(seed, n):
    """n tokens; the first one differs between seeds."""
    draw = random.Random(seed)
    return [seed] + [draw.randrange(256) for _ in range(n - 1)]


# ---- mlx-lm, TestServer --------------------------------------------------------------------------


def handlers():
    user = {"role": "user", "content": "say plain"}
    sampling = {"max_tokens": 60, "temperature": 0.7, "top_p": 0.85, "repetition_penalty": 1.2}
    answer = ask("/v1/completions", model="default_model", prompt="say <|plain|>", **sampling)
    assert answer["id"] and answer["choices"][0]["text"] == PLAIN
    for path in "/v1/chat/completions", "/chat/completions":
        answer = ask(path, model="chat_model", messages=[
            {"role": "system", "content": "You are a helpful assistant."}, user], **sampling)
        assert answer["choices"][0]["message"]["content"] == PLAIN, answer
    fragments = [{"role": "system", "content": [{"type": "text", "text": "You are helpful."}]},
                 {"role": "user", "content": [{"type": "text", "text": "say "},
                                              {"type": "text", "text": "plain"}]}]
    answer = ask("/v1/chat/completions", messages=fragments, **sampling)
    assert answer["choices"][0]["message"]["content"] == PLAIN
    null = [user, {"role": "assistant", "content": None, "tool_calls": [
                {"type": "function", "id": "123",
                 "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}]},
            {"role": "tool", "content": "5", "tool_call_id": "123"}]
    answer = ask("/v1/chat/completions", messages=null, **sampling)
    assert answer["choices"][0]["message"]["content"].startswith("Umbrellas")
    listed = get("/v1/models")
    assert listed["object"] == "list" and listed["data"][0]["object"] == "model"
    assert get("/v1/models/" + listed["data"][0]["id"])["created"] > 0
    assert get("/health")["status"]
    bad_requests()


def bad_requests():
    for method, path, status in (("GET", "/v2", 404), ("POST", "/nowhere", 404),
                                 ("GET", "/v1/chat/completions", 405),
                                 ("OPTIONS", "/v1/chat/completions", 204)):
        assert request(method, path)[0] == status, (method, path)
    for body in "", "{", "[1]", "null", '{"messages": 1}', b"\xff", "{" * 5000, '{"a":1,"a":2}':
        status, text = request("POST", "/v1/chat/completions", body)
        assert status == 400 and json.loads(text)["error"]["message"], (body, status, text)
    for bad in {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, \
            {"role": "user"}, {"content": "x"}, "x":
        status, text = request("POST", "/v1/chat/completions", {"messages": [bad]})
        assert status == 400 and "messages[0]" in text, (bad, text)


def events(c, path, body):
    c.request("POST", path, json.dumps(body))
    r = c.getresponse()
    assert r.status == 200
    for line in r:
        yield line.decode().rstrip("\n")


def long_prompts():
    """Each step takes one token, so prefill is slow. Comments come after a second of silence."""
    begin = time.monotonic()
    ask("/v1/completions", prompt=made(9, 1000), max_tokens=1)
    speed = 1000 / (time.monotonic() - begin)
    n = min(32000, max(1000, int(6 * speed)))  # about 6 s of it, even in a slow build
    prompt = made(1, n)
    c = http.client.HTTPConnection(HOST, timeout=TIMEOUT)
    body = {"prompt": prompt + [258], "max_tokens": 60, "stream": True}
    begin = time.monotonic()
    lines = list(events(c, "/v1/completions", body))
    seconds = time.monotonic() - begin
    done = [re.fullmatch(r": keepalive (\d+)/(\d+)", line) for line in lines if line[:1] == ":"]
    assert len(done) >= max(1, int(seconds / 2)) and all(done), (seconds, lines[:20])
    numbers = [int(m[1]) for m in done]
    assert numbers == sorted(numbers) and numbers[-1] <= n, numbers
    assert {m[2] for m in done} == {str(n + 1)}
    first = next(i for i, line in enumerate(lines) if line.startswith("data:"))
    assert lines.index(done[-1][0]) < first and lines[-2:] == ["data: [DONE]", ""], lines[-4:]
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(x["choices"][0]["text"] for x in chunks) == PLAIN
    # Without streaming only the answer is sent; Anthropic's streams have ping events.
    answer = ask("/v1/completions", prompt=made(2, n // 8) + [258], max_tokens=60)
    assert answer["choices"][0]["text"] == PLAIN
    messages = [{"role": "user", "content": "x" * n + " plain"}]
    lines = list(events(c, "/v1/messages", {"messages": messages, "max_tokens": 9, "stream": True}))
    assert lines.count("event: ping") >= 2, lines[:8]
    c.close()
    gone_in_prefill(True)
    gone_in_prefill(False)


def gone_in_prefill(stream):
    body = json.dumps({"prompt": made(3 + stream, 40000), "max_tokens": 1, "stream": stream})
    s = socket.create_connection(HOST.split(":"), timeout=60)
    s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\n"
              f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
    wait(lambda: get("/v1/status")["num_running"] == 1, 60)
    s.close()
    begin = time.monotonic()
    wait(lambda: get("/v1/status")["num_running"] == 0)
    took = time.monotonic() - begin
    print(f"  cancelled in prefill, stream {stream}: {1000 * took:.0f} ms")
    assert get("/health")["status"]


# ---- mlx-lm, TestLRUPromptCache; vllm-mlx, MemoryAwarePrefixCache --------------------------------


def prefixes():
    """The same hits as in fetch_nearest_cache and fetch, to the token."""
    a = made(10, 24)
    assert cached(a) == 0 and stats()["entry_count"] == 1
    assert cached(a) == 23, "all but the token whose logits are asked for"
    longer = a + made(11, 6)
    assert cached(longer) == 24 and stats()["entry_count"] == 1, "the longer one takes its place"
    parted = longer[:26] + made(12, 6)
    assert cached(parted) == 26 and stats()["entry_count"] == 2
    assert cached(longer) == 29 and cached(parted) == 31, "both are there"
    assert cached(a) == 23 and stats()["entry_count"] == 2, "a beginning of both, no third"
    b = made(20, 100)
    assert cached(b) == 0
    assert cached(b[:60]) == 59, "supersequence"
    assert cached(b[:59] + [999, 1000, 1001]) == 59, "common prefix"
    assert cached(b + [4, 5, 6]) == 100, "prefix, and [4, 5, 6] remain"
    assert cached(made(21, 3)) == 0 and cached(made(21, 3)) == 2, "short ones, too"
    before = stats()
    assert cached(b + [4, 5, 6]) == 102
    after = stats()
    assert after["entry_count"] == before["entry_count"], "a duplicate is no new entry"
    assert after["current_memory_mb"] == before["current_memory_mb"]
    assert after["hits"] == before["hits"] + 1 and after["misses"] == before["misses"]
    assert after["tokens_saved"] == before["tokens_saved"] + 102
    assert after["hit_rate"] == round(after["hits"] / (after["hits"] + after["misses"]), 4)
    assert {"evictions", "max_memory_mb", "memory_utilization", "store_rejections"} <= set(after)
    assert request("DELETE", "/v1/cache")[0] == 200
    wait(lambda: stats()["entry_count"] == 0)
    assert stats()["current_memory_mb"] == 0
    assert stats()["hits"] == after["hits"], "what was counted stays"
    assert cached(b) == 0


def no_prefixes():
    a = made(10, 300)
    assert [cached(a), cached(a)] == [0, 0] and stats()["entry_count"] == 0


def two_prompts():
    """--prompt-cache-size 2, test_lru: the last used stay (mlx-lm: the last inserted)."""
    a, b, c = made(1, 90), made(2, 90), made(3, 90)
    assert [cached(x) for x in (a, b, a, c)] == [0, 0, 89, 0]
    assert stats()["entry_count"] == 2 and stats()["evictions"] > 0
    assert [cached(a), cached(c)] == [89, 89], "b was used least recently"
    assert cached(b) == 0 and stats()["entry_count"] == 2
    assert cached(a) == 0, "b's return cost a, which was used before c"
    assert cached(a + [7]) == 90 and stats()["entry_count"] == 2, "a longer one is no third"


def few_bytes():
    """--prompt-cache-bytes: the limit holds after every request, with prompts of many sizes."""
    for i in range(30):
        n = 20 + 37 * i % 400
        assert cached(made(i, n)) == 0
        assert get("/v1/status")["cache"]["stored_bytes"] <= 256 << 10
    assert stats()["evictions"] > 0 and stats()["entry_count"] >= 2
    assert cached(made(29, 20 + 37 * 29 % 400)) > 0, "the newest is there"
    too_long = made(50, 20000)
    assert cached(too_long) == 0, "longer than what may be stored, and answered"
    assert get("/v1/status")["cache"]["stored_bytes"] <= 256 << 10


# ---- vllm-mlx, test_kv_cache_quantization.py -----------------------------------------------------


def stored_formats():
    """Bytes of pages by their format; pages are requantized between steps."""
    return {x["format"]: x["bytes"] for x in stats()["by_format"]
            if x["kind"] == "stored" and x["bytes"] and x["format"] != "tables"}


def stored_bits():
    """--kv-cache-quantization: 8 bits from 256 tokens on."""
    exact, eight = "K f16, V f16", "K 8 g64, V 8 g64"
    cached(made(1, 255))
    formats = stored_formats()
    assert set(formats) == {exact}, formats
    page = formats[exact] / 4
    long = made(2, 320)
    cached(long)
    wait(lambda: stored_formats().get(eight, 0) > 0 and stored_formats()[exact] == 4 * page)
    formats = stored_formats()
    assert set(formats) == {exact, eight}, formats
    assert formats[eight] <= 5 * page * 0.75, formats  # 17 of 32 bits, in whole units of 4 KiB
    time.sleep(0.2)
    assert stored_formats() == formats, "and stay so"
    assert cached(long + [5]) == 320 and cached(long) == 256, "no half page of another format"
    answer = ask("/v1/completions", prompt=long + [258], max_tokens=60)
    assert answer["choices"][0]["text"] == PLAIN
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 320


def stored_4_bits():
    cached(made(1, 128))
    wait(lambda: set(stored_formats()) == {"K 4 g32, V 4 g32"})
    assert cached(made(1, 128) + [5]) == 128


globals()[sys.argv[1]]()
print(f"source_cases.py: {sys.argv[1]}")
