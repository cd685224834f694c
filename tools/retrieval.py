#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""retrieval.py facts|sums MODEL    what a model finds and computes with each cache format

facts: ten numbers in a long text, asked for one after the other, over a prefix hit and cold.
sums:  200 questions after worked examples; how often an answer is not the exact run's.

Answers are greedy. The exact run has f32 pages and act bits 16, like the others; the control is the
exact run with act bits 8. Prints a line of Markdown for each. `kvasir batch` runs them:
KVASIR=build/kvasir; an interrupted run goes on from --state.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import tempfile

TEXT = "../shared/text/war-and-peace/war_and_peace.txt"
TOWNS = ("Lisbon", "Oslo", "Cairo", "Lima", "Dublin", "Havana", "Nairobi", "Prague", "Tokyo",
         "Quito")
EXAMPLES = 24
CONTROL = "control"  # the exact run's format with act bits 8


def kvasir(command, *args, **more):
    program = os.environ.get("KVASIR", "build/kvasir")
    return subprocess.run([program, command, *args], check=True, stdout=subprocess.PIPE, text=True,
                          **more).stdout


def facts(a):
    """[(prompt, answer)]: all prompts differ in their last line only."""
    draw = random.Random(a.seed)
    numbers = [str(draw.randrange(10000, 100000)) for _ in TOWNS]
    text = pathlib.Path(a.text).read_text(encoding="utf-8")
    text = text[len(text) // 10 :]
    sample = text[:20000]
    ids = len(kvasir("tokenize", "-m", a.model, input=sample).split())
    lines = text[: int(len(sample) / ids * (a.tokens - 300))].splitlines()
    for i in reversed(range(len(TOWNS))):  # from the end, so that places stay right
        at = len(lines) * (2 * i + 1) // (2 * len(TOWNS))
        lines.insert(at, f"\nThe secret number of {TOWNS[i]} is {numbers[i]}.\n")
    order = draw.sample(range(len(TOWNS)), len(TOWNS))
    return [("\n".join(lines) + f"\n\nThe secret number of {TOWNS[i]} is", numbers[i])
            for i in order]


def sums(a):
    draw = random.Random(a.seed)

    def one():
        sign = draw.choice("+-*")
        x, y = (draw.randrange(2, 13 if sign == "*" else 100) for _ in range(2))
        x, y = max(x, y), min(x, y)
        return f"Q: {x} {sign} {y} =\nA:", str({"+": x + y, "-": x - y, "*": x * y}[sign])

    begin = "".join(f"{q} {answer}\n" for q, answer in (one() for _ in range(EXAMPLES)))
    return [(begin + q, answer) for q, answer in (one() for _ in range(a.questions))]


def run(a, questions, form, name, *flags):
    """The answers, in order."""
    bits, act = ("f32", "8") if form == CONTROL else (form, "16")
    model = pathlib.Path(a.model).name
    kept = "" if a.start is None else f"-{a.start}"
    base = pathlib.Path(a.state) / f"{model}-{a.task}-{name}-{form}{kept}"
    requests, results = f"{base}.in", f"{base}.out"
    start = [] if a.start is None else ["--quantized-kv-start", str(a.start)]
    with open(requests, "w", encoding="utf-8") as f:
        for i, (prompt, answer) in enumerate(questions):
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "stop": ["\n", "."]}
            f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                "body": body}) + "\n")
    kvasir("batch", "-m", a.model, "-i", requests, "-o", results, "-q", "--device", a.device,
           "--kv-bits", bits, "--act-bits", act, *start, *flags)
    answers, tokens, cached = [""] * len(questions), 0, 0
    with open(results, encoding="utf-8") as f:
        for line in f:
            o = json.loads(line)
            body = o["response"]["body"]
            answers[int(o["custom_id"])] = body["choices"][0]["text"].strip()
            tokens = max(tokens, body["usage"]["prompt_tokens"])
            cached += body["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    return answers, tokens, cached


def row(*cells):
    print("|", " | ".join(str(c) for c in cells), "|", flush=True)


def count(answers, others):
    return sum(x == y for x, y in zip(answers, others))


def ask_facts(a):
    """The first question is asked cold and at the end again, --cold - 1 others in a run without
    prefixes."""
    questions = facts(a)
    right = [answer for _, answer in questions]
    # one at a time: the first one's prefix is stored when the next one looks for it
    alone = ("--max-num-seqs", "1", "--ctx", str(a.tokens + 200), "--order", "input")
    row("format", "tokens", "found over a hit", "of those that exact found", "found cold",
        "cold as over the hit")
    row(*["---"] * 6)
    exact = None
    for form in a.formats:
        answers, tokens, cached = run(a, questions + questions[:1], form, f"{a.tokens}-warm",
                                      *alone)
        assert cached == len(questions), f"{form}: {cached} questions had a hit"
        cold, warm = answers[:1], answers[-1:] + answers[1:-1]
        if a.cold > 1:
            more, _, cached = run(a, questions[1 : a.cold], form, f"{a.tokens}-cold-{a.cold}",
                                  "--no-prefix-cache", *alone)
            assert cached == 0, f"{form}: a cold question had a hit"
            cold += more
        exact = exact or warm
        both = sum(x == y == z for x, y, z in zip(warm, exact, right))
        row(form, tokens, f"{count(warm, right)} of {len(right)}",
            f"{both} of {count(exact, right)}", f"{count(cold, right)} of {len(cold)}",
            f"{count(cold, warm)} of {len(cold)}")


def ask_sums(a):
    questions = sums(a)
    right = [answer for _, answer in questions]
    row("format", "tokens", "right", "answers unlike exact", "share")
    row(*["---"] * 5)
    exact = None
    for form in a.formats:
        answers, tokens, _ = run(a, questions, form, str(a.questions), "--ctx", "1024")
        exact = exact or answers
        unlike = len(right) - count(answers, exact)
        row(form, tokens, f"{count(answers, right)} of {len(right)}", unlike,
            f"{100 * unlike / len(right):.1f} %")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("task", choices=("facts", "sums"))
    p.add_argument("model")
    p.add_argument("--formats", nargs="+", default=["f32", CONTROL, "r8,4", "t5,4", "t4", "t3"],
                   help="the first is the exact one")
    p.add_argument("--tokens", type=int, default=8000, help="facts: of the text, about")
    p.add_argument("--cold", type=int, default=10, help="facts: so many are also asked cold")
    p.add_argument("--questions", type=int, default=200, help="sums: how many")
    p.add_argument("--text", default=TEXT, help="facts: the text around them")
    p.add_argument("--device", default="cpu", help="what to compute on: cpu, or cuda")
    p.add_argument("--start", type=int, help="--quantized-kv-start; default: by the format")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--state", help="a folder that keeps answers")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        a.state = a.state or empty
        pathlib.Path(a.state).mkdir(exist_ok=True)
        (ask_facts if a.task == "facts" else ask_sums)(a)


if __name__ == "__main__":
    main()
