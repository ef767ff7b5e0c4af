"""Trains the small model that ships: `target`, then `unloop`, then `drafter`, each in legs that can be resumed.

    python tools/train/train.py target  --corpus build/corpus --out build/train --seconds 500
    python tools/train/train.py unloop  --corpus build/corpus --out build/train
    python tools/train/train.py drafter --corpus build/corpus --out build/train --seconds 500

A leg ends after --seconds, or with the stage; the same command goes on where the last leg ended. Every stage writes
OUT/<stage>.NNN (its state), OUT/<stage>.csv (its curve) and, when it is done, OUT/{target,drafter} (published
checkpoints, Hugging Face's layout). One GPU, or a CPU at toy size (--toy).
"""

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from checkpoint import load_state, publish, save_state
from data import Windows, mixed_prompts, read_tokens
from generation import for_generation, generate, repeated, word_starts
from torch import Tensor, nn

from model import Config, Drafter, Target

HERE = Path(__file__).parent

STAGES: dict[str, dict[str, Any]] = {
    # Windows a step; the last `long_steps` steps see fewer, of the longest context, and as many tokens.
    "target": {"steps": 8000, "batch": 128, "length": 1024, "long_steps": 1000, "long_length": 2048},
    # Prompts of one of these lengths, continued to `own` bytes; new ones every `every` steps.
    "unloop": {
        "steps": 800, "batch": 64, "length": 1024, "prompts": 2048, "starts": (128, 192, 256, 320), "own": 512, "every": 16,
        "ngram": 16, "weight": 10.0,
    },
    # `pool` self-generated sequences of `length` bytes; half of them greedy, half at `temperature`; of a batch, `greedy`
    # are of the first kind. A share of the blocks, `cut`, has only `min_block_size` to `block_size` positions, so that
    # the drafter may be asked for fewer.
    "drafter": {
        "steps": 11000, "batch": 96, "greedy": 32, "anchors": 24, "length": 640, "pool": 98304, "chunk": 6144,
        "temperature": 0.7, "cut": 0.5,
    },
}  # fmt: skip
TOY: dict[str, dict[str, Any]] = {
    "target": {"steps": 12, "batch": 2, "length": 64, "long_steps": 4, "long_length": 128},
    "unloop": {
        "steps": 4, "batch": 2, "length": 64, "prompts": 4, "starts": (16, 24), "own": 48, "every": 2,
        "ngram": 8, "weight": 2.0,
    },
    "drafter": {
        "steps": 8, "batch": 2, "greedy": 1, "anchors": 3, "length": 96, "pool": 8, "chunk": 4, "temperature": 0.7,
        "cut": 0.5,
    },
}  # fmt: skip
# Sizes of the toy that differ from target.json and drafter.json.
TOY_TARGET = {
    "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 16,
    "kv_lora_rank": 32, "qk_rope_head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
TOY_DRAFTER = {
    "hidden_size": 48, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 128,
}  # fmt: skip


def configs(toy: bool) -> tuple[Config, Config]:
    target, drafter = (json.loads((HERE / f"{name}.json").read_text()) for name in ("target", "drafter"))
    return (target | TOY_TARGET, drafter | TOY_DRAFTER) if toy else (target, drafter)


class Trainer:
    """What the stages share: device, corpus, optimisers, legs and the curve."""

    def __init__(self, stage: str, model: nn.Module, arguments: argparse.Namespace) -> None:
        self.stage, self.model, self.arguments = stage, model, arguments
        self.settings = (TOY if arguments.toy else STAGES)[stage]
        self.steps = arguments.steps or self.settings["steps"]
        self.every = self.settings.get("every", 1)  # steps that belong together: no leg ends between them
        self.device = device()
        self.model.to(self.device)
        self.started = time.monotonic()
        self.step = 0
        self.seconds = 0.0  # of the legs before this one
        self.optimizers: list[torch.optim.Optimizer] = []
        self.rates: list[float] = []
        self.schedule: Callable[[float], float] = lambda _: 1.0

    def optimize_with_muon(self, matrix_rate: float, other_rate: float, flat: float) -> None:
        """Muon for the matrices, AdamW for embedding, head and norms. The rate stays for `flat` of the steps, then falls
        to nothing on a straight line."""
        matrices, others = [], []
        for name, parameter in self.model.named_parameters():
            inner = parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name
            (matrices if inner else others).append(parameter)
        self.optimizers = [
            torch.optim.Muon(matrices, lr=matrix_rate, momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.rates = [matrix_rate, other_rate]
        warm = min(100, self.steps // 4)
        self.schedule = lambda step: min(1.0, (step + 1) / (warm + 1), (self.steps - step) / ((1 - flat) * self.steps))

    def resume(self) -> bool:
        """Loads the state of the last leg. True when the stage is complete already."""
        state = load_state(self.arguments.out / self.stage)
        if state is None:
            self.cut_curve()
            return False
        if state["steps"] != self.steps:
            sys.exit(f"{self.arguments.out / self.stage}: a run of {state['steps']} steps, not of {self.steps}")
        self.model.load_state_dict(state["model"])
        self.step, self.seconds = state["step"], state["seconds"]
        print(f"{self.stage}: is at step {self.step} of {self.steps}", flush=True)
        self.cut_curve()
        if self.step == self.steps:
            return True
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        return False

    def cut_curve(self) -> None:
        """Takes away what a leg that was killed did behind its last state."""
        path = self.curve()
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[:1] + [x for x in lines[1:] if int(x.split(b",")[0]) <= self.step]))

    def curve(self) -> Path:
        return self.arguments.out / f"{self.stage}.csv"

    def save(self) -> None:
        complete = self.step == self.steps  # then nothing but the weights is needed any more
        state = {
            "model": self.model.state_dict(),
            "optimizers": [] if complete else [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "steps": self.steps,
            "seconds": self.elapsed(),
        }
        save_state(self.arguments.out / self.stage, state)

    def publish_as(self, name: str) -> None:
        if self.step == self.steps:
            publish(self.model, self.arguments.out / name)

    def elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started

    def time_left(self) -> bool:
        return time.monotonic() - self.started < self.arguments.seconds

    def run(self) -> Iterator[int]:
        """The steps of this leg; saves a few times on the way, and behind the last one."""
        while self.step < self.steps and (self.step % self.every or self.time_left()):
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = rate * self.schedule(self.step)
            yield self.step
            self.step += 1
            if self.step % (self.every * max(1, self.steps // self.every // 10)) == 0 and self.step < self.steps:
                self.save()
        self.save()

    def descend(self) -> None:
        """One step of the optimisers along the gradients."""
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def record(self, **values: float) -> None:
        """A line of the curve, on the screen and in OUT/<stage>.csv."""
        path = self.curve()
        row = {"step": self.step + 1, "seconds": round(self.elapsed(), 1)} | {k: round(v, 5) for k, v in values.items()}
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, row.keys())
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(f"{self.stage} " + " ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mixed_precision() -> Any:
    return torch.autocast("cuda", torch.bfloat16) if device().type == "cuda" else nullcontext()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False) if device().type == "cuda" else function


def cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, -2), tokens.flatten())


def next_byte_loss(model: nn.Module, batch: Tensor) -> Tensor:
    with mixed_precision():
        return cross_entropy(model(batch[:, :-1]), batch[:, 1:])


@torch.no_grad()
def heldout_bits(model: nn.Module, heldout: Windows, settings: dict[str, Any]) -> float:
    """Bits a byte over the same four batches each time."""
    heldout.drawn = 0
    batches = (heldout.batch(settings["batch"], settings["length"]) for _ in range(4))
    return sum(next_byte_loss(model, batch).item() for batch in batches) / 4 / math.log(2)


def train_target(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    trainer = Trainer("target", Target(configs(arguments.toy)[0]), arguments)
    model, settings = trainer.model, trainer.settings
    trainer.optimize_with_muon(0.02, 3e-3, flat=0.4)
    windows = Windows(read_tokens(arguments.corpus, "train"), trainer.device, arguments.seed)
    heldout = Windows(read_tokens(arguments.corpus, "heldout"), trainer.device, arguments.seed)
    if trainer.resume():
        return
    long_start = trainer.steps - settings["long_steps"]
    tokens_a_step = settings["batch"] * settings["length"]
    windows.drawn = trainer.step * tokens_a_step

    compiled_loss = compiled(lambda batch: next_byte_loss(model, batch))
    total = torch.zeros((), device=trainer.device)
    counted = 0
    for step in trainer.run():
        length = settings["length"] if step < long_start else settings["long_length"]
        loss = compiled_loss(windows.batch(tokens_a_step // length, length))
        loss.backward()
        trainer.descend()
        total += loss.detach()
        counted += 1
        if (step + 1) % max(1, trainer.steps // 40) == 0:
            trainer.record(
                train_bits=total.item() / counted / math.log(2), heldout_bits=heldout_bits(model, heldout, settings)
            )
            total.zero_()
            counted = 0
    trainer.publish_as("target")


def train_unloop(arguments: argparse.Namespace) -> None:
    """Unlikelihood training (arXiv 1908.04319): the model's own greedy text, where it repeats itself, becomes less
    likely, beside text of the corpus that must stay as likely as it was. Only the first bytes of words are made less
    likely, where something else could be said: else spelling and indentation fall apart."""
    first = load_state(arguments.out / "target")
    if first is None:
        sys.exit(f"{arguments.out}: no target; train that stage before")
    torch.manual_seed(arguments.seed)
    trainer = Trainer("unloop", Target(configs(arguments.toy)[0]), arguments)
    model, settings = trainer.model, trainer.settings
    model.load_state_dict(first["model"])
    trainer.optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)]
    trainer.rates = [1e-4]
    trainer.schedule = lambda step: min(1.0, (step + 1) / 20) * (1 - step / trainer.steps)
    windows = Windows(read_tokens(arguments.corpus, "train"), trainer.device, arguments.seed + 1)
    heldout = Windows(read_tokens(arguments.corpus, "heldout"), trainer.device, arguments.seed)
    if trainer.resume():
        return
    windows.drawn = trainer.step * settings["batch"] * settings["length"]
    generator = torch.Generator(trainer.device)
    ngram = settings["ngram"]

    def losses_of(batch: Tensor, own: Tensor, unlikely: Tensor) -> tuple[Tensor, Tensor]:
        likelihood = next_byte_loss(model, batch)
        with mixed_precision():
            logits = model(own[:, :-1])
        p = logits.float().softmax(-1).gather(-1, own[:, 1:, None])[..., 0]
        return likelihood, -(torch.log1p(-p.clamp(max=1 - 1e-4)) * unlikely[:, 1:]).mean()

    compiled_losses = compiled(losses_of)
    own = unlikely = torch.empty(0)
    start = 0
    each = settings["prompts"] // settings["every"]
    for step in trainer.run():
        turn = step % settings["every"]
        if turn == 0:
            generator.manual_seed(arguments.seed + step)
            start = settings["starts"][step // settings["every"] % len(settings["starts"])]
            prompts = mixed_prompts(windows.tokens, settings["prompts"], start, generator)
            own = generate(for_generation(model), prompts, settings["own"] - start, 0.0, generator)
            loops = repeated(own, ngram)
            loops[:, : start + ngram] = False
            unlikely = loops & word_starts(own)
        part = slice(turn * each, (turn + 1) * each)
        likelihood, unlikelihood = compiled_losses(
            windows.batch(settings["batch"], settings["length"]), own[part], unlikely[part]
        )
        (likelihood + settings["weight"] * unlikelihood).backward()
        trainer.descend()
        if (step + 1) % max(1, trainer.steps // 20) == 0:
            trainer.record(
                train_bits=likelihood.item() / math.log(2),
                heldout_bits=heldout_bits(model, heldout, settings),
                repeated_12=repeated(own[:, start:], 12).float().mean().item(),
            )
    trainer.publish_as("target")


def own_text(model: Target, arguments: argparse.Namespace, settings: dict[str, Any], tokens: Tensor, seed: int):
    """The target's continuations: [pool, length] int16, each row's prompt length and whether it is greedy."""
    generator = torch.Generator(tokens.device).manual_seed(seed)
    fast, length = for_generation(model), settings["length"]
    texts, starts, greedy = [], [], []
    for chunk in range(math.ceil(settings["pool"] / settings["chunk"])):
        start = length * (1 + chunk % 5) // 10  # prompts of a tenth to a half
        temperature = settings["temperature"] if chunk % 2 else 0.0
        prompts = mixed_prompts(tokens, settings["chunk"], start, generator)
        texts.append(generate(fast, prompts, length - start, temperature, generator).to(torch.int16))
        starts += [start] * settings["chunk"]
        greedy += [temperature == 0] * settings["chunk"]
    return torch.cat(texts), torch.tensor(starts, device=tokens.device), torch.tensor(greedy, device=tokens.device)


def train_drafter(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    target_config, config = configs(arguments.toy)
    state = load_state(arguments.out / "unloop") or load_state(arguments.out / "target")
    if state is None:
        sys.exit(f"{arguments.out}: no target; train that stage before")
    target = Target(target_config)
    # As it is published: the drafter must know the rounded weights.
    target.load_state_dict({name: tensor.bfloat16().float() for name, tensor in state["model"].items()})
    target.to(device()).requires_grad_(False)
    trainer = Trainer("drafter", Drafter(config), arguments)
    model, settings = trainer.model, trainer.settings
    trainer.optimize_with_muon(0.01, 2e-3, flat=0.4)
    if trainer.resume():
        return
    corpus = torch.from_numpy(read_tokens(arguments.corpus, "train")).to(trainer.device)
    texts, starts, greedy = own_text(target, arguments, settings, corpus, arguments.seed + trainer.step)
    new = int((settings["length"] - starts).sum())
    print(f"drafter: {len(texts)} continuations, {new / 1e6:.1f} M bytes of the target's own, "
          f"{trainer.elapsed() - trainer.seconds:.0f} s", flush=True)  # fmt: skip

    block, least, count = model.block, config["dflash_config"]["min_block_size"], settings["anchors"]
    weight = torch.exp(-torch.arange(block - 1, device=trainer.device) / 7.0)  # the paper's, for blocks of 16
    embedding, head = target.model.embed_tokens.weight, target.lm_head.weight

    n_greedy = settings["greedy"]

    def loss_of(tokens: Tensor, anchors: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with mixed_precision():
            with torch.no_grad():
                logits, outputs, _ = target.run(tokens)
            drafted = model(model.features(outputs), tokens, anchors, embedding, head, lengths)
        places = anchors[..., None] + torch.arange(1, block, device=anchors.device)  # [B, A, block - 1]
        right = tokens.gather(1, places.flatten(1)).view_as(places)
        # What the target may say there: its choice where it was greedy, its whole distribution where it sampled.
        before = (places[n_greedy:] - 1).flatten(1)[..., None].expand(-1, -1, logits.shape[-1])
        soft = (logits[n_greedy:].float().gather(1, before) / settings["temperature"]).softmax(-1)
        wanted = torch.cat([F.one_hot(right[:n_greedy], soft.shape[-1]).float(), soft.view(*right[n_greedy:].shape, -1)])
        logp = drafted.float().log_softmax(-1)
        surprise = -(wanted * logp).sum(-1)
        # A position counts as far as the drafter itself believes in what stands before it: behind a wrong one nothing is
        # of use. A little of the paper's weights lets all positions learn from the start.
        believed = logp.detach().gather(-1, right[..., None])[..., 0].cumsum(-1).exp()
        reached = F.pad(believed[..., :-1], (1, 0), value=1.0)
        kept = (reached + 0.1 * weight) * (places < (anchors + lengths)[..., None])
        hits = (drafted.argmax(-1) == right).long().cumprod(-1).sum(-1).float()
        whole = (lengths == block).float()
        accepted = [
            (hits[part] * whole[part]).sum() / whole[part].sum().clamp(min=1)
            for part in (slice(n_greedy), slice(n_greedy, None))
        ]
        return (surprise * kept).sum() / kept.sum(), *accepted

    compiled_loss = compiled(loss_of)
    generator = torch.Generator(trainer.device).manual_seed(arguments.seed + trainer.step)
    pools = [(greedy.nonzero()[:, 0], n_greedy), ((~greedy).nonzero()[:, 0], settings["batch"] - n_greedy)]
    totals = torch.zeros(3, device=trainer.device)
    counted = 0
    for step in trainer.run():
        rows = torch.cat(
            [pool[torch.randint(len(pool), (n,), generator=generator, device=trainer.device)] for pool, n in pools]
        )
        tokens = texts[rows].long()
        span = settings["length"] - block - starts[rows] + 1  # anchors from the prompt's last byte on
        random = torch.rand(len(rows), count, generator=generator, device=trainer.device)
        anchors = starts[rows][:, None] - 1 + (random * span[:, None]).long()
        lengths = torch.randint(least, block + 1, anchors.shape, generator=generator, device=trainer.device)
        random = torch.rand(anchors.shape, generator=generator, device=trainer.device)
        lengths[random >= settings["cut"]] = block
        loss, *accepted = compiled_loss(tokens, anchors, lengths)
        loss.backward()
        trainer.descend()
        totals += torch.stack([loss.detach(), *(a.detach() for a in accepted)])
        counted += 1
        if (step + 1) % max(1, trainer.steps // 40) == 0:
            mean = (totals / counted).tolist()
            trainer.record(loss=mean[0], accepted_greedy=1 + mean[1], accepted_sampled=1 + mean[2])
            totals.zero_()
            counted = 0
    trainer.publish_as("drafter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = {"target": train_target, "unloop": train_unloop, "drafter": train_drafter}
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--corpus", type=Path, required=True, help="the folder that corpus.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of this leg")
    parser.add_argument("--steps", type=int, help="of the whole stage, over all legs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--toy", action="store_true", help="a few steps at toy size, for a CPU")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    stages[arguments.stage](arguments)


if __name__ == "__main__":
    main()
