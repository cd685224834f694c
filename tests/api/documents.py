# SPDX-License-Identifier: Apache-2.0
"""documents.py KVASIR ROOT MODEL: runs the commands of the documents as a reader would.

Of each document in RUN, every command of an indented block that begins with kvasir, curl or printf
runs in a folder of its own, in their order: it must succeed. `kvasir serve` stays for the commands
that follow it; documents whose commands need a server and start none get one. A document with
such commands that is neither here nor in ELSEWHERE is a failure, and so is one here without any.
"""
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM, ROOT, MODEL = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
SHA256 = hashlib.sha256(MODEL.read_bytes()).hexdigest()
RUN = ["README.md", "docs/tutorial.md", "docs/server.md", "docs/sessions.md", "docs/models.md",
       "docs/structured-output.md", "docs/embeddings.md", "docs/prompt-caches.md",
       "docs/tiers.md", "docs/commands.md", "docs/responses.md", "docs/scheduling.md"]
ELSEWHERE = {"docs/install.md": "tools/installs.sh", "docs/deploy.md": "tools/installs.sh",
             "docs/clients": "tests/api/clients.sh", "docs/decisions": "a record",
             "docs/adding-a-model.md": "about sources", "docs/quality.md": "tools/quality.sh",
             "docs/speed.md": "tools/bench.sh", "docs/memory.md": "a table's command",
             "docs/matrix.md": "generated", "docs/flags.md": "generated",
             "docs/page.md": "how its pictures were made",
             "docs/exactness.md": "bench/exactness.sh", "docs/gpu.md": "tools/gpu.sh",
             "docs/supported-models.md": "models that are not at hand"}
# Begins of commands that do not run here, and why.
NOT_HERE = {"kvasir convert model.gguf tokenizer": "tests/api/convert.sh",
            "lm_eval": "tests/lmeval",
            "kvasir bench -m MODEL": "takes minutes; tests/api/bench.sh",
            "kvasir serve -m MODEL --cache-remote": "tests/api/tiers.sh has a Redis",
            "kvasir serve -m MODEL --device cuda": "bench/host_tier.c, on a GPU"}
NAMES = {"MODEL": "smollm2:135m", "/var/cache/kvasir": "cache", "/srv/models": "served",
         "--cache-memory-mb 16000": "--cache-memory-mb 256"}
FILES = {
    "report.txt": "The harbour was built in 1907. ",
    "requests.jsonl": json.dumps({
        "custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}}) + "\n",
    "conversation_trace.jsonl": "".join(
        json.dumps({"timestamp": t * 100, "input_length": 512, "output_length": 8, "hash_ids": [t]})
        + "\n" for t in range(200))}


def commands(path):
    """The commands of a document, each as one text."""
    found, rest = [], None
    for line in path.read_text(encoding="utf-8").split("\n"):
        if rest is None and not re.match(r" {4,}(kvasir|curl|printf|lm_eval) ", line):
            continue
        rest = (rest + "\n" if rest else "") + line.strip()
        if rest.endswith("\\"):
            continue
        try:
            shlex.split(rest)
        except ValueError:  # a quotation goes on
            continue
        found.append(rest)
        rest = None
    return found


class Reader:
    def __init__(self, folder):
        self.folder, self.server, self.session = folder, None, "none"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        bin_folder, models, served = (folder / n for n in ("bin", "models", "served"))
        for made in bin_folder, models, served:
            made.mkdir()
        (bin_folder / "kvasir").symlink_to(PROGRAM)
        for place in models, served:
            (place / MODEL.name).symlink_to(MODEL)
        short = subprocess.run([PROGRAM, "list", "--short"], capture_output=True, text=True,
                               check=True).stdout
        name = re.search(r"^smollm2:135m +(\S+)", short, re.M).group(1)
        (models / (MODEL.name + ".json")).write_text(json.dumps({"name": name, "sha256": SHA256}))
        for file, text in FILES.items():
            (folder / file).write_text(text)
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
        self.environment = {**clean, "HOME": str(folder), "KVASIR_MODELS_DIR": str(models),
                            "PATH": f"{bin_folder}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}

    def shell(self, command):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=100)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {command}\n{done.stderr}{done.stdout}"[:2000])
        return done.stdout

    def serve(self, command):
        self.end()
        self.server = subprocess.Popen(
            ["bash", "-c", f"exec {command} --port {self.port}"], cwd=self.folder,
            env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        said = ""
        for line in self.server.stderr:
            said += line
            if "listening on" in line:
                return
        sys.exit(f"no server: {command}\n{said}")

    def end(self):
        if self.server:
            self.server.terminate()
            self.server.communicate(timeout=60)
            if self.server.returncode != 0:
                sys.exit(f"a server ended with {self.server.returncode}")
        self.server = None

    def run(self, command):
        for name, here in NAMES.items():
            command = command.replace(name, here)
        command = command.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        command = re.sub(r"sess_0f\.\.\.", self.session, command)
        if command.startswith("kvasir serve"):
            self.serve(command)
        elif command.startswith("curl "):
            if not self.server:
                self.serve("kvasir serve -m smollm2:135m")
            out = self.shell("curl --fail-with-body -sS " + command[5:])
            session = re.search(r'"(sess_\w+)"', out)
            self.session = session.group(1) if session else self.session
        else:
            self.shell(command)


def check_comparison():
    """Of each feature of other pages, docs/page.md has a yes or the reason why not."""
    rows = (ROOT / "docs/page.md").read_text(encoding="utf-8").split("## Beside others")[1]
    ours = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", rows, re.M)
    bad = [feature for feature, ours in ours if not re.match(r"yes\b|no: \S", ours)]
    if bad or len(ours) < 20:
        sys.exit(f"docs/page.md: neither yes nor a reason: {bad} of {len(ours)} rows")


def main():
    check_comparison()
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        name = str(path.relative_to(ROOT))
        if name not in RUN and not any(name.startswith(e) for e in ELSEWHERE) and commands(path):
            sys.exit(f"{name}: has commands that nothing runs: {commands(path)[0]}")
    for name in RUN:
        started, folder = time.monotonic(), pathlib.Path(tempfile.mkdtemp(dir="."))
        reader, n = Reader(folder.resolve()), 0
        try:
            for command in commands(ROOT / name):
                if not any(command.startswith(c) for c in NOT_HERE):
                    reader.run(command)
                    n += 1
            reader.end()
        finally:
            if reader.server:
                reader.server.kill()
            shutil.rmtree(folder)
        if n == 0:
            sys.exit(f"{name}: no command")
        print(f"{name}: {n} commands, {time.monotonic() - started:.1f} s")


main()
