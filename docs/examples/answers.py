#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""answers.py MODEL TEXT QUESTION...    several questions about one text, with the Python module

    python3 answers.py model.gguf "The lighthouse is 46 metres high and was built in 1858." \\
        " The year it was built:" " It is"

The text is evaluated once; each question continues a fork of it, which shares its pages. At the end
stream() prints the first answer as it comes, computed anew.
"""
import os
import sys

import kvasir

ANSWER_TOKENS = 16


def answer(model: kvasir.Model, fork: kvasir.Sequence, question: str) -> str:
    sampler = kvasir.Sampler(model.info.vocab)  # greedy
    logits = fork.eval(model.tokenizer.encode(question, special=False))
    tokens: list[int] = []
    while len(tokens) < ANSWER_TOKENS:
        token = sampler.pick(logits)
        if model.tokenizer.is_end(token):
            break
        tokens.append(token)
        logits = fork.eval([token])
    return model.tokenizer.decode(tokens)


def main(path: str, text: str, *questions: str) -> None:
    bits = os.environ.get("KV_BITS")  # None: keys of 8 bits, values of 4
    with kvasir.Model(path) as model, model.context(kv_bits=bits) as context:
        document = context.sequence()
        document.eval(model.tokenizer.encode(text), logits=None)
        for question in questions:
            with document.fork() as fork:
                print(question + answer(model, fork, question))
        for piece in model.stream(text + questions[0], raw=True, max_tokens=ANSWER_TOKENS,
                                  context=context):
            print(piece, end="", flush=True)
        print()


if __name__ == "__main__":
    main(*sys.argv[1:])
