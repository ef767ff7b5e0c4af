"""Draws the training curves: OUT/curves.png from the CSV files of train.py.

python tools/train/plot.py models/tiny
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot  # noqa: E402

PANELS = [
    ("target", "bits per byte", {"train_bits": "training text", "heldout_bits": "held-out text"}, (0.65, 1.2)),
    ("unloop", "share of greedy text", {"repeated_12": "repeated 12-grams"}, (0, 0.7)),
    ("drafter", "accept length on its training text", {"accepted_greedy": "greedy", "accepted_sampled": "T = 0.7"}, (0, None)),
]  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    figure, grid = pyplot.subplots(1, len(PANELS), figsize=(12, 3.6))
    for axes, (stage, label, curves, limits) in zip(grid, PANELS, strict=True):
        with (folder / f"{stage}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        for field, name in curves.items():
            axes.plot([int(row["step"]) for row in rows], [float(row[field]) for row in rows], label=name)
        axes.set(title=stage, xlabel="step", ylabel=label, ylim=limits)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(folder / "curves.png", dpi=80)


if __name__ == "__main__":
    main()
