# SPDX-License-Identifier: Apache-2.0
"""fuzz_seeds.py SHARED OUT: seeds of tests/fuzz, small ones, into OUT/TARGET. They are cut from the
texts in the unit tests and from the shared data, where it exists:

template         templates of the tests; expressions and tags of the shared chat templates, one each
grammar          schemas, expressions and grammars of the tests, with the text after each as its
                 answer; schemas of the JSON-Schema-Test-Suite with their first valid instance
http             requests beyond each limit of src/http/http_head.h
openai           bodies of the tests, for each API that the test is about
tokenizer_json   steps of the tests in each place of a small file; the shared tokenizers with their
                 first tokens and merges, and added tokens whose ids follow
"""
import ast
import glob
import hashlib
import json
import os
import re
import subprocess
import sys

TEXT_BYTES, TOKENS, MERGES, ADDED = 1000, 300, 40, 8
UNIT = os.path.join(os.path.dirname(__file__), "../tests/unit")
# tests/fuzz/openai.c: which first bytes stand for the APIs of a test
BODIES = {"openai": "013q", "constraint": "1", "forced_calls": "1qt", "prompts": "0",
          "fields": "14df", "anthropic": "45t", "ollama": "de", "native": "fg",
          "embeddings": " !", "text_api": "89:"}
GRAMMARS = {"schema": b"0", "language": b"1", "gbnf": b"2"}
PLACES = ["normalizer", "pre_tokenizer", "post_processor", "decoder"]
FILE = {"added_tokens": [{"id": 9, "content": "</s>", "special": True, "lstrip": True}],
        "model": {"type": "BPE", "byte_fallback": True, "unk_token": "o",
                  "vocab": {c: i for i, c in enumerate("Helo 1rw")} | {"He": 8},
                  "merges": ["H e"]}}


def write(out, target, data):
    if len(data) <= TEXT_BYTES or target in ("http", "tokenizer_json"):
        folder = os.path.join(out, target)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, hashlib.sha1(data).hexdigest()), "wb") as f:
            f.write(data)


def text_of(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def test_texts(name):
    """The string literals of a unit test, adjacent ones joined."""
    path = os.path.join(UNIT, f"test_{name}.c")
    macros = [f"-I{UNIT}/{folder}" for folder in ("../../include", "../../src", "../support", ".")]
    source = subprocess.run([os.environ.get("CC", "cc"), "-E", "-P", *macros, "-DSHARED_DIR=\"\"",
                             path], check=True, capture_output=True, text=True).stdout
    for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', source):
        parts = re.findall(r'"(?:[^"\\\n]|\\.)*"', found[0])
        yield b"".join(ast.literal_eval("b" + re.sub(r"\\([0-7])(?![0-7])", r"\\00\1", part))
                       if part.isascii() else part[1:-1].encode() for part in parts)


def limits(out):
    line, host = b"POST / HTTP/1.1\r\n", b"Host: a\r\n"
    chunked = line + host + b"Transfer-Encoding: chunked\r\n\r\n"
    long = b"a" * 9000
    for request in (b"GET /" + long, b"GET /" + long + b" HTTP/1.1\r\n",
                    line + host + b"a: " + long * 2, line + host + b"a: b\r\n" * 101 + b"\r\n",
                    b"GET /?" + b"a&" * 300 + b" HTTP/1.1\r\n" + host + b"\r\n",
                    chunked + b"5;" + long, chunked + b"0\r\na: " + long * 2,
                    b"GET /?" + b"a" * 3000 + b"=" + b"%41" * 900 + b" HTTP/1.1\r\n\r\n"):
        write(out, "http", request)


def tests(out):
    for name in "template", "template_edges":
        for text in test_texts(name):
            if b"{{" in text or b"{%" in text:
                write(out, "template", text)
    for name, kind in GRAMMARS.items():
        texts = list(test_texts(name)) + [b""]
        for text, answer in zip(texts, texts[1:]):
            if kind == b"1" or (b"::=" in text if kind == b"2" else text[:1] == b"{"):
                write(out, "grammar", kind + text + b"\xff" + answer)
    for name, apis in BODIES.items():
        for text in test_texts(name):
            if text[:2] == b'{"':
                for api in apis:
                    write(out, "openai", api.encode() + text)
    for text in test_texts("tokenizer_json"):
        if text.startswith(b'{"type":') and text.endswith(b"}") and b"%" not in text:
            for place in PLACES:
                write(out, "tokenizer_json", text_of(FILE)[:-1] +
                      b',"%s":%s}' % (place.encode(), text))


def templates(shared, out):
    for path in glob.glob(os.path.join(shared, "chat-templates/*.jinja")):
        text = open(path, encoding="utf-8").read()
        for expression in re.findall(r"\{\{-?(.*?)-?\}\}", text, re.S):
            write(out, "template", b"{{%s}}" % expression.encode())
        for word, rest in re.findall(r"\{%-?\s*(if|elif|for|set)\s(.*?)-?%\}", text, re.S):
            word = "if" if word == "elif" else word
            body = "" if word == "set" else f"{{{{ 1 }}}}{{% end{word} %}}"
            write(out, "template", f"{{% {word} {rest}%}}{body}".encode())


def schemas(shared, out):
    pattern = os.path.join(shared, "fixtures/json-schema/tests/**/*.json")
    for path in glob.glob(pattern, recursive=True):
        for group in json.load(open(path, encoding="utf-8")):
            valid = [t["data"] for t in group["tests"] if t["valid"]] or [0]
            write(out, "grammar", b"0" + text_of(group["schema"]) + b"\xff" + text_of(valid[0]))


def without_ids(value):
    """The post-processor's ids, which the cut vocabulary may not have."""
    if isinstance(value, dict):
        return {k: [0] * len(v) if k == "ids" else without_ids(v) for k, v in value.items()}
    return [without_ids(v) for v in value] if isinstance(value, list) else value


def tokenizers(shared, out):
    for path in glob.glob(os.path.join(shared, "tokenizers/*/tokenizer.json")):
        t = json.load(open(path, encoding="utf-8"))
        model = t["model"]
        words = sorted(model["vocab"].items(), key=lambda item: item[1])
        model["vocab"] = dict(words[:TOKENS])
        pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
        model["merges"] = [m for m in pairs
                           if all(p in model["vocab"] for p in (*m, "".join(m)))][:MERGES]
        rest = [a for a in t["added_tokens"] if a["content"] not in model["vocab"]][:ADDED]
        t["added_tokens"] = [dict(a, id=TOKENS + i) for i, a in enumerate(rest)]
        t["post_processor"] = without_ids(t.get("post_processor"))
        write(out, "tokenizer_json", text_of(t))


def main(shared, out):
    limits(out)
    tests(out)
    templates(shared, out)
    schemas(shared, out)
    tokenizers(shared, out)


main(*sys.argv[1:])
