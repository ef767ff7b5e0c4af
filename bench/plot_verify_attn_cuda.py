#!/usr/bin/env python3
"""Draws docs/images/verify_attn_cuda.svg: verify attention on a GPU beside other libraries' kernels and its limit; prints
how many times as fast it is as each of them.

    bench/plot_verify_attn_cuda.py RESULTS.jsonl

RESULTS are the lines of bench/verify_attn_peers.py for all peers. The limit is that of one H200: the bf16 products at
the rate of its best measured matrix product, or the KV cache at the rate of a copy, whichever takes longer.
"""

import json
import pathlib
import statistics
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "kdtree"  # the same file from the same data
from matplotlib import pyplot  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "verify_attn_cuda.svg"
HEADS = 8
PRODUCTS_PER_US, BYTES_PER_US = 806e6, 4.28e6
KV_ROW_BYTES, FLOPS_A_PAIR = 2 * 576, 2 * (576 + 512)

PEERS = {
    "sglang-triton": ("SGLang Triton", "tab:red", "s-"),
    "fa3-cascade": ("FA3 cascade", "tab:orange", "s-"),
    "flashinfer-fa3-chain": ("FlashInfer fa3 (chain, no tree)", "tab:green", "^:"),
    "flashmla-chain": ("FlashMLA (chain, no tree)", "tab:purple", "^:"),
}


def limit_us(batch, nodes, prefix):
    flops = FLOPS_A_PAIR * batch * HEADS * nodes * (prefix + nodes)
    return max(flops / PRODUCTS_PER_US, KV_ROW_BYTES * batch * (prefix + nodes) / BYTES_PER_US)


def times(lines):
    """µs by kernel and (batch, nodes, prefix). Ours is in the run of every peer: the median of those on pages of 1."""
    found = {}
    for line in lines:
        case = line["case"]
        if case["heads"] != HEADS:
            continue
        place = (case["batch"], case["nodes"], case["prefix"])
        if line.get("wrong") and line["backend"] in PEERS:
            print(f"left out, its output is wrong: {line['backend']}, {case}", file=sys.stderr)
        elif line["backend"] in PEERS or (case["mask"] == "tree" and case["plan"] == "balanced" and case["page"] == 1):
            found.setdefault(line["backend"], {}).setdefault(place, []).append(line["us"])
    return {name: {place: statistics.median(us) for place, us in cells.items()} for name, cells in found.items()}


def print_ratios(lines):
    """Trees of the balanced plan, each against the peer of its own run."""
    ratios = {}
    for line in lines:
        if line.get("baseline") and line["case"]["mask"] == "tree" and line["case"]["plan"] == "balanced":
            ratios.setdefault(line["baseline"], []).append(line["ratio"])
    for peer, found in ratios.items():
        print(f"{peer:<22} {len(found)} cases: {statistics.geometric_mean(found):.2f} times as fast, {min(found):.2f} to {max(found):.2f}")


def panel(axes, found, styles, varying, **fixed):
    order = ("batch", "nodes", "prefix")
    index = order.index(varying)

    def on_curve(place):
        return all(place[order.index(field)] == value for field, value in fixed.items())

    places = [place for cells in found.values() for place in cells]
    for name, (label, color, style) in styles.items():
        points = sorted((place[index], us) for place, us in found.get(name, {}).items() if on_curve(place))
        if points:
            ours = name not in PEERS
            axes.plot(*zip(*points), style, color=color, label=label, linewidth=2.5 if ours else 1.5,
                      markersize=6 if ours else 5, zorder=3 if ours else 2)
    measured = sorted({place[index] for place in places if on_curve(place)})
    limits = [limit_us(**{**fixed, varying: value}) for value in measured]
    axes.plot(measured, limits, "--", color="gray", label="limit: GEMM or copy rate")
    axes.set(xscale="log", yscale="log")
    ticks = sorted({place[index] for place in places})  # of all batches, which share the axis
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def main():
    lines = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines() if line]
    print_ratios(lines)
    found = times(lines)
    ours = [name for name in found if name not in PEERS]
    colors = ("tab:blue", "tab:cyan", "navy")
    styles = {**{name: (f"kdtree {name}", color, "o-") for name, color in zip(ours, colors)}, **PEERS}
    figure, grid = pyplot.subplots(2, 3, figsize=(12, 7.5), sharex="col", sharey="row")
    for row, batch in enumerate((1, 32)):
        panel(grid[row][0], found, styles, "nodes", batch=batch, prefix=8192)
        panel(grid[row][1], found, styles, "prefix", batch=batch, nodes=16)
        panel(grid[row][2], found, styles, "prefix", batch=batch, nodes=64)
        grid[row][0].set_ylabel(f"µs, batch {batch}")
    for axes, title in zip(grid[0], ("L = 8,192", "N = 16", "N = 64")):
        axes.set_title(title)
    for axes, label in zip(grid[1], ("nodes N", "prefix L", "prefix L")):
        axes.set_xlabel(label)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False)
    figure.suptitle(f"{lines[0]['machine']}, H = {HEADS}, 512 + 64 columns, bf16, {lines[0]['date']}")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, metadata={"Date": None})


main()
