# SPDX-License-Identifier: Apache-2.0
"""`kvasir batch` killed again and again, its last line torn at times: run again it answers each
request exactly once, with the text that an undisturbed run gives."""

import json
import os
import subprocess
import time

from target import Finding, scripted_model


def read(path):
    answers, torn = {}, 0
    with open(path, "rb") as f:
        for line in f:
            try:
                one = json.loads(line)
            except ValueError:
                torn += 1
                continue
            if one["custom_id"] in answers:
                raise Finding(f"{path}: {one['custom_id']} is answered twice")
            answers[one["custom_id"]] = one["response"]["body"]["choices"][0]["message"]["content"]
    return answers, torn


def attack(program, rnd, clock, limits):
    scripted_model("batch-model")
    with open("in.jsonl", "w", encoding="utf-8") as f:
        for i in range(120):
            body = {
                "messages": [{"role": "user", "content": f"{i} <|long|>"}],
                "max_tokens": rnd.randrange(2, 200),
            }
            f.write(
                json.dumps(
                    {
                        "custom_id": f"id-{i}",
                        "method": "POST",
                        "url": "/v1/chat/completions",
                        "body": body,
                    }
                )
                + "\n"
            )
    order = rnd.choice(["finished", "input"])
    command = [
        program,
        "batch",
        "-m",
        "batch-model",
        "-i",
        "in.jsonl",
        "--order",
        order,
        "--threads",
        "1",
        "--control-tokens",
        "all",
        "--max-num-seqs",
        "6",
        "-q",
        "-o",
    ]
    start = time.monotonic()
    subprocess.run([*command, "whole.jsonl"], check=True, capture_output=True)
    took = time.monotonic() - start
    expected, torn = read("whole.jsonl")
    if len(expected) != 120 or torn:
        raise Finding(f"{len(expected)} of 120 answers, {torn} torn lines without any kill")
    while clock.left() > 0:
        out, kills = f"killed-{rnd.randrange(10**9)}.jsonl", 0
        while True:
            p = subprocess.Popen([*command, out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                errors = p.communicate(timeout=rnd.uniform(0.02, took * (0.5 + kills / 4)))[1]
                break
            except subprocess.TimeoutExpired:
                p.kill()
                p.communicate()
                kills += 1
            if os.path.exists(out) and os.path.getsize(out) > 400 and rnd.random() < 0.5:
                os.truncate(out, os.path.getsize(out) - rnd.randrange(1, 350))
                clock.count("torn lines")
        if p.returncode != 0:
            raise Finding(f"batch ends with {p.returncode} after {kills} kills: {errors[-1000:]!r}")
        answers, torn = read(out)
        if answers != expected or torn:
            wrong = [k for k in expected if answers.get(k) != expected[k]]
            raise Finding(
                f"after {kills} kills {len(wrong)} answers differ, {torn} lines torn: "
                f"{wrong[:5]}"
            )
        os.unlink(out)
        clock.count("batches")
        clock.count("kills", kills)
    del limits
