#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random texts through `kvasir tokenize` and the tokenizers package: the same ids, and back.

    random_texts.py KVASIR TOKENIZER.json|FILE.gguf=TOKENIZER.json...
                    [--texts 500] [--seed N] [--corpus FILE]

FILE.gguf=TOKENIZER.json compares a GGUF's vocabulary with the same one in the other format.

A text is made of random pieces of the corpus, of the vocabulary (with added tokens), of odd Unicode
and of white space. Exit code 1 if an id or a decoded text differs.
"""

import argparse
import json
import random
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

ODD = [
    "é",
    "é",
    "Å",
    "ﬁ",
    "ß",
    "İ",
    "ı",
    "क्षि",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "​",
    "‍",
    "﻿",
    "�",
    "𝔘",
    "中文",
    "日本語テキスト",
    "한국어",
    "العربية",
    "עברית",
    " ",
    " ",
    "　",
    "\x00",
    "\x7f",
    "\x85",
    "᠎",
    "…",
    "’",
    "'LL",
    "'s",
    "’re",
    "▁",
    "▁▁",
    "Ġ",
]
SPACE = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    " \n ",
    "\t\t",
    " " * 17,
    "\n" * 5,
    "\v",
    "\f",
]


def random_char(rng):
    """A character that Python's Unicode tables know; libraries disagree about newer ones."""
    while True:
        ranges = [(0x20, 0x7F), (0xA0, 0xD800), (0x10000, 0x20000)]
        char = chr(rng.randrange(*rng.choice(ranges)))
        if unicodedata.category(char) != "Cn":
            return char


def make_text(rng, corpus, vocab, added):
    parts = []
    for _ in range(rng.randrange(0, 24)):
        kind = rng.randrange(9)
        if kind < 3:
            at = rng.randrange(len(corpus))
            parts.append(corpus[at : at + rng.randrange(1, 60)])
        elif kind == 3:
            parts.append(rng.choice(vocab))
        elif kind == 4 and added:
            parts.append(rng.choice(added))
        elif kind == 5:
            parts.append(rng.choice(SPACE))
        elif kind == 6:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 12))))
        elif kind == 7:
            parts.append(random_char(rng))
        else:
            parts.append(rng.choice(ODD) * rng.choice([1, 1, 1, 2, 7]))
    return "".join(parts)


def run(kvasir, path, flags, objects):
    lines = "".join(json.dumps(o) + "\n" for o in objects)
    out = subprocess.run(
        [kvasir, "tokenize", "-m", path, "--jsonl"] + flags,
        input=lines.encode(),
        check=True,
        capture_output=True,
    ).stdout.decode()
    answers = [json.loads(line) for line in out.split("\n") if line]
    assert len(answers) == len(objects), f"{len(answers)} lines for {len(objects)}"
    return answers


def tokens_of_both(kvasir, path, peer):
    """The peer's added tokens that the GGUF has, too."""
    added = {t.content: i for i, t in peer.get_added_tokens_decoder().items()}
    answers = run(kvasir, path, [], [{"text": content} for content in added])
    both = [c for c, answer in zip(added, answers, strict=True) if answer["ids"] == [added[c]]]
    if len(both) < len(added):
        print(f"{path}: has no {sorted(added.keys() - set(both))}: not in its texts")
    return both


def check(kvasir, pair, count, seed, corpus):
    path, _, twin = pair.partition("=")
    rng = random.Random(f"{seed} {path}")
    peer = Tokenizer.from_file(twin or path)
    vocab = sorted(peer.get_vocab(with_added_tokens=False))
    if twin:
        added = tokens_of_both(kvasir, path, peer)
    else:
        added = [t.content for t in peer.get_added_tokens_decoder().values()]
    texts = [make_text(rng, corpus, vocab, added) for _ in range(count)]
    bad = 0
    for flags, special in (([], False), (["--add-special"], True)):
        want = [peer.encode(t, add_special_tokens=special).ids for t in texts]
        got = [o["ids"] for o in run(kvasir, path, flags, [{"text": t} for t in texts])]
        for text, a, b in zip(texts, want, got, strict=True):
            if a != b:
                bad += 1
                if bad <= 3:
                    print(f"{path}: {text!r}\n  tokenizers {a}\n  kvasir     {b}")
    ids = [peer.encode(t, add_special_tokens=False).ids for t in texts]
    back = [o["text"] for o in run(kvasir, path, ["--decode"], [{"ids": i} for i in ids])]
    for i, got in zip(ids, back, strict=True):
        want = peer.decode(i, skip_special_tokens=False)
        if got != want:
            bad += 1
            if bad <= 3:
                print(f"{path}: decode of {i}\n  tokenizers {want!r}\n  kvasir     {got!r}")
    print(f"tokenize: {path}: {count} texts, {sum(map(len, ids))} ids, {bad} differ", flush=True)
    return bad


def main():
    p = argparse.ArgumentParser()
    p.add_argument("kvasir"), p.add_argument("files", nargs="+")
    p.add_argument("--texts", type=int, default=500), p.add_argument("--seed", type=int, default=1)
    p.add_argument("--corpus", default="../shared/text/wikitext-2-raw/wiki.test.raw")
    a = p.parse_args()
    corpus = open(a.corpus, encoding="utf-8", newline="").read()
    sys.exit(sum(check(a.kvasir, f, a.texts, a.seed, corpus) for f in a.files) > 0)


if __name__ == "__main__":
    main()
