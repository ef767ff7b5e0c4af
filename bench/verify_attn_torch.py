#!/usr/bin/env python3
"""What bench/verify_attn.cc is compared with: the same attention in torch, two ways, and the best matrix products.

    bench/verify_attn_torch.py THREADS [--quick]

Prints one JSON object a line: medians in µs of `sdpa` (gathered KV, dense mask, scaled_dot_product_attention),
`matmul` (gathered KV, two matrix products around a softmax, bf16) and `matmul-f32` (the same in fp32 on KV that
was converted outside of the timing), and the rates of `gemm` in GFLOP/s. A way is null where one run would take
more than 20 seconds at the pace of the cell before, and all are where a copy of the KV for each head in fp32, which
sdpa makes, fills more than a third of the memory.
"""

import json
import os
import statistics
import sys
import time

import torch

HEADS, LATENT, ROPE = 8, 512, 64
WIDTH = LATENT + ROPE
SCALE = 192**-0.5
LONGEST = 20.0  # seconds


def median_us(function):
    """At least three runs, more while they fit into a second. A run of many seconds counts alone."""
    start = time.perf_counter()
    function()
    if time.perf_counter() - start > 10:
        return (time.perf_counter() - start) * 1e6
    times = []
    while len(times) < 3 or (sum(times) < 1 and len(times) < 51):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


PACE = {}  # of each way, seconds a unit of work


def fits(batch, keys):
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return batch * keys * HEADS * WIDTH * 4 < memory / 3


def timed(name, work, function):
    if PACE.get(name, 0) * work > LONGEST:
        return None
    us = median_us(function)
    PACE[name] = us * 1e-6 / work
    return us


def attention(batch, prefix, nodes):
    keys = prefix + nodes
    if not fits(batch, keys):
        return dict.fromkeys(("sdpa", "matmul", "matmul-f32"))
    pool = torch.randn(batch * keys, WIDTH).to(torch.bfloat16)
    slots = torch.randperm(batch * keys).view(batch, keys)
    query = torch.randn(batch, nodes, HEADS, WIDTH).to(torch.bfloat16)
    # A chain: any tree costs a dense mask the same.
    mask = torch.ones(nodes, keys, dtype=torch.bool).tril(prefix)
    rows = mask.repeat_interleave(HEADS, 0)

    def sdpa():
        kv = pool[slots].unsqueeze(1).expand(-1, HEADS, -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2), kv, kv[..., :LATENT], attn_mask=mask, scale=SCALE)

    def matmul(source):
        kv = source[slots]
        q = query.to(kv.dtype).view(batch, nodes * HEADS, WIDTH)
        scores = (q @ kv.transpose(1, 2)).float() * SCALE
        scores.masked_fill_(~rows, float("-inf"))
        return scores.softmax(-1).to(kv.dtype) @ kv[..., :LATENT]

    wide = pool.float()
    work = batch * keys * nodes
    return {"sdpa": timed("sdpa", work, sdpa), "matmul": timed("matmul", work, lambda: matmul(pool)),
            "matmul-f32": timed("matmul-f32", work, lambda: matmul(wide))}


def gemm(dtype):
    """The best rate over square products and the two products of the attention at 64 nodes and 8,192 keys."""
    best = 0.0
    for m, n, k in [(1024, 1024, 1024), (2048, 2048, 2048), (512, 8192, 576), (512, 512, 8192)]:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        for right in (b, b.t().contiguous().t()):
            best = max(best, 2e-3 * m * n * k / median_us(lambda r=right: a @ r))
    return best


def main():
    torch.set_num_threads(int(sys.argv[1]))
    quick = "--quick" in sys.argv
    torch.manual_seed(1)
    with torch.inference_mode():
        for name, dtype in [("gemm-bf16", torch.bfloat16), ("gemm-f32", torch.float32)]:
            print(json.dumps({"backend": name, "gflops": gemm(dtype)}), flush=True)
        for batch in (1, 8):
            for prefix in (1024, 8192, 65536):
                for nodes in (1, 8, 16, 32, 64):
                    if quick and (batch > 1 or prefix > 8192):
                        continue
                    print(json.dumps({"batch": batch, "prefix": prefix, "nodes": nodes,
                                      **attention(batch, prefix, nodes)}), flush=True)


main()
