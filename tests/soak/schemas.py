#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers under real schemas: a model writes one JSON document for each of N schemas, drawn from
maskbench.jsonl, in one `kvasir batch`, with the sampling that Qwen2.5-Coder-0.5B-Instruct comes
with (its generation_config.json, which the GGUF file does not hold): at temperature 0.8 and without
a repetition penalty 8 % of the answers are lists that never end. Each answer that ends by itself
must be valid for PyPI's jsonschema, and 95 % must end within 2,000 tokens.

    schemas.py KVASIR MODEL MASKBENCH [--count N] [--seed S] [--keep FOLDER]

Run it with a Python that has jsonschema: .venv-frameworks/bin/python (tools/clients.sh).
"""
import argparse
import collections
import decimal
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")

import jsonschema  # noqa: E402

LONGEST = 2500  # bytes of a schema: all of it is in the prompt
TOKENS = 2000


def read_schemas(path, count, seed):
    """(name, schema) of `count` schemas whose text is short enough."""
    all_ = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f):
            one = json.loads(line)
            if len(json.dumps(one["schema"])) <= LONGEST and isinstance(one["schema"], dict):
                all_.append((one.get("description", str(number)), one["schema"]))
    return random.Random(seed).sample(all_, min(count, len(all_)))


def request(i, schema):
    # Asked for "one document that this schema describes", so small a model repeats the schema.
    text = (json.dumps(schema) + "\n\nWrite one short JSON value that is valid under this schema: "
            "example data as a user of it would have, not a schema.")
    return {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS,
                     "temperature": 0.7, "top_p": 0.8, "top_k": 20,
                     "repetition_penalty": 1.1, "seed": i,
                     "response_format": {"type": "json_schema",
                                         "json_schema": {"name": "n", "schema": schema}}}}


def judge(schema, text):
    """What is wrong with the answer; None: nothing. With floats 19.99 is no multiple of 0.01, with
    decimal fractions 2.0 no integer: one of both is enough."""
    why = judge_as(schema, text, float)
    if why and why.startswith("not valid"):
        exact = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
        why = judge_as(exact, text, decimal.Decimal) and why
    return why


def judge_as(schema, text, number):
    try:
        value = json.loads(text, parse_float=number)
    except ValueError as e:
        return f"no JSON: {e}"
    try:
        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        kind(schema).validate(value)
    except jsonschema.ValidationError as e:
        return f"not valid: {e.message}"[:300]
    except Exception as e:  # a schema that jsonschema cannot read: another dialect of expressions
        return f"unknown: {type(e).__name__}: {e}"[:200]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("maskbench")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep")
    o = parser.parse_args()
    folder = o.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    schemas = read_schemas(o.maskbench, o.count, o.seed)
    source, results = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    with open(source, "w", encoding="utf-8") as f:
        for i, (_, schema) in enumerate(schemas):
            f.write(json.dumps(request(i, schema)) + "\n")
    # 1: some requests were refused; anything else ends the run
    status = subprocess.run([o.kvasir, "batch", "-m", o.model, "-i", source, "-o", results,
                             "--ctx", "4096"], check=False).returncode
    if status not in (0, 1):
        sys.exit(f"schemas: FAILED: kvasir batch ends with {status}")
    counts, bad, tokens = collections.Counter(), 0, 0
    with open(results, encoding="utf-8") as f:
        for line in f:
            one = json.loads(line)
            name, schema = schemas[int(one["custom_id"])]
            body = one["response"]["body"] if one.get("response") else {}
            if not body.get("choices"):
                counts["refused"] += 1
                print("refused:", name, json.dumps(one.get("error") or body.get("error"))[:200])
                continue
            choice = body["choices"][0]
            tokens += body["usage"]["completion_tokens"]
            if choice["finish_reason"] != "stop":
                counts["cut off"] += 1
                continue
            why = judge(schema, choice["message"]["content"])
            counts[(why or "valid").split(":")[0]] += 1
            if why:
                print(f"{name}: {why}: {choice['message']['content'][:300]!r}")
                bad += not why.startswith("unknown")
    if sum(counts.values()) != len(schemas):
        sys.exit(f"schemas: FAILED: {sum(counts.values())} results for {len(schemas)} requests")
    ended = counts["valid"] + counts["unknown"] + bad
    answered = ended + counts["cut off"]
    print(f"schemas: {len(schemas)} asked, {dict(counts)}, {tokens} tokens; "
          f"{100 * ended / max(answered, 1):.1f} % ended by themselves")
    if bad or not answered or ended < 0.95 * answered:
        sys.exit("schemas: FAILED")


main()
