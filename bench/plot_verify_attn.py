#!/usr/bin/env python3
"""Draws docs/images/cpu_scaling.svg: how verify attention on the CPU grows with prefix, nodes, batch and threads.

    bench/plot_verify_attn.py RESULTS.jsonl THREADS_RESULTS.jsonl
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "kdtree"  # the same file from the same data
from matplotlib import pyplot  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "cpu_scaling.svg"


def cells(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def curve(axes, data, x, label, **fixed):
    points = sorted((c["case"][x], c["us"] / 1e3) for c in data if all(c["case"][k] == v for k, v in fixed.items()))
    axes.plot(*zip(*points), marker="o", label=label)


def main():
    data, by_threads = cells(sys.argv[1]), cells(sys.argv[2])
    measured = [c for c in data if not c["baseline"].startswith("cpu")]
    threads = measured[0]["case"]["threads"]
    scaling = [c for c in by_threads if c["baseline"].startswith("cpu")]
    figure, ((prefix, nodes), (batch, cores)) = pyplot.subplots(2, 2, figsize=(9, 7))
    for n in (1, 16, 64):
        curve(prefix, measured, "prefix", f"N = {n}", batch=1, nodes=n)
        curve(batch, measured, "batch", f"N = {n}", prefix=8192, nodes=n)
    for length in (1024, 8192, 65536):
        curve(nodes, measured, "nodes", f"L = {length}", batch=1, prefix=length)
    for n in (1, 64):
        curve(cores, scaling, "threads", f"N = {n}", nodes=n)
    for axes, label in ((prefix, "prefix L (batch 1)"), (nodes, "nodes N (batch 1)"), (batch, "batch (L = 8192)"),
                        (cores, "threads (batch 1, L = 8192)")):
        axes.set(xscale="log", yscale="log", xlabel=label, ylabel="ms")
        ticks = sorted({x for line in axes.lines for x in line.get_xdata()})
        axes.set_xticks(ticks, [f"{t:,}" for t in ticks])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.suptitle(f"{measured[0]['machine'].split(',')[0]}, {threads} threads unless said, H = 8, 512 + 64 columns, bf16")
    figure.tight_layout()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, metadata={"Date": None})


main()
