"""tools/train: legs and states, what the models compute, what is drawn from the corpus and what evaluate.py measures.

Everything at toy size, on one thread of the CPU.
"""

import csv
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools/train"))

import checkpoint
import data
import evaluate
import generation
import train

from model import Drafter, Target

TOLERANCE = 2e-5
TARGET_CONFIG, DRAFTER_CONFIG = train.configs(toy=True)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small enough for several passes."""
    folder = tmp_path_factory.mktemp("corpus")
    generator = random.Random(1)
    for part, files in (("train", 6), ("heldout", 3)):
        texts = [
            b"".join(b"x_%d = %d\n" % (generator.randrange(10), generator.randrange(10**6)) for _ in range(15))
            for _ in range(files)
        ]
        (folder / f"{part}.bin").write_bytes(b"".join(texts))
        np.save(folder / f"{part}.offsets.npy", np.cumsum([0] + [len(text) for text in texts], dtype=np.int64))
    return folder


def run_leg(stage: str, corpus: Path, out: Path, *options: str, looks: int | None = None) -> None:
    """One call of train.py, whose time is up when it has looked at the clock `looks` times."""
    clock = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", stage, "--corpus", str(corpus), "--out", str(out), "--toy", *options])
        patch.setattr(train, "device", lambda: torch.device("cpu"))
        if looks is not None:
            patch.setattr(train.Trainer, "time_left", lambda _: next(clock) < looks)
        train.main()


def state_of(out: Path, stage: str) -> dict[str, Any]:
    state = checkpoint.load_state(out / stage)
    assert state is not None
    return state


def same(a: Any, b: Any) -> bool:
    """Bit for bit, through dicts and lists."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def curve(out: Path, stage: str) -> list[dict[str, str]]:
    with (out / f"{stage}.csv").open() as file:
        return list(csv.DictReader(file))


