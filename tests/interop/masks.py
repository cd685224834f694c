#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets of allowed tokens compared with llguidance's and xgrammar's: real schemas, their valid
instances token by token, one tokenizer.

    masks.py MASKS TOKENIZER MASKBENCH [--schemas N] [--xgrammar N] [--seconds S]

MASKS is our program (masks.c), TOKENIZER what it reads: the others get its tokens. Both are set up
as close to us as they can be: any white space, members in any order, objects open where the schema
leaves them open. End tokens are compared as one bit.

At each step the tokens that only one side allows are counted by what they do (`WHAT`). Some of
each kind are then followed to the end: the side that allows one completes the text, and PyPI's
jsonschema says what that is:

    valid      of ours: the other is too narrow; of theirs: we refuse a valid value
    form       of theirs: the value is one that we take, written otherwise; of either: a name that
               the schema does not mention comes twice
    invalid    of theirs: it is too lenient; of ours: we take a value that is wrong
    open       not complete after 150 tokens
    unknown    jsonschema cannot read the schema, or gives up

Exit code 1 if a value that we take is invalid, or one that we refuse is valid, unless it is one of
EXPLAINED. Needs llguidance, xgrammar, jsonschema, numpy.
"""
import argparse
import collections
import importlib.metadata
import json
import random
import re
import struct
import subprocess
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import jsonschema  # noqa: E402
import jsonschema_specifications  # noqa: E402
import llguidance  # noqa: E402
import numpy as np  # noqa: E402
import xgrammar  # noqa: E402

WHAT = ("white space", "escape", "name", "number", "string", "structure", "end")
SAMPLES = 2  # tokens of a kind that are followed, for each schema
LOOKED_AT = 40  # tokens of a step that are sorted into kinds
LONGEST = 150  # tokens of a completion
XGRAMMAR_BYTES = 3000  # of a schema: it takes minutes to compile some longer ones

# Where the judge is wrong, by a pattern over "ENGINE WHAT VERDICT: SCHEMA: why: text"; docs/
# structured-output.md has the reasons.
EXPLAINED = [
    r"ours .* invalid: .*format: '0000-",  # RFC 3339 has a year 0, Python's datetime has not
    r"theirs string valid: .*@[^\s\"]{64,}\"",  # a label of a host has 63 characters at most
    r"theirs escape valid: .*started.*T\d\d:\d\d:\d\d\\+r",  # ECMA 262: "." is not a line's end
]


# ---- the three -----------------------------------------------------------------------------------


class Ours:
    """masks.c, which has the protocol."""

    name = "kvasir"

    def __init__(self, program, tokenizer):
        self.p = subprocess.Popen([program, tokenizer], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE)
        self.size, = struct.unpack("I", self.p.stdout.read(4))
        self.tokens = [self.get_bytes() for _ in range(self.size)]
        self.words = (self.size + 63) // 64

    def ask(self, what, data=None):
        self.p.stdin.write(what + (b"" if data is None else struct.pack("I", len(data)) + data))
        self.p.stdin.flush()

    def get_bytes(self):
        n, = struct.unpack("I", self.p.stdout.read(4))
        return self.p.stdout.read(n)

    def compile(self, schema):
        self.ask(b"S", schema.encode())
        good, seconds = struct.unpack("=Bd", self.p.stdout.read(9))
        return bool(good), seconds, self.get_bytes().decode()

    def tokenize(self, text):
        self.ask(b"T", text.encode())
        return list(np.frombuffer(self.get_bytes(), dtype=np.int32))

    def begin(self):
        self.ask(b"B")

    def allow(self):
        self.ask(b"M")
        end, seconds = struct.unpack("=Bd", self.p.stdout.read(9))
        bits = np.frombuffer(self.p.stdout.read(8 * self.words), dtype=np.uint32)
        return bits, end != 0, seconds

    def push(self, token):
        self.p.stdin.write(b"P" + struct.pack("i", token))
        self.p.stdin.flush()
        return self.p.stdout.read(1) == b"\1"

    def takes(self, text):
        self.ask(b"W", text.encode())
        return self.p.stdout.read(1) == b"\1"


class Tokens:
    """Our tokens, as llguidance's TokenizerWrapper wants them."""

    def __init__(self, ours, end):
        self.eos_token_id = end
        self.bos_token_id = None
        self.tokens = [t if t and t[0] != 0xff else b"" for t in ours.tokens]
        self.special_token_ids = [i for i, t in enumerate(ours.tokens) if t[:1] == b"\xff"] + [end]
        self.ours = ours

    def __call__(self, text):
        return self.ours.tokenize(text if isinstance(text, str) else text.decode())


