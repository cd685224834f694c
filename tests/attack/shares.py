# SPDX-License-Identifier: Apache-2.0
"""One key with 150 clients and one with 50, at equal weights, get equal tokens a second.

Every client sends the next request when the last one is answered. The figures are the server's own,
by key. Only with limits on time, since it needs SmolLM2 and a minute.
"""

import glob
import json
import os
import threading
import time

from target import Finding, Server

CLIENTS = {"many": 150, "few": 50}
FAMILIES = ("prompt_tokens", "cached_tokens", "generation_tokens", "requests")


def client(server, name, i, stop, answers):
    n = 0
    while not stop.is_set():
        n += 1
        body = json.dumps(
            {
                "prompt": f"{name} {i} {n}: once upon a time " + "and then " * ((i + n) % 7),
                "max_tokens": 24 + (i * 7 + n) % 17,
                "ignore_eos": True,
            }
        )
        answers.append(server.ask("POST", "/v1/completions", body, key=f"key-{name}")[0])


def figures(server):
    return {
        name: {
            f: server.metric(f'kvasir_tenant_{f}_total\\{{tenant="{name}"\\}}') for f in FAMILIES
        }
        for name in CLIENTS
    }


def attack(program, rnd, clock, limits):
    models = glob.glob(os.path.join(os.environ.get("MODELS_DIR", "models"), "SmolLM2*.gguf"))
    if not limits:
        return clock.count("parts left out: they need --limits")
    if not models:
        raise Finding("it needs SmolLM2, which is not in models/ (make models)")
    with open("keys", "w", encoding="ascii") as f:
        f.write("".join(f"key-{name} name={name} weight=2\n" for name in CLIENTS))
    flags = ["--api-key-file", "keys", "--admin-key", "secret", "--cache-memory-mb", "256"]
    stop, answers = threading.Event(), []
    with Server(program, "-m", models[0], "--ctx", "512", *flags, key=None) as server:
        threads = [
            threading.Thread(target=client, args=(server, name, i, stop, answers))
            for name, n in CLIENTS.items()
            for i in range(n)
        ]
        for t in threads:
            t.start()
        time.sleep(10)
        start, before = time.monotonic(), figures(server)
        time.sleep(max(30, min(clock.left(), 120)))
        seconds, after = time.monotonic() - start, figures(server)
        stop.set()
        for t in threads:
            t.join()
    rates = {}
    for name, n in CLIENTS.items():
        d = {f: after[name][f] - before[name][f] for f in FAMILIES}
        rates[name] = (d["prompt_tokens"] - d["cached_tokens"] + d["generation_tokens"]) / seconds
        print(
            f"attack: shares: {name}, {n} clients: {d['requests']:.0f} requests, "
            f"{d['generation_tokens'] / seconds:.1f} tokens/s generated, "
            f"{rates[name]:.1f} tokens/s computed in {seconds:.0f} s",
            flush=True,
        )
    clock.count("answers", len(answers))
    ratio = rates["many"] / rates["few"]
    print(f"attack: shares: many : few = {ratio:.3f}", flush=True)
    if set(answers) != {200}:
        raise Finding(f"statuses {sorted(set(answers))}")
    if not 0.9 <= ratio <= 1 / 0.9:
        raise Finding(f"at equal weights {rates}")
    del rnd
