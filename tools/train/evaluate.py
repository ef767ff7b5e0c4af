"""Measures the trained pair: bits per byte, accept lengths, loops, and how much of its Python parses.

    python tools/train/evaluate.py --corpus build/corpus      (after make demo, which builds the command)

`kdtree generate` writes the continuations. Accept lengths are replayed on them: every mode emits the target's own text,
so a round's length is how far the drafts agree with what the target goes on to say.
"""

import argparse
import ast
import heapq
import json
import math
import subprocess
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from checkpoint import load_published
from data import END, random_prompts, read_tokens
from generation import repeated
from torch import Tensor

from model import Drafter, Target

NODES = (8, 16, 32, 64, 128)
NGRAM = 12  # bytes
SEEDS = 4  # of sampled text, for what is counted over whole texts
LOOPING = 0.5  # a continuation loops when more of its n-grams than this stood in it before


@torch.no_grad()
def bits_per_byte(target: Target, tokens: Tensor, window: int, most: int) -> float:
    """Over at most `most` bytes of the text in evenly spaced pieces, each byte seen with at least half a window before
    it; the ends of files count as bits, not as bytes."""
    half = window // 2
    pieces = torch.arange(half, len(tokens) - half + 1, half)
    pieces = pieces[:: math.ceil(len(pieces) * half / most)]
    bits, size = 0.0, 0
    for some in pieces.split(4):
        rows = tokens[some[:, None] + torch.arange(-half, half)].long()
        logits = target(rows)[:, half - 1 : -1]
        bits += F.cross_entropy(logits.transpose(1, 2), rows[:, half:], reduction="sum").item() / math.log(2)
        size += int((rows[:, half:] < 256).sum())
    return bits / size


def tree_paths(logp: Tensor, budget: int) -> set[tuple[int, ...]]:
    """The `budget` most probable prefixes under the product of the rows of [L, V] log-probabilities."""
    values, ids = logp.double().sort(dim=-1, descending=True, stable=True)
    values, ids = values[:, :budget].tolist(), ids[:, :budget].tolist()
    heap: list[tuple[float, tuple[int, ...]]] = [(-values[0][0], (0,))]
    chosen = set()
    while heap and len(chosen) < budget:
        weight, ranks = heapq.heappop(heap)
        depth, rank = len(ranks) - 1, ranks[-1]
        chosen.add(tuple(ids[d][r] for d, r in enumerate(ranks)))
        if rank + 1 < len(values[depth]):
            heapq.heappush(heap, (weight + values[depth][rank] - values[depth][rank + 1], (*ranks[:-1], rank + 1)))
        if depth + 1 < len(values):
            heapq.heappush(heap, (weight - values[depth + 1][0], (*ranks, 0)))
    return chosen


def accepted_of_tree(logp: Tensor, budget: int, text: Sequence[int]) -> int:
    paths = tree_paths(logp, budget)
    length = 0
    while length < len(text) and tuple(text[: length + 1]) in paths:
        length += 1
    return length


def text_of(tokens: Sequence[int]) -> bytes:
    """What is no byte, as one that Python text does not have."""
    return bytes(min(t, 255) for t in tokens)


def accepted_of_lookup(text: Sequence[int], place: int, block: int) -> int:
    """Prompt lookup (Saxena 2023): the bytes behind the last place that ended in the same 4 to 16 bytes."""
    seen = text_of(text[: place + 1])
    for n in range(min(16, place), 3, -1):
        found = seen.rfind(seen[-n:], 0, len(seen) - 1)
        if found >= 0:
            length = 0
            while length < block - 1 and found + n + length <= place and place + 1 + length < len(text):
                if text[found + n + length] != text[place + 1 + length]:
                    break
                length += 1
            return length
    return 0


def rounds(start: int, end: int, accepted: Callable[[int], int]) -> list[int]:
    """Bytes of each round from the anchor `start` on: what was accepted and the target's own one."""
    lengths = []
    place = start
    while place < end:
        lengths.append(1 + accepted(place))
        place += lengths[-1]
    return lengths


@torch.no_grad()
def draft_all(target: Target, drafter: Drafter, tokens: Tensor, start: int, end: int) -> Tensor:
    """Log-probabilities [end - start, block - 1, vocab] of the blocks behind every place of [S] tokens."""
    _, outputs, _ = target.run(tokens[None])
    features = drafter.features(outputs)
    parts = []
    for first in range(start, end, 64):
        anchors = torch.arange(first, min(first + 64, end), device=tokens.device)[None]
        logits = drafter(features, tokens[None], anchors, target.model.embed_tokens.weight, target.lm_head.weight)
        parts.append(logits[0].float().log_softmax(-1))
    return torch.cat(parts)


def accept_lengths(target: Target, drafter: Drafter, tokens: Tensor, start: int) -> dict[str, list[int]]:
    """Bytes of each round behind the prompt's `start` bytes, for each way of drafting."""
    block, text = drafter.block, tokens.tolist()
    end = len(text) - block
    logp = draft_all(target, drafter, tokens, start - 1, end)
    best = logp.argmax(-1).tolist()

    def chain(place: int) -> int:
        row, length = best[place - start + 1], 0
        while length < block - 1 and row[length] == text[place + 1 + length]:
            length += 1
        return length

    ways: dict[str, Callable[[int], int]] = {"chain": chain}
    for nodes in NODES:
        ways[f"{nodes} nodes"] = lambda place, nodes=nodes: accepted_of_tree(
            logp[place - start + 1], nodes, text[place + 1 : place + block]
        )
    ways["prompt lookup"] = lambda place: accepted_of_lookup(text, place, block)
    return {way: rounds(start - 1, end, accepted) for way, accepted in ways.items()}


