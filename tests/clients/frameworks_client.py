# SPDX-License-Identifier: Apache-2.0
"""Frameworks over OpenAI's and Anthropic's clients against kvasir serve with a model that knows
tools; see cases.py. What is checked is the form of answers: a small model's content is its own.
In the part "prompted" the form is asked for in words alone, which a good model understands."""
import json
import logging
import os
import warnings

os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LITELLM_LOCAL_MODEL_COST_MAP="True",
                  LANGCHAIN_TRACING_V2="false", LITELLM_LOG="ERROR")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from typing import Literal, Optional  # noqa: E402

import anthropic  # noqa: E402
import openai  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

from cases import case, main, raises  # noqa: E402

MODEL = "local"
ASK = "Ann is 31 years old and lives in Oslo. Who is it?"
LIMIT = 200


class Person(BaseModel):
    """A person."""
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    city: Optional[Literal["Oslo", "Bergen"]]


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age"],
          "properties": {"name": {"type": "string", "maxLength": 40},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150}}}
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city", "unit"], "properties": {
        "city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}}}}
TIME = {"name": "get_time", "description": "The time of a city.", "parameters": {
    "type": "object", "required": ["city"], "properties": {"city": {"type": "string",
                                                                    "maxLength": 30}}}}


def is_person(person):
    assert isinstance(person, Person), person
    assert 0 <= person.age <= 150 and len(person.name) <= 40, person


def is_schema(text):
    value = json.loads(text)
    assert set(value) == {"name", "age"} and 0 <= value["age"] <= 150, value


def is_weather(name, arguments):
    assert name == "get_weather", name
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert set(value) == {"city", "unit"} and value["unit"] in ("C", "F"), value


def user(text=ASK):
    return [{"role": "user", "content": text}]


def function(tool, **more):
    return {"type": "function", "function": {**tool, **more}}


# ---- openai --------------------------------------------------------------------------------------


def openai_client(server, kind=openai.OpenAI):
    return kind(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


def chat(server, text=ASK, **options):
    options = {"max_tokens": LIMIT, "temperature": 0, **options}
    return openai_client(server).chat.completions.create(model=MODEL, messages=user(text),
                                                         **options)


@case("openai")
def openai_json_schema(server):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA,
                                                   "strict": True}}
    (choice,) = chat(server, response_format=form).choices
    is_schema(choice.message.content)
    assert choice.finish_reason == "stop"
    streamed = chat(server, response_format=form, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in streamed if c.choices)
    assert text == choice.message.content, text
    for choice in chat(server, response_format=form, n=2, temperature=1, seed=5).choices:
        is_schema(choice.message.content)


@case("openai")
def openai_parse(server):
    (choice,) = openai_client(server).chat.completions.parse(
        model=MODEL, messages=user(), response_format=Person, max_tokens=LIMIT).choices
    is_person(choice.message.parsed)


@case("openai")
def openai_required(server):
    tools = [function(WEATHER), function(TIME)]
    (choice,) = chat(server, "Weather in Oslo?", tools=tools, tool_choice="required",
                     parallel_tool_calls=False).choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and not choice.message.content
    if call.function.name == "get_weather":
        is_weather(call.function.name, call.function.arguments)
    (choice,) = chat(server, "Hello!", tools=tools, parallel_tool_calls=False, tool_choice={
        "type": "function", "function": {"name": "get_weather"}}).choices
    is_weather(choice.message.tool_calls[0].function.name,
               choice.message.tool_calls[0].function.arguments)
    streamed = chat(server, "Hello!", tools=tools, stream=True, parallel_tool_calls=False,
                    tool_choice={"type": "allowed_tools", "allowed_tools": {
                        "mode": "required", "tools": [{"type": "function", "function": {
                            "name": "get_weather"}}]}})
    calls = [t for c in streamed if c.choices for t in c.choices[0].delta.tool_calls or []]
    is_weather(calls[0].function.name, "".join(c.function.arguments or "" for c in calls))


@case("openai")
def openai_cut_call_is_none(server):
    (choice,) = chat(server, "Hello!", tools=[function(WEATHER)], tool_choice="required",
                     max_tokens=12).choices
    assert choice.finish_reason == "length" and not choice.message.tool_calls
    assert choice.message.content == "", choice.message.content


@case("openai")
def openai_strict_tools(server):
    tools = [function(WEATHER, strict=True)]
    (choice,) = chat(server, "Say hello to me in one word.", tools=tools).choices
    assert choice.message.content or choice.message.tool_calls
    (choice,) = chat(server, "What is the weather in Oslo? Use the tool.", tools=tools).choices
    for call in choice.message.tool_calls or []:
        is_weather(call.function.name, call.function.arguments)


