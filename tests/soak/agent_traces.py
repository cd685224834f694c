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

The least is that of an infinite cache: a request computes its prompt without the longest prefix
that an earlier request's prompt and answer had, but its last token at least. Hybrid models go on
only where a state can be stored (docs/cache-policy.md); in brackets the same without that.
"""
import argparse
import json
import os
import random
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from scripted_model import byte_alphabet  # noqa: E402
from served import Process, check  # noqa: E402

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
         "</tool_response>"]
CONTEXT = 40960
PAGE, POINTS = 64, 1024  # of the engine: TILE_TOKENS, POINTS_TOKENS
HYBRID = {"qwen3_next", "lfm2", "qwen3_5"}
TOOLS = [{"type": "function", "function": {
    "name": name, "description": f"Use {name} to look at the repository and change it.",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}
    for name in ("read_file", "write_file", "run_tests", "search")]
WORDS = ("cache page token build test error value key file line function returns the a of to and "
         "index range loop buffer server client request answer struct pointer size count").split()


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
        status, text = self.ask("POST", path, body)
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


# ---- traces ------------------------------------------------------------------------------------


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self, n):
        words = []
        while n > 0:
            words.append(self.random.choice(WORDS))
            n -= len(words[-1]) + 1
        return " ".join(words)

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


TRACES = {"tools": tools_trace, "questions": questions_trace, "reminders": reminders_trace,
          "edits": edits_trace, "agents": agents_trace, "retries": retries_trace}


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


def run_trace(server, name, hybrid, turns, tokens, seed):
    """[prompt tokens, computed, least, least without states], requests, the longest."""
    per_turn = max((tokens - 3600) // turns - 240, 50)
    seen, totals = [], [0, 0, 0, 0]
    for messages, text in TRACES[name](Writer(seed), turns, per_turn):
        prompt = server.prompt(messages, TOOLS)
        if len(prompt) > CONTEXT - 4096:
            break
        hit = server.answer(prompt, text)
        prefix = [min(common(prompt, s), len(prompt) - 1) for s, _ in seen]
        points = [last_point(n, p, len(s)) for n, (s, p) in zip(prefix, seen)]
        best, point = max(prefix, default=0), max(points if hybrid else prefix, default=0)
        for i, n in enumerate((0, hit, point, best)):
            totals[i] += len(prompt) - n
        seen.append((prompt + server.tokens(text), len(prompt)))
    return totals, len(seen), max(len(s) for s, _ in seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("kvasir")
    parser.add_argument("shared")
    parser.add_argument("--tokens", type=int, default=30000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("--traces", default=",".join(TRACES))
    parser.add_argument("--models", default="llama,qwen3_next,lfm2")
    o = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for model in o.models.split(","):
            made = os.path.join(folder, model)
            make_model(o.shared, model, made)
            for number, name in enumerate(o.traces.split(",")):
                with Server(o.kvasir, made, os.path.join(folder, "log")) as server:
                    totals, n, longest = run_trace(server, name, model in HYBRID, o.turns,
                                                   o.tokens, number)
                ratio = totals[1] / totals[2]
                bad = ratio > o.limit
                failed |= bad
                print(f"{model:11s} {name:10s} {n} requests to {longest} tokens: {totals[0]} in "
                      f"prompts, {totals[1]} computed, {totals[2]} at least: {ratio:.3f}"
                      + (f" ({totals[1] / totals[3]:.3f})" if model in HYBRID else "")
                      + (f" ABOVE {o.limit}" if bad else ""), flush=True)
    if failed:
        sys.exit("agent_traces: FAILED")


main()
