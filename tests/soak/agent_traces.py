#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents' conversations of up to 30,000 tokens against `kvasir serve`: what is computed beside the
least that is possible.

    agent_traces.py KVASIR SHARED [--tokens N] [--turns N] [--limit RATIO] [--traces NAME,..]
                    [--models NAME,..]

Each request is a chat rendered by Qwen3's template, which drops earlier reasoning; its answer is
the trace's own, forced by `guided_choice`, so that the cache holds what an agent's model would have
written. The model is tiny with random weights and a token for each byte; the cache does not look at
texts. Traces:

    tools       50 turns of reasoning, a call, a long result
    questions   each turn a new question, so that all reasoning before it is dropped
    reminders   a reminder at the end of the last message, which moves from turn to turn
    edits       a list in the first message, which changes every fifth turn and changes back
    agents      a main agent and three that it starts, in turn, with a prompt of their own
    retries     each turn asked three times, the last answer kept

and those that record_traces.py has recorded of real clients: what they sent is replayed, after each
other, and at the end once more at the path to which they sent it, whose prompt must be the same.

The least is that of an infinite cache: a request computes its prompt without the longest prefix
that an earlier request's prompt and answer had, but its last token at least. Hybrid models go on
only where a state can be stored (docs/cache-policy.md); in brackets the same without that.
"""
import argparse
import itertools
import json
import lzma
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from scripted_model import byte_alphabet  # noqa: E402
from served import Process, check  # noqa: E402
from trace_words import Writer as Words  # noqa: E402

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
         "</tool_response>"]
CONTEXT = 65536
PAGE, POINTS = 64, 1024  # of the engine: TILE_TOKENS, POINTS_TOKENS
RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "traces")
SUFFIX = ".jsonl.xz"
HYBRID = {"qwen3_next", "lfm2", "qwen3_5"}
TOOLS = [{"type": "function", "function": {
    "name": name, "description": f"Use {name} to look at the repository and change it.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
    for name in ("read_file", "write_file", "run_tests", "search")]


# ---- a model -----------------------------------------------------------------------------------


def make_model(shared, name, out):
    """A model of fixtures/tiny with a longer context, a tokenizer of bytes and Qwen3's template."""
    os.makedirs(out)
    source = os.path.join(shared, "fixtures", "tiny", name)
    shutil.copy(os.path.join(source, "model.safetensors"), out)
    with open(os.path.join(source, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    chars, first = byte_alphabet(), 259
    ids = {text: first + i for i, text in enumerate(CONTROL + PLAIN)}
    config.update(max_position_embeddings=CONTEXT, eos_token_id=ids["<|im_end|>"],
                  bos_token_id=None, pad_token_id=None)
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, "special": text in CONTROL}
                         for text, i in ids.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {chars[b]: b for b in range(256)}, "merges": []},
    }
    with open(os.path.join(shared, "chat-templates", "Qwen-Qwen3-0.6B.jinja"),
              encoding="utf-8") as f:
        template = f.read()
    for file, data in (("config.json", config), ("tokenizer.json", tokenizer),
                       ("tokenizer_config.json", {"eos_token": "<|im_end|>",
                                                  "chat_template": template})):
        with open(os.path.join(out, file), "w", encoding="utf-8") as f:
            json.dump(data, f)


# ---- a server ----------------------------------------------------------------------------------


class Server(Process):
    def __init__(self, kvasir, model, log):
        super().__init__([kvasir, "serve", "-m", model, "--port", "0", "--ctx", str(CONTEXT),
                          "--cache-memory-mb", "2048", "--drain-timeout", "0"], log)

    def post(self, path, body):
        status, text = self.ask("POST", path, body, 600)
        check(status == 200, status, text)
        return json.loads(text)

    def tokens(self, text):
        return self.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def prompt(self, messages, tools):
        return self.post("/tokenize", {"messages": messages, "tools": tools,
                                       "add_generation_prompt": True})["tokens"]

    def answer(self, prompt, text):
        """Has the model write the text; returns how many of the prompt's tokens were cached. Asked
        for log-probabilities it computes every token; else a text of one choice is not computed."""
        body = {"prompt": prompt, "max_tokens": 4096, "temperature": 0, "logprobs": 0,
                "structured_outputs": {"choice": [text]}}
        reply = self.post("/v1/completions", body)
        choice = reply["choices"][0]
        assert choice["text"] == text and choice["finish_reason"] == "stop", (choice, text)
        assert reply["usage"]["prompt_tokens"] == len(prompt), reply["usage"]
        return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


    def accepts(self, record, length):
        """Sends what was recorded, as it was, but for one token only."""
        if record:
            responses = record["path"] == "/v1/responses"
            one = {"max_output_tokens": 16} if responses else {"max_tokens": 1}
            usage = self.post(record["path"], {**record["body"], **one})["usage"]
            found = usage["input_tokens" if responses else "prompt_tokens"]
            check(found == length, "another prompt", record["path"], found, length)


