#!/usr/bin/env python3
"""Times `kdtree generate` on the evaluation prompts: plain decoding, chains and trees of several sizes, and auto.

    bench/generate.py THREADS DATE COMMIT

Prints a cell a way of decoding and temperature. Each repeat has prompts of its own, which every way decodes, one prompt
at a time, three times in turn with the others, of which the fastest counts: shared machines have slow minutes. `us` is the
time of a token behind the prompt, the median of the repeats; `ratio` the median of the repeats'
ratios to plain decoding. `interval` is the 95 % confidence interval of that ratio's geometric mean over the repeats, and
`of_best_fixed` (of auto: median, interval) compares with the best other way of decoding. All ways must emit the same
tokens.
"""

import json
import math
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = [str(ROOT / "build/release/kdtree"), "generate", "--model", str(ROOT / "models/tiny/target"),
           "--draft", str(ROOT / "models/tiny/drafter"), "--json", "--batch", "1", "--seed", "1"]
REPEATS = 5
PROMPTS = 6  # of a repeat
TRIES = 3
NEW = 256
WAYS = [("ar", None), *(("chain", n) for n in (4, 8, 15)), *(("tree", n) for n in (4, 8, 16, 32)), ("tree", "auto")]
TEMPERATURES = (0, 0.7)
T_97_5 = 2.776  # Student's t of four degrees of freedom: five repeats


def decode(mode, nodes, temperature, threads, prompts):
    """Seconds a token, tokens, and the statistics of one run."""
    command = [*COMMAND, "--mode", mode, "--threads", threads, "--temperature", str(temperature), "--max-new", str(NEW)]
    if nodes is not None:
        command += ["--nodes", str(nodes)]
    for prompt in prompts:
        command += ["--prompt-file", str(prompt)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench/generate.py: {' '.join(command)}: {done.stderr}")
    result = json.loads(done.stdout)
    return 1 / result["tokens_per_s"], [request["tokens"] for request in result["requests"]], result


def interval(ratios):
    """Geometric mean's 95 % confidence interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, half = statistics.fmean(logs), T_97_5 * statistics.stdev(logs) / math.sqrt(len(logs))
    return [math.exp(mean - half), math.exp(mean + half)]


def machine():
    lines = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("Model name"))


def main():
    threads, date, commit = sys.argv[1:]
    prompts = sorted((ROOT / "tests/prompts").glob("[0-9]*.txt"))
    for temperature in TEMPERATURES:
        seconds = {way: [] for way in WAYS}
        results = {way: [] for way in WAYS}
        for repeat in range(REPEATS):
            part = prompts[repeat * PROMPTS : (repeat + 1) * PROMPTS]
            best_of = {}
            expected = None
            for way in TRIES * WAYS:
                time, tokens, result = decode(*way, temperature, threads, part)
                expected = expected or tokens
                if tokens != expected:
                    sys.exit(f"bench/generate.py: {way} emits other tokens, T = {temperature}, repeat {repeat}")
                if way not in best_of or time < best_of[way][0]:
                    best_of[way] = (time, result)
            for way, (time, result) in best_of.items():
                seconds[way].append(time)
                results[way].append(result)
        plain = seconds[WAYS[0]]
        fixed = [way for way in WAYS if way[1] != "auto"]
        best = min(fixed, key=lambda way: statistics.geometric_mean(seconds[way]))
        for way in WAYS:
            ratios = [p / s for p, s in zip(plain, seconds[way])]
            rounds = sum(r["stats"]["rounds"] for r in results[way])
            emitted = sum(r["stats"]["emitted"] for r in results[way])
            stages = {name: sum(r["seconds"][name] for r in results[way]) for name in results[way][0]["seconds"]}
            cell = {
                "bench": "generate", "backend": "cpu",
                "case": {"temperature": temperature, "mode": way[0], "nodes": way[1] if way[1] is not None else 0},
                "accept_length": emitted / rounds,
                "round_us": {name: 1e6 * stages[name] / rounds for name in ("draft", "verify")},
                "interval": interval(ratios),
            }  # fmt: skip
            if way[1] == "auto":
                of_best = [b / s for b, s in zip(seconds[best], seconds[way])]
                cell["of_best_fixed"] = {
                    "best": " ".join(map(str, filter(None, best))),
                    "median": statistics.median(of_best), "interval": interval(of_best),
                }  # fmt: skip
            us = 1e6 * statistics.median(seconds[way])
            cell |= {
                "us": us, "min_us": 1e6 * min(seconds[way]), "tokens_per_s": 1e6 / us, "baseline": "ar",
                "baseline_us": 1e6 * statistics.median(plain), "ratio": statistics.median(ratios),
                "machine": f"{machine()}, {threads} threads", "date": date, "commit": commit,
            }  # fmt: skip
            print(json.dumps(cell), flush=True)


main()
