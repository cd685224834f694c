# SPDX-License-Identifier: Apache-2.0
"""draw_mutants.py [--count N] [--seed TEXT] [--jobs N] [--rooms A,B] [--shared DIR]
                [--folder DIR] [--state FILE] [--seconds N] [--prepare]

Draws N (200) small changes of src/ with a seed (default: the commit) and runs on each the tests
that execute its line, the quick ones first. A change that no test notices survives: it is equal to
the code for every input, or a hole in the tests. Exit code 1 if less than 85 percent are caught.

Changes: another operator, an integer one larger, a statement left out. Not drawn: comments, texts,
assertions, calls of the log, #-lines, calls that free (the address sanitizer's tests see those),
and where memory runs out: the line of an error "out of memory", and what directly follows the
check of an allocation if no test executes it. Those that do not compile, or give the same object,
are drawn again. Other lines that no test executes are drawn and survive (NO TEST).

Everything happens in the folder (build-drawn), which is prepared once: a copy of the tree, its
objects with counters of gcov in the drawn rooms, and which test executes which line. A change is
one object and the programs of its tests, linked where its worker works. --state keeps what was
judged, so that a run can continue; --seconds: after these, the outcome so far is printed.
--prepare: no more than that.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import json
import math
import os
import platform
import queue
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOMS = "cache,engine,api,http,text"
LEAST = 0.85
NOT_JUDGED = "not judged in time"
MACHINE = f"{platform.node()}, {os.cpu_count()} cores"
TOO_LONG_S = 90  # a test that takes longer is not run
LEFT_OUT = {"api.checks", "api.clients", "api.examples", "api.hardened", "api.install"}
GCOV_STUB = """
void __gcov_init(void *info) { (void)info; }
void __gcov_exit(void) {}
void __gcov_merge_add(long *counters, unsigned n) { (void)counters, (void)n; }
"""
LAUNCHER = """#!/bin/sh
case "$*" in
{patterns}) set -- "$@" --coverage ;;
esac
exec {ccache} "$@"
"""
OPERATORS = [("==", "!="), ("!=", "=="), (" < ", " <= "), (" <= ", " < "), (" > ", " >= "),
             (" >= ", " > "), (" + ", " - "), (" - ", " + "), (" * ", " + "), (" / ", " * "),
             ("&&", "||"), ("||", "&&"), ("true", "false"), ("false", "true"), ("++", "--"),
             ("+=", "-="), ("-=", "+="), (" & ", " | "), (" | ", " & "), ("<<", ">>")]
NOT_DRAWN = re.compile(r"^\s*#|ASSERT|_assert|\blog_\w+\(|KVASIR_ERR_MEMORY|out_of_memory")
DECLARES = re.compile(r"\s*(const|static|struct|enum|return|break|continue|goto|case|default|else|"
                      r"typedef|union|extern|(unsigned|[a-z0-9_]+_t|int|bool|char|double|float|"
                      r"size_t|kvasir_\w+|json_t) )")
FREES = re.compile(r"\s*(mem_free|json_decref|\w+_(deinit|destroy|free|close))\(")
ALLOCATES = re.compile(r"(alloc|strdup|create|_new)\w*\(|if \(!\w[\w>.-]*\)|== NULL")

Mutant = collections.namedtuple("Mutant", "kind path line column before after")
Test = collections.namedtuple("Test", "command environment program")


def blank(text):
    """The text with comments, strings and characters as blanks, and so of the same length."""
    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def memory_ran_out(lines, number, tests):
    """Whether the line, which no test executes, directly follows the check of an allocation."""
    at = number - 1
    if tests or at < 2:
        return False
    return (lines[at - 1].lstrip().startswith("if (!")
            and any(ALLOCATES.search(line) for line in lines[max(0, at - 4):at - 1]))


def candidates(root, path, tested):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        text = f.read()
    original, lines = text.split("\n"), blank(text).split("\n")
    depth, out = 0, []
    for number, line in enumerate(lines, 1):
        inside = depth > 0
        depth += line.count("{") - line.count("}")
        if (not inside or NOT_DRAWN.search(line) or "out of memory" in original[number - 1]
                or memory_ran_out(lines, number, code_of(tested, path, number))):
            continue
        for before, after in OPERATORS:
            word = r"\b" if before.isalpha() else ""
            for m in re.finditer(word + re.escape(before) + word, line):
                out.append(Mutant("operator", path, number, m.start(), before, after))
        for m in re.finditer(r"(?<![\w.])\d+(?![\w.])", line):
            out.append(Mutant("constant", path, number, m.start(), m[0], str(int(m[0]) + 1)))
        whole = line.strip()
        if (re.fullmatch(r"[a-z_*(].*;", whole, re.I)
                and not DECLARES.match(line) and not FREES.match(line)
                and whole.count("(") == whole.count(")")
                and re.search(r"[;{})]\s*$|^\s*$", lines[number - 2])):
            at = line.index(whole)
            before = original[number - 1][at:at + len(whole)]
            out.append(Mutant("statement", path, number, at, before, ";"))
    return out


def draw(root, rooms, lines, seed):
    """All candidates; the kinds take turns."""
    kinds = {"operator": [], "constant": [], "statement": []}
    for room in rooms:
        for name in sorted(os.listdir(os.path.join(root, "src", room))):
            if name.endswith(".c"):
                for m in candidates(root, os.path.join("src", room, name), lines):
                    kinds[m.kind].append(m)
    dice = random.Random(seed)
    for kind in kinds.values():
        dice.shuffle(kind)
    return [m for turn in zip(*kinds.values()) for m in turn]


def output_of(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


class Folder:
    """The copy of the tree, its build and what ctest and ninja say about it."""

    def __init__(self, path, rooms):
        self.path, self.rooms = os.path.abspath(path), rooms
        self.tree = os.path.join(self.path, "tree")
        self.build = os.path.join(self.tree, "build-ci")  # there, ccache knows most objects
        self.ready = os.path.join(self.path, "ready.json")
        self.known, self.end = {}, math.inf
        if os.path.exists(self.ready):
            with open(self.ready, encoding="utf-8") as f:
                self.known = json.load(f)

    def left(self):
        """The seconds until a run is to end."""
        return self.end - time.monotonic()

    def save(self):
        with open(self.ready + ".new", "w", encoding="utf-8") as f:
            json.dump(self.known, f)
        os.replace(self.ready + ".new", self.ready)

    def prepare(self, shared, jobs):
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.tree)
        names = output_of("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
        for name in filter(os.path.isfile, names.split("\0")):
            os.makedirs(os.path.join(self.tree, os.path.dirname(name)), exist_ok=True)
            shutil.copy2(name, os.path.join(self.tree, name))
        launcher = os.path.join(self.path, "launch")
        with open(launcher, "w", encoding="utf-8") as f:
            f.write(LAUNCHER.format(
                tree=self.tree, ccache=shutil.which("ccache") or "",
                patterns="|".join(f"*{self.tree}/src/{room}/*" for room in self.rooms)))
        os.chmod(launcher, 0o755)
        with open(os.path.join(self.path, "stub.c"), "w", encoding="utf-8") as f:
            f.write(GCOV_STUB)
        subprocess.run(
            ["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DBUILD_TESTING=ON",
             "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_COMPILER=gcc", "-DKVASIR_WERROR=ON",
             "-DKVASIR_PROGRAMS=15", "-DCMAKE_C_FLAGS=-DKVASIR_INSTRUMENTED",
             f"-DCMAKE_C_COMPILER_LAUNCHER={launcher}", "-DCMAKE_EXE_LINKER_FLAGS=--coverage",
             f"-DSHARED_DIR={shared}", f"-DMODELS_DIR={self.path}/models"],
            check=True, stdout=subprocess.DEVNULL)
        shown = json.loads(output_of("ctest", "--test-dir", self.build, "--show-only=json-v1"))
        names = [t["name"] for t in shown["tests"] if self.wanted(t)]
        programs = {"kvasir" if n.startswith("api.") else n.replace(".", "_", 1) for n in names}
        subprocess.run(["cmake", "--build", self.build, "-j", str(jobs), "--target", *programs],
                       check=True)
        subprocess.run(["cc", "-c", "-O1", "stub.c", "-o", "stub.o"], check=True, cwd=self.path)
        self.find_tests()
        self.find_commands()
        self.count_lines()
        self.save()

    @staticmethod
    def wanted(test):
        labels = {l for p in test["properties"] if p["name"] == "LABELS" for l in p["value"]}
        return bool(labels & {"unit", "sim", "fuzz", "api"}) and test["name"] not in LEFT_OUT

    def find_tests(self):
        shown = json.loads(output_of("ctest", "--test-dir", self.build, "--show-only=json-v1"))
        self.known["tests"] = tests = {}
        for test in filter(self.wanted, shown["tests"]):
            properties = {p["name"]: p["value"] for p in test["properties"]}
            program = next(a for a in test["command"] if a.startswith(self.build))
            tests[test["name"]] = (test["command"], properties.get("ENVIRONMENT", []), program)

    def find_commands(self):
        """The command that makes each object and program."""
        rules = json.loads(output_of("ninja", "-C", self.build, "-t", "compdb"))
        self.known["commands"] = {
            r["output"]: r["command"] for r in rules
            if re.search(r"kvasir_\w+\.dir/src/|^kvasir$|^tests/\w+$", r["output"])}

    def count_lines(self):
        """Which tests execute each line, and the seconds of each test."""
        lines, seconds = {}, {}
        for name in self.known["tests"]:
            for data in self.find(".gcda"):
                os.remove(data)
            begin = time.monotonic()
            if not holds(self.test(name), self.path, 10 * TOO_LONG_S):
                print(f"draw_mutants: {name} is not run: it fails in the tree itself", flush=True)
                continue
            seconds[name] = time.monotonic() - begin
            for place, count in self.counts(self.find(".gcda")).items():
                lines.setdefault(place, []).extend([name] if count else [])
        self.known.update(lines=lines, seconds=seconds, machine=MACHINE)

    def find(self, ending):
        return [os.path.join(d, f) for d, _, files in os.walk(self.build)
                for f in files if f.endswith(ending)]

    def counts(self, data):
        """{"path:line": how often it was executed} of the lines that have code"""
        if not data:
            return {}
        shown = output_of("gcov", "--json-format", "--stdout", *data, cwd=self.build,
                          stderr=subprocess.DEVNULL)
        out = collections.Counter()
        for unit in shown.splitlines():
            for f in json.loads(unit)["files"]:
                path = os.path.relpath(os.path.join(self.build, f["file"]), self.tree)
                out.update({f"{path}:{l['line_number']}": l["count"] for l in f["lines"]})
        return out

    def test(self, name):
        command, environment, program = self.known["tests"][name]
        return Test(command, dict(v.split("=", 1) for v in environment), program)

    def time_tests(self, jobs):
        """On another machine: which tests hold there, and how long they take."""
        def timed(name):
            begin = time.monotonic()
            worker = os.path.join(self.path, "time", name)
            os.makedirs(worker)
            program = self.test(name).program
            linked = link(self, program, os.path.join(worker, "program"), {})
            good = bool(linked) and holds(self.test(name), worker, TOO_LONG_S, linked)
            return name, good, time.monotonic() - begin
        names = list(self.known["seconds"])
        self.known.update(seconds={}, machine=MACHINE)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for name, good, seconds in pool.map(timed, names):
                if good:
                    self.known["seconds"][name] = seconds
                else:
                    print(f"draw_mutants: {name} is not run: it fails here", flush=True)
        shutil.rmtree(os.path.join(self.path, "time"))
        self.save()


def bounded():
    """In the process of a test: where memory runs out it is the first to be killed."""
    with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as f:
        f.write("1000")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))


def holds(test, worker, limit, program=None):
    """Whether the test holds or is skipped in time, in a folder of its own."""
    here = os.path.join(worker, "run")
    os.makedirs(here, exist_ok=True)
    command = [program if program and a == test.program else a for a in test.command]
    with subprocess.Popen(
            command, cwd=here, env={**os.environ, **test.environment, "TMPDIR": here},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=bounded) as run:
        try:
            code = run.wait(limit)
        except subprocess.TimeoutExpired:
            code = -1
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    shutil.rmtree(here, ignore_errors=True)
    return code in (0, 77)


def link(folder, program, to, replaced):
    """Links a program without counters, with objects replaced; where it is, or None."""
    output = os.path.relpath(program, folder.build)
    command = folder.known["commands"][output]
    words = [replaced.get(w, w) for w in shlex.split(command.split("&&")[1])]
    words = [os.path.join(folder.path, "stub.o") if w == "--coverage" else to if w == output else w
             for w in words]
    made = subprocess.run(words, cwd=folder.build, check=False, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    return to if made.returncode == 0 else None


def compile_text(folder, path, text, worker):
    """(object's name in the build, the object made of another text), or None."""
    name = next(o for o in folder.known["commands"] if o.endswith(".dir/" + path + ".o"))
    source, made = os.path.join(worker, "mutant.c"), os.path.join(worker, "mutant.o")
    with open(source, "w", encoding="utf-8") as f:
        f.write(text)
    where = os.path.join(folder.tree, path)
    words = shlex.split(folder.known["commands"][name].replace(name, made).replace(where, source))
    done = subprocess.run([*words[1:], "-iquote", os.path.dirname(where), "-w",
                           f"-ffile-prefix-map={worker}/="], cwd=folder.build, check=False,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (name, made) if done.returncode == 0 else None


def judge(folder, mutant, worker):
    """The test that notices it; "" if none does; None if it cannot be planted."""
    with open(os.path.join(folder.tree, mutant.path), encoding="utf-8") as f:
        text = f.read()
    lines = text.split("\n")
    line = lines[mutant.line - 1]
    end = mutant.column + len(mutant.before)
    assert line[mutant.column:end] == mutant.before, mutant
    shutil.rmtree(worker, ignore_errors=True)
    os.makedirs(worker)
    with open(compile_text(folder, mutant.path, text, worker)[1], "rb") as f:
        unchanged = f.read()
    lines[mutant.line - 1] = line[:mutant.column] + mutant.after + line[end:]
    made = compile_text(folder, mutant.path, "\n".join(lines), worker)
    if not made:
        return None
    with open(made[1], "rb") as f:
        if f.read() == unchanged:
            return None
    programs = {}
    for name in tests_of(folder, mutant):
        test = folder.test(name)
        if test.program not in programs:
            to = os.path.join(worker, os.path.basename(test.program))
            programs[test.program] = link(folder, test.program, to, dict([made]))
            if not programs[test.program]:
                return None
        limit = 10 + 5 * folder.known["seconds"][name]
        # Twice, because a test that fails for another reason would hide a survivor.
        held = any(holds(test, worker, min(limit, folder.left()), programs[test.program])
                   for _ in range(2))
        if folder.left() <= 0:
            raise TimeoutError
        if not held:
            return name
    return ""


def code_of(lines, path, line):
    """The tests that execute a line; gcov knows a statement by the first of its lines."""
    places = (f"{path}:{n}" for n in range(line, line - 10, -1))
    return next((lines[p] for p in places if p in lines), [])


def tests_of(folder, mutant):
    """The tests that execute its line, the quick ones first."""
    seconds = folder.known["seconds"]
    found = code_of(folder.known["lines"], mutant.path, mutant.line)
    return sorted((t for t in found if seconds.get(t, TOO_LONG_S) < TOO_LONG_S), key=seconds.get)


def judge_all(folder, drawn, args, known):
    """Judges the first args.count of those drawn that can be planted; returns them."""
    workers = queue.Queue()
    for i in range(args.jobs):
        workers.put(os.path.join(folder.path, f"worker{i}"))

    def one(mutant):
        worker = workers.get()
        try:
            return mutant, judge(folder, mutant, worker) if folder.left() > 0 else NOT_JUDGED
        except TimeoutError:
            return mutant, NOT_JUDGED
        finally:
            workers.put(worker)

    judged, at = [], 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, \
            open(args.state, "a", encoding="utf-8") as state:
        while len(judged) < args.count and at < len(drawn) and folder.left() > 0:
            some = drawn[at:at + args.count - len(judged)]
            at += len(some)
            new = [pool.submit(one, m) for m in some if m not in known]
            for done in concurrent.futures.as_completed(new):
                mutant, by = done.result()
                if by == NOT_JUDGED:
                    continue
                known[mutant] = by
                state.write(json.dumps([list(mutant), by]) + "\n")
                state.flush()
                if by is not None:
                    print(row(folder, mutant, by), flush=True)
            judged += [(m, known[m]) for m in some if known.get(m) is not None]
    return judged


def row(folder, mutant, by):
    how = f"caught by {by}" if by else "SURVIVED" if tests_of(folder, mutant) else "NO TEST"
    return f"{mutant.path}:{mutant.line}: {mutant.before} -> {mutant.after}: {how}"


def read_state(path, title):
    """What was judged: {mutant: by}. The first line says of which draw."""
    known = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            lines = f.read().splitlines()
        if lines and json.loads(lines[0]) != title:
            sys.exit(f"draw_mutants: {path} belongs to {lines[0]}: name another file")
        for line in lines[1:]:
            mutant, by = json.loads(line)
            known[Mutant(*mutant)] = by
    if not known:
        with open(path, "w", encoding="utf-8") as f:
            f.write(json.dumps(title) + "\n")
    return known


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=2)[1])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--rooms", default=ROOMS)
    parser.add_argument("--shared", default="../shared")
    parser.add_argument("--folder", default="build-drawn")
    parser.add_argument("--state")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--prepare", action="store_true")
    args = parser.parse_args()
    rooms = args.rooms.split(",")
    args.folder, args.shared = os.path.abspath(args.folder), os.path.realpath(args.shared)
    args.state = os.path.abspath(args.state or os.path.join(args.folder, "state"))
    folder = Folder(args.folder, rooms)
    folder.end = time.monotonic() + args.seconds
    if args.prepare or not folder.known:
        os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
        folder.known["commit"] = output_of("git", "describe", "--always", "--dirty").strip()
        folder.prepare(args.shared, args.jobs)
    if args.prepare:
        return
    if folder.known["machine"] != MACHINE:
        folder.time_tests(args.jobs)
    seed = args.seed or folder.known["commit"]
    drawn = draw(folder.tree, rooms, folder.known["lines"], seed)
    known = read_state(args.state, [folder.known["commit"], seed, rooms])
    judged = judge_all(folder, drawn, args, known)
    rows = sorted((by == "", row(folder, m, by)) for m, by in judged)
    print("\n".join(text for _, text in rows))
    caught = sum(bool(by) for _, by in judged)
    no_test = sum(text.endswith("NO TEST") for _, text in rows)
    print(f"draw_mutants: {folder.known['commit']}, seed {seed}: {caught} of {len(judged)} caught, "
          f"{len(judged) - caught} survived, {no_test} of them on lines that no test executes")
    if len(judged) < args.count:
        print(f"draw_mutants: {args.count - len(judged)} were not judged: run it again")
    sys.exit(0 if judged and caught >= LEAST * len(judged) else 1)


if __name__ == "__main__":
    main()
