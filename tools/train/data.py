"""Windows of the corpus that corpus.py makes, as tokens: a byte is its own id, 256 stands between two files."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

END = 256  # <|endoftext|>


def read_tokens(folder: Path, part: str) -> np.ndarray:
    """All files of `part` ("train" or "heldout"), each behind an END: int16."""
    text = np.fromfile(folder / f"{part}.bin", dtype=np.uint8)
    offsets = np.load(folder / f"{part}.offsets.npy")
    return np.insert(text.astype(np.int16), offsets[:-1], END)


class Windows:
    """Training windows without repetition: a pass cuts the text at another offset, and shuffles the pieces."""

    def __init__(self, tokens: np.ndarray, device: torch.device, seed: int) -> None:
        self.tokens = torch.from_numpy(tokens).to(device)
        self.seed = seed
        self.drawn = 0  # tokens, over all passes: the whole state
        self.cut = (-1, 0)  # the pass and the length that `shift` and `order` are for

    def batch(self, count: int, length: int) -> Tensor:
        """[count, length + 1]: the inputs and, one further, what they should predict."""
        pieces = (len(self.tokens) - 2 * length) // length
        first = self.drawn // length
        chosen = []
        for number in range(first, first + count):
            index, place = divmod(number, pieces)
            if (index, length) != self.cut:
                generator = torch.Generator().manual_seed(self.seed + 1000 * index + length)
                self.shift = int(torch.randint(length, (1,), generator=generator))
                self.order = torch.randperm(pieces, generator=generator)
                self.cut = (index, length)
            chosen.append(int(self.order[place]) * length + self.shift)
        self.drawn += count * length
        starts = torch.tensor(chosen, device=self.tokens.device)
        return self.tokens[starts[:, None] + torch.arange(length + 1, device=starts.device)].long()


def random_pieces(tokens: Tensor, starts: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """[count, length] pieces of the text that begin at random ones of `starts`."""
    chosen = torch.randint(len(starts), (count,), generator=generator, device=starts.device)
    return tokens[starts[chosen][:, None] + torch.arange(length, device=starts.device)].long()


def random_prompts(tokens: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """[count, length] pieces of the text, each from the beginning of a line."""
    lines = (tokens[: -length - 1] == ord("\n")).nonzero()[:, 0] + 1
    return random_pieces(tokens, lines, count, length, generator)


def file_beginnings(tokens: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """[count, length] beginnings of files that are longer."""
    starts = (tokens == END).nonzero()[:, 0] + 1
    starts = starts[starts.diff(append=starts.new_tensor([len(tokens) + 1])) > length + 1]
    return random_pieces(tokens, starts, count, length, generator)


def mixed_prompts(tokens: Tensor, count: int, length: int, generator: torch.Generator) -> Tensor:
    """[count, length]: every other one the beginning of a file, which is what people prompt with."""
    prompts = random_prompts(tokens, count, length, generator)
    prompts[::2] = file_beginnings(tokens, len(prompts[::2]), length, generator)
    return prompts
