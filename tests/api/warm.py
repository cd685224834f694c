# SPDX-License-Identifier: Apache-2.0
"""kvasir serve --warm-prompts: prompts of a file get into the cache, requests of clients
come first, and nothing is evicted for them.

    warm.py PROGRAM FIXTURES [FLAG ...]

As tiers.py.
"""
import json
import os
import re
import time

from tiers import Server, check, cold, model, prompt, refused_start, run, whole_pages


def write(name, lines):
    with open(name, "w") as f:
        f.write("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return ["--warm-prompts", name]


def state(s, *headers):
    status, text = s.ask("GET", "/v1/status")
    check(status == 200, status, text)
    return json.loads(text)["warm_prompts"]


def wait(s, want, seconds=60):
    end = time.time() + seconds
    while True:
        now = state(s)
        if now["state"] == want:
            return now
        check(now["state"] == "running" and time.time() < end, want, now)
        time.sleep(0.02)


def figure(s, name):
    return float(re.search(rf"^{re.escape(name)} (\S+)$", s.ask("GET", "/metrics")[1], re.M)[1])


def test_warm():
    """The answer behind a prompt that was put there is that of a cold server; salts are apart."""
    first, second = prompt(400, 1), prompt(200, 2)
    want = cold(model("llama"), [], [first, second])
    flags = write("prompts", [{"prompt": first}, "", {"prompt": second, "cache_salt": "a"}, "  \r",
                              {"prompt": first + prompt(100, 3)}])
    with Server(model("llama"), *flags) as s:
        done = wait(s, "done")
        check(done == {"state": "done", "prompts": 3, "done": 3, "failed": 0,
                       "computed_tokens": 700, "cached_tokens": 400}, done)
        s.line(r" server: warm prompts: 3 of 3 are in the cache, 700 tokens computed, "
               r"400 found$")
        check(s.answer(first) == (399, want[0]), "the first")
        check(s.answer(second)[0] == 0, "without its salt")
        check(s.answer(second, cache_salt="a") == (199, want[1]), "with its salt")
        check(s.answer(first, cache_salt="a")[0] == 0, "another salt")
        check(figure(s, "kvasir_warm_prompts") == 3, "prompts")
        check(figure(s, "kvasir_warm_running") == 0, "running")
        check(figure(s, 'kvasir_warm_prompts_done_total{result="ok"}') == 3, "done")
        check(figure(s, 'kvasir_warm_prompts_done_total{result="failed"}') == 0, "failed")
        check(figure(s, 'kvasir_warm_tokens_total{from="computed"}') == 700, "computed")
        check(figure(s, 'kvasir_warm_tokens_total{from="cache"}') == 400, "found")
        s.end()
    with Server(model("llama")) as s:
        check("warm_prompts" not in json.loads(s.ask("GET", "/v1/status")[1]), "without the flag")
        check("kvasir_warm" not in s.ask("GET", "/metrics")[1], "without the flag")


TALKING = os.path.join(os.environ.get("MODELS_DIR", ""), "SmolLM2-135M-Instruct.Q4_1.gguf")


def test_chat():
    """Messages are rendered as those of a request are."""
    chat = {"messages": [{"role": "user", "content": "Tell me of pages. " * 20}]}
    with Server(TALKING, *write("prompts", [chat, {"prompt": "Tell me."}])) as s:
        wait(s, "done")
        status, text = s.ask("POST", "/v1/chat/completions", {**chat, "max_tokens": 1})
        check(status == 200, text)
        usage = json.loads(text)["usage"]
        check(usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1, usage)


def test_tier():
    """After a restart they come from the folder."""
    flags = [*write("prompts", [{"prompt": prompt(700, 10)}]), "--cache-dir", "tier"]
    with Server(model("llama"), *flags) as s:
        check(wait(s, "done")["computed_tokens"] == 700, "computed")
        s.end()
    with Server(model("llama"), *flags) as s:
        check(wait(s, "done")["cached_tokens"] == whole_pages(699), "from the folder")
        s.end()


def test_lives():
    """A prompt is stored for its ttl, and pinned, as the line says."""
    short, pinned, plain = prompt(300, 11), prompt(300, 12), prompt(300, 13)
    flags = write("prompts", [{"prompt": pinned, "cache": {"pin": True}}, {"prompt": plain},
                              {"prompt": short, "cache": {"ttl": 2}}])
    with Server(model("llama"), *flags) as s:
        wait(s, "done")
        held = figure(s, "kvasir_cache_pinned_bytes")
        check(held > 0, "nothing is pinned")
        time.sleep(3)
        check(s.answer(short, n=1)[0] == 0, "found after its ttl")
        check(s.answer(plain, n=1)[0] == 299, "one without a ttl")
        check(s.answer(pinned, n=1)[0] == 299, "one that is pinned")
        check(figure(s, "kvasir_cache_pinned_bytes") == held, "pinned bytes changed")
        s.end()
    with Server(model("llama"), *write("prompts", [{"prompt": plain}])) as s:
        wait(s, "done")
        check(figure(s, "kvasir_cache_pinned_bytes") == 0, "pinned without a word")
        s.end()


def test_clients_first():
    """A request comes while prompts are computed: it is answered, and then they go on."""
    many = [prompt(2000, 20 + i) for i in range(40)]
    mine = prompt(150, 19)
    [want] = cold(model("llama"), [], [mine])
    with Server(model("llama"), *write("prompts", [{"prompt": p} for p in many]),
                memory=1024) as s:
        check(s.ask("GET", "/ready")[0] == 200, "ready before they are computed")
        before = state(s)
        check(before["state"] == "running", before)
        check(s.answer(mine) == (0, want), "an answer meanwhile")
        after = state(s)
        check(after["done"] <= before["done"] + 20, "it waited for prompts", before, after)
        done = wait(s, "done")
        check(done["done"] == 40 and done["computed_tokens"] > 79900, done)
        check(s.answer(many[39], n=1)[0] == 1999, "the last prompt")
        s.end()
    with Server(model("llama"), *write("prompts", [{"prompt": p} for p in many]),
                memory=1024) as s:
        begin = time.time()
        s.end()  # does not wait for the rest
        check(time.time() - begin < 10, "the end took", time.time() - begin)


def test_full():
    """Nothing is evicted for them, and a prefix that many begin with counts once."""
    common = prompt(1000, 80)
    lines = [{"prompt": common + prompt(20, 81 + i)} for i in range(20)]
    lines += [{"prompt": prompt(1000, 120 + i)} for i in range(40)]
    with Server(model("llama"), "--kv-bits", "f32", *write("prompts", lines), memory=48) as s:
        full = wait(s, "full")
        check(20 <= full["done"] < 60, full)
        s.line(r" server: warm prompts: stopped, the cache is full: \d+ of 60 are in ")
        check(figure(s, "kvasir_cache_evicted_pages_total") == 0, "evicted")
        check(s.answer(lines[0]["prompt"], n=1)[0] == 1019, "the first is still there")
        s.end()
    with Server(model("llama"), *write("prompts", lines), "--prompt-cache-size", "5") as s:
        check(5 <= wait(s, "full")["done"] <= 6, "a limit on entries", state(s))
        s.line(r" server: warm prompts: stopped, the cache evicts prefixes: ")
        s.end()


def test_refusals():
    """A line that is no prompt ends the start, with its number."""
    for want, line in [("line 2: invalid JSON at byte 7", '{"a": x}'), ("line 2: must be", "[1]"),
                       ("line 2: must be", '{"text": "x"}'),
                       ("line 2: must be", '{"prompt": "x", "messages": []}'),
                       ("line 2: prompt: ", '{"prompt": 5}'),
                       ("line 2: messages", '{"messages": 5}'),
                       ("line 2: cache_salt", '{"prompt": "x", "cache_salt": 1}'),
                       ("line 2: cache.no_store", '{"prompt": [8], "cache": {"no_store": true}}'),
                       ("line 2: cache", '{"prompt": [8], "cache": {"tll": 3}}'),
                       ("line 2: the prompt has 5000 tokens, at most [0-9]+ fit",
                        json.dumps({"prompt": prompt(5000, 1)}))]:
        refused_start("^kvasir serve: --warm-prompts: " + want, "--max-model-len", "4096",
                      *write("bad", [{"prompt": [8, 9]}, line]))
    refused_start("--warm-prompts: .*nowhere", "--warm-prompts", "nowhere")
    refused_start("--warm-prompts: contains no prompt", *write("bad", ["", "  "]))
    flags = write("prompts", [{"prompt": prompt(300, 1)}])
    refused_start("--warm-prompts: not allowed with --no-prefix-cache", "--no-prefix-cache",
                  *flags)
    refused_start("--warm-prompts: the 2 API keys share no", "--api-key", "a", "--api-key", "b",
                  *flags)


if __name__ == "__main__":
    tests = [test_warm, test_tier, test_lives, test_clients_first, test_full, test_refusals]
    if os.path.exists(TALKING):
        tests.append(test_chat)
    else:
        print("no", TALKING, "so no chats were tested")
    run(tests)