def is_published(out: Path, name: str, stage: str) -> bool:
    """Whether OUT/<name> has the weights of the stage's state."""
    weights = {key: tensor.bfloat16().float() for key, tensor in state_of(out, stage)["model"].items()}
    return same(reference.read_weights(out / name), dict(sorted(weights.items())))


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three stages without an interruption."""
    out = tmp_path_factory.mktemp("whole")
    run_leg("target", corpus, out)
    assert is_published(out, "target", "target")
    run_leg("unloop", corpus, out)
    assert is_published(out, "target", "unloop")
    run_leg("drafter", corpus, out)
    assert is_published(out, "drafter", "drafter")
    return out


@pytest.mark.parametrize(
    ("stage", "looks", "stops"),
    [
        # Within the first pass, behind it, and among the long windows.
        ("target", [3, 4, 3], [3, 7, 10]),
        # Two steps share a text that the model wrote: a leg ends behind both.
        ("unloop", [1], [2]),
    ],
)
def test_legs_end_at_the_same_weights(
    stage: str, looks: list[int], stops: list[int], whole: Path, corpus: Path, tmp_path: Path
) -> None:
    for part in whole.glob("target.[0-9]*") if stage == "unloop" else ():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    for some, stop in zip(looks, stops, strict=True):
        run_leg(stage, corpus, tmp_path, looks=some)
        assert state_of(tmp_path, stage)["step"] == stop
        assert not (tmp_path / "target").exists(), "published before its end"
    run_leg(stage, corpus, tmp_path)

    assert is_published(tmp_path, "target", stage)
    assert same(state_of(tmp_path, stage)["model"], state_of(whole, stage)["model"])
    steps = [[row["step"] for row in curve(folder, stage)] for folder in (tmp_path, whole)]
    assert steps[0] == steps[1] == [str(i + 1) for i in range(train.TOY[stage]["steps"])]


def test_training_changes_every_weight(whole: Path) -> None:
    torch.manual_seed(1)
    first = Target(TARGET_CONFIG).state_dict()
    target, unlooped = state_of(whole, "target")["model"], state_of(whole, "unloop")["model"]
    for name in first:
        assert not torch.equal(first[name], target[name]), name
        assert not torch.equal(target[name], unlooped[name]), name
    torch.manual_seed(1)
    first = Drafter(DRAFTER_CONFIG).state_dict()
    for name, weights in state_of(whole, "drafter")["model"].items():
        assert not torch.equal(first[name], weights), name


def test_drafter_goes_on(whole: Path, corpus: Path, tmp_path: Path) -> None:
    """Its legs write other texts, so there is no same end to arrive at."""
    for part in whole.glob("unloop.[0-9]*"):
        (tmp_path / part.name).write_bytes(part.read_bytes())
    run_leg("drafter", corpus, tmp_path, looks=3)
    first = state_of(tmp_path, "drafter")
    assert first["step"] == 3 and len(first["optimizers"]) == 2
    run_leg("drafter", corpus, tmp_path, looks=0)
    second = state_of(tmp_path, "drafter")
    assert second.pop("seconds") > first.pop("seconds")
    assert same(second, first), "a leg without a step must change nothing"
    run_leg("drafter", corpus, tmp_path, looks=2)
    third = state_of(tmp_path, "drafter")
    assert third["step"] == 5
    assert {float(state["step"]) for state in third["optimizers"][1]["state"].values()} == {5.0}
    run_leg("drafter", corpus, tmp_path)
    assert is_published(tmp_path, "drafter", "drafter")
    rows = curve(tmp_path, "drafter")
    assert [row["step"] for row in rows] == [str(i + 1) for i in range(train.TOY["drafter"]["steps"])]
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)


def test_complete_stage_stays_as_it_is(whole: Path, corpus: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    for stage in train.TOY:
        run_leg(stage, corpus, whole)
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("looks", [0, 5])
def test_curve_of_a_killed_leg(looks: int, whole: Path, corpus: Path, tmp_path: Path) -> None:
    """It wrote lines behind its last state, or had no state yet."""
    if looks:
        run_leg("target", corpus, tmp_path, looks=looks)
    lines = (whole / "target.csv").read_bytes().splitlines(keepends=True)
    (tmp_path / "target.csv").write_bytes(b"".join(lines[: looks + 4]))
    run_leg("target", corpus, tmp_path)
    steps = [row["step"] for row in curve(tmp_path, "target")]
    assert steps == [str(i + 1) for i in range(train.TOY["target"]["steps"])]


def test_another_number_of_steps(whole: Path, corpus: Path) -> None:
    with pytest.raises(SystemExit, match=r"target: a run of 12 steps, not of 13"):
        run_leg("target", corpus, whole, "--steps", "13")


@pytest.mark.parametrize("stage", ["unloop", "drafter"])
def test_needs_a_target(stage: str, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no target"):
        run_leg(stage, corpus, tmp_path)


def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHARD", 1000)
    path = tmp_path / "target"
    assert checkpoint.load_state(path) is None
    long = {"model": {"a": torch.randn(50, 31), "b": torch.arange(9)}, "optimizers": [{"rate": 0.5}], "step": 3}
    short = {"model": {"a": torch.randn(2)}, "optimizers": [], "step": 4}
    counts = []
    for state in (long, short):
        checkpoint.save_state(path, state)
        loaded = checkpoint.load_state(path)
        assert loaded is not None and same(loaded, state)
        parts = sorted(tmp_path.iterdir())
        assert [part.name for part in parts] == [f"target.{i:03}" for i in range(len(parts))]
        assert all(part.stat().st_size == 1000 for part in parts[:-1]) and 0 < parts[-1].stat().st_size <= 1000
        counts.append(len(parts))
    assert counts[0] > counts[1] > 1


def random_pair(folder: Path) -> tuple[Target, Drafter]:
    """Published, and loaded again. The weights of a fresh model would leave its blocks without effect."""
    target, drafter = Target(TARGET_CONFIG), Drafter(DRAFTER_CONFIG)
    target.load_state_dict(reference.target_weights(TARGET_CONFIG, 1))
    drafter.load_state_dict(reference.draft_weights(DRAFTER_CONFIG, 2))
    checkpoint.publish(target, folder / "target")
    checkpoint.publish(drafter, folder / "drafter")
    loaded = (
        checkpoint.load_published(Target, folder / "target"),
        checkpoint.load_published(Drafter, folder / "drafter"),
    )
    assert isinstance(loaded[0], Target) and isinstance(loaded[1], Drafter)
    return loaded


def random_tokens(*shape: int) -> torch.Tensor:
    return reference.random_tokens(math.prod(shape), 256, seed=3).long().view(shape)


@torch.no_grad()
def test_transformers_computes_the_same(tmp_path: Path) -> None:
    target, _ = random_pair(tmp_path)
    model = reference.load_target(tmp_path / "target")
    tokens = random_tokens(2, 50)
    logits, outputs, _ = target.run(tokens)
    for row in range(2):
        assert reference.relative_error(logits[row], reference.target_logits(model, tokens[row])) <= TOLERANCE
        features = reference.target_features(model, tokens[row], [0, 1, 2])
        assert reference.relative_error(torch.cat([output[row] for output in outputs[:3]], -1), features) <= TOLERANCE


@torch.no_grad()
def test_drafter_beside_the_reference(tmp_path: Path) -> None:
    target, drafter = random_pair(tmp_path)
    tokens = random_tokens(2, 50)
    features = drafter.features(target.run(tokens)[1])
    embedding, head = target.model.embed_tokens.weight, target.lm_head.weight
    anchors = torch.tensor([[0, 1, 20, 49, 20], [7, 33, 2, 48, 10]])
    logits = drafter(features, tokens, anchors, embedding, head)
    assert logits.shape == (2, 5, drafter.block - 1, TARGET_CONFIG["vocab_size"])
    for row, column in itertools.product(range(2), range(5)):
        anchor = int(anchors[row, column])
        alone = drafter(
            features[row : row + 1], tokens[row : row + 1], anchors[row : row + 1, column : column + 1], embedding, head
        )
        assert reference.relative_error(logits[row, column], alone[0, 0]) <= TOLERANCE
        expected = reference.dflash_logits(
            tmp_path / "drafter", embedding, head, features[row, :anchor], int(tokens[row, anchor])
        )
        assert reference.relative_error(logits[row, column], expected) <= TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("prompt", [0, 1, 13])
def test_step_equals_forward(prompt: int, tmp_path: Path) -> None:
    target, _ = random_pair(tmp_path)
    tokens = random_tokens(3, 30)
    expected, _, rows = target.run(tokens)
    # What is behind the rows that are there must not matter.
    caches = [torch.full_like(row, math.nan) for row in rows]
    for cache, row in zip(caches, rows, strict=True):
        cache[:, :prompt] = row[:, :prompt]
    for position in range(prompt, 30):
        logits = target.step(tokens[:, position], caches, position)
        assert reference.relative_error(logits, expected[:, position]) <= TOLERANCE
    for cache, row in zip(caches, rows, strict=True):
        assert reference.relative_error(cache, row) <= TOLERANCE


@torch.no_grad()
def test_generate(tmp_path: Path) -> None:
    target, _ = random_pair(tmp_path)
    prompts = random_tokens(3, 10)
    greedy = generation.generate(target, prompts, 12, 0.0, torch.Generator())
    assert greedy.shape == (3, 22) and torch.equal(greedy[:, :10], prompts)
    assert torch.equal(greedy[:, 10:], target(greedy)[:, 9:-1].argmax(-1))
    cold, warm, again, other = (
        generation.generate(target, prompts, 12, temperature, torch.Generator().manual_seed(seed))
        for temperature, seed in ((1e-4, 1), (1.0, 1), (1.0, 1), (1.0, 2))
    )
    assert torch.equal(cold, greedy)
    assert torch.equal(warm, again)
    assert not torch.equal(warm, other) and not torch.equal(warm, greedy)


def test_sampled_tokens_follow_the_distribution(tmp_path: Path) -> None:
    target, _ = random_pair(tmp_path)
    prompts = random_tokens(1, 10).expand(4000, -1)
    drawn = generation.generate(target, prompts, 1, 0.7, torch.Generator().manual_seed(5))[:, -1]
    with torch.no_grad():
        expected = (target(prompts[:1])[0, -1] / 0.7).softmax(-1)
    shares = torch.bincount(drawn, minlength=TARGET_CONFIG["vocab_size"]) / 4000
    assert float(expected.max()) > 0.1
    assert float((shares - expected).abs().max()) < 0.03  # four standard deviations


@pytest.mark.parametrize("n", [1, 2, 3, 6, 40, 41])
def test_repeated(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    tokens = torch.randint(2, (25, 40), generator=generator) * torch.randint(1, 256, (25, 1), generator=generator)
    expected = torch.zeros(25, 40, dtype=torch.bool)
    for row in range(25):
        seen = set()
        for end in range(n, 41):
            gram = tuple(tokens[row, end - n : end].tolist())
            expected[row, end - 1] = gram in seen
            seen.add(gram)
    assert torch.equal(generation.repeated(tokens, n), expected)


def test_read_tokens(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"ab\xffc")
    np.save(tmp_path / "train.offsets.npy", np.array([0, 3, 4]))
    assert data.read_tokens(tmp_path, "train").tolist() == [256, 97, 98, 255, 256, 99]


def places(count: int) -> np.ndarray:
    """A text whose tokens are their own places."""
    return np.arange(count, dtype=np.int16)


@pytest.mark.parametrize(("size", "length", "count"), [(1000, 10, 1), (1000, 10, 7), (999, 13, 200)])
def test_a_pass_shows_no_token_twice(size: int, length: int, count: int) -> None:
    windows = data.Windows(places(size), torch.device("cpu"), seed=1)
    a_pass = (size - 2 * length) // length
    batches = torch.cat([windows.batch(count, length) for _ in range(-(-3 * a_pass // count))])
    assert torch.equal(batches, batches[:, :1] + torch.arange(length + 1))
    assert windows.drawn == batches[:, :-1].numel()
    passes = [batches[i * a_pass : (i + 1) * a_pass, :-1] for i in range(3)]
    for shown in passes:
        assert len(shown.unique()) == a_pass * length > size - 3 * length
        assert not torch.equal(shown[:, 0], shown[:, 0].sort().values)
    cuts = {int(shown[0, 0]) % length for shown in passes}
    assert len(cuts) > 1, "cut at the same places"


@pytest.mark.parametrize("drawn_batches", [0, 1, 8, 40])
def test_windows_resume(drawn_batches: int) -> None:
    """From `drawn` alone, in the middle of a pass or behind several, and when the length changes."""
    first, second = (data.Windows(places(700), torch.device("cpu"), seed=4) for _ in range(2))
    for _ in range(drawn_batches):
        first.batch(6, 10)
    second.drawn = first.drawn
    for length in [10] * 12 + [30] * 12:
        assert torch.equal(first.batch(60 // length, length), second.batch(60 // length, length))
    other = data.Windows(places(700), torch.device("cpu"), seed=5)
    other.drawn = second.drawn
    assert not torch.equal(other.batch(6, 10), second.batch(6, 10))


def test_random_prompts_begin_lines() -> None:
    text = places(200) + 1000
    ends = [9, 10, 50, 120, 178, 180, 199]
    text[ends] = ord("\n")
    prompts = data.random_prompts(torch.from_numpy(text), 500, 20, torch.Generator().manual_seed(1))
    # A prompt of the line behind 180 would reach over the end.
    lines = {tuple(text[start : start + 20].tolist()) for start in (10, 11, 51, 121, 179)}
    assert {tuple(row) for row in prompts.tolist()} == lines


def test_mixed_prompts_begin_files_and_lines() -> None:
    files = [30, 5, 60, 22]  # 5 and 22 bytes are too few for a prompt of 22 and the byte behind it
    text = places(sum(files)) + 1000
    starts = np.cumsum([0, *files])
    tokens = torch.from_numpy(np.insert(text, starts[:-1], data.END))
    tokens[3::7][tokens[3::7] != data.END] = ord("\n")
    prompts = data.mixed_prompts(tokens, 201, 22, torch.Generator().manual_seed(1))
    begins = {tuple(tokens[at : at + 22].tolist()) for at in (1, starts[2] + 3)}
    assert {tuple(row) for row in prompts[::2].tolist()} == begins
    lines = [at + 1 for at in range(len(tokens) - 23) if tokens[at] == ord("\n")]
    assert {tuple(row) for row in prompts[1::2].tolist()} <= {tuple(tokens[at : at + 22].tolist()) for at in lines}


def test_word_starts() -> None:
    text = b"x = f(a_b, 12)\n"
    found = generation.word_starts(torch.tensor([[*text, data.END, *b"ab"]]))[0]
    assert [i for i, is_start in enumerate(found.tolist()) if is_start] == [0, 4, 6, 8, 11, 16]


@torch.no_grad()
def test_a_cut_block_is_a_shorter_block(tmp_path: Path) -> None:
    target, drafter = random_pair(tmp_path)
    tokens = random_tokens(60)[None]
    features = drafter.features(target.run(tokens)[1])
    anchors = torch.tensor([[7, 20, 33, 40]])
    lengths = torch.tensor([[drafter.block, 5, 2, 9]])
    common = target.model.embed_tokens.weight, target.lm_head.weight
    cut = drafter(features, tokens, anchors, *common, lengths)
    for i, length in enumerate(lengths[0].tolist()):
        drafter.block = length
        alone = drafter(features, tokens, anchors[:, i : i + 1], *common)
        assert reference.relative_error(cut[:, i, : length - 1], alone[:, 0]) <= TOLERANCE


def best_prefixes(logp: torch.Tensor, budget: int) -> set[tuple[int, ...]]:
    """All prefixes, ranked by probability, then by their tokens' ranks; equal tokens rank by their ids."""
    rows = logp.double().tolist()
    tokens = [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i)) for row in rows]
    ranked = []
    for depth in range(1, len(rows) + 1):
        for ranks in itertools.product(range(len(rows[0])), repeat=depth):
            path = tuple(tokens[d][r] for d, r in enumerate(ranks))
            ranked.append((-sum(rows[d][token] for d, token in enumerate(path)), ranks, path))
    return {path for _, _, path in sorted(ranked)[:budget]}


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 20, 83, 84, 200])
@pytest.mark.parametrize("ties", [True, False])
def test_tree_paths(budget: int, ties: bool) -> None:
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        if ties:  # and exact sums
            logp = -torch.randint(1, 6, (3, 4), generator=generator) / 4
        else:
            logp = (2 * torch.randn(3, 4, generator=generator)).log_softmax(-1)
        assert evaluate.tree_paths(logp, budget) == best_prefixes(logp, budget)


