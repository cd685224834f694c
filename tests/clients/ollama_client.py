# SPDX-License-Identifier: Apache-2.0
"""The official ollama client against kvasir serve and the scripted model; see cases.py."""
import asyncio
import json
import threading

import ollama

from cases import FOUR, PLAIN, REASONING, SCRIPTS, case, main, raises

MODEL = "scripted"
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather to come.", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}}}}}


def client(server, key=0, kind=ollama.Client, **options):
    headers = {"Authorization": "Bearer " + server.keys[key]} if server.keys else {}
    return kind(host=server.url, headers=headers, timeout=60, **options)


def user(text):
    return [{"role": "user", "content": text}]


def chat(c, text, model=MODEL, **options):
    return c.chat(model=model, messages=user(text), **options)


def is_done(answer, reason="stop"):
    assert answer.done and answer.done_reason == reason, answer
    assert answer.total_duration > 0 and answer.eval_duration > 0 and answer.load_duration > 0
    assert answer.prompt_eval_count > 0 and answer.prompt_eval_duration > 0 and answer.eval_count


def refused(status, text, call, *args, **kwargs):
    e = raises(ollama.ResponseError, call, *args, **kwargs)
    assert e.status_code == status and text in e.error, (e.status_code, e.error)


@case("open")
def chat_whole_and_streamed(server):
    c = client(server)
    for name in "plain", "letters":
        answer = chat(c, "say " + name)
        assert answer.message.content == SCRIPTS[name] and answer.message.role == "assistant"
        assert answer.model == MODEL and answer.created_at and not answer.message.tool_calls
        is_done(answer)
        parts = list(chat(c, "say " + name, stream=True))
        assert "".join(p.message.content for p in parts) == SCRIPTS[name] and len(parts) > 3
        assert not any(p.done for p in parts[:-1])
        is_done(parts[-1])
        assert parts[-1].eval_count == answer.eval_count


@case("open")
def names(server):
    c = client(server)
    assert chat(c, "say plain", MODEL + ":latest").message.content == PLAIN
    refused(404, "model 'other' not found", chat, c, "say plain", "other")
    refused(404, "model 'other' not found", c.show, "other")
    refused(404, "not found: POST /api/pull", c.pull, "other")
    (model,) = c.list().models
    assert chat(c, "say plain", model.model).message.content == PLAIN
    assert model.size > 0 and model.modified_at and model.details.family == "llama"
    (running,) = c.ps().models
    assert running.context_length == 65536 and running.expires_at and running.digest
    shown = c.show(MODEL)
    assert "messages" in shown.template and shown.details.quantization_level == "F32"
    assert shown.modelinfo["llama.context_length"] == 65536
    assert shown.capabilities == ["completion", "tools", "thinking", "insert"]


@case("open")
def options(server):
    c = client(server)
    answer = chat(c, "say endless", options={"num_predict": 3, "temperature": 0, "num_ctx": 4096,
                                             "seed": 1, "top_k": 4, "num_thread": 1})
    is_done(answer, "length")
    assert answer.eval_count == 3
    answer = chat(c, "say plain", options={"stop": ["never", "fox"], "num_predict": -1})
    assert answer.message.content == "The quick brown "
    is_done(answer)
    # There is room for 65,536 tokens: more are cut, and a longer prompt is an error.
    assert chat(c, "say plain", options={"num_predict": 10 ** 6}).message.content == PLAIN
    refused(400, "more than 65536 tokens", chat, c, "word " * 20000 + "plain")
    refused(400, "options.temperature: ", chat, c, "say plain", options={"temperature": -1})
    refused(400, "options.mirostat: ", chat, c, "say plain", options={"mirostat": 1})
    refused(400, "messages[0].images: ", c.chat, MODEL,
            [{"role": "user", "content": "x", "images": [b"x"]}])


@case("open")
def logprobs(server):
    c = client(server)
    for call in (lambda **o: chat(c, "say letters", **o),
                 lambda **o: c.generate(MODEL, "say <|letters|>", raw=True, **o)):
        answer = call(logprobs=True, top_logprobs=2)
        tokens = [t for t in answer.logprobs if t.token != "</s>"]
        assert all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in tokens)
        parts = list(call(logprobs=True, top_logprobs=2, stream=True))
        assert [t for p in parts for t in p.logprobs or []] == list(answer.logprobs)
        assert call().logprobs is None


