# SPDX-License-Identifier: Apache-2.0
"""llama-server's own endpoints, as its clients call them, without a library, against kvasir serve
and the scripted model; see cases.py."""
import json
import urllib.error
import urllib.request

from cases import PLAIN, SCRIPTS, case, main


def opened(server, path, body=None, key=0):
    headers = {"Authorization": "Bearer " + server.keys[key]} if server.keys else {}
    data = json.dumps(body).encode() if body else None
    return urllib.request.urlopen(urllib.request.Request(
        server.url + path, data, {"Content-Type": "application/json", **headers}), timeout=60)


def post(server, path, body):
    try:
        with opened(server, path, body) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def complete(server, path="/completion", **body):
    status, text = post(server, path, body)
    assert status == 200, text
    return json.loads(text)


ENDLESS = {"prompt": "<|endless|>", "n_predict": -1, "stream": True}


def busy(server, key=0):
    with opened(server, "/slots", key=key) as answer:
        return [slot for slot in json.load(answer) if slot["is_processing"]]


@case("open")
def whole(server):
    for path in "/completion", "/completions":
        answer = complete(server, path, prompt="say <|plain|>", cache_prompt=True, id_slot=0)
        assert answer["content"] == PLAIN and answer["stop"] and answer["stop_type"] == "eos"
        assert answer["tokens_evaluated"] == 5 and answer["tokens"] == []
        assert answer["tokens_predicted"] == answer["timings"]["predicted_n"] > 3
        assert answer["timings"]["prompt_n"] + answer["timings"]["cache_n"] == 5
    ids = json.loads(post(server, "/tokenize", {"content": "say <|plain|>"})[1])["tokens"]
    assert complete(server, prompt=ids)["content"] == PLAIN
    assert complete(server, prompt=["say "] + ids[-1:])["content"] == PLAIN
    cut = complete(server, prompt=ids, n_predict=2, return_tokens=True, n_probs=2)
    assert cut["stop_type"] == "limit" and len(cut["tokens"]) == 2
    assert [p["id"] for p in cut["completion_probabilities"]] == cut["tokens"]
    stopped = complete(server, prompt=ids, stop=["never", "fox"],
                       response_fields=["content", "stopping_word", "timings/predicted_n"])
    assert stopped["content"] == "The quick brown " and stopped["stopping_word"] == "fox"
    assert stopped["timings/predicted_n"] > 1 and len(stopped) == 3


@case("open")
def grammars(server):
    assert complete(server, prompt="say <|plain|>", grammar='root ::= "yes"')["content"] == "yes"
    schema = {"enum": ["grey", "blue"]}
    answer = complete(server, prompt="say <|plain|>", json_schema=schema)
    assert json.loads(answer["content"]) in schema["enum"]


@case("open")
def streamed(server):
    _, text = post(server, "/completion", {"prompt": "say <|letters|>", "stream": True})
    parts = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n") if event]
    assert "".join(p["content"] for p in parts) == SCRIPTS["letters"] and len(parts) > 3
    assert not any(p["stop"] for p in parts[:-1]) and parts[-1]["stop"]
    assert parts[-1]["timings"]["predicted_ms"] > 0


@case("open")
def infill(server):
    answer = complete(server, "/infill", input_prefix="def add(a, b):\n    ", prompt="ret",
                      input_suffix="\n", input_extra=[{"filename": "a.py", "text": "x = 1\n"}],
                      samplers=["top_k", "infill"], t_max_predict_ms=500)
    assert answer["content"] == SCRIPTS["fim_middle"], answer
    assert answer["warnings"][0].startswith("samplers: "), answer


@case("open")
def errors(server):
    status, text = post(server, "/completion", {"prompt": "x", "mirostat": 2})
    error = json.loads(text)["error"]
    assert status == error["code"] == 400 and error["message"].startswith("mirostat: "), text


@case("open")
def props_and_slots(server):
    props = server.get("/props")
    assert props["n_ctx"] == 65536 and "messages" in props["chat_template"]
    assert props["total_slots"] == len(server.get("/slots"))
    assert not busy(server)
    with opened(server, "/completion", ENDLESS) as stream:
        stream.readline()
        (slot,) = busy(server)
        assert slot["n_prompt_tokens"] == 1 and slot["next_token"][0]["n_decoded"] > 0
    server.wait_running(0)


@case("keys")
def slots_of_others(server):
    with opened(server, "/completion", ENDLESS) as stream:
        stream.readline()
        assert len(busy(server)) == 1 and not busy(server, key=1)
    server.wait_running(0)


@case("full")
def told_to_come_later(server):
    with opened(server, "/completion", ENDLESS) as running:
        running.readline()
        with opened(server, "/completion", ENDLESS):
            server.wait_running(2)
            status, text = post(server, "/completion", {"prompt": "say <|plain|>"})
            assert status == json.loads(text)["error"]["code"] == 429, text
    server.wait_running(0)


main()
