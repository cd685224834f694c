#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents' conversations (tests/soak/agent_traces.py): how many tokens of their prompts llama-server
computes, and the least that is possible. agent_traces.py says what `kvasir serve` computes of them.

    agents.py KVASIR SHARED [--tokens N] [--turns N] [--traces NAME,..] [--settings NAME,..]

llama-server gets the token ids that agent_traces.py gives to Kvasir, and the same tiny model. An
answer is not generated but sent as a prompt, which is not counted: after that the slot has what it
would have after writing the answer. llama-server is llama.cpp's own, from PyPI's xllamacpp
2026.10.11549, which needs no compiler; gguf 0.19.0 and numpy write its file. SETTINGS names what
differs from its defaults: -np, --cache-reuse, --cache-ram.
"""
import json
import os
import sys
import tempfile
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "tests", folder) for folder in ("interop", "soak")]
import agent_traces  # noqa: E402
import tiny_gguf  # noqa: E402
from gguf import TokenType  # noqa: E402

MODEL = "llama"
SETTINGS = {
    "1-slot": {"n_parallel": 1},
    "1-slot-reuse": {"n_parallel": 1, "n_cache_reuse": 256},
    "4-slots": {"n_parallel": 4},
    "4-slots-reuse": {"n_parallel": 4, "n_cache_reuse": 256},
    "4-slots-reuse-no-ram": {"n_parallel": 4, "n_cache_reuse": 256, "cache_ram_mib": 0},
}


def write_gguf(folder, out):
    """The model of make_model(), with its tokenizer of bytes."""
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        n = json.load(f)["vocab_size"]
    tokens = [(f"[unused {i}]", TokenType.UNUSED) for i in range(n)]
    for text, i in tokenizer["model"]["vocab"].items():
        tokens[i] = (text, TokenType.NORMAL)
    for token in tokenizer["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        tokens[token["id"]] = (token["content"], kind)
    tiny_gguf.write(folder, out, "f32", tokens=tokens)


class LlamaServer:
    def __init__(self, path, settings):
        import xllamacpp
        p = xllamacpp.CommonParams()
        p.model.path, p.warmup, p.fit_params, p.verbosity = path, False, False, -1
        p.n_ctx = agent_traces.CONTEXT * settings["n_parallel"]
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
        for name, value in settings.items():
            setattr(p, name, value)
        self.server = xllamacpp.Server(p)
        self.url = self.server.listening_address

    def computed(self, prompt):
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": True}
        request = urllib.request.Request(self.url + "/completion", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            timings = json.load(answer)["timings"]
        assert timings["cache_n"] + timings["prompt_n"] == len(prompt), (timings, len(prompt))
        return timings["prompt_n"]


def tokens_of(server, name, o):
    """[(prompt, prompt and answer)], and the least to compute."""
    requests, least = [], 0
    for messages, tools, text, _ in agent_traces.trace(name, o.turns, agent_traces.per_turn(o)):
        prompt = server.prompt(messages, tools)
        best = max((agent_traces.common(prompt, whole) for _, whole in requests), default=0)
        least += len(prompt) - min(best, len(prompt) - 1)
        requests.append((prompt, prompt + server.tokens(text)))
    return requests, least


def main():
    parser = agent_traces.arguments(__doc__)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    o = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made, gguf = os.path.join(folder, MODEL), os.path.join(folder, MODEL + ".gguf")
        agent_traces.make_model(o.shared, MODEL, made)
        write_gguf(made, gguf)
        for name in o.traces.split(","):
            with agent_traces.Server(o.kvasir, made, os.path.join(folder, "log")) as server:
                requests, least = tokens_of(server, name, o)
            print(f"{name}: {len(requests)} requests, {sum(len(p) for p, _ in requests)} in "
                  f"prompts, {least} at least", flush=True)
            for setting in o.settings.split(","):
                peer, n = LlamaServer(gguf, SETTINGS[setting]), 0
                for prompt, whole in requests:
                    n += peer.computed(prompt)
                    peer.computed(whole)
                print(f"    llama-server, {setting}: {n} computed, {n / least:.3f}", flush=True)


main()
