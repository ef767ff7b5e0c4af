#!/usr/bin/env python3
"""Predicts the time of a verify attention call from what a tile of keys asks of a multiprocessor's pipes. No GPU.

    bench/cycle_model.py [RESULTS.jsonl]

RESULTS are lines of bench/verify_attn_cuda.cu, by default the newest of an H200 in bench/results/. Five constants are
fitted to every second call, in order of time; the others are held out, and it ends with 1 where the model is off by
more than 20 % in one of them. tools/bench_report puts the same tables into docs/kernels/cycle_model.md.
"""

import csv
import dataclasses
import json
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKEND = "cuda-flash-paged"
MOST_ERROR = 0.2
ROW_TILE, LATENT, WIDTH = 64, 512, 576
PARTIAL_BYTES = ROW_TILE * LATENT * 4
# How merge_partials shares its work out (src/kernels/verify_attn_flash.cu).
MERGE_BLOCKS, MERGE_WARPS, MERGE_CHUNK, MERGE_IN_FLIGHT = 2, 8, 10, 5
MERGE_PARTS = 256  # of an item: 16 rows and 8 columns each


@dataclasses.dataclass(frozen=True)
class Part:
    target: str  # of src/kernels/sass.csv
    multiprocessors: int
    tflops: float  # of mma.sync, bf16 with fp32 sums
    ghz: float
    l2_tb: float  # read from L2, from DRAM
    dram_tb: float

    def at(self, ghz):
        return dataclasses.replace(self, tflops=self.tflops * ghz / self.ghz, ghz=ghz)


# Where the figures are from: docs/kernels/cycle_model.md.
H200 = Part("90a", 132, 630, 1.78, 5.5, 4.28)
RTX_PRO_6000 = Part("120f", 188, 503.8, 2.617, 8.7, 1.6)
RTX_5090 = Part("120f", 170, 209.5, 2.407, 7.9, 1.6)
# At the slowest and the fastest clock that published matrix products and data sheets make likely.
PREDICTED = {
    "RTX PRO 6000": (RTX_PRO_6000.at(1.914), RTX_PRO_6000),
    "RTX 5090": (RTX_5090.at(2.057), RTX_5090.at(2.758)),
}