class Llguidance:
    name = "llguidance"

    def __init__(self, ours, end):
        self.end = end
        wrapper = llguidance.TokenizerWrapper(Tokens(ours, end))
        self.tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=ours.size)
        self.bits = np.zeros((ours.size + 31) // 32, dtype=np.int32)

    def compile(self, schema):
        start = time.thread_time()
        try:
            self.grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        except ValueError as e:
            return False, time.thread_time() - start, str(e)
        m = llguidance.LLMatcher(self.tokenizer, self.grammar, log_level=0)
        return not m.is_error(), time.thread_time() - start, m.get_error()

    def begin(self):
        self.m = llguidance.LLMatcher(self.tokenizer, self.grammar, log_level=0)

    def allow(self):
        start = time.thread_time()
        self.m.unsafe_compute_mask_ptr(self.bits.ctypes.data, self.bits.nbytes)
        seconds = time.thread_time() - start
        if self.m.is_error():
            raise RuntimeError(self.m.get_error())
        bits = self.bits.view(np.uint32)
        return bits, bool(bits[self.end // 32] >> self.end % 32 & 1), seconds

    def push(self, token):
        return not self.m.is_stopped() and self.m.consume_token(int(token))


class Xgrammar:
    name = "xgrammar"

    def __init__(self, ours, end):
        self.end = end
        info = xgrammar.TokenizerInfo([t if t[:1] != b"\xff" else b"" for t in ours.tokens],
                                      vocab_type=xgrammar.VocabType.RAW, vocab_size=ours.size,
                                      stop_token_ids=[end])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.bits = np.zeros((1, (ours.size + 31) // 32), dtype=np.int32)

    def compile(self, schema):
        start = time.process_time()
        try:
            self.grammar = self.compiler.compile_json_schema(schema, strict_mode=False,
                                                             any_order=True)
        except Exception as e:
            return False, time.process_time() - start, str(e)
        return True, time.process_time() - start, ""

    def begin(self):
        self.m = xgrammar.GrammarMatcher(self.grammar)

    def allow(self):
        start = time.thread_time()
        if not self.m.fill_next_token_bitmask(self.bits):
            self.bits.fill(-1)
        seconds = time.thread_time() - start
        bits = self.bits[0].view(np.uint32)
        return bits, bool(bits[self.end // 32] >> self.end % 32 & 1), seconds

    def push(self, token):
        return self.m.accept_token(int(token))


# ---- what a token does ---------------------------------------------------------------------------


class Scanner:
    """Where in a JSON text its bytes lead, without knowing a schema."""

    def __init__(self):
        self.stack, self.place = [], "value"
        self.back = "string"  # where an escape was
        self.seen = set()

    def copy(self):
        c = Scanner()
        c.stack, c.place, c.back, c.seen = list(self.stack), self.place, self.back, set()
        return c

    def feed(self, text):
        for byte in text:
            self.one(chr(byte))
        return self

    def one(self, ch):
        if self.place in ("string", "name"):
            if ch == "\\":
                self.back = self.place
                self.place = "escape"
                self.seen.add("escape")
            elif ch == '"':
                self.seen.add(self.place)
                self.place = "after" if self.place == "string" else "colon"
            else:
                self.seen.add(self.place)
            return
        if self.place == "escape":
            self.seen.add("escape")
            self.place = self.back
            return
        if ch in " \t\n\r":
            self.seen.add("white space")
        elif ch == '"':
            is_name = self.place != "value" and self.stack[-1:] == ["{"]
            self.place = "name" if is_name else "string"
            self.seen.add(self.place)
        elif ch in "{[":
            self.stack.append(ch)
            self.place = "key" if ch == "{" else "value"
        elif ch in "}]":
            self.stack = self.stack[:-1]
            self.place = "after"
        elif ch == ",":
            self.place = "key" if self.stack[-1:] == ["{"] else "value"
        elif ch == ":":
            self.place = "value"
        elif ch in "0123456789+-.eE":
            self.seen.add("number")
            self.place = "after"

    def what(self, token):
        seen = self.copy().feed(token).seen
        return next((w for w in WHAT if w in seen), "structure")


# ---- completions ---------------------------------------------------------------------------------

CLOSE = [b'"', b"}", b"]", b":", b"0", b"1", b"t", b"n", b"f", b"{", b"[", b",", b"-"]
SINGLE = [bytes([b]) for b in b"abcdeeilnorstu2-/:.@AZT_ +356789#xyhw"]


class Completer:
    def __init__(self, tokens, rnd):
        self.of = {}
        for i, t in enumerate(tokens):
            self.of.setdefault(t, i)
        self.close = [self.of[b] for b in CLOSE if b in self.of]
        self.single = [self.of[b] for b in SINGLE if b in self.of]
        self.all = [i for t, i in self.of.items() if len(t) == 1]
        self.rnd, self.tokens = rnd, tokens

    def choices(self, place, plan, names):
        """Tokens, best first. plan: the rest of a name that is being written."""
        single = list(self.single)
        self.rnd.shuffle(single)
        if place == "name" and not plan and names:
            plan[:] = [self.of[bytes([b])] for b in self.rnd.choice(names).encode()
                       if bytes([b]) in self.of]
        return [*plan[:1], *self.close, *single, *self.all]

    def complete(self, engine, before, names):
        """The text that the engine makes of these tokens; None: it does not end."""
        engine.begin()
        for token in before:
            if not engine.push(token):
                return None
        text, plan = b"".join(self.tokens[t] for t in before), []
        scanner = Scanner().feed(text)
        for _ in range(LONGEST):
            bits, end, _ = engine.allow()
            if end:
                return text.decode("utf-8", "replace")
            fresh = scanner.place == "name" and text.endswith(b'"')
            choices = self.choices(scanner.place if fresh else "", plan, names)
            t = next((t for t in choices if bits[t // 32] >> (t % 32) & 1), None)
            if t is None or not engine.push(t):
                return None
            plan[:] = plan[1:] if plan[:1] == [t] else []
            text += self.tokens[t]
            scanner.feed(self.tokens[t])
        return None


def names_of(schema, required=True):
    """Names that objects must have; all that are mentioned, if there are none."""
    found = set()

    def look(at):
        if isinstance(at, dict):
            for name in ("required", "properties") if not required else ("required",):
                if isinstance(at.get(name), (dict, list)):
                    found.update(n for n in at[name] if isinstance(n, str))
        for inner in at.values() if isinstance(at, dict) else at if isinstance(at, list) else ():
            look(inner)

    look(schema)
    return sorted(found) or (names_of(schema, False) if required else [])


class Judge:
    def __init__(self, schema):
        self.names = names_of(schema)
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        # drafts 3 and 4 say that 3.0 is no integer, all later ones and this server that it is
        kind = jsonschema.validators.extend(
            kind, type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER)
        self.validator = kind(schema, format_checker=kind.FORMAT_CHECKER,
                              registry=jsonschema_specifications.REGISTRY)  # nothing remote

    def wrong(self, value):
        """What is wrong with it; None: nothing."""
        error = next(iter(self.validator.iter_errors(value)), None)
        return error and f"{error.validator}: {error.message}"[:120]


def pairs(members):
    if len({k for k, _ in members}) < len(members):
        raise ValueError("a name comes twice")
    return dict(members)


def judge(judge_, ours, text, by_us):
    """(verdict, why) of a complete text."""
    try:
        value = json.loads(text, object_pairs_hook=pairs)
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        compact.encode()
        if not by_us and re.search(r"\b(Infinity|NaN)\b", compact):
            return "form", "a number beyond a double's range"
    except UnicodeEncodeError:
        return "form", "half of a surrogate pair"
    except ValueError as e:
        return "form" if "twice" in str(e) else "invalid", str(e)
    if not by_us and ours.takes(compact):
        return "form", ""
    try:
        wrong = judge_.wrong(value)
    except Exception as e:
        return "unknown", type(e).__name__
    return ("invalid", wrong) if wrong else ("valid", "")


# ---- all steps -----------------------------------------------------------------------------------


class Times(list):
    def line(self):
        ms = np.array(self) * 1e6
        if not len(ms):
            return "none"
        p = np.percentile(ms, [50, 99, 99.9])
        return (f"mean {ms.mean():.1f} us, median {p[0]:.1f}, 99 % {p[1]:.1f}, 99.9 % {p[2]:.1f}, "
                f"most {ms.max():.1f} (n {len(ms)})")


class Comparison:
    def __init__(self, ours, other, completer, usable):
        self.ours, self.other, self.completer, self.usable = ours, other, completer, usable
        self.count = collections.Counter()
        self.kinds = collections.Counter()  # (side, what): steps
        self.verdicts = collections.Counter()
        self.notes = []
        self.compile, self.sets = Times(), Times()

    def begin(self, name, judge_):
        self.schema, self.judge = name, judge_
        self.followed = collections.Counter()
        self.todo = []

    def step(self, mine, my_end, before, scanner):
        """One step; False: the other is not there any more."""
        try:
            theirs, end, seconds = self.other.allow()
        except RuntimeError as e:
            self.count["gives up: " + str(e)[:60]] += 1
            return False
        self.sets.append(seconds)
        self.count["steps"] += 1
        differs = (mine ^ theirs) & self.usable
        if end != my_end:
            self.note("theirs" if end else "ours", "end", None, before)
        if not differs.any() and end == my_end:
            self.count["equal"] += 1
            return True
        for side, bits in (("ours", differs & mine), ("theirs", differs & theirs)):
            words = np.flatnonzero(bits)
            ids = [32 * int(w) + b for w in words[:LOOKED_AT * 4] for b in range(32)
                   if bits[w] >> b & 1]
            if len(ids) > LOOKED_AT:
                ids = self.completer.rnd.sample(ids, LOOKED_AT)
            kinds = {}
            for i in ids:
                kinds.setdefault(scanner.what(self.ours.tokens[i]), i)
            for what, i in kinds.items():
                self.note(side, what, i, before)
        return True

    def note(self, side, what, token, before):
        self.kinds[side, what] += 1
        self.followed[side, what] += 1
        if self.followed[side, what] <= SAMPLES:
            self.todo.append((side, what, [*before, token] if token is not None else [*before]))

    def follow(self, deadline):
        for side, what, tokens in self.todo:
            if time.monotonic() > deadline:
                return
            engine = self.ours if side == "ours" else self.other
            why = ""
            try:
                text = self.completer.complete(engine, tokens, self.judge.names)
            except RuntimeError as e:
                text, why = None, str(e)[:60]
            verdict = "open"
            if text is not None:
                verdict, why = judge(self.judge, self.ours, text, side == "ours")
            self.verdicts[side, what, verdict] += 1
            bad = (side, verdict) in (("ours", "invalid"), ("theirs", "valid"))
            line = f"{self.other.name} {side} {what} {verdict}: {self.schema}: {why}: {text!r:.400}"
            if bad and not any(re.search(e, line) for e in EXPLAINED):
                self.notes.append(line)

    def report(self):
        n = max(self.count["steps"], 1)
        print(f"\n{self.other.name}: {dict(self.count)}; "
              f"{100 * self.count['equal'] / n:.1f} % of the steps equal")
        print(f"  compile: {self.compile.line()}\n  set: {self.sets.line()}")
        for side in ("ours", "theirs"):
            for what in WHAT:
                v = {k[2]: x for k, x in self.verdicts.items() if k[:2] == (side, what)}
                if self.kinds[side, what]:
                    print(f"  only {side:6} {what:12} {self.kinds[side, what]:7} steps; followed: "
                          + ", ".join(f"{x} {k}" for k, x in sorted(v.items())))
        for note in self.notes:
            print("  !", note)


def walk(ours, comparisons, text, times):
    """One instance; how many tokens."""
    ids = ours.tokenize(text)
    ours.begin()
    alive = list(comparisons)
    for c in alive:
        c.other.begin()
    scanner, before = Scanner(), []
    for token in [*ids, None]:
        mine, end, seconds = ours.allow()
        times.append(seconds)
        for c in list(alive):
            if not c.step(mine, end, before, scanner):
                alive.remove(c)
        if token is None:
            break
        if not ours.push(token):
            print("  kvasir refuses", text[:200])
            break
        for c in list(alive):
            if not c.other.push(token):
                c.count["refuses a valid instance"] += 1
                alive.remove(c)
        before.append(int(token))
        scanner.feed(ours.tokens[token])
    return len(ids)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    for name in ("masks", "tokenizer", "maskbench"):
        parser.add_argument(name)
    parser.add_argument("--schemas", type=int, default=0, help="0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="none is begun after them")
    parser.add_argument("--xgrammar", type=int, default=40,
                        help="schemas for it, which takes seconds to compile one")
    o = parser.parse_args()
    rnd = random.Random(o.seed)
    ours = Ours(o.masks, o.tokenizer)
    end = next(i for i, t in enumerate(ours.tokens) if not t)
    ordinary = np.array([bool(t) and t[0] != 0xff for t in ours.tokens])
    usable = np.packbits(np.pad(ordinary, (0, -len(ordinary) % 64)), bitorder="little")
    usable = usable.view(np.uint32)
    completer = Completer(ours.tokens, rnd)
    versions = " and ".join(f"{name} {importlib.metadata.version(name)}"
                            for name in ("llguidance", "xgrammar"))
    print(f"masks: {versions}; {ours.size} tokens, {int(ordinary.sum())} compared")
    others = [Llguidance(ours, end), Xgrammar(ours, end)]
    comparisons = [Comparison(ours, other, completer, usable) for other in others]
    with open(o.maskbench, encoding="utf-8") as f:
        lines = list(f)
    rnd.shuffle(lines)
    lines = lines[:o.schemas or None]
    compile_, sets, refused = Times(), Times(), collections.Counter()
    start, done = time.monotonic(), 0
    for line in lines:
        if time.monotonic() - start > o.seconds:
            break
        one = json.loads(line)
        schema = json.dumps(one["schema"], ensure_ascii=False)
        done += 1
        good, seconds, why = ours.compile(schema)
        compile_.append(seconds)
        there = []
        judge_ = Judge(one["schema"])
        for c in comparisons:
            if c.other.name == "xgrammar":
                if c.count["schemas"] == o.xgrammar or len(schema) > XGRAMMAR_BYTES:
                    continue
            c.count["schemas"] += 1
            theirs, seconds, _ = c.other.compile(schema)
            c.compile.append(seconds)
            c.count["compiled"] += theirs
            c.count["compiled, not by us"] += theirs and not good
            c.count["compiled by us alone"] += good and not theirs
            c.begin(one["name"], judge_)
            if theirs:
                there.append(c)
        if not good:
            refused[why.split(": ", 1)[-1]] += 1
            continue
        for test in one["tests"]:
            if test["valid"] and time.monotonic() - start < o.seconds:
                text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
                walk(ours, there, text, sets)
        for c in there:
            c.follow(start + o.seconds)
    print(f"{done} schemas in {time.monotonic() - start:.0f} s; kvasir refuses {dict(refused)}\n"
          f"kvasir:\n  compile: {compile_.line()}\n  set: {sets.line()}")
    for c in comparisons:
        c.report()
    bad = sum(len(c.notes) for c in comparisons)
    print(f"\nmasks: {bad} differences without an explanation")
    sys.exit(bad > 0)


main()