@case("open")
def thinking(server):
    c = client(server)
    for think in None, True, "low":
        message = chat(c, "say think", think=think).message
        assert message.thinking == REASONING and message.content == FOUR, message
    parts = list(chat(c, "say think", stream=True, think=True))
    assert "".join(p.message.thinking or "" for p in parts) == REASONING
    assert "".join(p.message.content or "" for p in parts) == FOUR
    answer = c.generate(MODEL, "say think", think=True)
    assert answer.thinking == REASONING and answer.response == FOUR


@case("open")
def tools(server):
    c = client(server)
    messages = user("say call")
    answer = c.chat(MODEL, messages, tools=[WEATHER])
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    assert call.function.arguments == {"city": "Oslo", "days": 3}
    assert answer.message.thinking and not answer.message.content
    is_done(answer)
    messages += [answer.message, {"role": "tool", "tool_name": "weather", "content": "rain"}]
    assert c.chat(MODEL, messages, tools=[WEATHER]).message.content == SCRIPTS["after"]
    parts = list(chat(c, "say calls", tools=[WEATHER], stream=True))
    cities = [call.function.arguments["city"] for p in parts for call in p.message.tool_calls or []]
    assert cities == ["Bergen", "Tromsø"]


@case("open")
def formats(server):
    c = client(server)
    assert json.loads(chat(c, "say json", format="json").message.content)["city"] == "Oslo"
    schema = {"type": "object", "additionalProperties": False, "required": ["sky"],
              "properties": {"sky": {"enum": ["grey", "blue"]}}}
    answer = c.generate(MODEL, "say <|plain|>", raw=True, format=schema)  # no reasoning before it
    assert json.loads(answer.response)["sky"] in ("grey", "blue"), answer
    refused(400, "format: ", chat, c, "say plain", format={"type": "nothing"})


@case("open")
def generate(server):
    c = client(server)
    answer = c.generate(MODEL, "say plain", system="Be brief.")
    assert answer.response == PLAIN
    is_done(answer)
    parts = list(c.generate(MODEL, "say plain", stream=True))
    assert "".join(p.response for p in parts) == PLAIN and len(parts) > 3
    is_done(parts[-1])
    assert c.generate(MODEL, "say <|plain|>", raw=True).response == PLAIN
    # The model's tokens for a gap end the prompt, and so this script is the answer.
    filled = c.generate(MODEL, "def add(a, b):\n    ", suffix="\n\nprint(add(1, 2))\n")
    assert filled.response == SCRIPTS["fim_middle"]
    refused(400, "context: ", c.generate, MODEL, "say plain", context=[1, 2])


@case("open")
def loading(server):
    c = client(server)
    answer = c.generate(MODEL, keep_alive=-1)
    assert answer.done and answer.done_reason == "load" and answer.response == ""
    answer = c.chat(MODEL, [], keep_alive=0)
    assert answer.done and answer.done_reason == "load" and answer.message.content == ""
    server.wait_running(0)


@case("open")
async def async_many_at_once(server):
    c = client(server, kind=ollama.AsyncClient)

    async def whole(name):
        return (await chat(c, "say " + name)).message.content

    async def stream(name):
        return "".join([p.message.content async for p in await chat(c, "say " + name,
                                                                    stream=True)])

    names = ["plain", "letters", "json", "after"] * 4
    answers = await asyncio.gather(*(f(name) for name in names for f in (whole, stream)))
    assert answers == [SCRIPTS[name] for name in names for _ in range(2)]


@case("open")
def a_stream_closed_early(server):
    stream = chat(client(server), "say endless", stream=True, options={"num_predict": 60000})
    assert "".join(next(stream).message.content for _ in range(5)) and server.running() == 1
    stream.close()
    server.wait_running(0)


@case("keys")
def wrong_keys(server):
    stranger = ollama.Client(host=server.url, headers={"Authorization": "Bearer another"})
    refused(401, "invalid API key", chat, stranger, "say plain")
    refused(401, "invalid API key", stranger.list)
    assert chat(client(server), "say plain").message.content == PLAIN
    assert chat(client(server, 1), "say plain", MODEL + ":latest").message.content == PLAIN


@case("full")
def told_to_come_later(server):
    c = client(server)
    running = chat(c, "say endless", stream=True, options={"num_predict": 60000})
    next(running)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(chat(client(server), "say plain")))
    waiting.start()
    server.wait_running(2)
    refused(429, "", chat, client(server), "say plain")
    running.close()
    waiting.join(60)
    assert [a.message.content for a in answers] == [PLAIN]
    server.wait_running(0)


main()