def ceil_div(a, b):
    return -(-a // b)


def plan_constants():
    text = (ROOT / "src/attention/split_plan.h").read_text()
    return {name: int(value) for name, value in re.findall(r"constexpr int64_t (k\w+) = (\d+);", text)}


PLAN = plan_constants()


@dataclasses.dataclass
class Work:
    """What a call makes of its blocks, and of its merge."""

    tiles: int = 0  # of keys, and pieces, of the block that has most
    pieces: int = 0
    partials: int = 0
    merged: list = dataclasses.field(default_factory=list)  # pieces of each item that has several
    kv_bytes: int = 0


def nodes_of(case):
    """Of each request."""
    return case.get("each") or [case["nodes"]] * case["batch"]


def cut(prefix, nodes, heads, invariant):
    """Row tiles of a request, units of each, tiles of keys of a unit: SplitPlan::cut."""
    items = ceil_div(nodes * heads, ROW_TILE)
    tile = PLAN["kKeyTile"]
    if not invariant:
        return items, ceil_div(prefix + nodes, tile) + PLAN["kItemCost"], 1
    most = PLAN["kMostSegments"]
    if prefix < PLAN["kLongPrefix"]:
        segment = max(PLAN["kShortSegment"] // tile, ceil_div(prefix, most // 2 * tile))
    else:
        segment = max(PLAN["kLongSegment"] // tile, ceil_div(prefix, most * tile))
    return items, max(1, ceil_div(prefix, segment * tile)), segment


def pieces(case, blocks):
    """(item, block, tiles of keys, whether they are all of its item's) of every piece, as SplitPlan cuts a batch."""
    invariant = case["plan"] == "invariant"
    heads, prefix = case["heads"], case["prefix"]
    cuts = [cut(prefix, nodes, heads, invariant) for nodes in nodes_of(case)]
    items = sum(count for count, _, _ in cuts)
    stretch = max(1, ceil_div(sum(count * units for count, units, _ in cuts), blocks))
    if not invariant:
        whole = ceil_div(items, blocks) * max(units for _, units, _ in cuts)
        stretch = whole if stretch <= whole <= stretch + PLAN["kSplitCost"] else max(PLAN["kLeastStretch"], stretch)
    before = 0 if invariant else PLAN["kItemCost"]
    item, number = 0, 0
    for nodes, (count, units, segment) in zip(nodes_of(case), cuts):
        for row_tile in range(count):
            last_row = min((row_tile + 1) * ROW_TILE, nodes * heads) - 1
            tiles = ceil_div(prefix + last_row // heads + 1, PLAN["kKeyTile"])
            position = item
            while position < item + units:
                block = position // stretch
                end = position + 1 if invariant else min(item + units, (block + 1) * stretch)
                first = max(0, position - item - before) * segment
                last = tiles if end == item + units else min(tiles, max(0, end - item - before) * segment)
                if first < last:
                    yield number, block, last - first, last - first == tiles
                position = end
            item += units
            number += 1


def work(case, blocks):
    result = Work()
    shares = [[0, 0] for _ in range(blocks)]
    of_item = {}
    for item, block, tiles, whole in pieces(case, blocks):
        shares[block][0] += tiles
        shares[block][1] += 1
        of_item[item] = of_item.get(item, 0) + 1
        result.partials += not whole
    result.tiles, result.pieces = max(shares, key=lambda share: share[0] + PLAN["kItemCost"] * share[1])
    result.merged = [count for count in of_item.values() if count > 1]
    result.kv_bytes = sum(case["prefix"] + nodes for nodes in nodes_of(case)) * WIDTH * 2
    return result


def merge_turns(merged, part):
    """Loads that the merge waits for one after the other."""
    blocks = MERGE_BLOCKS * part.multiprocessors
    if not merged:
        return 0
    if len(merged) * MERGE_PARTS <= 4 * blocks:  # a block a part, its warps share the pieces
        return ceil_div(len(merged) * MERGE_PARTS, blocks) * ceil_div(max(merged), MERGE_WARPS * MERGE_CHUNK)
    return ceil_div(len(merged) * MERGE_PARTS // 2, blocks * MERGE_WARPS) * ceil_div(max(merged), MERGE_IN_FLIGHT)


@dataclasses.dataclass(frozen=True)
class Tile:
    products: int  # of 16 x 8 x 16, by all warps
    wavefronts: int  # of 128 bytes of shared memory
    bytes: int


def tile_of(target):
    """By the instructions of the loops, 512 bytes of a warp each."""
    with (ROOT / "src/kernels/sass.csv").open(newline="") as file:
        loops = [row for row in csv.DictReader(file) if row["target"] == target and row["part"] != "-"
                 and row["kernel"] == "verify_attn_flash<__nv_bfloat16, false>"]  # fmt: skip
    if not loops:
        sys.exit(f"src/kernels/sass.csv has no loops of target {target}")
    keys = PLAN["kKeyTile"] * WIDTH * 2
    moves = sum(int(row["warps"]) * sum(int(row[name]) for name in ("ldsm", "lds", "sts")) for row in loops)
    return Tile(sum(int(row["warps"]) * int(row["hmma"]) for row in loops), 4 * moves + keys // 128, keys)


def costs(case, part, tile):
    """µs of the longest pipe, and what the fitted constants multiply, as NAMES has them."""
    w = work(case, part.multiprocessors)
    tensor = w.tiles * tile.products * (2 * 16 * 8 * 16) * part.multiprocessors / (part.tflops * 1e6)
    shared = w.tiles * tile.wavefronts / (part.ghz * 1e3)
    # Blocks at row tiles of one request walk together: DRAM is read once.
    load = max(w.tiles * tile.bytes * part.multiprocessors / (part.l2_tb * 1e6), w.kv_bytes / (part.dram_tb * 1e6))
    longest = max(tensor, shared, load)
    moved = 2 * w.partials * PARTIAL_BYTES / (part.l2_tb * 1e6)
    return longest, (tensor + shared + load - longest, 1, w.pieces, moved, merge_turns(w.merged, part))


NAMES = ("of the shorter pipes", "µs a call", "µs a piece", "of partial results at L2's rate", "µs a turn of the merge")


def least_squares(rows, values):
    """The x that rows * x is nearest to values with."""
    count = len(rows[0])
    m = [[sum(row[i] * row[j] for row in rows) for j in range(count)] + [sum(row[i] * v for row, v in zip(rows, values))]
         for i in range(count)]  # fmt: skip
    for i in range(count):
        pivot = max(range(i, count), key=lambda k: abs(m[k][i]))
        m[i], m[pivot] = m[pivot], m[i]
        if m[i][i] == 0:
            sys.exit("the calls are too much alike to fit the model")
        for k in range(count):
            if k != i:
                factor = m[k][i] / m[i][i]
                m[k] = [a - factor * b for a, b in zip(m[k], m[i])]
    return [m[i][count] / m[i][i] for i in range(count)]


class Model:
    def __init__(self, cells):
        """Fitted so that squares of relative errors are least."""
        self.tiles = {target: tile_of(target) for target in ("90a", "120f")}
        rows, values = [], []
        for cell in cells:
            longest, of = costs(cell["case"], H200, self.tiles["90a"])
            rows.append([x / cell["us"] for x in of])
            values.append(1 - longest / cell["us"])
        self.constants = least_squares(rows, values)

    def us(self, case, part):
        longest, of = costs(case, part, self.tiles[part.target])
        return longest + sum(a * b for a, b in zip(self.constants, of))

    def errors(self, cells):
        return [self.us(cell["case"], H200) / cell["us"] - 1 for cell in cells]


def tflops(case, us):
    pairs = sum(nodes * (case["prefix"] + nodes) for nodes in nodes_of(case))
    return 2 * case["heads"] * (WIDTH + LATENT) * pairs / us / 1e6


def newest():
    return max((ROOT / "bench/results").glob("*-nvidia_h200-verify-attn-cuda.jsonl"))  # names begin with dates


def read(path):
    """The calls of BACKEND in order of time."""
    cells = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            cell = json.loads(line)
            if cell["backend"] != BACKEND:
                continue
            case = cell["case"]
            numbers = [cell["us"], *(case[name] for name in ("heads", "batch", "nodes", "prefix"))]
            if min(numbers) <= 0 or case["plan"] not in ("balanced", "invariant") or "H200" not in cell["machine"]:
                raise ValueError("expected a call on an H200, with a plan, and numbers above 0")
        except (ValueError, KeyError, TypeError) as error:
            sys.exit(f"{path}:{number}: {type(error).__name__}: {error}")
        cells.append(cell)
    if len(cells) < 4 * len(NAMES):
        sys.exit(f"{path} has {len(cells)} calls of {BACKEND}, expected at least {4 * len(NAMES)}")
    return sorted(cells, key=lambda cell: cell["us"])


def halves(cells):
    return cells[::2], cells[1::2]


def percent(error):
    return f"{100 * error:+.0f} %"


def report(path):
    """The tables, and the largest error of a call that was held out."""
    cells = read(path)
    fitted, held_out = halves(cells)
    model = Model(fitted)
    tile = model.tiles[H200.target]
    lines = [
        f"A tile: {tile.products} products, {tile.wavefronts:,} wavefronts of shared memory, {tile.bytes:,} bytes of keys. "
        + "Constants: " + ", ".join(f"{value:.2f} {name}" for name, value in zip(NAMES, model.constants)) + ".",
        "",
        f"| {cells[0]['machine']}, {cells[0]['date']}, commit {cells[0]['commit']} | calls | median error | worst |",
        "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name, some in (("fitted", fitted), ("held out", held_out)):
        for plan in ("balanced", "invariant"):
            errors = model.errors([cell for cell in some if cell["case"]["plan"] == plan])
            lines.append(f"| {name}, {plan} | {len(errors)} | {100 * statistics.median(map(abs, errors)):.0f} % | "
                         f"{percent(max(errors, key=abs))} |")  # fmt: skip
    lines += [
        "",
        f"| heads 8, balanced, TFLOP/s | H200, measured | modelled | {' | '.join(f'{part}, predicted' for part in PREDICTED)} |",
        "| --- | ---: | ---: |" + " ---: |" * len(PREDICTED),
    ]
    measured = {json.dumps(cell["case"], sort_keys=True): cell["us"] for cell in cells}
    for batch, nodes, prefix in ((1, 16, 8192), (1, 64, 8192), (1, 64, 65536), (8, 16, 8192), (8, 64, 8192), (32, 16, 8192), (32, 64, 8192)):
        case = {"heads": 8, "batch": batch, "nodes": nodes, "prefix": prefix, "plan": "balanced"}
        us = measured.get(json.dumps(case, sort_keys=True))
        ranges = [sorted(tflops(case, model.us(case, part)) for part in ends) for ends in PREDICTED.values()]
        row = [f"batch {batch}, {nodes} nodes, prefix {prefix:,}", f"{tflops(case, us):.0f}" if us else "",
               f"{tflops(case, model.us(case, H200)):.0f}", *(f"{low:.0f} to {high:.0f}" for low, high in ranges)]  # fmt: skip
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, ""]), max(map(abs, model.errors(held_out)))


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    path = pathlib.Path(sys.argv[1]) if sys.argv[1:] else newest()
    try:
        text, worst = report(path)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")
    print(text, end="")
    if worst > MOST_ERROR:
        sys.exit(f"{path}: off by {percent(worst)} in a call that was held out, expected at most {100 * MOST_ERROR:.0f} %")


if __name__ == "__main__":
    main()
