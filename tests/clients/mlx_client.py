# SPDX-License-Identifier: Apache-2.0
"""The HTTP requests of mlx-lm's tests/test_server.py (0.32.2, MIT), and the checks that vllm-mlx
0.6.0 (Apache-2.0) has for a running server, in our own words, against kvasir serve and a small
model that answers anything; see cases.py. All that they check of an answer is checked here."""
import json
import os
import time
import urllib.error
import urllib.request

from cases import case, main

HELLO = [{"role": "system", "content": "You are a helpful assistant."},
         {"role": "user", "content": "Hello!"}]
SAMPLING = {"max_tokens": 10, "temperature": 0.7, "top_p": 0.85, "repetition_penalty": 1.2}


def ask(server, path, **body):
    """(status, text)"""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def answer(server, path, **body):
    """The answer's only choice."""
    status, text = ask(server, path, **body)
    assert status == 200, (status, text)
    whole = json.loads(text)
    assert whole["id"] and len(whole["choices"]) == 1, whole
    assert 0 < whole["usage"]["completion_tokens"] <= body["max_tokens"], whole
    return whole["choices"][0]


def chat(server, messages, **more):
    message = answer(server, "/v1/chat/completions", model="chat_model", messages=messages,
                     **more)["message"]
    assert message["role"] == "assistant" and message["content"], message
    return message["content"]


# ---- mlx-lm, TestServer --------------------------------------------------------------------------


@case("mlx")
def max_tokens_zero_is_rejected(server):
    status, text = ask(server, "/v1/completions", prompt="hi", max_tokens=0)
    assert status == 400 and "max_tokens" in text, (status, text)


@case("mlx")
def completions(server):
    said = [answer(server, "/v1/completions", model="default_model", prompt="Once upon a time",
                   max_tokens=10, temperature=0.5, top_p=0.9, repetition_penalty=1.1,
                   repetition_context_size=20, seed=999, stop="stop sequence")["text"]
            for _ in range(2)]
    assert said[0] == said[1] != "", said


@case("mlx")
def chat_completions(server):
    chat(server, HELLO, **SAMPLING)


@case("mlx")
def content_fragments(server):
    fragments = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]}
                 for m in HELLO]
    assert chat(server, fragments, max_tokens=10) == chat(server, HELLO, max_tokens=10)


def called(arguments):
    return [{"role": "user", "content": "what is 2+3?"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"type": "function", "id": "123",
                 "function": {"name": "add", "arguments": arguments}}]},
            {"role": "tool", "content": "5", "tool_call_id": "123"}]


@case("mlx")
def null_tool_content(server):
    chat(server, called('{"a": 2, "b": 3}'), **SAMPLING)


@case("mlx")
def dict_tool_arguments(server):
    """An object instead of its text, which OpenAI refuses."""
    said = [chat(server, called(a), max_tokens=10) for a in ({"a": 2, "b": 3}, '{"a": 2, "b": 3}')]
    assert said[0] == said[1]


@case("mlx")
def models(server):
    status, text = ask(server, "/v1/models")
    listed = json.loads(text)
    assert status == 200 and listed["object"] == "list" and len(listed["data"]) > 0
    assert listed["data"][0]["object"] == "model" and listed["data"][0]["id"]
    assert listed["data"][0]["created"] > 0


@case("mlx")
def health(server):
    assert ask(server, "/health") == (200, '{"status":"ok"}')


@case("mlx_gone")
def health_when_requests_are_refused(server):
    """mlx-lm stops its generator; here the model's file is changed."""
    os.utime(os.environ["WEIGHTS"], (1, 1))
    end = time.monotonic() + 30
    while ask(server, "/health")[0] == 200:
        assert time.monotonic() < end, "the change was not seen"
        time.sleep(0.05)
    assert ask(server, "/health") == (503, '{"status":"unavailable"}')


# ---- mlx-lm, TestServerWithDraftModel: the same without one --------------------------------------


@case("mlx")
def greedy_completion(server):
    answer(server, "/v1/completions", model="default_model", prompt="Once upon a time",
           max_tokens=10, temperature=0.0, top_p=1.0)


@case("mlx")
def greedy_chat(server):
    assert chat(server, HELLO, max_tokens=10, temperature=0.0)


@case("mlx")
def streaming(server):
    status, text = ask(server, "/v1/chat/completions", model="chat_model", max_tokens=10,
                       temperature=0.0, stream=True, messages=HELLO)
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    assert status == 200 and lines.pop() == "[DONE]" and len(lines) > 1, text
    said = ""
    for line in lines:
        choice, = json.loads(line)["choices"]
        said += choice["delta"].get("content") or ""
    assert said == chat(server, HELLO, max_tokens=10, temperature=0.0)


@case("mlx")
def prompt_cache(server):
    for user in "Tell me a story about", "Tell me a story about dragons.":
        chat(server, [HELLO[0], {"role": "user", "content": user}], max_tokens=5, temperature=0.0)
    more = [HELLO[0], {"role": "user", "content": "Tell me a story about dragons and a king."}]
    _, text = ask(server, "/v1/chat/completions", messages=more, max_tokens=1)
    usage = json.loads(text)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] // 2, usage


# ---- vllm-mlx, TestServerIntegration and TestBenchServeIntegration -------------------------------


@case("vllm_mlx")
def health_and_models(server):
    state = server.get("/health")
    assert state["status"] == "healthy" and state["model_loaded"] is True
    assert [m["id"] for m in server.get("/v1/models")["data"]] == [state["model_name"]]


@case("vllm_mlx")
def chat_by_the_listed_name(server):
    listed = server.get("/v1/models")["data"][0]["id"]
    message = answer(server, "/v1/chat/completions", model=listed, max_tokens=10,
                     messages=[{"role": "user", "content": "Say hello"}])["message"]
    assert message["content"]


@case("vllm_mlx_bench")
def bench_serve(server):
    """A stream that its `bench-serve` counts as valid: text, an end by itself, and usage."""
    listed = server.get("/v1/models")["data"][0]["id"]
    status, text = ask(server, "/v1/chat/completions", model=listed, max_tokens=32, stream=True,
                       stream_options={"include_usage": True}, temperature=0.0,
                       messages=[{"role": "user", "content": "say plain"}])
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    choices = [c["choices"][0] for c in chunks if c["choices"]]
    assert status == 200 and [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert "".join(c["delta"].get("content") or "" for c in choices)
    assert chunks[-1]["usage"]["completion_tokens"] > 0 and chunks[-1]["usage"]["prompt_tokens"] > 0


main()
