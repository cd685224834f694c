#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what agents' clients send: `record_traces.py TRACE...` writes traces/TRACE.jsonl.xz.

    openai_agents      openai-agents over /v1/chat/completions: one task, 49 calls of tools
    openai_handoffs    the same: a session of questions, answered by agents that hand over
    openai_responses   the first over /v1/responses, the default of openai-agents
    smolagents_tools   a ToolCallingAgent of smolagents that plans every tenth step
    smolagents_code    its CodeAgent, whose calls are Python
    aider              aider, asked for one change of a file after the other

The clients are real, the model is not: a server in this process answers from a script, with random
words that are the same every time, and keeps each request. A line of the file is one request,
{"path", "body", "answer"}, where "answer" is a message with "content", "reasoning_content" and
"tool_calls". agent_traces.py replays them. Needs the packages of traces/requirements.txt (aider:
those of traces/aider.txt, in an environment of its own) and no network.
"""
import asyncio
import http.server
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(__file__))
from trace_words import Writer  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TURNS = 50


def text_message(w, n=120):
    return {"role": "assistant", "content": w.text(n), "reasoning_content": w.text(100)}


def call_message(w, number, name, arguments):
    return {"role": "assistant", "content": None, "reasoning_content": w.text(100),
            "tool_calls": [{"id": f"call_{number}", "type": "function", "function": {
                "name": name, "arguments": json.dumps(arguments)}}]}


# ---- a model from a script -----------------------------------------------------------------------


def as_chat(message, number):
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    return {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": "local",
            "choices": [{"index": 0, "finish_reason": finish, "message": message}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def as_response(message, number):
    output = [{"type": "reasoning", "id": f"rs_{number}", "summary": [], "content": [
        {"type": "reasoning_text", "text": message["reasoning_content"]}]}]
    for call in message.get("tool_calls", []):
        output.append({"type": "function_call", "id": f"fc_{number}", "call_id": call["id"],
                       "status": "completed", **call["function"]})
    if message["content"]:
        output.append({"type": "message", "id": f"msg_{number}", "role": "assistant",
                       "status": "completed", "content": [
                           {"type": "output_text", "text": message["content"],
                            "annotations": []}]})
    return {"id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed",
            "model": "local", "output": output, "parallel_tool_calls": True, "tools": [],
            "tool_choice": "auto",
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
                      "input_tokens_details": {"cached_tokens": 0},
                      "output_tokens_details": {"reasoning_tokens": 0}}}


class Recorder:
    """Answers request number n with script(body, n), until its `with` block ends."""

    def __init__(self, script):
        self.records, recorder = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert not body.get("stream"), "streams are not recorded"
                number = len(recorder.records)
                message = script(body, number)
                recorder.records.append({"path": self.path, "body": body, "answer": message})
                form = as_response if self.path == "/v1/responses" else as_chat
                data = json.dumps(form(message, number)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def write(self, name):
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in self.records)
        path = os.path.join(HERE, "traces", name + ".jsonl.xz")
        with lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as f:
            f.write(lines.encode())
        print(f"{name}: {len(self.records)} requests, {len(lines)} bytes, "
              f"{os.path.getsize(path)} compressed")


# ---- openai-agents -------------------------------------------------------------------------------


def openai_tools(decorate):
    @decorate
    def read_file(path: str, first_line: int) -> str:
        """Returns sixty lines of a file.

        Args:
            path: The file, from the root of the repository.
            first_line: The first of them.
        """
        return Writer(path + str(first_line)).text(420)

    @decorate
    def search(words: str) -> str:
        """Searches the whole repository.

        Args:
            words: What to look for.
        """
        return Writer(words).text(300)

    return [read_file, search]


def next_call(w, number):
    if number % 3 == 2:
        return call_message(w, number, "search", {"words": w.text(20)})
    return call_message(w, number, "read_file",
                        {"path": f"src/file{number}.c", "first_line": 60 * number})


def openai_agent(recorder, responses):
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    import agents
    import openai
    client = openai.AsyncOpenAI(base_url=recorder.url, api_key="none")
    kind = agents.OpenAIResponsesModel if responses else agents.OpenAIChatCompletionsModel
    return agents, lambda name, **more: agents.Agent(
        name=name, model=kind("local", client), instructions=Writer(name).text(1500), **more)


def one_task(responses):
    w = Writer("task")
    last = TURNS - 1
    with Recorder(lambda _, n: next_call(w, n) if n < last else text_message(w)) as recorder:
        agents, make = openai_agent(recorder, responses)
        agent = make("worker", tools=openai_tools(agents.function_tool))
        agents.Runner.run_sync(agent, w.text(300), max_turns=TURNS + 1)
    return recorder


def openai_agents():
    return one_task(False)


def openai_responses():
    return one_task(True)


def openai_handoffs():
    """Questions in one session. Who is asked hands over to another agent, who uses a tool or two
    and answers; the next question starts with the first agent again."""
    w = Writer("questions")
    state = {"step": 0}

    def script(body, number):
        state["step"] += 1
        names = [t["function"]["name"] for t in body["tools"]]
        handoffs = [n for n in names if n.startswith("transfer_to_")]
        if state["step"] == 1 and handoffs:
            return call_message(w, number, handoffs[state["question"] % len(handoffs)], {})
        if state["step"] <= 2 + state["question"] % 2:
            return next_call(w, number)
        return text_message(w, 250)

    async def questions(recorder):
        agents, make = openai_agent(recorder, False)
        tools = openai_tools(agents.function_tool)
        others = [make(n, tools=tools, handoff_description=w.text(50)) for n in ("coder", "tester")]
        first = make("triage", tools=tools, handoffs=others)
        session = agents.SQLiteSession("one")
        while len(recorder.records) < TURNS - 3:
            state.update(step=0, question=state.get("question", -1) + 1)
            await agents.Runner.run(first, w.text(150), session=session)

    with Recorder(script) as recorder:
        asyncio.run(questions(recorder))
    return recorder


# ---- smolagents ----------------------------------------------------------------------------------


def smolagent(recorder, kind, **more):
    import smolagents
    model = smolagents.OpenAIServerModel("local", api_base=recorder.url, api_key="none")
    return getattr(smolagents, kind)(tools=openai_tools(smolagents.tool), model=model,
                                     max_steps=TURNS + 1, verbosity_level=0, **more)


def smolagents_tools():
    w, steps = Writer("smol"), []

    def script(body, number):
        if not body.get("tools"):  # a plan
            return text_message(w, 500)
        steps.append(number)
        if number >= TURNS - 1:
            return call_message(w, number, "final_answer", {"answer": w.text(60)})
        return next_call(w, number)

    with Recorder(script) as recorder:
        smolagent(recorder, "ToolCallingAgent", planning_interval=10).run(w.text(300))
    return recorder


def smolagents_code():
    w = Writer("code")

    def script(_, number):
        if number >= TURNS - 1:
            code = f"final_answer({w.text(60)!r})"
        else:
            code = (f"text_{number} = read_file('src/file{number}.c', {60 * number})\n"
                    f"print(text_{number}[:120])")
        return {"role": "assistant", "reasoning_content": w.text(100),
                "content": f"Thought: {w.text(60)}\n<code>\n{code}\n</code>"}

    with Recorder(script) as recorder:
        smolagent(recorder, "CodeAgent").run(w.text(300))
    return recorder


# ---- aider ---------------------------------------------------------------------------------------


def aider():
    """A file whose lines are changed one by one, and a question in every fifth turn; another file
    is in the repository only. aider asks the same model for summaries of what was said."""
    import aider.coders
    import aider.io
    import aider.models
    w = Writer("aider")
    state = {"line": 0}

    def script(body, _):
        whole = json.dumps(body["messages"])
        n = state["line"]
        if "SEARCH/REPLACE" not in whole or n % 5 == 4:  # a summary, or a question
            return text_message(w, 300)
        return {"role": "assistant", "reasoning_content": w.text(100), "content":
                f"{w.text(100)}\n\nnumbers.py\n```python\n<<<<<<< SEARCH\n    value_{n} = {n}\n"
                f"=======\n    value_{n} = {n + 1000}\n>>>>>>> REPLACE\n```\n"}

    folder = tempfile.mkdtemp()
    back = os.getcwd()
    try:
        os.chdir(folder)
        with open("numbers.py", "w", encoding="utf-8") as f:
            f.write("def numbers():\n" + "".join(f"    value_{n} = {n}\n" for n in range(TURNS)))
        with open("helper.py", "w", encoding="utf-8") as f:
            f.write("".join(f"def helper_{n}(value):\n    return value + {n}\n\n\n"
                            for n in range(8)))
        git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
            subprocess.run(git + command, check=True)
        with Recorder(script) as recorder:
            os.environ.update(OPENAI_API_BASE=recorder.url, OPENAI_API_KEY="none",
                              LITELLM_LOCAL_MODEL_COST_MAP="True")
            model = aider.models.Model("openai/local", weak_model="openai/local")
            coder = aider.coders.Coder.create(
                main_model=model, edit_format="diff", fnames=["numbers.py"], stream=False,
                io=aider.io.InputOutput(yes=True, pretty=False, chat_history_file=None),
                auto_commits=False, suggest_shell_commands=False, detect_urls=False,
                map_tokens=1024)
            while len(recorder.records) < TURNS:
                begin = "What is" if state["line"] % 5 == 4 else "Make larger:"
                coder.run(with_message=f"{begin} value_{state['line']}. {w.text(60)}",
                          preproc=False)
                if coder.summarizer_thread:
                    coder.summarizer_thread.join()
                state["line"] += 1
    finally:
        os.chdir(back)
        shutil.rmtree(folder)
    for r in recorder.records:  # of this machine
        text = re.sub(r"Platform: [^\\\n]*", "Platform: Linux", json.dumps(r["body"]))
        r["body"] = json.loads(text)
    return recorder


TRACES = {f.__name__: f for f in (openai_agents, openai_handoffs, openai_responses,
                                  smolagents_tools, smolagents_code, aider)}


if __name__ == "__main__":
    for trace in sys.argv[1:]:
        TRACES[trace]().write(trace)
