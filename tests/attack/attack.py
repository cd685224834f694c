#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""attack.py PROGRAM SECONDS [--seed N] [--limits] [--count N] [PART...]: see tools/attack.sh."""

import argparse
import importlib
import os
import random
import sys
import tempfile
import time

from target import Clock, Finding

SHARES = {"files": 5, "templates": 3, "fields": 5, "raw": 4, "batch": 2, "shares": 2, "overload": 6}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("seconds", type=float)
    parser.add_argument("parts", nargs="*", default=list(SHARES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--count", type=int, default=0)
    o = parser.parse_intermixed_args()
    program, parts = os.path.abspath(o.program), o.parts
    if unknown := set(parts) - set(SHARES):
        parser.error(f"unknown parts {unknown}: there are {', '.join(SHARES)}")
    os.environ["MODELS_DIR"] = os.path.abspath(os.environ.get("MODELS_DIR", "models"))
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        for part in parts:
            share = SHARES[part] / sum(SHARES[p] for p in parts)
            clock = Clock(o.seconds * share, o.count)
            start = time.monotonic()
            try:
                importlib.import_module(part).attack(
                    program, random.Random(o.seed), clock, o.limits
                )
                result = "held"
            except Finding as e:
                result, failed = f"FINDING: {e}", failed + 1
            seconds = time.monotonic() - start
            counts = ", ".join(f"{n} {what}" for what, n in sorted(clock.counts.items()))
            print(
                f"attack: {part}, seed {o.seed}, {seconds:.0f} s: {counts}: {result}",
                flush=True,
            )
        os.chdir("/")
    print("attack: everything held" if not failed else f"attack: {failed} parts have findings")
    sys.exit(failed != 0)


main()