@case("openai")
def other_servers_fields(server):
    for field, good in (({"guided_choice": ["red", "green"]}, ("red", "green")),
                        ({"structured_outputs": {"choice": ["red", "green"]}}, ("red", "green")),
                        ({"guided_regex": "[ab]{3}"}, None),
                        ({"grammar": 'root ::= "yes" | "no"'}, ("yes", "no"))):
        text = chat(server, "Which one?", extra_body=field).choices[0].message.content
        assert text in good if good else set(text) <= {"a", "b"} and len(text) == 3, (field, text)
    for field in {"json_schema": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}:
        is_schema(chat(server, extra_body=field).choices[0].message.content)
    text = openai_client(server).completions.create(
        model=MODEL, prompt="A colour:", max_tokens=9,
        extra_body={"guided_choice": ["red", "green"]}).choices[0].text
    assert text in ("red", "green"), text


@case("openai")
def openai_refusals(server):
    def bad(param, why, **options):
        e = raises(openai.BadRequestError, chat, server, **options)
        assert e.param == param and why in e.message, (e.param, e.message)

    schema = {"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}
    bad("response_format.json_schema.schema", "#/properties/a", response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    bad("tools[0].function.parameters", "#/properties/a", tool_choice="required",
        tools=[function({"name": "f", "parameters": schema})])
    bad("guided_regex", "cannot be combined with \"guided_json\"",
        extra_body={"guided_json": {}, "guided_regex": "a"})
    bad("structured_outputs.structural_tag", "not supported",
        extra_body={"structured_outputs": {"structural_tag": "{}"}})
    bad("guided_regex", "", extra_body={"guided_regex": "(a"})
    bad("grammar", "", extra_body={"grammar": "root ::= b"})


@case("openai")
def openai_responses(server):
    c = openai_client(server)
    first = c.responses.create(model=MODEL, input=ASK, max_output_tokens=LIMIT, temperature=0)
    assert first.output_text and first.status in ("completed", "incomplete"), first
    second = c.responses.create(model=MODEL, input="And how old?", max_output_tokens=20,
                                previous_response_id=first.id, temperature=0)
    assert second.previous_response_id == first.id
    cached = second.usage.input_tokens_details.cached_tokens
    assert cached >= first.usage.input_tokens, (cached, first.usage)
    parsed = c.responses.parse(model=MODEL, input=ASK, text_format=Person,
                               max_output_tokens=LIMIT, temperature=0)
    is_person(parsed.output_parsed)
    tool = {"type": "function", "name": WEATHER["name"], "parameters": WEATHER["parameters"]}
    with c.responses.stream(model=MODEL, input="Weather in Oslo?", tools=[tool], temperature=0,
                            tool_choice="required", parallel_tool_calls=False,
                            max_output_tokens=LIMIT) as stream:
        (call,) = stream.get_final_response().output
    is_weather(call.name, call.arguments)


# ---- anthropic -----------------------------------------------------------------------------------


def anthropic_client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def say(server, text=ASK, **options):
    return anthropic_client(server).messages.create(
        **{"model": MODEL, "max_tokens": LIMIT, "messages": user(text),
           "extra_body": {"temperature": 0}, **options})


def anthropic_tool(tool, **more):
    return {"name": tool["name"], "description": tool["description"],
            "input_schema": tool["parameters"], **more}


@case("anthropic")
def anthropic_forced(server):
    tools = [anthropic_tool(WEATHER), anthropic_tool(TIME)]
    for choice in {"type": "tool", "name": "get_weather"}, {"type": "any"}:
        answer = say(server, "Weather in Oslo?", tools=tools,
                     tool_choice={**choice, "disable_parallel_tool_use": True})
        (use,) = answer.content
        assert answer.stop_reason == "tool_use" and use.type == "tool_use", answer
        if use.name == "get_weather":
            is_weather(use.name, use.input)
    with anthropic_client(server).messages.stream(
            model=MODEL, max_tokens=LIMIT, messages=user("Hello!"), tools=tools,
            tool_choice={"type": "tool", "name": "get_weather",
                         "disable_parallel_tool_use": True}) as stream:
        final = stream.get_final_message()
    is_weather(final.content[0].name, final.content[0].input)


@case("anthropic")
def anthropic_format(server):
    form = {"type": "json_schema", "schema": SCHEMA}
    for extra in {"output_config": {"format": form}}, {"output_format": form}:
        answer = say(server, extra_body={"temperature": 0, **extra})
        is_schema(answer.content[0].text)
        assert answer.stop_reason == "end_turn"
    schema = {"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}}
    e = raises(anthropic.BadRequestError, say, server, extra_body={
        "output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert e.body["error"]["message"].startswith("output_config.format.schema: #/properties/a"), e
    e = raises(anthropic.BadRequestError, say, server, tool_choice={"type": "any"},
               tools=[{"name": "f", "input_schema": schema}])
    assert e.body["error"]["message"].startswith("tools[0].input_schema: #/properties/a"), e
    e = raises(anthropic.BadRequestError, say, server, tools=[anthropic_tool(TIME)],
               tool_choice={"type": "tool", "name": "other"})
    assert e.body["error"]["message"].startswith("tool_choice.name: "), e


# ---- langchain -----------------------------------------------------------------------------------


def langchain(server, **options):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(base_url=server.url + "/v1", api_key="none", model=MODEL, max_retries=0,
                      temperature=0, max_tokens=LIMIT, **options)


@case("langchain")
def langchain_invoke(server):
    assert langchain(server).invoke("Say hello.").content


@case("langchain")
def langchain_stream(server):
    assert "".join(c.content for c in langchain(server).stream("Say hello."))


@case("langchain")
def langchain_bind_tools(server):
    langchain(server).bind_tools([function(WEATHER)]).invoke("Say hello.")


@case("prompted")
def langchain_json_mode(server):
    model = langchain(server).with_structured_output(Person, method="json_mode", include_raw=True)
    json.loads(model.invoke(ASK + " Answer in JSON.")["raw"].content)


@case("langchain")
def langchain_structured_default(server):
    is_person(langchain(server).with_structured_output(Person).invoke(ASK))


@case("langchain")
def langchain_function_calling(server):
    is_person(langchain(server).with_structured_output(Person,
                                                       method="function_calling").invoke(ASK))


@case("langchain")
def langchain_bind_tools_any(server):
    model = langchain(server).bind_tools([function(WEATHER)], tool_choice="any")
    (call, *_) = model.invoke("Weather in Oslo?").tool_calls
    is_weather(call["name"], call["args"])


@case("langchain")
def langchain_responses(server):
    model = langchain(server, use_responses_api=True)
    assert model.invoke("Say hello.").text
    is_person(model.with_structured_output(Person).invoke(ASK))


def langchain_anthropic(server):
    from langchain_anthropic import ChatAnthropic
    return ChatAnthropic(base_url=server.url, api_key="none", model=MODEL, max_retries=0,
                         max_tokens=LIMIT)


@case("langchain")
def langchain_anthropic_invoke(server):
    assert langchain_anthropic(server).invoke("Say hello.").content


@case("langchain")
def langchain_anthropic_structured(server):
    is_person(langchain_anthropic(server).with_structured_output(Person).invoke(ASK))


def langchain_of_ollama(server, **options):
    from langchain_ollama import ChatOllama
    (model,) = server.get("/api/tags")["models"]
    return ChatOllama(model=model["name"], base_url=server.url, temperature=0, num_predict=LIMIT,
                      validate_model_on_init=True, **options)


@case("langchain")
def langchain_ollama(server):
    model = langchain_of_ollama(server, num_ctx=2048, seed=1)
    answer = model.invoke("Say hello.")
    assert answer.content and answer.usage_metadata["output_tokens"] > 0, answer
    assert "".join(c.content for c in model.stream("Say hello."))


@case("langchain")
def langchain_ollama_tools(server):
    messages = [("user", "What is the weather in Oslo, in C? Call get_weather.")]
    answer = langchain_of_ollama(server).bind_tools([function(WEATHER)]).invoke(messages)
    for call in answer.tool_calls:
        assert call["name"] and isinstance(call["args"], dict), answer


@case("langchain")
def langchain_ollama_structured(server):
    is_person(langchain_of_ollama(server).with_structured_output(Person).invoke(ASK))


# ---- litellm -------------------------------------------------------------------------------------


def litellm_chat(server, model, base, **options):
    import litellm
    litellm.suppress_debug_info = True
    return litellm.completion(model=model + MODEL, api_base=server.url + base, api_key="none",
                              max_tokens=LIMIT, messages=user(), **options).choices[0].message


@case("litellm")
def litellm_openai(server):
    assert litellm_chat(server, "openai/", "/v1").content


@case("litellm")
def litellm_vllm(server):
    assert litellm_chat(server, "hosted_vllm/", "/v1").content


@case("litellm")
def litellm_anthropic(server):
    assert litellm_chat(server, "anthropic/", "").content


@case("litellm")
def litellm_ollama(server):
    import litellm
    (model,) = server.get("/api/tags")["models"]
    ask = {"model": "ollama_chat/" + model["name"], "api_base": server.url, "max_tokens": LIMIT}
    assert litellm.completion(messages=user(), **ask).choices[0].message.content
    stream = litellm.completion(messages=user(), stream=True, **ask)
    assert "".join(part.choices[0].delta.content or "" for part in stream)
    answer = litellm.completion(messages=user(), response_format=Person, **ask)
    is_person(Person.model_validate_json(answer.choices[0].message.content))


@case("litellm")
def litellm_text(server):
    import litellm
    assert litellm.text_completion(model="text-completion-openai/" + MODEL, prompt="One, two,",
                                   api_base=server.url + "/v1", api_key="none",
                                   max_tokens=9).choices[0].text


@case("litellm")
def litellm_response_format(server):
    is_person(Person.model_validate_json(
        litellm_chat(server, "openai/", "/v1", response_format=Person).content))


# ---- instructor ----------------------------------------------------------------------------------


def instruct(server, mode):
    import instructor
    client = instructor.from_openai(openai_client(server), mode=getattr(instructor.Mode, mode))
    return client.chat.completions.create(model=MODEL, messages=user(), response_model=Person,
                                          max_retries=3, max_tokens=LIMIT, temperature=0)


@case("instructor")
def instructor_tools(server):
    is_person(instruct(server, "TOOLS"))


@case("instructor")
def instructor_json_schema(server):
    is_person(instruct(server, "JSON_SCHEMA"))


@case("prompted")
def instructor_json(server):
    is_person(instruct(server, "JSON"))


@case("prompted")
def instructor_md_json(server):
    is_person(instruct(server, "MD_JSON"))


# ---- openai-agents -------------------------------------------------------------------------------


def run_agent(server, text, **options):
    from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, Runner,
                        set_tracing_disabled)
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model=MODEL,
                                       openai_client=openai_client(server, openai.AsyncOpenAI))
    agent = Agent(name="a", instructions="Be brief.", model=model,
                  model_settings=ModelSettings(max_tokens=LIMIT, temperature=0), **options)
    return Runner.run_sync(agent, text, max_turns=6).final_output


@case("agents")
def agents_chat(server):
    assert run_agent(server, "Say hello.")


@case("agents")
def agents_output_type(server):
    is_person(run_agent(server, ASK, output_type=Person))


@case("agents")
def agents_default(server):
    """The Responses API, which the framework uses unless it is told otherwise, and a tool."""
    from agents import (Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool,
                        set_tracing_disabled)
    set_tracing_disabled(True)
    asked = []

    @function_tool
    def get_weather(city: Literal["Oslo", "Bergen"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "Rain, 4 degrees."

    model = OpenAIResponsesModel(model=MODEL,
                                 openai_client=openai_client(server, openai.AsyncOpenAI))
    agent = Agent(name="a", instructions="Be brief.", model=model, tools=[get_weather],
                  tool_use_behavior="stop_on_first_tool",
                  model_settings=ModelSettings(max_tokens=LIMIT, temperature=0,
                                               tool_choice="required",
                                               parallel_tool_calls=False))
    run = Runner.run_sync(agent, "What is the weather in Oslo?", max_turns=4)
    assert run.final_output == "Rain, 4 degrees." and asked, (run.final_output, asked)


# ---- pydantic-ai ---------------------------------------------------------------------------------


def pydantic_agent(server, output, **options):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=server.url + "/v1",
                                                           api_key="none"))
    agent = Agent(model, output_type=output, retries=3,
                  model_settings={"max_tokens": LIMIT, "temperature": 0}, **options)
    return agent.run_sync(ASK).output


@case("pydantic")
def pydantic_text(server):
    assert pydantic_agent(server, str)


@case("prompted")
def pydantic_prompted(server):
    from pydantic_ai import PromptedOutput
    is_person(pydantic_agent(server, PromptedOutput(Person)))


@case("pydantic")
def pydantic_tool(server):
    is_person(pydantic_agent(server, Person))


@case("pydantic")
def pydantic_responses(server):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=server.url + "/v1",
                                                                api_key="none"))
    agent = Agent(model, output_type=Person, retries=3,
                  model_settings={"max_tokens": LIMIT, "temperature": 0})
    is_person(agent.run_sync(ASK).output)


@case("pydantic")
def pydantic_native(server):
    from pydantic_ai import NativeOutput
    is_person(pydantic_agent(server, NativeOutput(Person)))


main()
