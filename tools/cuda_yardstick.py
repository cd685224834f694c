# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention and products in bf16 at the shapes of opcheck --bench, for comparison.

    cuda_yardstick.py [all|decode|prefill|matmul] [CEILING]    CEILING: TB/s, as opcheck measured it

Products are x @ w.T, which is cuBLASLt or cuBLAS, whichever PyTorch takes. Attention is
scaled_dot_product_attention with the cuDNN backend (enable_gqa) and with the flash backend. Cases
that this machine's PyTorch does not support are skipped, with the reason. As in bench.c: medians of
five timings of several repetitions, which walk over copies of K and V, so that they come from
memory. K and V are dense here; nothing is paged.
"""
import statistics
import sys
import warnings

HEADS, KV_HEADS, DIM = 32, 8, 128
COLD_BYTES, COPIES_MAX = 1 << 30, 128
DECODE = [(1, 1024), (1, 8192), (1, 131072), (8, 32768), (32, 8192), (64, 32768)]
NEW, CACHED = 2048, 32768
INPUTS, OUTPUTS, ROWS = 4096, (4096, 14336), (1, 2, 8, 16, 64, 256, 2048)


def median_us(torch, call, repetitions):
    """Microseconds of one call; call(i) enqueues the i-th."""

    def once():
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for i in range(repetitions):
            call(i)
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e3 / repetitions

    once()
    once()
    return statistics.median(once() for _ in range(5))


def graph_us(torch, call, repetitions):
    """The same as one graph; None if it cannot be captured."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(repetitions):
                call(i)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return median_us(torch, lambda i: graph.replay(), 3) / repetitions


def attempt(label, measure):
    """Prints the label and the result of measure(), or the reason why it failed."""
    try:
        text = measure()
    except Exception as e:  # after any error, continue with the other rows
        text = "skipped: " + (str(e).strip().split("\n")[0] or type(e).__name__)
    print(f"{label} {text}", flush=True)


def decode(torch, attend, backends, ceiling):
    print("\nPyTorch, decode attention, 32 query heads, 8 KV heads, D 128; bytes of K and V")
    print(f"{'':9} {'':3}   {'':6} {'launches':>10} {'graph':>10} {'TB/s':>8} {'% ceiling':>9}")
    for name, backend in backends:
        for batch, context in DECODE:
            attempt(f"{name:9} {batch:3} x {context:6}",
                    lambda: decode_row(torch, attend, backend, batch, context, ceiling))


def decode_row(torch, attend, backend, batch, context, ceiling):
    layer = 2 * 2 * batch * KV_HEADS * context * DIM
    copies = min(COLD_BYTES // layer + 1, COPIES_MAX)
    kv = torch.empty(copies, 2, batch, KV_HEADS, context, DIM, dtype=torch.bfloat16, device="cuda")
    kv.uniform_(-1, 1)
    q = torch.randn(batch, HEADS, 1, DIM, dtype=torch.bfloat16, device="cuda")

    def call(i):
        attend(backend, q, kv[i % copies, 0], kv[i % copies, 1])

    call(0)
    torch.cuda.synchronize()
    repetitions = max(32, copies) if layer < 1 << 30 else 8
    us = median_us(torch, call, repetitions)
    small = graph_us(torch, call, repetitions) if batch == 1 else None
    best = small or us
    reached = f"{100 * layer / best * 1e-6 / ceiling:9.1f}" if ceiling > 0 else f"{'-':>9}"
    graph = f"{small:10.1f}" if small else f"{'-':>10}"
    return f"{us:10.1f} {graph} {layer / best * 1e-6:8.2f} {reached}"


def prefill(torch, attend, backends):
    from torch.nn.attention.bias import causal_lower_right

    print(f"\nPyTorch, prefill attention, {NEW} new tokens over {CACHED}, D 128")
    print(f"{'':34} {'ms':>8} {'TFLOP/s':>9}")
    length = NEW + CACHED
    q = torch.randn(1, HEADS, NEW, DIM, dtype=torch.bfloat16, device="cuda")
    kv = torch.randn(2, 1, KV_HEADS, length, DIM, dtype=torch.bfloat16, device="cuda")
    wide = kv.repeat_interleave(HEADS // KV_HEADS, dim=2)
    seen = NEW * CACHED + NEW * (NEW + 1) // 2
    masked = causal_lower_right(NEW, length)

    def row(backend, k, v, mask, pairs):
        def call(_):
            attend(backend, q, k, v, mask)

        call(0)
        torch.cuda.synchronize()
        us = median_us(torch, call, 8)
        return f"{us * 1e-3:8.3f} {4 * DIM * HEADS * pairs / us * 1e-6:9.1f}"

    # Only flash has a causal mask that ends at the last key. PyTorch's mask for cuDNN begins at the
    # first key, so here cuDNN's rows see (and count) all keys.
    for name, backend in backends:
        if name == "cuDNN":
            attempt(f"{name + ', no mask':34}",
                    lambda: row(backend, kv[0], kv[1], None, NEW * length))
        else:
            attempt(f"{name + ', causal':34}", lambda: row(backend, kv[0], kv[1], masked, seen))
            attempt(f"{name + ', causal, 32 KV heads':34}",
                    lambda: row(backend, wide[0], wide[1], masked, seen))


def matmul(torch, ceiling):
    print("\nPyTorch, products, outputs x inputs; bytes of the weights, of 16 bits")
    print(f"{'':13} {'rows':>5} {'us':>9} {'TB/s':>7} {'% ceiling':>9} {'TFLOP/s':>8}")
    for outputs in OUTPUTS:
        size = 2 * outputs * INPUTS
        copies = COLD_BYTES // size + 1
        w = torch.randn(copies, outputs, INPUTS, dtype=torch.bfloat16, device="cuda")
        for rows in ROWS:
            x = torch.randn(rows, INPUTS, dtype=torch.bfloat16, device="cuda")
            attempt(f"{outputs:5} x {INPUTS:5} {rows:5}",
                    lambda: matmul_row(torch, x, w, size, ceiling))


def matmul_row(torch, x, w, size, ceiling):
    y = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)

    def call(i):
        torch.mm(x, w[i % len(w)].T, out=y)

    call(0)
    torch.cuda.synchronize()
    us = min(median_us(torch, call, 64), graph_us(torch, call, 64) or 1e9)
    reached = f"{100 * size / us * 1e-6 / ceiling:9.1f}" if ceiling > 0 else f"{'-':>9}"
    return f"{us:9.2f} {size / us * 1e-6:7.2f} {reached} {2e-6 * y.numel() * INPUTS / us:8.1f}"


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else "all"
    ceiling = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    if part not in ("all", "decode", "prefill", "matmul"):
        sys.exit(__doc__)
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention
    except ImportError as e:
        print(f"yardstick: skipped: {e}")
        return
    if not torch.cuda.is_available():
        print("yardstick: skipped: PyTorch sees no GPU")
        return
    warnings.filterwarnings("ignore")  # about rejected backends; the error says enough
    print(f"yardstick: torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, "
          f"{torch.cuda.get_device_name()}")

    def attend(backend, q, k, v, mask=None):
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask,
                                                enable_gqa=q.shape[1] != k.shape[1])

    backends = [("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]
    with torch.inference_mode():
        if part in ("all", "decode"):
            decode(torch, attend, backends, ceiling)
        if part in ("all", "prefill"):
            prefill(torch, attend, backends)
        if part in ("all", "matmul"):
            matmul(torch, ceiling)


main()
