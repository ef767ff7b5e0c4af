"""Writes the byte-level tokenizer of the small model:

    python tools/train/tokenizer.py models/tiny/target

A byte is its own id; 256 ends a text, 257 masks, the rest is free.
"""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|mask|>"]


def byte_characters() -> list[str]:
    """The character that stands for each byte in GPT-2's alphabet: itself where it is printable."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]


def main() -> None:
    folder = Path(sys.argv[1])
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    special = SPECIAL + [f"<|free_{i}|>" for i in range(256 + len(SPECIAL), size)]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(byte_characters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    # No beginning-of-text token: a text may start anywhere in a file, as the training windows do.
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": json.loads((folder / "config.json").read_text())["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 256, "eos_token_id": 256}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
