# SPDX-License-Identifier: Apache-2.0
"""The official OpenAI client against kvasir serve and the scripted model; see cases.py."""
import asyncio
import json
import threading
import time

import openai

from cases import FOUR, PLAIN, REASONING, SCRIPTS, case, main, raises

MODEL = "scripted"
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather to come.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}}}}}


def client(server, key=0, kind=openai.OpenAI, **options):
    options = {"max_retries": 0, "timeout": 60, **options}
    return kind(base_url=server.url + "/v1",
                api_key=server.keys[key] if server.keys else "none", **options)


def user(text):
    return [{"role": "user", "content": text}]


def chat(c, text, **options):
    return c.chat.completions.create(model=MODEL, messages=user(text), **options)


def usage_adds_up(usage):
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, usage


def assemble(chunks):
    """Per choice content, reasoning, calls [(id, name, arguments)] and finish; and the usage."""
    choices, usage, ids = {}, None, set()
    for chunk in chunks:
        assert chunk.object == "chat.completion.chunk"
        assert usage is None, "a chunk behind the usage"
        ids.add(chunk.id)
        usage = chunk.usage
        assert (usage is None) == bool(chunk.choices)
        for choice in chunk.choices:
            c = choices.setdefault(choice.index, {"content": "", "reasoning": "", "calls": [],
                                                  "finish": None, "roles": 0})
            assert c["finish"] is None, "a delta behind the finish"
            delta = choice.delta
            c["roles"] += delta.role == "assistant"
            c["content"] += delta.content or ""
            c["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or []:
                if call.index == len(c["calls"]):
                    c["calls"].append((call.id, call.function.name, ""))
                    assert call.type == "function" and call.id and call.function.name
                else:
                    assert call.index == len(c["calls"]) - 1 and not call.function.name
                id_, name, arguments = c["calls"][call.index]
                c["calls"][call.index] = id_, name, arguments + (call.function.arguments or "")
            c["finish"] = choice.finish_reason
    assert len(ids) == 1, ids
    assert all(c["roles"] == 1 and c["finish"] for c in choices.values()), choices
    return choices, usage


def streamed(c, text, **options):
    with chat(c, text, stream=True, stream_options={"include_usage": True}, **options) as stream:
        return assemble(stream)


# ---- answers -------------------------------------------------------------------------------------


@case("open")
def chat_whole_and_streamed(server):
    c = client(server)
    for name in "plain", "letters":
        answer = chat(c, "say " + name)
        (choice,) = answer.choices
        assert choice.message.content == SCRIPTS[name] and choice.finish_reason == "stop"
        assert choice.message.role == "assistant" and not choice.message.tool_calls
        assert answer.object == "chat.completion" and answer.model == MODEL
        assert abs(answer.created - time.time()) < 3600 and answer.id.startswith("chatcmpl-")
        usage_adds_up(answer.usage)
        choices, usage = streamed(c, "say " + name)
        assert choices[0]["content"] == SCRIPTS[name] and choices[0]["finish"] == "stop"
        assert usage.prompt_tokens == answer.usage.prompt_tokens
        assert usage.completion_tokens == answer.usage.completion_tokens
        usage_adds_up(usage)


@case("open")
def stream_without_usage(server):
    with chat(client(server), "say plain", stream=True) as stream:
        chunks = list(stream)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "stop"


@case("open")
def stream_helper(server):
    with client(server).chat.completions.stream(model=MODEL, messages=user("say plain")) as stream:
        deltas = [e.delta for e in stream if e.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == PLAIN == final.choices[0].message.content
    assert len(deltas) > 3, "not piece by piece"


@case("open")
def cached_tokens_on_the_second_call(server):
    c = client(server)
    text = "a beginning of its own: " + "pages " * 40 + "plain"
    first, second = chat(c, text).usage, chat(c, text).usage
    assert first.prompt_tokens_details.cached_tokens < 30, first
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1, second
    _, third = streamed(c, text)
    assert third.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1, third


@case("open")
def several_choices(server):
    answer = chat(client(server), "say plain", n=2)
    assert [c.message.content for c in answer.choices] == [PLAIN, PLAIN]
    assert [c.index for c in answer.choices] == [0, 1]
    one = chat(client(server), "say plain").usage
    assert answer.usage.completion_tokens == 2 * one.completion_tokens
    assert answer.usage.prompt_tokens == one.prompt_tokens
    choices, usage = streamed(client(server), "say plain", n=2)
    assert [choices[i]["content"] for i in range(2)] == [PLAIN, PLAIN]
    assert usage.completion_tokens == 2 * one.completion_tokens


@case("open")
def stop_texts(server):
    c = client(server)
    for stop in "fox", ["never", "fox"]:
        (choice,) = chat(c, "say plain", stop=stop).choices
        assert choice.message.content == "The quick brown " and choice.finish_reason == "stop"
        choices, _ = streamed(c, "say plain", stop=stop)
        assert choices[0]["content"] == "The quick brown " and choices[0]["finish"] == "stop"


@case("open")
def lengths(server):
    c = client(server)
    for options in {"max_completion_tokens": 3}, {"max_tokens": 3}, {"max_tokens": 9,
                                                                     "max_completion_tokens": 3}:
        answer = chat(c, "say endless", **options)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


@case("open")
def seeds(server):
    def drawn(seed):
        answer = chat(client(server), "say plain", seed=seed, temperature=50, max_tokens=12)
        return answer.choices[0].message.content

    assert drawn(7) == drawn(7)
    assert len({drawn(seed) for seed in range(8)}) > 1, "the seed changes nothing"
    # The same when streamed.
    choices, _ = streamed(client(server), "say plain", seed=7, temperature=50, max_tokens=12)
    assert choices[0]["content"] == drawn(7)


@case("open")
def logprobs(server):
    c = client(server)
    answer = chat(c, "say letters", logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    if content[-1].token == "</s>":
        content = content[:-1]
    assert b"".join(bytes(t.bytes) for t in content).decode() == SCRIPTS["letters"]
    for t in content:
        assert len(t.top_logprobs) == 3 and -0.01 < t.logprob <= 0
        assert t.top_logprobs[0].token == t.token and t.top_logprobs[0].logprob == t.logprob
        assert all(o.logprob < -10 for o in t.top_logprobs[1:])
    whole = [(t.token, t.logprob) for t in answer.choices[0].logprobs.content]
    with chat(c, "say letters", logprobs=True, top_logprobs=3, stream=True) as stream:
        parts = [(t.token, t.logprob) for chunk in stream for choice in chunk.choices
                 if choice.logprobs for t in choice.logprobs.content]
    assert parts == whole
    assert chat(c, "say plain", logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(c, "say plain").choices[0].logprobs is None


@case("open")
def logit_bias(server):
    answer = chat(client(server), "say plain", logit_bias={"257": 100})  # the end token
    assert answer.choices[0].message.content == "" and answer.choices[0].finish_reason == "stop"


@case("open")
def penalties_and_harmless_fields(server):
    answer = chat(client(server), "say plain", presence_penalty=0.5, frequency_penalty=0.5,
                  user="somebody", metadata={"a": "b"}, store=False, service_tier="auto",
                  parallel_tool_calls=True, extra_body={"unknown_field": 1, "top_k": 5,
                                                        "repetition_penalty": 1.01})
    assert answer.choices[0].message.content == PLAIN


@case("open")
def reasoning(server):
    message = chat(client(server), "say think").choices[0].message
    assert message.content == FOUR and message.reasoning_content == REASONING
    choices, _ = streamed(client(server), "say think")
    assert choices[0]["content"] == FOUR and choices[0]["reasoning"] == REASONING


@case("open")
def json_object(server):
    c = client(server)
    answer = chat(c, "say json", response_format={"type": "json_object"})
    assert answer.choices[0].message.content == SCRIPTS["json"]
    choices, _ = streamed(c, "say json", response_format={"type": "json_object"})
    assert json.loads(choices[0]["content"])["degrees"] == [-3, 0.5, 12]
    answer = chat(c, "say json", response_format={
        "type": "json_schema", "json_schema": {"name": "place", "schema": {"type": "object"}}})
    assert json.loads(answer.choices[0].message.content) == json.loads(SCRIPTS["json"])
    e = raises(openai.BadRequestError, chat, c, "say json", response_format={
        "type": "json_schema", "json_schema": {"name": "place"}})
    assert e.param == "response_format.json_schema.schema", e.body


@case("json")
def json_object_by_force(server):
    """A model that would tell a story if it were not forced to write JSON."""
    c = client(server)
    messages = user("Tell me a story about a fox.")
    options = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0}
    assert not c.chat.completions.create(**options).choices[0].message.content.startswith("{")
    (choice,) = c.chat.completions.create(response_format={"type": "json_object"},
                                          **options).choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    else:
        assert choice.message.content.lstrip().startswith("{"), choice


# ---- tools ---------------------------------------------------------------------------------------


@case("open")
def a_call_and_its_result(server):
    c = client(server)
    messages = user("what of the weather? call")
    answer = c.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER],
                                       tool_choice="auto")
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    assert choice.message.reasoning_content == "Rain or not?"
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo", "days": 3}
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    second = c.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
    assert second.choices[0].message.content == SCRIPTS["after"]
    assert second.choices[0].finish_reason == "stop"
    assert second.usage.prompt_tokens_details.cached_tokens > 64, second.usage


@case("open")
def calls_streamed(server):
    choices, _ = streamed(client(server), "both? calls", tools=[WEATHER])
    assert choices[0]["finish"] == "tool_calls" and choices[0]["content"] == "Both at once."
    assert [(name, json.loads(arguments)["city"]) for _, name, arguments in
            choices[0]["calls"]] == [("weather", "Bergen"), ("weather", "Tromsø")]
    assert len({id_ for id_, _, _ in choices[0]["calls"]}) == 2
    choices, _ = streamed(client(server), "both? calls", tools=[WEATHER], parallel_tool_calls=False)
    assert len(choices[0]["calls"]) == 1


@case("open")
def no_tools_no_calls(server):
    text = SCRIPTS["call"].partition("</think>")[2]
    for options in {}, {"tools": [WEATHER], "tool_choice": "none"}:
        (choice,) = chat(client(server), "say call", **options).choices
        assert not choice.message.tool_calls and choice.finish_reason == "stop"
        assert choice.message.content == text, choice.message
    e = raises(openai.BadRequestError, chat, client(server), "say call", tools=[WEATHER],
               tool_choice={"type": "function", "function": {"name": "other"}})
    assert e.param == "tool_choice.function.name", e.body


# ---- completions, models -------------------------------------------------------------------------


@case("open")
def completions(server):
    c = client(server)
    answer = c.completions.create(model=MODEL, prompt="say <|plain|>", max_tokens=60)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text == PLAIN and answer.choices[0].finish_reason == "stop"
    usage_adds_up(answer.usage)
    start = c.post(server.url + "/tokenize", cast_to=object,
                   body={"prompt": "say <|plain|>", "add_special_tokens": False})["tokens"]
    by_ids = c.completions.create(model=MODEL, prompt=start, max_tokens=60, logprobs=2)
    assert by_ids.choices[0].text == PLAIN and by_ids.usage.prompt_tokens == len(start)
    logged = by_ids.choices[0].logprobs
    assert len(logged.tokens) == len(logged.token_logprobs) == len(logged.top_logprobs)
    assert logged.text_offset[0] == 0 and logged.text_offset == sorted(logged.text_offset)
    with c.completions.create(model=MODEL, prompt=[start], max_tokens=60, stream=True,
                              stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    assert "".join(x.choices[0].text for x in chunks if x.choices) == PLAIN
    assert chunks[-1].usage.prompt_tokens == len(start)


@case("open")
def prompts(server):
    c = client(server)
    both = c.completions.create(model=MODEL, prompt=["say <|plain|>", "say <|plain|>"], n=2,
                                max_tokens=60)
    assert [x.index for x in both.choices] == [0, 1, 2, 3]
    assert {x.text for x in both.choices} == {PLAIN}
    usage_adds_up(both.usage)
    echoed = c.completions.create(model=MODEL, prompt="say <|plain|>", echo=True, logprobs=1,
                                  max_tokens=0)
    assert echoed.choices[0].text == "say <|plain|>" and not echoed.usage.completion_tokens
    logged = echoed.choices[0].logprobs
    assert logged.token_logprobs[0] is None and None not in logged.token_logprobs[1:]
    assert len(logged.tokens) == len(logged.text_offset) == echoed.usage.prompt_tokens


@case("open")
def embeddings(server):
    c = client(server)
    answer = c.embeddings.create(model=MODEL, input=["say", "plain"]) # asks for base64
    floats = c.embeddings.create(model=MODEL, input="plain", encoding_format="float")
    assert answer.object == "list" and [x.index for x in answer.data] == [0, 1]
    first = answer.data[1].embedding
    assert all(abs(a - b) < 1e-7 for a, b in zip(first, floats.data[0].embedding, strict=True))
    assert abs(sum(x * x for x in first) - 1) < 1e-5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 0
    cut = c.embeddings.create(model=MODEL, input="plain", dimensions=4)
    assert len(cut.data[0].embedding) == 4


@case("open")
def models(server):
    c = client(server)
    (model,) = c.models.list().data
    assert c.models.retrieve(model.id).id == model.id and model.object == "model"
    raises(openai.NotFoundError, c.models.retrieve, "another")


# ---- many at once --------------------------------------------------------------------------------


@case("open")
async def async_many_at_once(server):
    async with client(server, kind=openai.AsyncOpenAI) as c:
        async def whole(name):
            return (await chat(c, "say " + name)).choices[0].message.content

        async def stream(name):
            text = ""
            async with await chat(c, "say " + name, stream=True) as chunks:
                async for chunk in chunks:
                    text += chunk.choices[0].delta.content or ""
            return text

        names = ["plain", "letters", "json", "after"] * 4
        answers = await asyncio.gather(*(f(name) for name in names for f in (whole, stream)))
        assert answers == [SCRIPTS[name] for name in names for _ in range(2)]
        assert {m.id async for m in await c.models.list()}
        try:
            await chat(c, "say plain", temperature=-1)
        except openai.BadRequestError as e:
            assert e.param == "temperature"
        else:
            raise AssertionError("no error")


@case("open")
async def async_cancelled(server):
    async with client(server, kind=openai.AsyncOpenAI) as c:
        tasks = [asyncio.create_task(chat(c, "say endless", max_tokens=60000)) for _ in range(3)]
        await asyncio.to_thread(server.wait_running, 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(server.wait_running, 0)


@case("open")
def a_stream_closed_early(server):
    stream = chat(client(server), "say endless", stream=True, max_tokens=60000)
    texts = [next(stream).choices[0].delta.content for _ in range(5)]
    assert "".join(texts) and server.running() == 1
    stream.close()
    print(f"  0 running {1000 * server.wait_running(0):.0f} ms after a stream was closed")


@case("open")
def timeouts(server):
    c = client(server, timeout=0.3)
    raises(openai.APITimeoutError, chat, c, "say endless", max_tokens=60000)
    server.wait_running(0)
    assert chat(c.with_options(timeout=60), "say plain").choices[0].message.content == PLAIN


@case("open")
def bad_requests(server):
    c = client(server)

    def bad(param, **options):
        e = raises(openai.BadRequestError, c.chat.completions.create,
                   **{"model": MODEL, "messages": user("say plain"), **options})
        assert e.param == param and param in e.message and e.status_code == 400, (param, e.body)
        assert e.type == "invalid_request_error", e.body

    bad("messages", messages=[])
    bad("messages[0].role", messages=[{"role": "nobody", "content": "x"}])
    bad("messages[0].content[0].type", messages=user([{"type": "image_url", "image_url": {
        "url": "data:image/png;base64,AA=="}}]))
    bad("temperature", temperature=-1)
    bad("top_p", top_p=1.5)
    bad("n", n=0)
    bad("max_completion_tokens", max_completion_tokens=0)
    bad("logit_bias[\"99999\"]", logit_bias={"99999": 1})
    bad("top_logprobs", top_logprobs=3)
    bad("tools[0].function", tools=[{"type": "function"}])
    bad("modalities", modalities=["text", "audio"])
    bad("stop[1]", stop=["a", ""])
    bad("seed", seed=1.5)
    e = raises(openai.BadRequestError, chat, c, "word " * 20000 + "plain")
    assert e.code == "context_length_exceeded", e.body
    e = raises(openai.BadRequestError, c.completions.create, model=MODEL, prompt=[-1])
    assert e.param == "prompt[0]", e.body
    e = raises(openai.BadRequestError, c.embeddings.create, model=MODEL, input=["x", [5]])
    assert e.param == "input[1]", e.body


# ---- keys ----------------------------------------------------------------------------------------


@case("keys")
def wrong_keys_and_names(server):
    stranger = openai.OpenAI(base_url=server.url + "/v1", api_key="another", max_retries=0)
    e = raises(openai.AuthenticationError, chat, stranger, "say plain")
    assert e.code == "invalid_api_key" and e.response.headers["WWW-Authenticate"] == "Bearer"
    raises(openai.AuthenticationError, stranger.models.list)
    c = client(server)
    assert [m.id for m in c.models.list()] == [MODEL]
    assert chat(c, "say plain").choices[0].message.content == PLAIN
    e = raises(openai.NotFoundError, c.chat.completions.create, model="gpt-5",
               messages=user("say plain"))
    assert e.code == "model_not_found" and e.param == "model", e.body
    e = raises(openai.NotFoundError, c.completions.create, model="gpt-5", prompt="x")
    assert e.param == "model", e.body


@case("keys")
def tenants_share_no_prefixes(server):
    text = "what only one of them says, " * 10 + "plain"

    def cached(key, **options):
        return chat(client(server, key), text, **options).usage.prompt_tokens_details.cached_tokens

    begins = len("user: ") + 1  # shared with the tenant's earlier prompts
    assert cached(0) <= begins
    assert cached(0) > 200
    assert cached(1) == 0, "a tenant was shown what another one said"
    assert cached(1) > 200
    assert cached(0, extra_body={"cache_salt": "mine"}) == 0
    assert cached(0, extra_body={"cache_salt": "mine"}) > 200


@case("keys")
def cancelled_by_its_tenant_only(server):
    mine, other = client(server, 0), client(server, 1)
    with chat(mine, "say endless", stream=True, max_tokens=60000) as stream:
        id_ = next(stream).id
        raises(openai.NotFoundError, other.delete, f"/requests/{id_}", cast_to=object)
        raises(openai.NotFoundError, other.post, f"/requests/{id_}/cancel", cast_to=object)
        raises(openai.NotFoundError, mine.delete, "/requests/chatcmpl-none", cast_to=object)
        assert server.running() == 1
        answer = mine.delete(f"/requests/{id_}", cast_to=object)
        assert answer["cancelled"] is True and answer["id"] == id_
        e = raises(openai.APIError, list, stream)
        assert "cancelled" in e.message, e
    raises(openai.NotFoundError, mine.post, f"/requests/{id_}/cancel", cast_to=object)
    server.wait_running(0)


# ---- a full queue --------------------------------------------------------------------------------


@case("full")
def told_to_come_later(server):
    """--max-num-seqs 1 --max-waiting 1: the third request gets a 429; a retry succeeds."""
    c = client(server)
    answers, ends = [], []

    def run():
        ends.append(raises(openai.APIStatusError, chat, c, "say endless", max_tokens=60000,
                           extra_headers={"X-Request-Id": "the-first"}))

    def wait(waiter):
        answers.append(chat(waiter, "say plain").choices[0].message.content)

    threads = [threading.Thread(target=run)]
    threads[0].start()
    server.wait_running(1)
    server.wait_started()
    threads.append(threading.Thread(target=wait, args=[c]))
    threads[1].start()
    server.wait_running(2)
    e = raises(openai.RateLimitError, chat, c, "say plain")
    assert int(e.response.headers["Retry-After"]) >= 1 and e.type == "rate_limit_error", e.body
    threads.append(threading.Thread(target=wait, args=[client(server, max_retries=5)]))
    threads[2].start()
    time.sleep(0.5)
    assert threads[2].is_alive() and not answers
    assert c.delete("/requests/the-first", cast_to=object)["cancelled"] is True
    for thread in threads:
        thread.join(60)
    assert answers == [PLAIN, PLAIN] and ends[0].status_code == 499, (answers, ends)
    server.wait_running(0)


main()