def test_equal_tokens_rank_by_id() -> None:
    logp = torch.full((2, 264), -1.0)
    logp[0, 200] = -0.5
    assert evaluate.tree_paths(logp, 4) == {(200,), (0,), (1,), (2,)}


def test_accepted_of_tree() -> None:
    logp = torch.tensor([[0.6, 0.3, 0.1], [0.7, 0.2, 0.1]]).log()
    # 0 .6, 00 .42, 1 .3, 10 .21, 01 .12, 2 .1 (but 02 and 11 .06, 20 .07)
    assert evaluate.tree_paths(logp, 4) == {(0,), (0, 0), (1,), (1, 0)}
    for text, accepted in (((0, 0), 2), ((0, 1), 1), ((1, 0, 5), 2), ((2, 0), 0), ((1,), 1), ((), 0)):
        assert evaluate.accepted_of_tree(logp, 4, text) == accepted, text
    assert evaluate.accepted_of_tree(logp, 5, (0, 1)) == 2


def test_rounds() -> None:
    assert evaluate.rounds(5, 12, {5: 2, 8: 0, 9: 4}.__getitem__) == [3, 1, 5]
    assert evaluate.rounds(5, 9, {5: 2, 8: 0}.__getitem__) == [3, 1]
    assert evaluate.rounds(5, 5, {}.__getitem__) == []


