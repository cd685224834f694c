#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What cache formats cost in quality, before any kernel exists: a float32 model in numpy reads
keys and values that were encoded and decoded. A real format is held to these figures.

  python3 -m venv .venv-simulate && .venv-simulate/bin/pip install numpy gguf
  .venv-simulate/bin/python tools/simulate_formats.py         three models, 8 windows of 1,024
  ... --windows 1 --window 8192                               one long window
  ... --table LOG                                             the table of a log, as Markdown

It needs a built kvasir (for the token ids), the models and ../shared/text. Each finished window is
a line of --log; the same command goes on where the log ends. Qwen takes 5 GiB. A thread works on
one format at a time.

What is simulated (D: head size; tile: the 64 tokens of a page for one layer and KV head):

  centre   k - rope(c, t) is stored, and q.rope(c, t) is added to the score. c is the mean of the
           calibrated keys before RoPE. --centre all: of every rotary pair; eighth: of an eighth of
           them, by |c| / spread (src/engine/centre.c); turning: of an eighth, by how much of |c|
           turns within a tile; off.
  basis    t formats: k' = M^-1 k, q' = M^T q, M balanced (below). r formats: k' = H k, H the
           orthonormal Hadamard matrix. V: v' = H v in both; H is undone on the output.
  16 bits  k' and v' are rounded to float16. The query's own page is seen so.
  pages    an earlier page is seen as encoded from those rows. t: K affine per channel over the 64
           tokens, V affine per token over D, both from minimum to maximum with codes from the
           rounded scale and bias. r: both affine per token and 64 dims with the arithmetic of
           mx.quantize (src/quant/affine.c), as today's pages. Scales and biases are float16.
  start    --exact-start N: the first N tokens, in whole pages, stay at 16 bits.

  balance  of 512 calibration tokens of another text, the first 4 left out, after RoPE:
           Ck = E[k k^T] of centred keys, Cq = E[q q^T] over the group's query heads, each with
           eps tr(C) / D added to its diagonal (eps 1e-3; 1e-2 at D 256). Ck = L L^T;
           L^T Cq L = U Lambda^2 U^T; M = L U Lambda^(-1/2) H. In float64, then float32.
           --moments tile: Ck of keys less their tile's mean, which its biases hold.

