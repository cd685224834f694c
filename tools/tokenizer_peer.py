# SPDX-License-Identifier: Apache-2.0
"""Compares our tokenizer with the PyPI package `tokenizers`, one tokenizer.json after the other.

    tokenizer_peer.py texts BENCH_TOKENIZER FILE...
        500 random texts each: ids (control tokens parsed, not parsed, with BOS and EOS) and both
        decodings must be the same. OURS=THEIRS names a GGUF file and a tokenizer.json.
    tokenizer_peer.py variants BENCH_TOKENIZER COUNT
        COUNT random small tokenizer.json files, with every normalizer, pre-tokenizer, decoder and
        flag of added tokens that ours reads, 40 random texts each
    tokenizer_peer.py speed BENCH_TOKENIZER TEXT FILE...
        times of opening and encoding, both tokenizers in one run

BENCH_TOKENIZER is the program of bench/tokenizer.c. Needs a Python with tokenizers (a pinned venv).
Environment: SEED, TEXTS.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

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
    "\u0378", "\U000e0080", "\U0001fffe", "\u0344", "\u0958\u0344", "\u1e0a\u0323", "\u0340\u0301",
]


def random_char(r):
    """A character that Python's Unicode tables know; libraries disagree about newer ones."""
    while True:
        c = r.choice([r.randrange(0x80), r.randrange(0x250), r.randrange(0x3000),
                      r.randrange(0x10000), r.randrange(0x20000), r.randrange(0x110000)])
        if unicodedata.category(chr(c)) not in ("Cs", "Cn"):
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
        elif kind == 8 and added:  # an incomplete special token
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


def compare_texts(program, path, peer, texts, left_out=()):
    """Returns the number of differences and prints the first ones."""
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    run = subprocess.run([program, path, "--lines"], input=lines.encode(), capture_output=True,
                         check=False)
    if run.returncode:
        print(f"{path}: {run.stderr.decode(errors='replace').strip()}")
        return len(texts)
    wrong = 0
    for text, line in zip(texts, run.stdout.decode().split("\n")[:-1], strict=True):
        ours, theirs = json.loads(line), peer_line(peer, text)
        for key in theirs:
            if ours[key] != theirs[key] and key not in left_out:
                wrong += 1
                if wrong <= 5:
                    show(key, text, ours[key], theirs[key])
    return wrong


def compare(program, path, count, seed):
    path, _, other = path.partition("=")
    peer = tokenizers.Tokenizer.from_file(other or path)
    peer.no_truncation()
    peer.no_padding()
    added = sorted(t.content for t in peer.get_added_tokens_decoder().values())
    here = os.path.dirname(os.path.abspath(__file__))
    shared = os.environ.get("SHARED_DIR", os.path.join(here, "..", "..", "shared"))
    with open(os.path.join(shared, "text/wikitext-2-raw/wiki.test.raw"), "rb") as f:
        corpus = f.read().decode()
    r = random.Random(seed)
    texts = [random_text(r, corpus, added) for _ in range(count)]
    wrong = compare_texts(program, path, peer, texts)
    print(f"{path}: {count} texts, {sum(map(len, texts))} characters, {wrong} differences")
    return wrong == 0


def show(key, text, ours, theirs):
    n = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b),
             min(len(ours), len(theirs)))
    low = max(0, n - 3)
    print(f"  {key} at {n}: ours {ours[low:n + 5]!r} theirs {theirs[low:n + 5]!r}")
    print(f"    of {text[:300]!r}")


# ---- random tokenizer.json files ---------------------------------------------------------------

PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'d)?"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\s+$", r"\d{1,3}", r"[0-9][0-9]", r"[\r\n]", r"\s?\p{L}+", r"[\u4e00-\u9fa5\u3040-\u30ff]+",
    r"\p{Han}+|\p{Katakana}+", r"a|bc", r"(?i)AB", r"[!-/:-~]", r"\P{L}", r"(?<=a)b",
    r"\x{20}|\x41", r"a{2}|b{1,2}|c{3,}", r"[^ab\s]", r"(?>a+)b?", r".", r"\p{^L}a", r"a??b",
    r"a++", r"\.|\$|\v",
]
LETTERS = ["a", "b", "c", "A", "\u00e9", "\u4e2d", "1", "2", " ", "\u2581", ".", "\n", "'", "s"]


def flag(r):
    return r.random() < 0.5