@pytest.mark.parametrize(
    ("seen", "comes", "block", "accepted"),
    [
        (b"abcdXYZ abcd", b"XYQ", 16, 2),
        (b"abcdXYZ abcd", b"XYZ abcd", 16, 8),
        (b"abcdXYZ abcd", b"XYZ abcd", 4, 3),
        (b"abcdXYZ abcd", b"XY", 16, 2),
        (b"abcdXYZ abcd", b"", 16, 0),
        (b"abcdXYZ -bcd", b"XYZ", 16, 0),  # three bytes are too few
        (b" abcdP abcdQ abcd", b"Q", 16, 1),  # the last place
        (b"zabcdP yabcdQ zabcd", b"P", 16, 1),  # but the longest match first
        (b"aaaaaaaa", b"aaaa", 16, 1),  # up to the end of what was seen
        (b"abc", b"abc", 16, 0),
    ],
)
def test_accepted_of_lookup(seen: bytes, comes: bytes, block: int, accepted: int) -> None:
    assert evaluate.accepted_of_lookup(list(seen + comes), len(seen) - 1, block) == accepted


@torch.no_grad()
def test_drafts_of_every_place(tmp_path: Path) -> None:
    """More places than one call of the drafter takes."""
    target, drafter = random_pair(tmp_path)
    tokens = random_tokens(100)
    logp = evaluate.draft_all(target, drafter, tokens, 4, 84)
    assert logp.shape == (80, drafter.block - 1, TARGET_CONFIG["vocab_size"])
    model = reference.load_target(tmp_path / "target")
    for place in (4, 40, 67, 68, 83):
        expected = reference.draft_logits(tmp_path / "drafter", model, tokens[: place + 1]).log_softmax(-1)
        assert reference.relative_error(logp[place - 4], expected) <= TOLERANCE


