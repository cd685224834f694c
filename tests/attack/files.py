# SPDX-License-Identifier: Apache-2.0
"""Model files that were bent, read by the real program: it ends with a result or an error, soon, in
little memory, and is never killed. The models are a scripted one and, where they are, the small
ones of ../shared."""

import json
import os
import resource
import shutil
import struct
import subprocess

from target import Finding, is_sanitized, scripted_model

SHARED = os.environ.get("SHARED_DIR") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "shared"
)
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    10**6,
    10**9,
]
VALUES = [
    0,
    1,
    -1,
    2,
    3,
    5,
    8,
    33,
    64,
    100,
    255,
    1024,
    65536,
    10**6,
    2**31,
    2**32,
    2**63 - 1,
    -(2**63),
    1e308,
    -1e308,
    1e-308,
    0.5,
    None,
    True,
    False,
    "",
    "a",
    "x" * 5000,
    [],
    {},
    [1],
    {"a": 1},
    [[]],
    "<unk>",
    "\0",
    "🎉",
    [0] * 1000,
    "llama",
    "silu",
    "default",
    "yarn",
]
SECONDS, MEMORY = 20, 4 << 30  # of one run


def bend_bytes(rnd, data, region):
    data = bytearray(data)
    for _ in range(rnd.choice([1, 1, 1, 2, 3, 8])):
        n = max(1, min(region, len(data)))
        at, kind = rnd.randrange(n), rnd.randrange(8)
        if kind == 0:
            data[at : at + 1] = bytes([rnd.randrange(256)])
        elif kind == 1:
            data[at : at + 4] = struct.pack("<I", rnd.choice(NUMBERS) & 0xFFFFFFFF)
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", rnd.choice(NUMBERS) & (2**64 - 1))
        elif kind == 3:
            del data[at : at + rnd.randrange(1, 40)]
        elif kind == 4:
            data[at:at] = rnd.randbytes(rnd.randrange(1, 20))
        elif kind == 5:
            other = rnd.randrange(n)
            data[at : at + 32] = data[other : other + rnd.randrange(1, 64)]
        elif kind == 6 and rnd.random() < 0.3:
            del data[rnd.randrange(len(data)) :]
        else:
            data[at : at + 1] = bytes([rnd.choice(b'\0\xff\x7f\x80"{}[],:0-9e.')])
    return bytes(data)


def places(value, path=()):
    found = [path] if path else []
    if isinstance(value, dict):
        for k in value:
            found += places(value[k], path + (k,))
    elif isinstance(value, list):
        for k in range(min(len(value), 6)):
            found += places(value[k], path + (k,))
    return found


def bend_json(rnd, data):
    try:
        value = json.loads(data)
    except ValueError:
        return bend_bytes(rnd, data, len(data))
    for _ in range(rnd.choice([1, 1, 2, 3, 5])):
        all_places = places(value)
        if not all_places:
            break
        *path, last = rnd.choice(all_places)
        at = value
        for k in path:
            at = at[k]
        if rnd.random() < 0.8:
            at[last] = json.loads(json.dumps(rnd.choice(VALUES)))
        else:
            del at[last]
    return json.dumps(value).encode()


def bend_safetensors(rnd, data):
    n = struct.unpack("<Q", data[:8])[0]
    if rnd.random() < 0.6:
        head = data[8 : 8 + n]
        head = bend_json(rnd, head) if rnd.random() < 0.7 else bend_bytes(rnd, head, n)
        return struct.pack("<Q", len(head)) + head + data[8 + n :]
    return bend_bytes(rnd, data, 8 + n)


def bend(rnd, name, data):
    if name.endswith(".safetensors"):
        return bend_safetensors(rnd, data)
    if name.endswith(".json") and rnd.random() < 0.7:
        return bend_json(rnd, data)
    return bend_bytes(rnd, data, rnd.choice([500, 12000, len(data)]))


def models():
    scripted_model("files-model")
    found = [os.path.abspath("files-model")]
    for folder in ("fixtures/tiny", "models/stories260K"):
        at = os.path.join(SHARED, folder)
        if os.path.isdir(at):
            found += [os.path.join(at, m) for m in sorted(os.listdir(at))]
    return [
        m for m in found if m.endswith(".gguf") or os.path.exists(os.path.join(m, "config.json"))
    ]


def run(program, arguments, sanitized):
    def limit():
        if not sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    env = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:hard_rss_limit_mb=3500"}
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            preexec_fn=limit,
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Finding(f"more than {SECONDS} s: {arguments}") from None
    reported = b"Sanitizer" in done.stderr or b"runtime error" in done.stderr
    if done.returncode not in (0, 1, 2) or reported:
        raise Finding(f"exit code {done.returncode}: {arguments}: {done.stderr[-2000:]!r}")
    return done.returncode


def plant(rnd, model):
    """A copy of the model with one bent file: its path."""
    if model.endswith(".gguf"):
        with open(model, "rb") as f:
            data = bend(rnd, model, f.read())
        with open("bent.gguf", "wb") as f:
            f.write(data)
        return "bent.gguf"
    shutil.rmtree("bent", ignore_errors=True)
    os.mkdir("bent")
    names = sorted(
        n for n in os.listdir(model) if n.endswith((".json", ".safetensors")) and "golden" not in n
    )
    for n in names:
        os.symlink(os.path.join(os.path.abspath(model), n), os.path.join("bent", n))
    name = rnd.choice(names)
    with open(os.path.join(model, name), "rb") as f:
        data = bend(rnd, name, f.read())
    os.unlink(os.path.join("bent", name))
    with open(os.path.join("bent", name), "wb") as f:
        f.write(data)
    return "bent"


def attack(program, rnd, clock, limits):
    found, sanitized = models(), is_sanitized(program)
    while clock.left() > 0:
        at = plant(rnd, rnd.choice(found))
        clock.count("files")
        generate = [
            "generate",
            "-m",
            at,
            "--tokens",
            "1,2,3",
            "-n",
            "1",
            "--threads",
            "1",
            "--ctx",
            "256",
            "-q",
        ]
        for arguments in (["info", at], generate):
            try:
                code = run(program, arguments, sanitized)
            except Finding:
                kept = f"finding-{rnd.randrange(10**9)}"
                shutil.move(at, kept)
                print(f"attack: the files are kept in {os.path.abspath(kept)}")
                raise
            clock.count(f"exit {code}")
    del limits