def mean_lengths(texts: list[dict[str, list[int]]]) -> dict[str, float]:
    """Bytes a round over all texts."""
    ways = texts[0] if texts else {}
    return {way: sum(sum(text[way]) for text in texts) / sum(len(text[way]) for text in texts) for way in ways}


def parses(prompt_and_text: bytes) -> bool:
    """Whether it is Python when it is cut behind its last line that is complete."""
    text = prompt_and_text[: prompt_and_text.rfind(b"\n") + 1]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def share_repeated(text: Tensor) -> float:
    """Of its n-grams, those that stood in it before."""
    return float(repeated(text[None], NGRAM).float().mean())


def real_text(tokens: Tensor, starts: list[int], new: int) -> dict[str, float]:
    """What is measured of continuations, of the files themselves: beginnings as long as prompts, and `new` bytes more."""
    files = tokens.tensor_split((tokens == END).nonzero()[:, 0].tolist())
    texts = [(file[1 : 1 + start + new], start) for file in files for start in starts if len(file) > start + new]
    return {
        "texts": len(texts),
        "repeated_12_grams": sum(share_repeated(text[start:]) for text, start in texts) / len(texts),
        "parse": sum(parses(text_of(text.tolist())) for text, _ in texts) / len(texts),
    }


def read_prompts(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("[0-9]*.txt"))]


def continuations(
    command: Path, folder: Path, prompts: list[Tensor], new: int, temperature: float, seed: int
) -> list[Tensor]:
    """Prompts and what the model goes on with, as tokens."""
    ids = [argument for prompt in prompts for argument in ("--input-ids", ",".join(map(str, prompt.tolist())))]
    done = subprocess.run(
        [command, "generate", "--model", folder, "--json", "--batch", "32", "--max-new", str(new),
         "--temperature", str(temperature), "--seed", str(seed), *ids],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    requests = json.loads(done.stdout)["requests"]
    return [torch.cat([prompt, torch.tensor(r["tokens"])]) for prompt, r in zip(prompts, requests, strict=True)]


def main() -> None:
    root = Path(__file__).parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=root / "models/tiny/target")
    parser.add_argument("--drafter", type=Path, default=root / "models/tiny/drafter")
    parser.add_argument("--kdtree", type=Path, default=root / "build/release/kdtree", help="the command")
    parser.add_argument("--corpus", type=Path, help="for bits per byte and prompts of held-out text")
    parser.add_argument("--prompts", type=Path, default=root / "tests/prompts")
    parser.add_argument("--new", type=int, default=256, help="bytes of a continuation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="continuations to print")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    target = load_published(Target, arguments.target)
    drafter = load_published(Drafter, arguments.drafter)
    results: dict[str, object] = {}
    sets = {"evaluation prompts": [torch.tensor(list(prompt)) for prompt in read_prompts(arguments.prompts)]}
    if arguments.corpus:
        tokens = torch.from_numpy(read_tokens(arguments.corpus, "heldout"))
        results["bits_per_byte"] = bits_per_byte(target, tokens, target.config["max_position_embeddings"], 1 << 18)
        print(f"bits per byte, held-out text: {results['bits_per_byte']:.4f}", flush=True)
        generator = torch.Generator().manual_seed(arguments.seed)
        results["held-out text"] = real_text(tokens, [len(p) for p in sets["evaluation prompts"]][::5], arguments.new)
        print(f"held-out text: {json.dumps(results['held-out text'])}", flush=True)
        sets["held-out prompts"] = list(random_prompts(tokens, 128, 128, generator))

    for name, prompts in sets.items():
        starts = [len(prompt) for prompt in prompts]
        for temperature in (0.0, 0.7):
            drawn = [
                continuations(arguments.kdtree, arguments.target, prompts, arguments.new, temperature, seed)
                for seed in range(arguments.seed, arguments.seed + (SEEDS if temperature > 0 else 1))
            ]
            texts = drawn[0]
            shares = [share_repeated(text[start:]) for some in drawn for text, start in zip(some, starts, strict=True)]
            parsed = [parses(text_of(text.tolist())) for some in drawn for text in some]
            straight = [i for i, share in enumerate(shares[: len(texts)]) if share <= LOOPING]
            lengths = [accept_lengths(target, drafter, text, start) for text, start in zip(texts, starts, strict=True)]
            row = {
                "prompts": len(texts),
                "repeated_12_grams": sum(shares) / len(shares),
                "parse": sum(parsed) / len(parsed),
                "loop_free": len(straight),
                "accept_length": mean_lengths(lengths),
                "accept_length_loop_free": mean_lengths([lengths[i] for i in straight]),
            }
            results[f"{name}, T = {temperature:g}"] = row
            print(f"{name}, T = {temperature:g}: {json.dumps(row)}", flush=True)
            for text, start in list(zip(texts, starts, strict=True))[: arguments.show]:
                parts = (text_of(text[:start].tolist()), text_of(text[start:].tolist()))
                print("-" * 30 + "\n" + "│".join(part.decode(errors="replace") for part in parts))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
