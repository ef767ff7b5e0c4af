#!/usr/bin/env python3
"""Draws docs/images/generate.svg: accept length and tokens a second against the nodes of a tree.

    bench/plot_generate.py RESULTS.jsonl
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "kdtree"  # the same file from the same data
from matplotlib import pyplot  # noqa: E402

OUT = pathlib.Path(__file__).resolve().parent.parent / "docs" / "images" / "generate.svg"


def main():
    cells = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    temperatures = sorted({cell["case"]["temperature"] for cell in cells})
    figure, grid = pyplot.subplots(2, len(temperatures), figsize=(9, 6.5), sharex=True, sharey="row")
    for column, temperature in enumerate(temperatures):
        for row, (field, label) in enumerate([("accept_length", "bytes a round (accept length)"), ("tokens_per_s", "tokens/s")]):
            axes = grid[row][column]
            for mode, style in (("tree", "o-"), ("chain", "s-")):
                points = sorted(
                    (cell["case"]["nodes"], cell[field])
                    for cell in cells
                    if cell["case"]["temperature"] == temperature and cell["case"]["mode"] == mode and cell["case"]["nodes"] != "auto"
                )
                axes.plot(*zip(*points), style, label=mode)
            for mode, nodes, style in (("ar", 0, ":"), ("tree", "auto", "--")):
                value = next(cell[field] for cell in cells if cell["case"] == {"temperature": temperature, "mode": mode, "nodes": nodes})
                axes.axhline(value, color="gray", linestyle=style, label="plain decoding" if mode == "ar" else "auto")
            ticks = sorted({x for line in axes.lines[:2] for x in line.get_xdata()})
            axes.set(xscale="log", ylim=(0, None))
            axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=7)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            if row:
                axes.set_xlabel("nodes, the root not counted")
            else:
                axes.set_title(f"T = {temperature:g}")
            if not column:
                axes.set_ylabel(label)
    grid[0][0].legend(frameon=False)
    figure.suptitle(f"50 prompts, 256 bytes each, one at a time; {cells[0]['machine']}, {cells[0]['date']}")
    figure.tight_layout()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(OUT, metadata={"Date": None})


main()