KL is from the run with float32 keys and values, in nats, over all predictions of a window."""
import argparse
import concurrent.futures
import datetime
import json
import os
import subprocess
import sys
import time

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"  # before numpy: a thread of ours is a format
import gguf  # noqa: E402
import numpy as np  # noqa: E402

PAGE, SINKS, F32 = 64, 4, np.float32
FORMATS = ["r8,4", "t5,4", "t4", "t4,3", "t3", "t3,2", "t2"]
MODELS = ["models/SmolLM2-135M-Instruct.Q4_1.gguf",
          "models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "models/gemma3-270m-q4_k_m.gguf"]
GOALS = {"r8,4": 0.0016, "t5,4": 0.0025, "t4": 0.0055, "t4,3": 0.012, "t3": 0.025, "t3,2": 0.075,
         "t2": 0.2}  # mean KL of each model


# ---- the model ----------------------------------------------------------------------------------

class Model:
    """Weights in float32, and the forward pass of llama, qwen2 and gemma3."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = {name: f.contents() for name, f in reader.fields.items()
                 if "tokenizer" not in name}
        arch = field["general.architecture"]
        get = lambda name, *other: field.get(f"{arch}.{name}", *other)
        self.path, self.gemma = path, arch == "gemma3"
        self.layers, self.heads = get("block_count"), get("attention.head_count")
        self.kv_heads = get("attention.head_count_kv")
        self.dim = get("attention.key_length", get("embedding_length") // self.heads)
        self.eps = F32(get("attention.layer_norm_rms_epsilon"))
        self.base, self.window = get("rope.freq_base"), get("attention.sliding_window", None)
        self.w = {t.name: np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type), F32)
                  for t in reader.tensors}
        if arch == "llama":  # its rotary pairs are neighbours there; here j and j + D/2
            for layer in range(self.layers):
                for part, n in (("q", self.heads), ("k", self.kv_heads)):
                    name = f"blk.{layer}.attn_{part}.weight"
                    w = self.w[name]
                    self.w[name] = w.reshape(n, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        self.head = self.w.get("output.weight", self.w["token_embd.weight"])

    def rope_base(self, layer):
        return 10000.0 if self.gemma and (layer + 1) % 6 else self.base

    def layer_window(self, layer):
        return self.window if self.gemma and (layer + 1) % 6 else None

    def norm(self, x, name):
        scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps)
        return x * scale * self.w[name]

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        bias = self.w.get(name + ".bias")
        return y if bias is None else y + bias

    def embed(self, ids):
        x = self.w["token_embd.weight"][ids]
        return x * F32(25.25) if self.gemma else x  # sqrt(640) in bfloat16, as Kvasir has it

    def heads_of(self, x, layer):
        """q [heads][tok][D], k and v [kv_heads][tok][D], before RoPE."""
        n = len(x)
        h = self.norm(x, f"blk.{layer}.attn_norm.weight")
        q, k, v = (self.linear(h, f"blk.{layer}.attn_{part}").reshape(n, -1, self.dim)
                   for part in "qkv")
        if self.gemma:
            q = self.norm(q, f"blk.{layer}.attn_q_norm.weight")
            k = self.norm(k, f"blk.{layer}.attn_k_norm.weight")
        return [np.ascontiguousarray(a.swapaxes(0, 1)) for a in (q, k, v)]

    def after_attention(self, x, out, layer):
        at = f"blk.{layer}."
        y = self.linear(out, at + "attn_output")
        x = x + (self.norm(y, at + "post_attention_norm.weight") if self.gemma else y)
        h = self.norm(x, at + "ffn_norm.weight")
        gate, up = self.linear(h, at + "ffn_gate"), self.linear(h, at + "ffn_up")
        if self.gemma:
            gate = 0.5 * gate * (1 + np.tanh(F32(np.sqrt(2 / np.pi)) *
                                             (gate + F32(0.044715) * gate ** 3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        y = self.linear((gate * up).astype(F32), at + "ffn_down")
        return x + (self.norm(y, at + "post_ffw_norm.weight") if self.gemma else y)

    def run(self, ids, cache):
        """States [tok][dim] after the last norm. cache.see(layer, q, k, v) of rotated q and plain k
        gives what attention reads: (K, V) as pages have them, (K, V) as the own page has them."""
        x = self.embed(ids)
        for layer in range(self.layers):
            q, k, v = self.heads_of(x, layer)
            turns = rope_turns(self.dim, self.rope_base(layer), len(ids))
            q = rotate(q, turns)
            pages, own = cache.see(layer, q, k, v, turns)
            out = attend(q, pages, own, self.layer_window(layer))
            x = self.after_attention(x, out, layer)
        return self.norm(x, "output_norm.weight")


def rope_turns(dim, base, n):
    angle = np.outer(np.arange(n), base ** (-np.arange(0, dim, 2) / dim))
    return np.cos(angle).astype(F32), np.sin(angle).astype(F32)


def rotate(x, turns):
    cos, sin = turns
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attend(q, pages, own, window):
    """[tok][heads * D]: a query page by page, so that scores take little memory."""
    heads, n, dim = q.shape
    kv_heads = len(pages[0])
    out = np.empty((n, heads, dim), F32)
    group = heads // kv_heads
    scale = F32(dim ** -0.5)
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        for first in range(0, n, PAGE):
            end = min(first + PAGE, n)
            low = max(0, first - window + 1) if window else 0
            rows = (q[mine, first:end] * scale).reshape(-1, dim)
            keys = np.concatenate([pages[0][head, low:first], own[0][head, first:end]])
            values = np.concatenate([pages[1][head, low:first], own[1][head, first:end]])
            scores = (rows @ keys.T).reshape(group, end - first, end - low)
            at, of = np.arange(low, end)[None], np.arange(first, end)[:, None]
            hidden = at > of if not window else (at > of) | (of - at >= window)
            scores[:, hidden] = -np.inf
            scores -= scores.max(axis=-1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=-1, keepdims=True)
            y = scores.reshape(-1, end - low) @ values
            out[first:end, mine] = y.reshape(group, end - first, dim).swapaxes(0, 1)
    return out.reshape(n, heads * dim)


# ---- caches -------------------------------------------------------------------------------------

def round16(x):
    return x.astype(np.float16).astype(F32)


def affine_range(x, bits):
    """x [..., group] as its group stores it: code 0 is the minimum, the last code the maximum."""
    top = F32(2 ** bits - 1)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    scale, bias = round16(np.maximum((high - low) / top, F32(1e-7))), round16(low)
    return np.clip(np.rint((x - bias) / scale), 0, top) * scale + bias


def affine_mx(x, bits):
    """The same by mx.quantize: the larger end of the range and 0 are exact."""
    top = F32(2 ** bits - 1)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    negative = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / top, F32(1e-7))
    scale = np.where(negative, scale, -scale)
    edge = np.where(negative, low, high)
    q0 = np.rint(edge / scale)
    stretched = q0 != 0
    scale = np.where(stretched, edge / np.where(stretched, q0, F32(1)), scale)
    bias = np.where(stretched, edge, F32(0))
    codes = np.clip(np.rint((x - bias) / scale), 0, top)
    return codes * round16(scale) + round16(bias)


def hadamard(dim):
    h = np.ones((1, 1))
    while len(h) < dim:
        h = np.block([[h, h], [h, -h]])
    assert len(h) == dim, "the head size is no power of two"
    return h / np.sqrt(dim)


class ExactCache:
    def see(self, layer, q, k, v, turns):
        k = rotate(k, turns)
        return (k, v), (k, v)


class Calibration(ExactCache):
    """Runs exactly, and keeps what centres and bases are made of."""

    def __init__(self, model, ids, centring, moments):
        self.seen = []
        model.run(ids, self)
        self.choose_centres(model, centring)
        self.inverse, self.basis = zip(*(self.balance(model, layer, moments)
                                         for layer in range(model.layers)))
        del self.seen

    def see(self, layer, q, k, v, turns):
        self.seen.append((q, k, turns))
        return super().see(layer, q, k, v, turns)

    def choose_centres(self, model, centring):
        half = model.dim // 2
        means, ratios = [], []
        for layer, (_, k, _) in enumerate(self.seen):
            k = k[:, SINKS:].astype(np.float64)
            mean, spread = k.mean(1), np.sqrt(k.var(1).mean(-1))  # spread: of a dim
            ratio = np.hypot(mean[:, :half], mean[:, half:]) / spread[:, None]
            if centring == "turning":  # what is left of it without its mean over a tile
                angle = PAGE * model.rope_base(layer) ** (-np.arange(0, model.dim, 2) / model.dim)
                ratio *= np.sqrt(1 - np.sinc(angle / 2 / np.pi) ** 2)
            means.append(mean)
            ratios.append(ratio)
        ratio = np.array(ratios)
        most = {"off": 0, "all": ratio.size}.get(centring, ratio.size // 8)
        chosen = np.zeros(ratio.shape, bool)
        chosen.flat[np.argsort(-ratio, axis=None, kind="stable")[:most]] = True
        self.centres = (np.array(means) * np.concatenate([chosen, chosen], -1)).astype(F32)

    def balance(self, model, layer, moments):
        """M^-1 and M for each KV head."""
        q, k, turns = self.seen[layer]
        dim, group, inverse, basis = model.dim, model.heads // model.kv_heads, [], []
        k = rotate(k - self.centres[layer][:, None], turns).astype(np.float64)
        q = q.astype(np.float64)
        eps = 1e-2 if dim >= 256 else 1e-3
        for head in range(model.kv_heads):
            keys = k[head, SINKS:]
            if moments == "tile":
                tiles = k[head, PAGE:len(k[head]) // PAGE * PAGE].reshape(-1, PAGE, dim)
                keys = (tiles - tiles.mean(1, keepdims=True)).reshape(-1, dim)
            queries = q[head * group:(head + 1) * group, SINKS:].reshape(-1, dim)
            ck, cq = (self.regular(rows.T @ rows / len(rows), eps) for rows in (keys, queries))
            lower = np.linalg.cholesky(ck)
            squares, u = np.linalg.eigh(lower.T @ cq @ lower)
            quarter = np.maximum(squares, squares.max() * 1e-12) ** 0.25  # Lambda^(1/2)
            h = hadamard(dim)
            basis.append(lower @ u @ (h / quarter[:, None]))
            inverse.append((h.T * quarter) @ u.T @ np.linalg.inv(lower))
        return np.array(inverse).astype(F32), np.array(basis).astype(F32)

    @staticmethod
    def regular(c, eps):
        return c + eps * np.trace(c) / len(c) * np.eye(len(c))


class FormatCache:
    def __init__(self, name, calibration, exact_start):
        bits = [int(b) for b in name[1:].split(",")]
        self.tile, self.k_bits, self.v_bits = name[0] == "t", bits[0], bits[-1]
        self.calibration, self.exact_start = calibration, exact_start

    def bits_a_value(self, dim):
        """Of K and V together, with scales and biases."""
        k, v = (32 / PAGE, 32 / dim) if self.tile else (32 / 64, 32 / 64)
        return (self.k_bits + k + self.v_bits + v) / 2

    def see(self, layer, q, k, v, turns):
        h = hadamard(k.shape[-1]).astype(F32)
        centre = self.calibration.centres[layer][:, None]
        inverse = self.calibration.inverse[layer] if self.tile else h[None]
        basis = self.calibration.basis[layer] if self.tile else h[None]
        rope_centre = rotate(np.broadcast_to(centre, k.shape), turns)
        rows_k = round16((rotate(k, turns) - rope_centre) @ inverse.swapaxes(1, 2))
        rows_v = round16(v @ h)
        pages = self.encode(rows_k, rows_v)
        for stored, rows in zip(pages, (rows_k, rows_v)):
            start = slice(0, min(self.exact_start, stored.shape[1]))
            stored[:, start] = rows[:, start]
        back = lambda a, b: (a @ basis.swapaxes(1, 2) + rope_centre[:, :a.shape[1]], b @ h)
        return back(*pages), back(rows_k, rows_v)

    def encode(self, k, v):
        """Full pages; the rest is never seen as encoded."""
        full = k.shape[1] // PAGE * PAGE
        k, v = k[:, :full], v[:, :full]
        if not self.tile:
            groups = lambda x: x.reshape(*x.shape[:2], -1, 64)
            return (affine_mx(groups(k), self.k_bits).reshape(k.shape),
                    affine_mx(groups(v), self.v_bits).reshape(v.shape))
        tiles = k.reshape(k.shape[0], -1, PAGE, k.shape[2]).swapaxes(2, 3)
        stored = affine_range(tiles, self.k_bits).swapaxes(2, 3)
        return stored.reshape(k.shape), affine_range(v, self.v_bits)


# ---- a window -----------------------------------------------------------------------------------

def log_softmax(logits):
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True, dtype=np.float64)).astype(F32)
    return logits


def compare(model, exact, others, targets):
    """Per row [tok]: the exact loss; per format loss, KL and same top."""
    p = log_softmax(exact @ model.head.T)
    rows, weights, top = np.arange(len(p)), np.exp(p), p.argmax(-1)
    result = []
    for states in others:
        q = log_softmax(states @ model.head.T)
        loss, same = -q[rows, targets], q.argmax(-1) == top
        np.subtract(p, q, out=q)
        q *= weights
        result.append((loss, np.maximum(q.sum(-1, dtype=np.float64), 0), same))
    return -p[rows, targets], result


def run_window(model, caches, ids, pool):
    run = lambda cache: model.run(ids[:-1], cache)
    states = list(pool.map(run, [ExactCache(), *caches]))
    parts = [slice(i, i + 64) for i in range(0, len(ids) - 1, 64)]
    target = np.array(ids[1:])
    chunks = list(pool.map(lambda part: compare(model, states[0][part],
                                                [s[part] for s in states[1:]], target[part]),
                           parts))
    join = lambda list_of: np.concatenate(list(list_of))
    return join(c[0] for c in chunks), [tuple(join(c[1][f][i] for c in chunks) for i in range(3))
                                        for f in range(len(caches))]


# ---- ids ----------------------------------------------------------------------------------------

def tokenize(kvasir, model, text, *flags):
    done = subprocess.run([kvasir, "tokenize", "-m", model, *flags], input=text, check=True,
                          capture_output=True)
    return [int(word) for word in done.stdout.split()]


def read_windows(kvasir, model, path, n, window):
    """As `kvasir perplexity` cuts them: without overlap, each after a BOS if the vocabulary adds
    one."""
    with open(path, "rb") as f:
        text = f.read(16 * n * window).decode("utf-8", "ignore").encode()
    plain, special = (tokenize(kvasir, model, b"a", *flags) for flags in ([], ["--add-special"]))
    bos = special[:1] if len(special) > len(plain) and special[0] != plain[0] else []
    ids, step = tokenize(kvasir, model, text), window - len(bos)
    windows = [bos + ids[i * step:(i + 1) * step] for i in range(n)]
    if len(windows[-1]) < window:
        sys.exit(f"{path} is too short for {n} windows of {window} tokens")
    return windows


def read_calibration(kvasir, model, path):
    with open(path, "rb") as f:
        text = f.read(1 << 14).decode("utf-8", "ignore").encode()
    return tokenize(kvasir, model, text, "--add-special")[:512]


# ---- the log ------------------------------------------------------------------------------------

class Log:
    """A first line of settings, then a line for each finished window."""

    def __init__(self, path, settings):
        self.path, self.done = path, {}
        try:
            with open(path) as f:
                lines = [json.loads(line) for line in f if line.endswith("}\n")]
        except FileNotFoundError:
            lines = []
        if lines and lines[0]["settings"] != settings:
            sys.exit(f"{path} is of other settings: {lines[0]['settings']}")
        if not lines:
            self.append({"settings": settings, "started": now(), "machine": machine()})
        for line in lines[1:]:
            self.done[line["model"], line["window"]] = line

    def append(self, line):
        with open(self.path, "a") as f:
            f.write(json.dumps(line) + "\n")
        if "model" in line:
            self.done[line["model"], line["window"]] = line


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine():
    with open("/proc/cpuinfo") as f:
        name = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), "?")
    return f"{name}, {os.cpu_count()} cores, numpy {np.__version__}"