@torch.no_grad()
def test_accept_lengths(tmp_path: Path) -> None:
    """A text that the drafter wrote itself, block behind block, from the place before `start` on."""
    target, drafter = random_pair(tmp_path)
    block, start = drafter.block, 20
    text = random_tokens(100)
    for anchor in range(start - 1, 100 - block, block):
        best = evaluate.draft_all(target, drafter, text, anchor, anchor + 1)[0].argmax(-1)
        text[anchor + 1 : anchor + block] = best
    lengths = evaluate.mean_lengths([evaluate.accept_lengths(target, drafter, text, start)])
    assert lengths["chain"] == block
    for fewer, more in itertools.pairwise(evaluate.NODES):
        assert 1 <= lengths[f"{fewer} nodes"] <= lengths[f"{more} nodes"] <= block


def test_accept_lengths_of_a_drafter_that_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of n nodes is a chain of n tokens then, unless the block ends before."""
    target, drafter = random_pair(tmp_path)
    text, depth = random_tokens(100), drafter.block - 1

    def draft_all(_target: Target, _drafter: Drafter, tokens: torch.Tensor, start: int, end: int) -> torch.Tensor:
        places = torch.arange(start, end)[:, None] + torch.arange(1, depth + 1)
        return torch.full((end - start, depth, 264), -100.0).scatter(-1, tokens[places][..., None], 0.0)

    monkeypatch.setattr(evaluate, "draft_all", draft_all)
    lengths = evaluate.accept_lengths(target, drafter, text, 20)
    assert set(lengths["chain"]) == {depth + 1}
    for nodes in evaluate.NODES:
        assert set(lengths[f"{nodes} nodes"]) == {1 + min(nodes, depth)}


@torch.no_grad()
@pytest.mark.parametrize(
    ("size", "most", "places"),
    [(16, 1000, [8]), (40, 1000, [8, 16, 24, 32]), (45, 1000, [8, 16, 24, 32]), (40, 24, [8, 24]), (40, 16, [8, 24])],
)
def test_bits_per_byte(size: int, most: int, places: list[int], tmp_path: Path) -> None:
    target, _ = random_pair(tmp_path)
    tokens = random_tokens(size)
    tokens[13] = data.END
    bits, count = 0.0, 0
    for place in places:
        logp = target(tokens[None, place - 8 : place + 8])[0].double().log_softmax(-1)
        for i in range(8):
            bits -= float(logp[7 + i, tokens[place + i]]) / math.log(2)
            count += int(tokens[place + i] != data.END)
    value = evaluate.bits_per_byte(target, tokens.to(torch.int16), 16, most)
    assert value == pytest.approx(bits / count, rel=1e-5)


def test_real_text_is_measured_as_continuations_are() -> None:
    files = [b"x = 1\n" * 4, b"def f():\n", b"(\n" + b"a = 2\n" * 3 + b"pass"]
    tokens = torch.tensor([token for file in files for token in (data.END, *file)])
    # Beginnings of 6 + 12 and 8 + 12 bytes of the first and the last; the 9 bytes of the second are too few.
    result = evaluate.real_text(tokens, [6, 8], 12)
    assert result["texts"] == 4 and result["parse"] == 0.5
    assert result["repeated_12_grams"] == 0.0, "12 bytes have one 12-gram"
    assert evaluate.share_repeated(torch.tensor(list(b"abcd" * 6))) == 9 / 24


@pytest.mark.parametrize(
    ("text", "parses"),
    [
        (b"x = 1\ny = (", True),  # the last line is not complete
        (b"x = 1\ny = (\n", False),
        (b"def f():\n    return 1\n", True),
        (b"def f():\n", False),
        (b"x = '\\d'\n", True),  # a warning is no error
        (b"x = '\xff'\n", False),
        (b"x = '\xc3\xa9'\n", True),
        (b"x = '\0'\n", False),
        (b"no line", True),
    ],
)
def test_parses(text: bytes, parses: bool) -> None:
    assert evaluate.parses(text) == parses


def test_evaluation_prompts() -> None:
    prompts = evaluate.read_prompts(Path(__file__).parents[1] / "prompts")
    assert len(prompts) == 100 and all(80 <= len(prompt) <= 400 for prompt in prompts)


def test_toy_keeps_the_drafter_fitting_its_target() -> None:
    for toy in (True, False):
        target, drafter = train.configs(toy)
        assert target["hidden_size"] == drafter["hidden_size"]
        assert target["vocab_size"] == drafter["vocab_size"] > drafter["dflash_config"]["mask_token_id"]
        assert max(drafter["dflash_config"]["target_layer_ids"]) < target["num_hidden_layers"]
        settings = (train.TOY if toy else train.STAGES)["target"]
        tokens = settings["batch"] * settings["length"]
        assert tokens % settings["long_length"] == 0, "every step must see as many tokens"
        assert settings["long_length"] <= target["max_position_embeddings"]
        assert json.dumps(target)