# ---- traces ------------------------------------------------------------------------------------


class Writer(Words):
    def call(self):
        """An answer's text, and its message as a client gives it back."""
        reason, name = self.text(120), self.random.choice(TOOLS)["function"]["name"]
        arguments = {"path": self.text(30)}
        text = (f"<think>\n{reason}\n</think>\n\n<tool_call>\n"
                + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>")
        return text, {"role": "assistant", "content": "", "reasoning_content": reason,
                      "tool_calls": [{"id": "call_1", "type": "function", "function": {
                          "name": name, "arguments": json.dumps(arguments)}}]}

    def say(self, n):
        reason, text = self.text(150), self.text(n)
        return (f"<think>\n{reason}\n</think>\n\n{text}",
                {"role": "assistant", "content": text, "reasoning_content": reason})

    def result(self, n):
        return {"role": "tool", "tool_call_id": "call_1", "content": self.text(n)}


def system(w, n):
    return {"role": "system", "content": "You are an agent that works in a repository. "
            + w.text(n)}


def tools_trace(w, turns, size):
    messages = [system(w, 2000), {"role": "user", "content": w.text(300)}]
    for _ in range(turns):
        text, message = w.call()
        yield messages, text
        messages = messages + [message, w.result(size)]


def questions_trace(w, turns, size):
    messages = [system(w, 2000)]
    for _ in range(turns):
        messages = messages + [{"role": "user", "content": w.text(80)}]
        text, message = w.say(size)
        yield messages, text
        messages = messages + [message]


def reminders_trace(w, turns, size):
    messages = [system(w, 2000), {"role": "user", "content": w.text(300)}]
    for i in range(turns):
        last = dict(messages[-1])
        last["content"] += f"\n<reminder>{turns - i} turns are left. {w.text(60)}</reminder>"
        text, message = w.call()
        yield messages[:-1] + [last], text
        messages = messages + [message, w.result(size)]


def edits_trace(w, turns, size):
    rest, todo = [], ["[ ] read the code\n[ ] change it\n[ ] run the tests\n"] * 2
    todo[1] = todo[0].replace("[ ] read", "[x] read")
    task = w.text(300)
    head = system(w, 2000)
    for i in range(turns):
        text, message = w.call()
        first = {"role": "user", "content": task + "\n" + todo[i // 5 % 2]}
        yield [head, first] + rest, text
        rest = rest + [message, w.result(size)]


def agents_trace(w, turns, size):
    main = [system(w, 2000), {"role": "user", "content": w.text(300)}]
    others = [[system(w, 1200), {"role": "user", "content": w.text(200)}] for _ in range(3)]
    for i in range(turns):
        mine = main if i % 2 == 0 else others[i // 2 % 3]
        text, message = w.call()
        yield list(mine), text
        mine += [message, w.result(size)]


def retries_trace(w, turns, size):
    messages = [system(w, 2000), {"role": "user", "content": w.text(300)}]
    for _ in range((turns + 2) // 3):
        for _ in range(3):
            text, message = w.call()
            yield messages, text
        messages = messages + [message, w.result(size)]


WRITTEN = {"tools": tools_trace, "questions": questions_trace, "reminders": reminders_trace,
           "edits": edits_trace, "agents": agents_trace, "retries": retries_trace}


# ---- recorded traces ---------------------------------------------------------------------------


def as_written(answer):
    """A message as a model with Qwen3's template writes it."""
    text = f"<think>\n{answer['reasoning_content']}\n</think>\n\n{answer['content'] or ''}"
    for call in answer.get("tool_calls", []):
        call = {"name": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"])}
        text += f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return text


def as_messages(body):
    """The messages of a body of /v1/responses."""
    messages, said = [{"role": "system", "content": body["instructions"]}], None
    for item in body["input"]:
        kind = item.get("type", "message")
        if kind in ("reasoning", "function_call") and said is None:
            said = {"role": "assistant", "content": None}
            messages.append(said)
        if kind == "reasoning":
            said["reasoning_content"] = item["content"][0]["text"]
        elif kind == "function_call":
            said["tool_calls"] = [{"id": item["call_id"], "type": "function", "function": {
                "name": item["name"], "arguments": item["arguments"]}}]
        else:
            said = None
            messages.append({"role": "tool", "tool_call_id": item["call_id"],
                             "content": item["output"]} if kind == "function_call_output"
                            else {"role": item["role"], "content": item["content"]})
    return messages


def traces():
    recorded = (f.removesuffix(SUFFIX) for f in os.listdir(RECORDED) if f.endswith(SUFFIX))
    return [*WRITTEN, *sorted(recorded)]


def recorded_trace(name):
    with lzma.open(os.path.join(RECORDED, name + SUFFIX), "rt", encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            body, tools = r["body"], r["body"].get("tools")
            if r["path"] == "/v1/responses":
                tools = [{"type": "function", "function": {
                    k: t[k] for k in ("name", "description", "parameters", "strict")}}
                    for t in tools]
            yield body.get("messages") or as_messages(body), tools, as_written(r["answer"]), r


def trace(name, turns, size):
    """Yields messages, tools, the answer's text, and what was recorded, if it was."""
    if name not in WRITTEN:
        yield from itertools.islice(recorded_trace(name), turns)
        return
    seed = list(WRITTEN).index(name)
    for messages, text in WRITTEN[name](Writer(seed), turns, size):
        yield messages, TOOLS, text, None


# ---- measuring ---------------------------------------------------------------------------------


def common(a, b):
    n = min(len(a), len(b))
    low, high = 0, n  # a[:low] == b[:low]
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def last_point(length, prompt, whole):
    """The last length up to `length` at which a hybrid's state is stored, of an earlier request."""
    last, back = prompt - 1, 0
    points = [last, whole]
    while back < POINTS and back < last // PAGE * PAGE:
        points.append(last // PAGE * PAGE - back)
        back = 2 * back + PAGE
    return max([n for n in points if n <= length] + [length - length % POINTS])


def per_turn(o):
    """The size of a written trace's turn with which it gets as long as was asked for."""
    return max((o.tokens - 3600) // o.turns - 240, 50)


def run_trace(server, name, hybrid, turns, size):
    """[prompt tokens, computed, least, least without states], [(prompt, text, what was recorded)],
    the longest."""
    seen, requests, totals = [], [], [0, 0, 0, 0]
    for messages, tools, text, record in trace(name, turns, size):
        prompt = server.prompt(messages, tools)
        if len(prompt) > CONTEXT - 4096:
            break
        hit = server.answer(prompt, text)
        prefix = [min(common(prompt, s), len(prompt) - 1) for s, _ in seen]
        points = [last_point(n, p, len(s)) for n, (s, p) in zip(prefix, seen)]
        best, point = max(prefix, default=0), max(points if hybrid else prefix, default=0)
        for i, n in enumerate((0, hit, point, best)):
            totals[i] += len(prompt) - n
        seen.append((prompt + server.tokens(text), len(prompt)))
        requests.append((prompt, text, record))
    for prompt, _, record in requests:
        server.accepts(record, len(prompt))
    return totals, requests, max(len(s) for s, _ in seen)


def arguments(doc):
    """A parser of what all programs over these traces take."""
    parser = argparse.ArgumentParser(description=doc.split("\n\n", 1)[0])
    parser.add_argument("kvasir")
    parser.add_argument("shared")
    parser.add_argument("--tokens", type=int, default=30000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--traces", default=",".join(traces()))
    return parser


def main():
    parser = arguments(__doc__)
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("--models", default="llama,qwen3_next,lfm2")
    o = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for model in o.models.split(","):
            made = os.path.join(folder, model)
            make_model(o.shared, model, made)
            for name in o.traces.split(","):
                with Server(o.kvasir, made, os.path.join(folder, "log")) as server:
                    totals, requests, longest = run_trace(server, name, model in HYBRID, o.turns,
                                                          per_turn(o))
                ratio = totals[1] / totals[2]
                bad = ratio > o.limit
                failed |= bad
                print(f"{model:11s} {name:16s} {len(requests)} requests to {longest} tokens: "
                      f"{totals[0]} in prompts, {totals[1]} computed, {totals[2]} at least: "
                      f"{ratio:.3f}"
                      + (f" ({totals[1] / totals[3]:.3f})" if model in HYBRID else "")
                      + (f" ABOVE {o.limit}" if bad else ""), flush=True)
    if failed:
        sys.exit("agent_traces: FAILED")


if __name__ == "__main__":
    main()
