# SPDX-License-Identifier: Apache-2.0
"""Model files and prompt-cache files that were bent, read by the real program: it ends with a
result or an error, soon, in little memory, and is never killed. The models are a scripted one and,
where they are, the small ones of ../shared; the caches are those that cache-prompt writes of them,
in both forms, and mlx-lm's.
"""

import glob
import json
import os
import resource
import shutil
import struct
import subprocess
import tempfile

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


def caches(program, found):
    """Pairs of a model and a prompt-cache file of it. Some models have no cache in some form."""
    pairs = []
    for model in found:
        if model.endswith(".gguf"):
            continue
        for form in ("current", "legacy"):
            for bits in ("8,4", "f16"):
                at = os.path.abspath(f"cache-{len(pairs)}.safetensors")
                ids = ",".join(str(1 + i % 60) for i in range(70))
                arguments = ["cache-prompt", "-m", model, "--tokens", ids, "-o", at]
                arguments += ["--format", form, "--kv-bits", bits, "--threads", "1", "-q"]
                done = subprocess.run([program, *arguments], capture_output=True, check=False)
                if done.returncode == 0:
                    pairs.append((model, at))
    if not pairs:
        raise Finding("cache-prompt writes no cache: " + done.stderr.decode()[-500:])
    own = len(pairs)
    for model in found:
        of_mlx = f"fixtures/mlx/prompt-cache/*/tiny-{os.path.basename(model)}/*.safetensors"
        pairs += [(model, at) for at in sorted(glob.glob(os.path.join(SHARED, of_mlx)))]
    return pairs, own


def bend_cache(rnd, data):
    """Values that are valid JSON and strings of the metadata, or bytes of the tensors: what bends
    the header hardly passes the reader of safetensors."""
    n = struct.unpack("<Q", data[:8])[0]
    head, tensors = json.loads(data[8 : 8 + n]), bytearray(data[8 + n :])
    texts = head["__metadata__"]
    if rnd.random() < 0.8:  # the checksum would refuse nearly all; mlx-lm's files have none
        for name in "kvasir_checksum", "kvasir_model":
            texts.pop(name, None)
    for _ in range(rnd.choice([1, 1, 2, 3])):
        kind = rnd.randrange(4)
        if kind == 0:
            odd = ["", "None", "True", "KVCache", "RotatingKVCache", "QuantizedKVCache", "x" * 3000]
            texts[rnd.choice(list(texts))] = str(rnd.choice([*NUMBERS, *odd]))
        elif kind == 1:
            texts[rnd.choice(list(texts))] = texts[rnd.choice(list(texts))]
        elif kind == 2 and len(head) > 2:  # of another tensor, so that size and place fit
            one, other = rnd.choices([k for k in head if k != "__metadata__"], k=2)
            head[one], head[other] = head[other], head[one]
        else:
            at = rnd.randrange(len(tensors))
            odd = rnd.choice([b"\xff\xff\xff\x7f", b"\0\0\x80\x7f", rnd.randbytes(40)])
            tensors[at : at + len(odd)] = odd[: len(tensors) - at]
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + tensors


def plant_cache(rnd, cache):
    with open(cache, "rb") as f:
        data = f.read()
    with open("bent.safetensors", "wb") as f:
        f.write(bend_cache(rnd, data) if rnd.random() < 0.7 else bend_safetensors(rnd, data))
    return "bent.safetensors"


def attack(program, rnd, clock, limits):
    found, sanitized = models(), is_sanitized(program)
    pairs, own = caches(program, found)
    clock.count("caches of cache-prompt", own)
    clock.count("caches of mlx-lm", len(pairs) - own)
    flags = ["--tokens", "1,2,3", "-n", "1", "--threads", "1", "--ctx", "256", "-q"]
    while clock.left() > 0:
        if rnd.random() < 0.4:
            model, cache = rnd.choice(pairs)
            at = plant_cache(rnd, cache)
            generate = ["generate", "-m", model, "--prompt-cache", at, *flags]
            if rnd.random() < 0.3:
                generate += ["--convert-cache", "--kv-bits", rnd.choice(["8,4", "f16", "4,2"])]
            what, commands = "cache", [generate]
        else:
            at = plant(rnd, rnd.choice(found))
            what, commands = "model", [["info", at], ["generate", "-m", at, *flags]]
        clock.count(f"{what} files")
        for arguments in commands:
            try:
                code = run(program, arguments, sanitized)
            except Finding:
                kept = os.path.join(tempfile.gettempdir(), f"kvasir-{rnd.randrange(10**9)}-{at}")
                shutil.move(at, kept)
                print(f"attack: the files are kept in {kept}")
                raise
            clock.count(f"{what}: {arguments[0]} exits {code}")
    del limits
