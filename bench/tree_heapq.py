#!/usr/bin/env python3
"""The baseline of bench/tree: DDTree's best-first build with Python's heapq, as a Python server would write it.

Prints one JSON object: microseconds (median of several runs) by shape.
"""

import heapq
import json
import random
import statistics
import time


def build(log_probs, tokens, budget):
    """Parents, tokens and log-weights of the `budget` most probable prefixes, best first."""
    parents, out_tokens, weights = [-1], [0], [0.0]
    depth, k = len(log_probs), len(log_probs[0])
    heap = [(-log_probs[0][0], (0,), 0)]
    while heap and len(parents) <= budget:
        negative, ranks, parent = heapq.heappop(heap)
        position, rank = len(ranks) - 1, ranks[-1]
        node = len(parents)
        parents.append(parent)
        out_tokens.append(tokens[position][rank])
        weights.append(-negative)
        if rank + 1 < k:
            row = log_probs[position]
            heapq.heappush(heap, (negative + row[rank] - row[rank + 1], ranks[:-1] + (rank + 1,), parent))
        if position + 1 < depth:
            heapq.heappush(heap, (negative - log_probs[position + 1][0], ranks + (0,), node))
    return parents, out_tokens, weights


def candidates(depth, k):
    generator = random.Random(1)
    log_probs = []
    for _ in range(depth):
        row = [-0.05]
        for rank in range(k - 1):
            row.append(row[-1] - generator.random() * 4.0 / (1.0 + 0.5 * rank))
        log_probs.append(row)
    return log_probs, [list(range(k)) for _ in range(depth)]


def main():
    result = {}
    for depth, k, budget, repeat in ((15, 64, 64, 301), (15, 1024, 1024, 51)):
        log_probs, tokens = candidates(depth, k)
        times = []
        for _ in range(repeat):
            begin = time.perf_counter()
            parents, _, _ = build(log_probs, tokens, budget)
            times.append((time.perf_counter() - begin) * 1e6)
            assert len(parents) == budget + 1
        result[f"build_{depth}x{k}_{budget}"] = statistics.median(times)
    print(json.dumps(result))


main()
