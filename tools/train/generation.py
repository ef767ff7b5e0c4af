"""Batched continuations of prompts, and what repeats in them."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Target


def for_generation(model: Target) -> Target:
    """A copy that is fast to run: on a GPU in bf16, but for the head."""
    if next(model.parameters()).device.type != "cuda":
        return model
    fast = copy.deepcopy(model).requires_grad_(False)
    fast.model.bfloat16()
    return fast


@torch.no_grad()
def generate(model: Target, prompts: Tensor, count: int, temperature: float, generator: torch.Generator) -> Tensor:
    """[B, P] prompts to [B, P + count] tokens; temperature 0 is greedy. Goes on behind an end of text."""
    batch, start = prompts.shape
    tokens = torch.empty(batch, start + count, dtype=torch.long, device=prompts.device)
    tokens[:, :start] = prompts
    caches: list[Tensor] = []
    part = 512  # rows of the prompts' pass, whose activations are the largest
    logits = torch.empty(batch, model.config["vocab_size"], device=prompts.device)
    for first in range(0, batch, part):
        some, _, rows = model.run(prompts[first : first + part])
        logits[first : first + part] = some[:, -1].float()
        if not caches:
            caches = [row.new_empty(batch, start + count, row.shape[-1]) for row in rows]
        for cache, row in zip(caches, rows, strict=True):
            cache[first : first + part, :start] = row
    for position in range(start, start + count):
        if temperature == 0:
            token = logits.argmax(-1)
        else:
            noise = torch.empty_like(logits).exponential_(generator=generator)
            token = ((logits / temperature).softmax(-1) / noise).argmax(-1)
        tokens[:, position] = token
        if position + 1 < start + count:
            logits = model.step(token, caches, position).float()
    return tokens


def repeated(tokens: Tensor, n: int) -> Tensor:
    """[B, S] bool: the n tokens that end here stood earlier in the row."""
    batch, length = tokens.shape
    if length < n:
        return torch.zeros_like(tokens, dtype=torch.bool)
    # A polynomial modulo 2^64; two n-grams of one row share a value with a chance of about 1e-14.
    key = torch.zeros(batch, length - n + 1, dtype=torch.long, device=tokens.device)
    for i in range(n):
        key = key * 6364136223846793005 + (tokens[:, i : length - n + 1 + i] + 1) * 1442695040888963407
        key = key ^ (key >> 29)
    order = key.argsort(dim=1, stable=True)
    ranked = key.gather(1, order)
    again = torch.cat([torch.zeros_like(ranked[:, :1], dtype=torch.bool), ranked[:, 1:] == ranked[:, :-1]], dim=1)
    result = torch.zeros(batch, length, dtype=torch.bool, device=tokens.device)
    result[:, n - 1 :] = torch.zeros_like(again).scatter(1, order, again)
    return result


def word_starts(tokens: Tensor) -> Tensor:
    """[B, S] bool: a letter or digit that follows something else."""
    word = torch.tensor([bytes([i]).isalnum() for i in range(256)] + [False], device=tokens.device)[tokens.clamp(max=256)]
    return word & ~F.pad(word[:, :-1], (1, 0))
