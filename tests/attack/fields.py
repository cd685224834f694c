# SPDX-License-Identifier: Apache-2.0
"""Fields of requests with values of wrong types, sizes and places, on every route."""

import http.client
import json

from target import KEY, Finding, Server, in_threads, scripted_model

VALUES = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    -(2**31),
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64,
    0.0,
    -0.0,
    0.5,
    1e308,
    -1e308,
    5e-324,
    "",
    "a",
    "1",
    "\0x",
    "é🎉",
    "x" * 3000,
    [],
    [1],
    ["a"],
    ["", ""],
    [None],
    [[1]],
    [-1],
    [10**6],
    [True],
    [1.5],
    list(range(300)),
    {},
    {"a": 1},
    {"1": 1},
    {"-1": 1},
    {"1": "x"},
    {"0": 1e308},
    {"type": "json_object"},
    {"type": "text"},
    {"type": "json_schema", "json_schema": {}},
    {"type": 5},
    {"include_usage": 1},
    {"no_store": True},
    {"ttl": 1, "pin": True},
    {"no_store": 1, "ttl": -1, "other": None},
    [[[[[[[[{}]]]]]]]],
    {"a": {"a": {"a": {"a": []}}}},
]
FIELDS = """model messages prompt max_tokens max_completion_tokens n temperature top_p top_k min_p
stop stop_token_ids seed logit_bias logprobs top_logprobs stream stream_options response_format
tools tool_choice user repetition_penalty presence_penalty frequency_penalty repetition_context_size
presence_context_size frequency_context_size xtc_probability xtc_threshold ignore_eos cache_salt
cache prompt_cache continue_final_message add_generation_prompt chat_template chat_template_kwargs
reasoning_effort documents query input encoding_format dimensions top_n return_documents suffix
echo best_of functions function_call min_tokens system
stop_sequences thinking metadata service_tier content tokens add_special parse_special
return_token_strs min_tokens_to_keep parallel_tool_calls store modalities control_tokens options
format think raw template context images repeat_penalty repeat_last_n n_probs return_tokens
response_fields input_prefix input_suffix input_extra json_schema grammar samplers
priority""".split()
NAME = "fields-model"
OPTIONS = """temperature top_k top_p seed stop repeat_penalty repeat_last_n num_ctx mirostat
logit_bias presence_penalty""".split()
IN_MESSAGE = """role content name tool_calls tool_call_id reasoning reasoning_content type thinking
refusal text id function input tool_use_id source cache_control arguments
thinking images tool_name""".split()
HELLO = [{"role": "user", "content": "hi"}]
ROUTES = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["a", "b"]},
    "/v1/messages": {"messages": HELLO, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/api/chat": {"model": NAME, "messages": HELLO, "options": {"num_predict": 1}},
    "/api/generate": {"model": NAME, "prompt": "hi", "options": {"num_predict": 1}},
    "/api/show": {"model": NAME},
    "/completion": {"prompt": "hi", "n_predict": 1},
    "/infill": {"input_prefix": "hi", "n_predict": 1},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": HELLO},
    "/v1/cache/explain": {"prompt": "hi"},
}


def message(rnd):
    part = {
        "type": rnd.choice(["text", "tool_use", "tool_result", "image", 5]),
        "text": "a",
        rnd.choice(IN_MESSAGE): rnd.choice(VALUES),
    }
    call = {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": "{}", rnd.choice(IN_MESSAGE): rnd.choice(VALUES)},
    }
    out = {
        "role": rnd.choice(["user", "assistant", "system", "tool", "developer"]),
        "content": rnd.choice(["x", None, [part], rnd.choice(VALUES)]),
    }
    if rnd.random() < 0.3:
        out["tool_calls"] = [call, rnd.choice(VALUES)][: rnd.randrange(1, 3)]
    if rnd.random() < 0.5:
        out[rnd.choice(IN_MESSAGE)] = rnd.choice(VALUES)
    return out


def tool(rnd):
    return rnd.choice(
        [
            rnd.choice(VALUES),
            {"type": "function", "function": rnd.choice(VALUES)},
            {"type": "function", "function": {"name": rnd.choice(VALUES)}},
            {"type": "function", "function": {"name": "f", "parameters": rnd.choice(VALUES)}},
            {"type": rnd.choice(VALUES), "function": {"name": "f"}},
            {"name": rnd.choice(["f", *VALUES]), "input_schema": rnd.choice(VALUES)},
        ]
    )


def one_body(rnd, path):
    body = dict(ROUTES[path])
    for _ in range(rnd.choice([1, 1, 1, 2, 3])):
        body[rnd.choice(FIELDS)] = rnd.choice(VALUES)
    if "messages" in ROUTES[path] and rnd.random() < 0.4:
        body["messages"] = [message(rnd) for _ in range(rnd.randrange(1, 4))]
    if rnd.random() < 0.2:
        body["tools"] = [tool(rnd) for _ in range(rnd.randrange(1, 3))]
    if isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 8:
        body["max_tokens"] = 8  # many tokens are no finding
    if "options" in ROUTES[path] and isinstance(body["options"], dict):
        body["options"] = {"num_predict": 1, rnd.choice(OPTIONS): rnd.choice(VALUES)}
    text = json.dumps(body)
    if rnd.random() < 0.05:  # not even JSON
        at = rnd.randrange(len(text))
        odd = rnd.choice(["", "{", "]", "\0", "\ud83d", ",", "\"", "1e999"])
        text = text[:at] + odd + text[at + 1 :]
    return text.encode("utf-8", "surrogatepass")


def check(path, sent, status, answer, kind):
    if status >= 500 and status != 503:
        raise Finding(f"{path}: {status} to {sent[:600]!r}: {answer[:300]!r}")
    if kind.startswith("application/x-ndjson"):
        pieces = answer.splitlines()
    elif kind.startswith("text/event-stream"):
        pieces = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    else:
        pieces = [answer]
    for piece in pieces:
        try:
            json.loads(piece)
        except ValueError:
            raise Finding(
                f"{path}: {status}, not JSON, to {sent[:600]!r}: {piece[:300]!r}"
            ) from None


def work(rnd, server, clock, findings):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    while not findings and clock.goes_on("requests"):
        path = rnd.choice(list(ROUTES))
        sent = one_body(rnd, path)
        try:
            c.request("POST", path, sent, headers)
            r = c.getresponse()
            answer = r.read()
            check(path, sent, r.status, answer, r.getheader("Content-Type") or "")
            clock.count(f"status {r.status}")
        except Finding as e:
            findings.append(e)
        except (OSError, http.client.HTTPException) as e:
            findings.append(Finding(f"{path}: {e!r} after {sent[:600]!r}"))
    c.close()


def attack(program, rnd, clock, limits):
    scripted_model(NAME)
    flags = ["--cache-memory-mb", "64", "--threads", "2"]
    with Server(program, "-m", NAME, *flags) as server:
        in_threads(4, rnd, work, server, clock)
    del limits
