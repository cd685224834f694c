# SPDX-License-Identifier: Apache-2.0
"""The official Anthropic client against kvasir serve and the scripted model; see cases.py."""
import asyncio
import threading

import anthropic

from cases import FOUR, PLAIN, REASONING, SCRIPTS, case, main, raises

MODEL = "scripted"
WEATHER = {"name": "weather", "description": "The weather to come.", "input_schema": {
    "type": "object", "required": ["city"],
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}


def client(server, key=0, kind=anthropic.Anthropic, **options):
    options = {"max_retries": 0, "timeout": 60, **options}
    return kind(base_url=server.url, api_key=server.keys[key] if server.keys else "none", **options)


def user(text):
    return [{"role": "user", "content": text}]


def say(c, text, **options):
    return c.messages.create(**{"model": MODEL, "max_tokens": 100, "messages": user(text),
                                **options})


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens


@case("open")
def message(server):
    c = client(server)
    answer = say(c, "say plain")
    (block,) = answer.content
    assert block.type == "text" and block.text == PLAIN
    assert answer.type == "message" and answer.role == "assistant" and answer.model == MODEL
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None
    assert answer.id.startswith("msg_") and answer.usage.output_tokens > 3
    assert say(c, "say letters").content[0].text == SCRIPTS["letters"]
    short = say(c, "say endless", max_tokens=3)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 3
    stopped = say(c, "say plain", stop_sequences=["never", "fox"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "fox"
    assert stopped.content[0].text == "The quick brown "


@case("open")
def fields(server):
    answer = say(client(server), [{"type": "text", "text": "say", "cache_control": {
        "type": "ephemeral"}}, {"type": "text", "text": "plain"}], system="Be brief.",
                 metadata={"user_id": "u"}, service_tier="auto", thinking={"type": "adaptive"},
                 output_config={"effort": "low"}, cache_control={"type": "ephemeral"},
                 extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 4})
    assert answer.content[0].text == PLAIN
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
              {"type": "text", "text": "Be brief."}]
    assert say(client(server), "say plain", system=system).content[0].text == PLAIN


@case("open")
def cached_tokens(server):
    c = client(server)
    text = "another beginning of its own: " + "pages " * 40 + "plain"
    first, second = say(c, text).usage, say(c, text).usage
    assert second.cache_read_input_tokens > 200 and second.input_tokens == 1, second
    assert prompt_tokens(first) == prompt_tokens(second)
    assert second.cache_creation_input_tokens == 0


@case("open")
def events_in_their_order(server):
    with say(client(server), "say think", stream=True) as stream:
        events = list(stream)
    kinds = [e.type for e in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
    started = events[0].message
    assert started.content == [] and started.stop_reason is None and started.id.startswith("msg_")
    blocks, open_, signed = [], None, None
    for e in events[1:-2]:
        if e.type == "content_block_start":
            assert open_ is None and e.index == len(blocks)
            open_ = e.index
            blocks.append([e.content_block.type, ""])
        elif e.type == "content_block_delta":
            assert e.index == open_
            if e.delta.type == "signature_delta":
                signed = blocks[-1][0]
            else:
                blocks[-1][1] += getattr(e.delta, "text", None) or e.delta.thinking
        elif e.type == "content_block_stop":
            assert e.index == open_
            open_ = None
        else:
            assert e.type == "ping", e.type
    assert open_ is None and blocks == [["thinking", REASONING], ["text", FOUR]], blocks
    assert signed == "thinking"
    assert events[-2].delta.stop_reason == "end_turn"
    whole = say(client(server), "say think")
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    assert [(b.type, b.thinking if b.type == "thinking" else b.text) for b in whole.content] == \
        [("thinking", REASONING), ("text", FOUR)]


@case("open")
def stream_helper(server):
    with client(server).messages.stream(model=MODEL, max_tokens=100,
                                        messages=user("say letters")) as stream:
        parts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(parts) > 3 and "".join(parts) == SCRIPTS["letters"] == final.content[0].text
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 3


@case("open")
def a_tool_is_used(server):
    c = client(server)
    messages = user("what of the weather? call")
    answer = say(c, None, messages=messages, tools=[WEATHER], tool_choice={"type": "auto"})
    thinking, use = answer.content
    assert answer.stop_reason == "tool_use"
    assert thinking.type == "thinking" and thinking.thinking == "Rain or not?"
    assert use.type == "tool_use" and use.name == "weather" and use.id
    assert use.input == {"city": "Oslo", "days": 3}
    messages += [{"role": "assistant", "content": answer.content},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id,
                                               "content": "rain"}]}]
    second = say(c, None, messages=messages, tools=[WEATHER])
    assert second.content[0].text == SCRIPTS["after"] and second.stop_reason == "end_turn"
    assert second.usage.cache_read_input_tokens > 64, second.usage


