#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chat templates compared with jinja2: random conversations through every template of ../shared.

    templates.py LIBKVASIR [--conversations 200] [--seed N] [--shared DIR]

Each conversation is rendered by jinja2, set up as transformers sets it up, and by libkvasir.so
(kvasir_chat_render, through ctypes). Both must give the same bytes, or both must fail; an error
that a template itself raises must keep its message. Exit code 1 if anything differs.

If both fail with an error of the language (an undefined variable, a string plus a number), the
messages differ: jinja2's or Python's there, ours here. These cases are counted and shown with -v;
they are not differences.

Needs jinja2 from PyPI. Conversations are generated from the seed: roles in and out of order, odd
Unicode and white space, content in parts, tool calls and their results, schemas, documents, and for
every other variable that a template reads, values of every JSON type.
"""
import argparse
import ctypes
import datetime
import json
import pathlib
import random
import sys
import time
import unicodedata

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

# ---- jinja2, as transformers' chat_template_utils.py sets it up --------------------------------


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the model wrote; renders its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.now(datetime.timezone.utc).strftime(form)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


# ---- libkvasir ---------------------------------------------------------------------------------


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("offset", ctypes.c_int64),
                ("field", ctypes.c_char_p), ("text", ctypes.c_char * 512)]


class Kvasir:
    def __init__(self, library, vocabulary):
        self.lib = ctypes.CDLL(library)
        self.lib.kvasir_free.argtypes = [ctypes.c_void_p]
        self.err = Error()
        self.tokenizer = ctypes.c_void_p()
        self.check(self.lib.kvasir_tokenizer_open(str(vocabulary).encode(),
                                                  ctypes.byref(self.tokenizer),
                                                  ctypes.byref(self.err)))

    def check(self, status):
        if status:
            raise RuntimeError(self.err.text.decode(errors="replace"))

    def set_template(self, name, source):
        data = source.encode()
        self.check(self.lib.kvasir_tokenizer_set_chat_template(
            self.tokenizer, name.encode(), data, ctypes.c_size_t(len(data)),
            ctypes.byref(self.err)))

    def render(self, request):
        data = json.dumps(request, ensure_ascii=False).encode()
        out, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.check(self.lib.kvasir_chat_render(self.tokenizer, data, ctypes.c_size_t(len(data)),
                                               ctypes.byref(out), ctypes.byref(size),
                                               ctypes.byref(self.err)))
        text = ctypes.string_at(out, size.value).decode()
        self.lib.kvasir_free(out)
        return text


# ---- conversations -----------------------------------------------------------------------------

WORDS = """the of a weather Paris 2+2 né naïve café 日本語 🙂 👩‍👩‍👧 Ünïcödé İstanbul ﬀ ẞ ß ǆ \u0301e Ω
<b> </b> <think> </think> <|im_start|> <|im_end|> [INST] [/INST] <s> </s> {{x}} {%if%} {#c#}
"quoted" it's
\\n \\" &amp; & % $1 #tag @me C:\\dir `code` ``` ** *** --- ... <tool_call> </tool_call>
<|channel|>final {"a":1} [] {} null None True 0 -1 1e9 1_000 0x1F ٣ ² Ⅷ ½""".split()
SPACES = [" ", " ", " ", "\n", "\n\n", "\t", "  ", "\r\n", "\r", "\u00a0", "\u2003", "\u2028",
          "\u3000", "\u200b", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\ufeff"]
ROLES = ["user", "assistant", "system", "tool", "developer", "function", "ipython", "critic", ""]


class Maker:
    """Makes one conversation. Half of them are tame; templates refuse many of the others."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.tame = self.r.random() < 0.5

    def chance(self, p):
        return self.r.random() < p

    def text(self, longest=12):
        r = self.r
        if self.chance(0.05):
            return ""
        out = r.choice(SPACES) if self.chance(0.25) else ""
        for _ in range(r.randint(1, longest)):
            out += r.choice(WORDS) + r.choice(SPACES)
        out = out if self.chance(0.25) else out.rstrip()
        if self.chance(0.05):
            # Python prints characters that are newer than its tables differently.
            odd = (chr(r.choice([r.randrange(1, 0xD800), r.randrange(0xE000, 0x110000)]))
                   for _ in range(8))
            out += "".join(c for c in odd if unicodedata.category(c) != "Cn")
        return out

    def name(self):
        return self.r.choice(["get_weather", "f", "search.web", "a-b", "über", "x" * 40, "call_1",
                              "browser.search", "Get Weather", "ÄÖ"][:3 if self.tame else 10])

    def number(self):
        r = self.r
        return r.choice([0, 1, -1, 7, 2**31, 2**53 + 1, -(2**63), 2**63 - 1, 0.5, -0.0, 1e-7, 1e16,
                         1e22, 123456.789, 3.0, 1.5e300, 5e-324, r.random(),
                         r.uniform(-1e6, 1e6), r.randint(-10**6, 10**6)])

    def value(self, depth=3):
        r = self.r
        kind = r.randrange(8 if depth else 5)
        if kind < 2:
            return self.text(4)
        if kind == 2:
            return self.number()
        if kind == 3:
            return r.choice([True, False])
        if kind == 4:
            return None
        if kind == 5:
            return [self.value(depth - 1) for _ in range(r.randrange(4))]
        return self.object(depth - 1)

    def object(self, depth=2):
        keys = ["b", "a", "city", "Zeit", "10", "type", "items", "keys", "é", "a b", "", "x" * 30]
        return {k: self.value(depth) for k in self.r.sample(keys, self.r.randrange(5))}

    def schema(self, depth=3):
        r = self.r
        kind = r.choice(["string", "integer", "number", "boolean", "array", "object", "null", None])
        s = {}
        if kind:
            s["type"] = kind if self.chance(0.85) else [kind, "null"]
        if self.chance(0.6):
            s["description"] = self.text(6)
        if self.chance(0.2):
            s["enum"] = [self.value(0) for _ in range(r.randint(1, 3))]
        if self.chance(0.2):
            s["default"] = self.value(1)
        if self.chance(0.1):
            s["nullable"] = r.choice([True, False])
        if self.chance(0.1):
            s[r.choice(["format", "title", "pattern", "const", "minimum"])] = self.value(0)
        if depth and kind == "array" and self.chance(0.8):
            s["items"] = self.schema(depth - 1)
        if depth and kind == "object":
            s["properties"] = {self.name() + str(i): self.schema(depth - 1)
                               for i in range(r.randrange(4))}
            if self.chance(0.7):
                s["required"] = r.sample(sorted(s["properties"]),
                                         r.randint(0, len(s["properties"])))
        if depth and self.chance(0.1):
            s[r.choice(["anyOf", "oneOf", "allOf"])] = [self.schema(depth - 1) for _ in range(2)]
        return s

    def tool(self):
        parameters = {"type": "object",
                      "properties": {f"p{i}": self.schema() for i in range(self.r.randrange(4))}}
        if self.chance(0.7):
            parameters["required"] = list(parameters["properties"])[:2]
        function = {"name": self.name(), "description": self.text(8), "parameters": parameters}
        if self.chance(0.15):
            function.pop(self.r.choice(["description", "parameters"]))
        if self.chance(0.2):
            function["return"] = self.schema(1)
        if self.chance(0.1):
            return function
        return {"type": "function", "function": function}

    def tool_call(self):
        arguments = {f"p{i}": self.value() for i in range(self.r.randrange(4))}
        call = {"name": self.name(),
                "arguments": arguments if self.chance(0.7) else json.dumps(arguments)}
        if self.chance(0.9):
            call = {"type": "function", "function": call}
        if self.chance(0.7):
            call["id"] = self.r.choice(["call00001", "123456789"] if self.tame
                                       else ["functions.f:0", self.text(1)])
        return call

    def content(self):
        if self.tame or self.chance(0.8):
            return self.text()
        if self.chance(0.15):
            return None
        parts = [{"type": "text", "text": self.text()} for _ in range(self.r.randint(0, 3))]
        if self.chance(0.3):
            parts.append({"type": self.r.choice(["image", "image_url", "audio", "video", "odd"])})
        return parts

    def message(self, role):
        m = {"role": role, "content": self.content()}
        if role == "assistant" and self.chance(0.3):
            m["tool_calls"] = [self.tool_call() for _ in range(self.r.choice([0, 1, 1, 1, 2, 3]))]
            if self.chance(0.4):
                m["content"] = self.r.choice([None, ""])
        if role == "assistant" and self.chance(0.3):
            m[self.r.choice(["reasoning_content", "thinking", "reasoning"])] = self.text()
        if role == "assistant" and self.chance(0.2):
            m["content"] = "<think>" + self.text() + "</think>" + self.text()
        if role == "tool" or self.chance(0.05):
            m["tool_call_id"] = self.r.choice(["call00001", "123456789"])
            m["name"] = self.name()
            if not self.tame and self.chance(0.2):
                m["content"] = self.r.choice([self.object(), "<tool_response>x</tool_response>"])
        if not self.tame and self.chance(0.05):
            m.pop("content")
        return m

    def roles(self):
        r = self.r
        if not self.tame and self.chance(0.3):
            return [r.choice(ROLES) for _ in range(r.randrange(6))]
        roles = [r.choice(["system", "system", "developer"])] if self.chance(0.4) else []
        for _ in range(r.randint(1, 4)):
            roles.append("user")
            roles.append("assistant")
            if self.chance(0.2):
                roles += ["tool"] * r.randint(1, 2) + ["assistant"]
        return roles if self.chance(0.2) else roles[:-1]

    def request(self, others):
        r = self.r
        q = {"messages": [self.message(role) for role in self.roles()],
             "tools": [self.tool() for _ in range(r.randint(1, 3))] if self.chance(0.4) else None,
             "documents": None, "bos_token": "<s>", "eos_token": "</s>",
             "add_generation_prompt": self.chance(0.8)}
        if self.chance(0.2):
            q["documents"] = [{"title": self.text(3), "text": self.text(), "id": self.number()}
                              for _ in range(r.randrange(3))]
        if not self.tame and self.chance(0.1):
            q["tools"] = r.choice([[], self.object(), "none"])
        for name in others:
            if self.chance(0.15):
                tame = [True, False, "high", "2025-01-02", []]
                q[name] = r.choice(tame if self.tame else [self.value(2), *tame])
        return q


# ---- comparing ---------------------------------------------------------------------------------

GIVEN = {"messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt",
         "raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler",
         "joiner"}


def sources(shared):
    """Name and text of every template."""
    for path in sorted((shared / "chat-templates").glob("*.jinja")):
        yield path.stem, path.read_text()
    for path in sorted((shared / "tokenizers").glob("*/tokenizer_config.json")):
        template = json.loads(path.read_text()).get("chat_template")
        if isinstance(template, str):
            yield "tokenizer:" + path.parent.name, template


def outcome(render):
    try:
        return render(), None
    except Exception as error:  # a template can raise any Python error
        return None, error


class Comparison:
    def __init__(self, verbose):
        self.same = self.both_fail = self.other_words = self.different = 0
        self.left = 20  # differences still to be shown
        self.verbose = verbose

    def show(self, name, number, *lines):
        self.different += 1
        if self.left:
            self.left -= 1
            print(f"DIFFERENT: {name}, conversation {number}")
            for line in lines:
                print("  " + line)

    def add(self, name, number, theirs, ours):
        (text, error), (own_text, own_error) = theirs, ours
        if error is None and own_error is None and text == own_text:
            self.same += 1
        elif error is None and own_error is None:
            at = next((i for i, (a, b) in enumerate(zip(text, own_text)) if a != b),
                      min(len(text), len(own_text)))
            self.show(name, number, f"at {at}", f"jinja2 {text[max(0, at - 60):at + 60]!r}",
                      f"kvasir {own_text[max(0, at - 60):at + 60]!r}")
        elif error is None or own_error is None:
            self.show(name, number, f"jinja2 {error!r}, {(text or '')[-80:]!r}",
                      f"kvasir {own_error!r}, {(own_text or '')[-80:]!r}")
        elif str(own_error).endswith(one_line(error)):
            self.both_fail += 1
        elif type(error) is jinja2.exceptions.TemplateError:  # raise_exception
            self.show(name, number, f"jinja2 {error!r}", f"kvasir {own_error!r}")
        else:
            self.other_words += 1
            if self.verbose:
                print(f"other words: {name}: {type(error).__name__}: {error} | {own_error}")


def one_line(error):
    text = "".join("?" if ord(c) < 32 or ord(c) == 127 else c for c in str(error))
    return text[-100:]  # ours may be truncated


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("library")
    p.add_argument("--conversations", type=int, default=200)
    p.add_argument("--seed", type=int, default=int(time.time()))
    p.add_argument("--only", help="templates whose name holds this")
    p.add_argument("--shared", type=pathlib.Path,
                   default=pathlib.Path(__file__).resolve().parents[2] / ".." / "shared")
    p.add_argument("--vocabulary", help="what to open a tokenizer from")
    p.add_argument("-v", action="store_true", help="show failures in other words")
    a = p.parse_args()
    print(f"templates.py --seed {a.seed} --conversations {a.conversations}")
    kvasir = Kvasir(a.library, a.vocabulary or a.shared / "tokenizers/gpt2/tokenizer.json")
    env = environment()
    comparison, templates = Comparison(a.v), 0
    for name, source in sources(a.shared):
        if a.only and a.only not in name:
            continue
        templates += 1
        others = sorted(jinja2.meta.find_undeclared_variables(env.parse(source)) - GIVEN)
        template = env.from_string(source)
        kvasir.set_template(name, source)
        for number in range(a.conversations):
            request = Maker(f"{a.seed}/{number}").request(others)
            comparison.add(name, number, outcome(lambda: template.render(**request)),
                           outcome(lambda: kvasir.render(request)))
    c = comparison
    print(f"{templates} templates x {a.conversations} conversations: {c.same} renders equal, "
          f"{c.both_fail} fail alike, {c.other_words} fail in other words, {c.different} differ")
    return 1 if c.different or not templates else 0


sys.exit(main())