def table(path):
    """Markdown of a log."""
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    settings, lines = lines[0]["settings"], lines[1:]
    yield "| model | format | bits | KL mean | goal | median | 99 % | perplexity | same top |"
    yield "|---" * 9 + "|"
    for model in dict.fromkeys(line["model"] for line in lines):
        of = [line for line in lines if line["model"] == model]
        exact = np.mean([line["exact_loss"] for line in of])
        for i, name in enumerate(settings["formats"]):
            rows = [line["formats"][name] for line in of]
            mean = lambda key: np.mean([row[key] for row in rows])
            yield (f"| {'' if i else f'{short(model)}, {len(of)} windows'} | `{name}` | "
                   f"{rows[0]['bits']:.2f} | {mean('kl'):.5f} | {GOALS.get(name, '')} | "
                   f"{mean('kl_median'):.2g} | {mean('kl_99'):.2g} | "
                   f"{100 * np.expm1(mean('loss') - exact):+.2f} % | "
                   f"{100 * mean('same_top'):.1f} % |")


def short(path):
    return os.path.basename(path).split("-instruct")[0].split("-Instruct")[0].split("-q4")[0]


# ---- all of it ----------------------------------------------------------------------------------

def simulate(args, path, log, pool):
    windows = read_windows(args.kvasir, path, args.text, args.windows, args.window)
    todo = [w for w in range(args.windows) if (path, w) not in log.done]
    if not todo:
        return
    print(f"{path}: reading the weights", file=sys.stderr)
    model = Model(path)
    calibration = Calibration(model, read_calibration(args.kvasir, path, args.calibration),
                              args.centre, args.moments)
    caches = [FormatCache(name, calibration, args.exact_start) for name in args.formats]
    for w in todo:
        start = time.monotonic()
        exact, formats = run_window(model, caches, windows[w], pool)
        line = {"model": path, "window": w, "exact_loss": exact.mean(dtype=np.float64),
                "seconds": round(time.monotonic() - start, 1), "formats": {}}
        for name, cache, (loss, kl, same) in zip(args.formats, caches, formats):
            line["formats"][name] = {
                "bits": cache.bits_a_value(model.dim), "kl": kl.mean(),
                "kl_median": np.median(kl), "kl_99": np.quantile(kl, 0.99),
                "loss": loss.mean(dtype=np.float64), "same_top": same.mean()}
        log.append(line)
        print(f"  window {w + 1} of {args.windows}: perplexity {np.exp(line['exact_loss']):.4f}; "
              "KL " + ", ".join(f"{n} {f['kl']:.5f}" for n, f in line["formats"].items()) +
              f"; {line['seconds']} s", file=sys.stderr)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--models", nargs="+", default=MODELS)
    p.add_argument("--formats", nargs="+", default=FORMATS, help="r8,4 t5,4 t4 ...")
    p.add_argument("--text", default="../shared/text/wikitext-2-raw/wiki.test.raw")
    p.add_argument("--calibration", default="../shared/text/war-and-peace/war_and_peace.txt")
    p.add_argument("--windows", type=int, default=8)
    p.add_argument("--window", type=int, default=1024)
    p.add_argument("--centre", choices=["all", "eighth", "turning", "off"], default="all")
    p.add_argument("--moments", choices=["all", "tile"], default="all")
    p.add_argument("--exact-start", type=int, default=0, metavar="N")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--kvasir", default="build/kvasir")
    p.add_argument("--log", default="simulation.log")
    p.add_argument("--table", metavar="LOG", help="print the table of a log, and end")
    args = p.parse_args()
    if not args.table:
        kept = ("formats", "text", "calibration", "window", "centre", "moments", "exact_start")
        log = Log(args.log, {name: getattr(args, name) for name in kept})
        with concurrent.futures.ThreadPoolExecutor(args.threads) as pool:
            for path in args.models:
                simulate(args, path, log, pool)
    print("\n".join(table(args.table or args.log)))


if __name__ == "__main__":
    main()