@case("open")
def tools_streamed(server):
    with client(server).messages.stream(model=MODEL, max_tokens=200, tools=[WEATHER],
                                        messages=user("both? calls")) as stream:
        partial = "".join(e.partial_json for e in stream if e.type == "input_json")
        final = stream.get_final_message()
    text, *uses = final.content
    assert text.text == "Both at once." and final.stop_reason == "tool_use"
    assert [u.input for u in uses] == [{"city": "Bergen"}, {"city": "Tromsø"}]
    assert len({u.id for u in uses}) == 2 and "Bergen" in partial
    none = say(client(server), "say call", tools=[WEATHER], tool_choice={"type": "none"})
    assert none.stop_reason == "end_turn" and none.content[-1].type == "text"


@case("open")
def count_tokens(server):
    c = client(server)
    for options in {}, {"system": "Be brief."}, {"tools": [WEATHER]}:
        counted = c.messages.count_tokens(model=MODEL, messages=user("say plain"), **options)
        assert counted.input_tokens == prompt_tokens(say(c, "say plain", **options).usage), options


@case("open")
async def async_many_at_once(server):
    async with client(server, kind=anthropic.AsyncAnthropic) as c:
        async def whole(name):
            return (await say(c, "say " + name)).content[0].text

        async def stream(name):
            async with c.messages.stream(model=MODEL, max_tokens=100,
                                         messages=user("say " + name)) as s:
                return "".join([text async for text in s.text_stream])

        names = ["plain", "letters", "json", "after"] * 3
        answers = await asyncio.gather(*(f(name) for name in names for f in (whole, stream)))
        assert answers == [SCRIPTS[name] for name in names for _ in range(2)]
        counted = await c.messages.count_tokens(model=MODEL, messages=user("say plain"))
        assert counted.input_tokens > 0


@case("open")
def ends_early(server):
    stream = say(client(server), "say endless", stream=True, max_tokens=60000)
    assert [next(stream).type for _ in range(6)][0] == "message_start" and server.running() == 1
    stream.close()
    server.wait_running(0)
    raises(anthropic.APITimeoutError, say, client(server, timeout=0.3), "say endless",
           max_tokens=60000)
    server.wait_running(0)


@case("open")
def bad_requests(server):
    c = client(server)

    def bad(field, **options):
        e = raises(anthropic.BadRequestError, say, c, "say plain", **options)
        assert e.body["type"] == "error" and e.body["error"]["type"] == "invalid_request_error"
        assert e.body["error"]["message"].startswith(field), (field, e.body)

    bad("messages", messages=[])
    bad("messages[0].role", messages=[{"role": "nobody", "content": "x"}])
    bad("messages[0].content[0].type", messages=user([{"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": "AA=="}}]))
    bad("max_tokens", max_tokens=0)
    bad("temperature", extra_body={"temperature": -1})
    bad("tool_choice", tool_choice={"type": "any"})
    bad("tool_choice.name", tools=[WEATHER], tool_choice={"type": "tool", "name": "other"})
    bad("tools[0].name", tools=[{"input_schema": {"type": "object"}}])
    bad("messages: the text has more than 65536 tokens", messages=user("word " * 20000 + "plain"))


@case("keys")
def wrong_keys_and_names(server):
    c = client(server)
    assert say(c, "say plain").content[0].text == PLAIN
    stranger = anthropic.Anthropic(base_url=server.url, api_key="another", max_retries=0)
    e = raises(anthropic.AuthenticationError, say, stranger, "say plain")
    assert e.body["error"]["type"] == "authentication_error", e.body
    raises(anthropic.AuthenticationError, stranger.messages.count_tokens, model=MODEL,
           messages=user("x"))
    e = raises(anthropic.NotFoundError, say, c, "say plain", model="claude-opus-9")
    assert e.body["error"]["type"] == "not_found_error", e.body
    bearer = anthropic.Anthropic(base_url=server.url, auth_token=server.keys[0], api_key=None,
                                 max_retries=0)
    assert say(bearer, "say plain").content[0].text == PLAIN


@case("keys")
def tenants_share_no_prefixes(server):
    text = "what only one of these two says, " * 10 + "plain"

    def cached(key):
        return say(client(server, key), text).usage.cache_read_input_tokens

    assert max(cached(0), cached(1)) < 40, "a tenant was shown what another one said"
    assert cached(0) > 200 and cached(1) > 200


@case("full")
def told_to_come_later(server):
    c = client(server)
    running = say(c, "say endless", stream=True, max_tokens=60000)
    next(running)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(say(c, "say plain")))
    waiting.start()
    server.wait_running(2)
    e = raises(anthropic.RateLimitError, say, c, "say plain")
    assert e.body["error"]["type"] == "rate_limit_error" and e.response.headers["Retry-After"]
    patient = client(server, max_retries=5)
    later = threading.Thread(target=lambda: answers.append(say(patient, "say plain")))
    later.start()
    running.close()
    for thread in waiting, later:
        thread.join(60)
    assert [a.content[0].text for a in answers] == [PLAIN, PLAIN]
    server.wait_running(0)


main()
