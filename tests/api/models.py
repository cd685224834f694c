# SPDX-License-Identifier: Apache-2.0
"""kvasir serve --models: each request is answered by the model that it names, bit for bit as a
server of that model alone answers it, whatever is loaded, unloaded or fails beside it.

    models.py PROGRAM STORIES TINY [FLAG ...]

All servers get the flags. Works in the current folder, which has slow_open.so (slow_open.c).
"""
import http.client
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from served import Process, Server, check, prompt  # noqa: E402

PROGRAM, STORIES, TINY, *FLAGS = sys.argv[1:]
Server.program, Server.flags = PROGRAM, [*FLAGS, "--kv-bits", "f16"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


class Many(Process):
    """A server of several models."""
    answer = Server.answer
    end = Server.end

    def __init__(self, models, *flags, memory=128, **environment):
        if not isinstance(models, str):
            fd, path = tempfile.mkstemp(prefix="models", suffix=".json", dir=".")
            os.write(fd, json.dumps(models).encode())
            os.close(fd)
            models = path
        fd, log = tempfile.mkstemp(prefix="log", dir=".")
        os.close(fd)
        super().__init__(
            ["env", *(f"{k}={v}" for k, v in environment.items()), PROGRAM, "serve", "--models",
             models, "--port", "0", "--threads", "2", "--max-model-len", "4096", "--kv-bits", "f16",
             "--cache-memory-mb", str(memory), *FLAGS, *flags], log)

    def models(self):
        status, text = self.ask("GET", "/v1/models")
        check(status == 200, text)
        return {m["id"]: m for m in json.loads(text)["data"]}

    def states(self):
        return {name: m["state"] for name, m in self.models().items()}

    def wait_state(self, name, state, seconds=30):
        end = time.time() + seconds
        while self.states()[name] != state:
            check(time.time() < end, name, "is not", state, self.models()[name])
            time.sleep(0.02)

    def post(self, path, **body):
        status, text = self.ask("POST", path, body)
        return status, json.loads(text)

    def say(self, model, n=4, **more):
        return self.post("/v1/completions", model=model, prompt=[1, 300], max_tokens=n,
                         temperature=0, ignore_eos=True, **more)

    def figure(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.ask("GET", "/metrics")[1], re.M)
        return float(found[1]) if found else None


class Stream:
    """A long answer, most of which is only read by finish."""

    def __init__(self, s, model, n=1000):
        self.n = n
        self.c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        self.c.request("POST", "/v1/completions", json.dumps(
            {"model": model, "prompt": [1, 300], "max_tokens": n, "temperature": 0, "stream": True,
             "ignore_eos": True, "stream_options": {"include_usage": True}}))
        self.r = self.c.getresponse()
        check(self.r.status == 200, self.r.status)
        self.text = self.r.readline().decode()  # it has begun

    def leave(self):
        self.r.close()
        self.c.close()

    def finish(self):
        self.text += self.r.read().decode()
        check(self.text.rstrip().endswith("data: [DONE]"), self.text[-300:])
        usage = json.loads(self.text.strip().split("\n\n")[-2][6:])["usage"]
        check(usage["completion_tokens"] == self.n, usage)


def folder(name, **models):
    """A folder with links to models."""
    shutil.rmtree(name, ignore_errors=True)
    os.mkdir(name)
    for link, to in models.items():
        os.symlink(to, os.path.join(name, link.replace("_gguf", ".gguf")))
    return name


def copy(name):
    """A folder with a model that may be changed."""
    shutil.rmtree(name, ignore_errors=True)
    shutil.copytree(STORIES + "/hf", name)
    for file in os.listdir(name):
        os.chmod(os.path.join(name, file), 0o600)
    return name


def both():
    return folder("both", stories=STORIES + "/hf", tiny=TINY,
                  flat_gguf=STORIES + "/stories260K-f32.gguf")


def timed(f, *args, **more):
    begin = time.time()
    result = f(*args, **more)
    return result, time.time() - begin


def in_thread(f, *args, **more):
    """Its result, once joined."""
    results = []
    t = threading.Thread(target=lambda: results.append(f(*args, **more)))
    t.start()

    def join():
        t.join(60)
        check(not t.is_alive(), "a request hangs")
        return results[0]
    return join


# ---- names -------------------------------------------------------------------------------------

def test_names():
    with Many(both(), "--models-at-once", "3") as s:
        check(s.states() == dict.fromkeys(["flat", "stories", "tiny"], "unloaded"), s.models())
        check(s.models()["flat"]["default"] and not s.models()["tiny"]["default"], s.models())
        health = json.loads(s.ask("GET", "/health")[1])
        check(not health["model_loaded"] and health["available_models"] ==
              ["flat", "stories", "tiny"], health)
        check(s.ask("GET", "/ready")[0] == 200, "ready")
        check(s.ask("GET", "/props")[0] == 503, "props of none")
        status, a = s.say("tiny")
        check(status == 200 and a["model"] == "tiny", a)
        check(s.states() == {"flat": "unloaded", "stories": "unloaded", "tiny": "loaded"},
              s.states())
        check(s.models()["tiny"]["max_model_len"] == 4096, s.models())
        status, a = s.post("/v1/completions", prompt=[1, 300], max_tokens=1)
        check(status == 200 and a["model"] == "flat", "the default", a)
        check(s.say("stories:latest")[0] == 200, "with a tag")
        check(json.loads(s.ask("GET", "/health")[1])["model_loaded"], "health")
        check(json.loads(s.ask("GET", "/v1/models/stories")[1])["state"] == "loaded", "one")
        check(s.ask("GET", "/v1/models/nope")[0] == 404, "GET of none")
        status, text = s.ask("GET", "/props?model=tiny")
        check(status == 200 and json.loads(text)["model_alias"] == "tiny", text)
        check(s.ask("GET", "/slots?model=tiny")[0] == 200, "slots")
        for path in ("/props", "/slots", "/v1/status", "/v1/cache/stats"):
            check(s.ask("GET", path + "?model=nope")[0] == 404, path, "of an unknown one")
        tags = json.loads(s.ask("GET", "/api/tags")[1])["models"]
        check([t["name"] for t in tags] == ["flat:latest", "stories:latest", "tiny:latest"] and
              all(t["state"] == "loaded" for t in tags), tags)
        status = json.loads(s.ask("GET", "/v1/status?model=tiny")[1])
        check(status["model"] == "tiny" and len(status["models"]) == 3 and
              status["total_completion_tokens"] == 4, status)
        s.line(r" id=.* client=127.0.0.1 .* model=stories$")
        s.end()


def bodies():
    chat = [{"role": "user", "content": "Once"}]
    return [("/v1/chat/completions", {"messages": chat, "max_tokens": 2}),
            ("/v1/completions", {"prompt": "Once", "max_tokens": 2}),
            ("/v1/messages", {"messages": chat, "max_tokens": 2}),
            ("/v1/messages/count_tokens", {"messages": chat}),
            ("/v1/responses", {"input": "Once", "max_output_tokens": 16}),
            ("/v1/responses/input_tokens", {"input": "Once"}),
            ("/v1/embeddings", {"input": "Once"}),
            ("/v1/rerank", {"query": "Once", "documents": ["upon", "a time"]}),
            ("/api/chat", {"messages": chat, "stream": False, "options": {"num_predict": 2}}),
            ("/api/generate", {"prompt": "Once", "stream": False, "options": {"num_predict": 2}}),
            ("/api/embed", {"input": "Once"}), ("/api/show", {}),
            ("/completion", {"prompt": "Once", "n_predict": 2}),
            ("/tokenize", {"content": "Once"}), ("/detokenize", {"tokens": [5, 6]}),
            ("/apply-template", {"messages": chat}),
            ("/v1/cache/explain", {"prompt": "Once", "max_tokens": 2})]


def test_routes():
    """Every route knows the models, and says which there are."""
    with Many(folder("two", stories=STORIES + "/hf", flat_gguf=STORIES + "/stories260K-f32.gguf"),
              "--models-at-once", "1", "--chat-template", "template") as s:
        for path, body in bodies():
            s.say("flat", 1)  # unloads the other
            status, text = s.ask("POST", path, {**body, "model": "stories"})
            check(status == 200, path, text)
            check(s.states()["stories"] == "loaded", path)
            status, text = s.ask("POST", path, {**body, "model": "nope"})
            check(status == 404 and "nope" in text and "flat" in text and "stories" in text, path,
                  status, text)
        check(s.figure('kvasir_model_loads_total{model_name="stories"}') == len(bodies()), "loads")
        check(s.ask("POST", "/api/show", {"name": "stories"})[0] == 200, "by ollama's old member")
        for body in ("{", "[]", '{"model": "flat", "model": "flat"}', ""):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
            c.request("POST", "/v1/completions", body)
            check(c.getresponse().status == 400, body)
        s.end()


# ---- answers -----------------------------------------------------------------------------------

def alone(path, prompts):
    with Server(path) as s:
        said = [s.answer(p)[1] for p in prompts]
        s.end()
    return said


def test_answers():
    """In every number those of a lone server, also while the other models work."""
    prompts = [prompt(150, 1), prompt(90, 2), prompt(150, 1)[:100] + prompt(20, 3)]
    paths = {"stories": STORIES + "/hf", "tiny": TINY, "flat": STORIES + "/stories260K-f32.gguf"}
    want = {name: alone(path, prompts) for name, path in paths.items()}
    check(want["stories"] != want["tiny"], "the models say the same")
    for at_once in ("1", "3"):
        with Many(both(), "--models-at-once", at_once) as s:
            def ask(name):
                return [s.answer(p, model=name)[1] for p in prompts]
            for name in paths:
                check(ask(name) == want[name], name)
            joins = [(name, in_thread(ask, name)) for name in [*paths, *paths]]
            for name, join in joins:
                check(join() == want[name], name, "beside others")
            if at_once == "3":
                check(s.answer(prompts[0], model="tiny")[0] == 149, "from the cache")
            s.end()


def test_responses():
    """A conversation keeps its model."""
    with Many(both(), "--chat-template", "template") as s:
        def more(**body):
            status, a = s.post("/v1/responses", input="Once", max_output_tokens=16, **body)
            check(status == 200, a)
            return a
        first = more(model="stories")
        check(more(previous_response_id=first["id"])["model"] == "stories", "the same")
        check(more(previous_response_id=first["id"], model="flat")["model"] == "flat", "another")
        check(more()["model"] == "flat", "the default")
        check(s.post("/v1/responses", input="x", previous_response_id="resp_x")[0] == 404, "none")
        s.end()


# ---- loading -----------------------------------------------------------------------------------

def test_swap():
    """One place: who is in use stays, the other waits; nobody is cut."""
    with Many(both(), "--models-at-once", "1") as s:
        stream = Stream(s, "stories")
        join = in_thread(s.say, "tiny")  # waits, unless the stream is over already
        stream.finish()
        check(join()[0] == 200, "after it")
        check(s.states() == {"flat": "unloaded", "stories": "unloaded", "tiny": "loaded"},
              s.states())
        s.line(r' server: model "stories": unloading: another needs its memory$')
        check(s.figure('kvasir_model_unloads_total{model_name="stories"}') == 1, "unloads")
        stream = Stream(s, "tiny")
        stream.leave()
        check(s.say("stories")[0] == 200, "after a client that left")
        s.end()


SLOW = {"LD_PRELOAD": os.path.abspath("slow_open.so"),
        "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def test_slow():
    """While a model is being loaded, others answer; who waits for it gets it, or may leave."""
    models = [{"path": TINY, "name": "tiny"}, {"path": copy("slow"), "aliases": ["late"]}]
    with Many(models, SLOW_MS=1500, **SLOW) as s:
        check(s.say("tiny")[0] == 200, "tiny")
        status, text = s.ask("GET", "/v1/status?model=late")
        check(status == 200 and json.loads(text)["model"] == "slow", "of one that is not loaded")
        stream = Stream(s, "tiny")
        joins = [in_thread(s.say, name) for name in ("slow", "late", "slow")]
        s.wait_state("slow", "loading")
        for _ in range(5):
            (status, _), seconds = timed(s.say, "tiny")
            check(status == 200 and seconds < 2, "another model", seconds)
        check(s.states()["slow"] == "loading", "it was loaded at once")
        check(s.models()["slow"]["waiting"] == 3, s.models())
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        c.request("POST", "/v1/completions", json.dumps({"model": "slow", "prompt": "x"}))
        cancelled = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        cancelled.request("POST", "/v1/completions", json.dumps({"model": "slow", "prompt": "x"}),
                          {"X-Request-Id": "mine"})
        while s.models()["slow"]["waiting"] < 5:
            check(s.states()["slow"] == "loading", "it was loaded too soon")
        c.close()  # leaves while it waits
        check(s.ask("DELETE", "/v1/requests/mine")[0] == 200, "cancel")
        text = cancelled.getresponse().read().decode()
        check("cancelled" in text and s.states()["slow"] == "loading", text)
        check([join()[0] for join in joins] == [200] * 3, "after the load")
        stream.finish()
        check(s.figure('kvasir_model_loads_total{model_name="slow"}') == 1, "loaded once")
        s.end()
    with Many(models, SLOW_MS=1000, **SLOW) as s:  # the end comes while it is being loaded
        join = in_thread(s.say, "slow")
        s.wait_state("slow", "loading")
        s.end()
        check(join()[0] == 200, "an open request")
    with Many(models, "--drain-timeout", "1", SLOW_MS=1500, **SLOW) as s:
        join = in_thread(s.say, "slow")
        s.wait_state("slow", "loading")
        s.end()
        status, a = join()
        check(status == 503 and "shutting down" in a["error"]["message"], status, a)


def test_wait():
    """Who waits too long is told, whether it is for a load or for a place; later there is one."""
    models = [{"path": TINY, "name": "tiny"}, {"path": copy("slow")}]
    with Many(models, "--models-at-once", "1", "--model-wait-seconds", "1", SLOW_MS=2000,
              **SLOW) as s:
        first = in_thread(s.say, "slow")
        s.wait_state("slow", "loading")
        (status, a), seconds = timed(s.say, "tiny")
        check(status == 503 and "within 1 seconds: other models" in a["error"]["message"], a)
        check(0.9 < seconds < 10, seconds)
        status, a = first()
        check(status == 503 and "still being loaded" in a["error"]["message"], a)
        check(s.figure('kvasir_requests_refused_total{reason="model"}') == 2, "refused")
        s.wait_state("slow", "loaded")
        check(s.say("slow")[0] == 200 and s.say("tiny")[0] == 200, "later")
        s.end()


def test_idle_and_pinned():
    models = [{"path": TINY, "name": "tiny", "pinned": True},
              {"path": STORIES + "/hf", "name": "stories", "default": True}]
    with Many(models, "--model-idle-seconds", "1") as s:
        check(s.states() == {"tiny": "loaded", "stories": "unloaded"}, s.states())
        stream = Stream(s, "stories")
        stream.finish()
        s.wait_state("stories", "unloaded")
        s.line(r' server: model "stories": unloading: idle$')
        check(s.states()["tiny"] == "loaded", "a pinned one")
        check(s.post("/v1/completions", prompt="Once", max_tokens=1)[1]["model"] == "stories", "")
        s.end()


def test_failure():
    """A damaged model is an error for its requests alone, and is there once it is repaired."""
    models = [{"path": TINY, "name": "tiny"}, {"path": copy("damaged"), "name": "damaged"}]
    with open("damaged/config.json") as f:
        good = f.read()
    with open("damaged/config.json", "w") as f:
        f.write("{")
    with Many(models) as s:
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
        for _ in range(2):  # at its load, and while it is not tried again
            c.request("POST", "/v1/completions", json.dumps({"model": "damaged", "prompt": "x"}))
            r = c.getresponse()
            text = r.read().decode()
            check(r.status == 503 and 1 <= int(r.headers["Retry-After"]) <= 6, r.status, text)
            check('model \\"damaged\\" cannot be loaded now: ' in text, text)
            c.close()
        check(s.states()["damaged"] == "failed", s.states())
        check("JSON" in s.models()["damaged"]["error"], s.models())
        check(s.figure('kvasir_model_load_failures_total{model_name="damaged"}') == 1, "failures")
        check(s.say("tiny")[0] == 200, "another")
        with open("damaged/config.json", "w") as f:
            f.write(good)
        time.sleep(5.1)
        check(s.say("damaged")[0] == 200, "repaired")
        check(s.models()["damaged"]["error"] is None, s.models())
        with open("damaged/model.safetensors", "r+b") as f:  # in use: it is loaded again
            f.seek(-8, os.SEEK_END)
            f.write(b"\1" * 8)
        s.line(r' server: model "damaged": damaged/model.safetensors: ')
        check(s.say("damaged")[0] == 200, "changed")
        check(s.figure('kvasir_model_loads_total{model_name="damaged"}') == 2, "loads")
        s.end()


# ---- the rest ----------------------------------------------------------------------------------

def test_config():
    models = [{"path": STORIES + "/hf", "name": "org/small", "aliases": ["gpt-4o", "o1:8b"],
               "share": 25, "ctx": 300, "max-tokens": 3, "kv-bits": "bf16"},
              {"path": STORIES + "/hf", "name": "big", "cache-memory-mb": 32}]
    with Many(models) as s:
        for name in ("org/small", "gpt-4o", "o1:8b", "gpt-4o:latest"):
            check(s.say(name)[0] == 200, name, s.text()[-500:])
        check(s.ask("GET", "/v1/models/org/small")[0] == 200, "a name with a slash")
        check(s.models()["org/small"]["max_model_len"] == 300, s.models())
        a = s.post("/v1/completions", prompt="Once", ignore_eos=True)[1]
        check(a["usage"]["completion_tokens"] == 3, a)
        check(s.say("big", 400)[0] == 200, "its own context")
        check(s.say("gpt-4o", 400)[0] == 400, "its own context")
        name = 'kvasir_cache_budget_bytes{model_name="%s"}'
        check(s.figure(name % "org/small") == 32 << 20 and s.figure(name % "big") == 32 << 20,
              "budgets")
        s.end()


def test_metrics():
    """A family stands once, with a sample of each loaded model."""
    with Many(both(), "--models-at-once", "2") as s:
        for name in ("flat", "tiny"):
            check(s.say(name)[0] == 200, name, s.text()[-500:])
        text = s.ask("GET", "/metrics")[1]
        heads, family, seen = set(), None, set()
        for line in text.splitlines():
            if line.startswith("# HELP "):
                family = line.split()[2]
                check(family not in heads, "twice", family)
                heads.add(family)
            elif not line.startswith("#"):
                name = re.match(r"[a-z_:A-Z0-9]+", line)[0]
                check(re.fullmatch(re.escape(family) + "(_bucket|_sum|_count)?", name), line)
                key = line.rsplit(" ", 1)[0]
                check(key not in seen, "twice", key)
                seen.add(key)
        for family in ("vllm:generation_tokens_total", "kvasir_cache_used_bytes"):
            of = set(re.findall(rf'^{family}{{model_name="(\w+)"}} [1-9]', text, re.M))
            check(of == {"flat", "tiny"}, family, of)
        check('kvasir_model_state{model_name="stories",state="unloaded"} 1' in text, "states")
        check(re.search(r'^kvasir_build_info{version=".*",cpu_tier="\w+"} 1$', text, re.M), "build")
        s.end()


def test_forget():
    """DELETE /v1/cache: of all that are loaded, or of one, which is loaded for it."""
    p = prompt(200, 4)
    with Many(both(), "--models-at-once", "2") as s:
        for name in ("flat", "tiny"):
            s.answer(p, model=name)
        status, text = s.ask("DELETE", "/v1/cache?model=tiny")
        check(status == 200 and json.loads(text)["models"] == ["tiny"], text)
        check(s.answer(p, model="tiny")[0] == 0 and s.answer(p, model="flat")[0] == 199, "of one")
        status, text = s.ask("DELETE", "/v1/cache")
        check(status == 200 and sorted(json.loads(text)["models"]) == ["flat", "tiny"], text)
        check(s.answer(p, model="tiny")[0] == 0 and s.answer(p, model="flat")[0] == 0, "of all")
        check(s.ask("DELETE", "/v1/cache?model=nope")[0] == 404, "of none")
        status, text = s.ask("DELETE", "/v1/cache", {"model": "stories"})
        check(status == 200 and json.loads(text)["models"] == ["stories"], text)
        s.end()


def test_folder():
    """Each model has a part of --cache-dir; what it stored it finds after it was unloaded, and
    after a restart."""
    p = prompt(300, 5)
    flags = ["--models-at-once", "1", "--cache-dir", "tier", "--cache-disk-gb", "1"]
    with Many(both(), *flags) as s:
        want = {name: s.answer(p, model=name)[1] for name in ("flat", "tiny")}
        check(s.answer(p, model="flat") == (256, want["flat"]), "after it was unloaded")
        s.end()
    check(sorted(os.listdir("tier")) == ["flat", "stories", "tiny"], os.listdir("tier"))
    with Many(both(), *flags) as s:
        for name in ("tiny", "flat"):
            check(s.answer(p, model=name) == (256, want[name]), "after a restart", name)
        s.end()


def main():
    with open("template", "w") as f:
        f.write(TEMPLATE)
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            begin = time.time()
            test()
            print(f"{name[5:]}: {time.time() - begin:.1f} s", flush=True)


signal.signal(signal.SIGPIPE, signal.SIG_DFL)
main()
