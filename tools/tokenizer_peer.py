# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer beside the PyPI package `tokenizers`, one tokenizer.json after the other.

    tokenizer_peer.py texts BENCH_TOKENIZER FILE...
        500 random texts each: ids (control tokens parsed, not parsed, with BOS and EOS) and both
        decodings must be the same
    tokenizer_peer.py speed BENCH_TOKENIZER TEXT FILE...
        opening and encoding, both in one run

BENCH_TOKENIZER is the program of bench/tokenizer.c. Needs a Python with tokenizers (a pinned venv).
Environment: SEED, TEXTS.
"""
import json
import os
import random
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import tokenizers  # noqa: E402

ODD = [
    "\u0301", "\u0327\u0301", "\u0316\u0301\u0316", "e\u0301", "\u00e9", "a\u0328\u0301",
    "\u1100\u1161\u11a8", "\uac00\u11a8", "\u1161", "\u212b", "\u2126", "\ufb01", "\ufdfa",
    "\u0958", "\u09c7\u09be", "\u0f71\u0f72", "\u3099", "\u304b\u3099", "\uff76\uff9e", "\u2f800",
    "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\u200b", "\u200d", "\ufeff", "\u00ad",
    "\u00a0", "\u3000", "\u2028", "\u2029", "\u0085", "\u180e", "\u202f", "\x0b", "\x0c", "\x1c",
    "\u2581", "\u2581\u2581", "<0x0A>", "<0xE2>", "\x00", "\x7f", "\ue000", "\ufffe", "\U0010ffff",
    "\u0130", "\u017f", "\u212a", "\u1e9e", "\u0149", "'\u017f", "\u2019s", "'LL", "'Ve", "'s",
    "\u0661\u0662", "\u00bd", "\u2163", "\u0967", "\u4e2d\u6587", "\ud55c\uad6d\uc5b4", "\u05e9",
    "\u0627\u0644", "\u0e44\u0e17\u0e22", "\u1f600", "\ufffd", "\U000e0041", "\U0001d54f",
]


def random_char(r):
    while True:
        c = r.choice([r.randrange(0x80), r.randrange(0x250), r.randrange(0x3000),
                      r.randrange(0x10000), r.randrange(0x20000), r.randrange(0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def random_text(r, corpus, added):
    if r.random() < 0.02:
        return ""
    parts = []
    for _ in range(r.randrange(1, 30)):
        kind = r.randrange(12)
        if kind < 3:
            start = r.randrange(len(corpus))
            parts.append(corpus[start:start + r.randrange(1, 80)])
        elif kind == 3:
            parts.append(r.choice(ODD) * r.choice([1, 1, 1, 2, 5]))
        elif kind == 4:
            parts.append("".join(random_char(r) for _ in range(r.randrange(1, 12))))
        elif kind == 5:
            parts.append(" " * r.choice([1, 2, 3, 4, 7, 16, 31, 32, 33, 100, 300]))
        elif kind == 6:
            parts.append(r.choice(["\n", "\r\n", "\n\n", " \n", "\n ", "\t", "\r", "\t\t \n\r\n"])
                         * r.choice([1, 1, 2, 3, 33]))
        elif kind == 7 and added:
            token = r.choice(added)
            parts.append(r.choice(["", " ", "  ", "x", "\n"]) + token
                         + r.choice(["", " ", "  ", "x", "\n", token]))
        elif kind == 8 and added:  # a special token that is not whole
            token = r.choice(added)
            parts.append(token[:r.randrange(len(token) + 1)])
        elif kind == 9:
            parts.append("".join(r.choice("0123456789.,-") for _ in range(r.randrange(1, 20))))
        elif kind == 10:
            parts.append(r.choice("aeiou \u00e9\u4e2d") * r.randrange(1, 200))
        else:
            parts.append("".join(r.choice("<>|_[]{}()'\"!?#$%&*+-=/\\~^:;@`")
                                 for _ in range(r.randrange(1, 12))))
    return "".join(parts)


def peer_line(peer, text):
    ids = peer.encode(text, add_special_tokens=False).ids
    special = peer.encode(text, add_special_tokens=True).ids
    peer.encode_special_tokens = True
    plain = peer.encode(text, add_special_tokens=False).ids
    peer.encode_special_tokens = False
    return {"ids": ids, "ids_plain": plain, "ids_special": special,
            "decoded": peer.decode(special, skip_special_tokens=False),
            "skipped": peer.decode(special, skip_special_tokens=True)}


def compare(program, path, count, seed):
    peer = tokenizers.Tokenizer.from_file(path)
    peer.no_truncation()
    peer.no_padding()
    added = sorted(t.content for t in peer.get_added_tokens_decoder().values())
    here = os.path.dirname(os.path.abspath(__file__))
    shared = os.environ.get("SHARED_DIR", os.path.join(here, "..", "..", "shared"))
    with open(os.path.join(shared, "text/wikitext-2-raw/wiki.test.raw"), "rb") as f:
        corpus = f.read().decode()
    r = random.Random(seed)
    texts = [random_text(r, corpus, added) for _ in range(count)]
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    run = subprocess.run([program, path, "--lines"], input=lines.encode(), capture_output=True,
                         check=False)
    if run.returncode:
        print(f"{path}: {run.stderr.decode(errors='replace').strip()}")
        return False
    wrong = 0
    for text, line in zip(texts, run.stdout.decode().split("\n")[:-1], strict=True):
        ours, theirs = json.loads(line), peer_line(peer, text)
        for key in theirs:
            if ours[key] != theirs[key]:
                wrong += 1
                if wrong <= 5:
                    show(key, text, ours[key], theirs[key])
    print(f"{path}: {count} texts, {sum(map(len, texts))} characters, {wrong} differences")
    return wrong == 0


def show(key, text, ours, theirs):
    n = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b),
             min(len(ours), len(theirs)))
    low = max(0, n - 3)
    print(f"  {key} at {n}: ours {ours[low:n + 5]!r} theirs {theirs[low:n + 5]!r}")
    print(f"    of {text[:300]!r}")


def speed(program, text_path, path):
    with open(text_path, "rb") as f:
        data = f.read()
    text = data.decode()
    best_open = best_encode = 1e9
    for _ in range(3):
        start = time.process_time()
        peer = tokenizers.Tokenizer.from_file(path)
        best_open = min(best_open, time.process_time() - start)
    for _ in range(5):
        start = time.process_time()
        n = len(peer.encode(text, add_special_tokens=False).ids)
        best_encode = min(best_encode, time.process_time() - start)
    ours = json.loads(subprocess.run([program, path, "--speed", text_path], check=True,
                                     capture_output=True).stdout)
    same = "the same number of tokens" if ours["tokens"] == n else "OTHER TOKENS"
    rate = len(data) / best_encode / 1e6
    print(f"{path}: open {ours['open_s']:.3f} s (peer {best_open:.3f}), encode "
          f"{ours['encode_mb_s']:.1f} MB/s (peer {rate:.1f}), peak memory {ours['peak_mb']} MB, "
          f"file {os.path.getsize(path) / 1e6:.1f} MB, {same}")
    return ours["tokens"] == n


def main():
    print(f"tokenizers {tokenizers.__version__}; times are processor seconds of one thread")
    mode, program, *rest = sys.argv[1:]
    if mode == "texts":
        seed, count = int(os.environ.get("SEED", "1")), int(os.environ.get("TEXTS", "500"))
        good = [compare(program, path, count, seed) for path in rest]
    else:
        good = [speed(program, rest[0], path) for path in rest[1:]]
    sys.exit(0 if all(good) else 1)


main()