def random_normalizer(r, depth=0):
    kind = r.randrange(10 if depth < 2 else 8)
    text = {"String": r.choice([" ", "a", "ab", "\u2581", "\n", "\u00e9"])}
    return [
        {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"},
        {"type": "Strip", "strip_left": flag(r), "strip_right": flag(r)},
        {"type": "Prepend", "prepend": r.choice(["\u2581", "x", " "])},
        {"type": "Replace", "pattern": text, "content": r.choice(["\u2581", "", "bb", " "])},
        {"type": "Sequence",
         "normalizers": [random_normalizer(r, depth + 1) for _ in range(r.randrange(3))]}
        if depth < 2 else None,
        None if depth == 0 else {"type": "NFC"},
    ][kind]


def random_pre(r):
    behavior = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    stages = []
    for k in range(r.randrange(4)):
        pattern = ({"Regex": r.choice(PATTERNS)} if r.random() < 0.7
                   else {"String": r.choice([" ", "a", "\u2581", "ab", "\r\n"])})
        stages.append(r.choice([
            {"type": "Split", "pattern": pattern, "behavior": r.choice(behavior),
             "invert": flag(r)},
            {"type": "Digits", "individual_digits": flag(r)},
            {"type": "Metaspace", "replacement": "\u2581", "split": flag(r),
             "prepend_scheme": r.choice(["always", "never"] + ["first"] * (k == 0))},
        ]))
    return stages


def random_model(r, byte_level):
    if byte_level:
        pieces = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        if flag(r):
            pieces = [p for p in pieces if r.random() < 0.95]
    else:
        pieces = [c for c in LETTERS if r.random() < 0.9]
        if flag(r):
            pieces += [f"<0x{b:02X}>" for b in range(256)]
    pieces = ["<unk>", "<s>", "</s>"] + pieces
    merges, letters = [], [p for p in pieces if len(p) == 1]
    if byte_level:
        letters = [p for p in letters if p in "abcA12.'s\u0120"]
    for _ in range(r.randrange(60)):
        left, right = (r.choice(letters) for _ in range(2)) if letters else ("", "")
        if len(left + right) < 12 and letters:
            letters.append(left + right)
            merges.append([left, right])
    r.shuffle(merges)
    pieces += sorted({a + b for a, b in merges} - set(pieces))
    if flag(r):
        pieces.append("abc") if "abc" not in pieces else None
    return {"type": "BPE", "dropout": None, "unk_token": r.choice([None, "<unk>"]),
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": flag(r),
            "byte_fallback": not byte_level and flag(r), "ignore_merges": flag(r),
            "vocab": {p: i for i, p in enumerate(pieces)},
            "merges": merges if flag(r) else [" ".join(m) for m in merges if " " not in "".join(m)]}


def random_file(r):
    byte_level = flag(r)
    model = random_model(r, byte_level)
    stages = random_pre(r)
    if byte_level:
        stages.append({"type": "ByteLevel", "add_prefix_space": flag(r), "trim_offsets": flag(r),
                       "use_regex": flag(r)})
    added, free = [], len(model["vocab"])
    names = ["<s>", "</s>", "<unk>", "<x>", "<x><y>", "ab", "[a]", " z ", "\u4e2d\u4e2d", "1", "A."]
    for name in r.sample(names, r.randrange(len(names))):
        at = model["vocab"].get(name, free)
        free += at == free
        added.append({"id": at, "content": name, "single_word": r.random() < 0.3,
                      "lstrip": r.random() < 0.3, "rstrip": r.random() < 0.3,
                      "normalized": r.random() < 0.3, "special": flag(r)})
    one = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    two = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing",
                "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
                "single": r.choice([[one, text], [text, two], [one, one, text, two], [text]]),
                "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]}
                                   for n, i in (("<s>", 1), ("</s>", 2))}}
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "split": True,
                 "prepend_scheme": r.choice(["always", "first", "never"])}
    steps = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
             {"type": "ByteFallback"}, {"type": "Fuse"}, metaspace,
             {"type": "Strip", "content": r.choice([" ", "a", "\u4e2d"]), "start": r.randrange(3),
              "stop": 0}]  # above 0 theirs crashes on an empty token
    decoder = r.choice([None, level, {"type": "Sequence", "decoders": steps[:3] + steps[4:]},
                        {"type": "Sequence", "decoders": r.sample(steps, r.randrange(1, 6))}])
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None if '"first"' in json.dumps(stages) else random_normalizer(r),
            "pre_tokenizer": stages[0] if len(stages) == 1 else
            {"type": "Sequence", "pretokenizers": stages} if stages else None,
            "post_processor": r.choice([None, level, template, {
                "type": "Sequence", "processors": [level, template]}]),
            "decoder": decoder, "model": model}


def variant_text(r, added):
    parts = []
    for _ in range(r.randrange(30)):
        kind = r.randrange(10)
        if kind < 6:
            parts.append(r.choice(LETTERS))
        elif kind == 6:
            parts.append(r.choice(ODD))
        elif kind == 7:
            parts.append(r.choice([" ", "  ", "\n", "\r\n", "   ", "\u3000"]))
        elif added:
            parts.append(r.choice(added)[:r.choice([1, 2, 99, 99, 99])])
    return "".join(parts)


def variants(program, count, seed):
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tokenizer.json")
        for k in range(count):
            r = random.Random(seed * 1000003 + k)
            value = random_file(r)
            with open(path, "w", encoding="utf-8") as f:
                json.dump(value, f, ensure_ascii=flag(r))
            peer = tokenizers.Tokenizer.from_file(path)
            added = [a["content"] for a in value["added_tokens"]]
            texts = [variant_text(r, added) for _ in range(40)]
            # With ignore_merges theirs finds control tokens in plain text, ours does not.
            left_out = ["ids_plain"] * value["model"]["ignore_merges"]
            # Theirs decodes a normalized token in its normalized form and does not skip it.
            if value["normalizer"] and any(a["normalized"] for a in value["added_tokens"]):
                left_out += ["decoded", "skipped"]
            bad = compare_texts(program, path, peer, texts, left_out)
            if bad:
                wrong += 1
                value["model"] = {k: v for k, v in value["model"].items() if k != "vocab"}
                print(f"file {k}: {bad} differences: {json.dumps(value)}")
            if wrong == 5:
                break
    print(f"{count} files, {wrong} with differences")
    return wrong == 0


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
    elif mode == "variants":
        good = [variants(program, int(rest[0]), int(os.environ.get("SEED", "1")))]
    else:
        good = [speed(program, rest[0], path) for path in rest[1:]]
    sys.exit(0 if all(good) else 1)


main()
