"""The model that ships, models/tiny: both runtimes and SGLang read it, and its tokenizer is bytes."""

import json
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import reference
import sglang_probe
import torch
from conftest import ROOT, ModelLogits, expect_weights_in_sglang
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

TOLERANCE = 2e-5
TINY = ROOT / "models/tiny"


@pytest.mark.parametrize("name", ["target", "drafter"])
def test_config_is_what_was_trained(name: str) -> None:
    trained = json.loads((ROOT / f"tools/train/{name}.json").read_text())
    assert json.loads((TINY / name / "config.json").read_text()) == trained


def test_size() -> None:
    assert sum((TINY / name / "model.safetensors").stat().st_size for name in ("target", "drafter")) <= 14 << 20


def test_logits(model_logits: ModelLogits) -> None:
    prompt = torch.tensor(list((ROOT / "tests/prompts/000.txt").read_bytes()))
    model = reference.load_target(TINY / "target")
    output = model_logits(TINY / "target", prompt, TINY / "drafter")
    for name, expected in (
        ("logits", reference.target_logits(model, prompt)),
        ("draft_logits", reference.draft_logits(TINY / "drafter", model, prompt)),
    ):
        assert output[name].shape == expected.shape
        error = reference.relative_error(output[name], expected)
        print(f"{name}: error {error:.1e}")
        assert error <= TOLERANCE


def parameters_in_sglang(folder: Path) -> dict[str, np.ndarray]:
    """SGLang's drafter, its weights loaded. For a process of its own: SGLang is changed so that it runs on a CPU."""
    sglang_probe._allow_cpu()
    from sglang.srt.models.dflash import DFlashDraftModel
    from sglang.srt.runtime_context import get_context, get_parallel

    with get_context().override_server_args(device="cpu"), get_parallel().override(tp_rank=0):
        model = DFlashDraftModel(AutoConfig.from_pretrained(folder))
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, torch.nan)
        model.load_weights(load_file(folder / "model.safetensors").items())
    return {name: parameter.detach().float().numpy() for name, parameter in model.named_parameters()}


def test_sglang_takes_every_weight_of_the_drafter() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        parameters = pool.submit(parameters_in_sglang, TINY / "drafter").result(timeout=200)
    expect_weights_in_sglang({name: torch.from_numpy(array) for name, array in parameters.items()}, TINY / "drafter")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TINY / "target")


def random_text(seed: int) -> str:
    """From all planes of Unicode, the surrogates left out."""
    generator = random.Random(seed)
    limits = [generator.choice([0x80, 0x800, 0xD800, 0x110000]) for _ in range(200)]
    codes = [generator.randrange(limit) for limit in limits]
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)


TEXTS = [
    "",
    " ",
    "def f(x):\n\treturn  x  # twice \r\n\n",
    "  leading, trailing  ",
    " , . ! ? n't 's 're",  # what clean_up_tokenization_spaces would change
    "".join(map(chr, range(256))),
    "naïve café – “quotes” … ½ €",
    "e\u0301 \ufb01 \u2126 \u212b \uff21",  # normalisation would change these
    "日本語 한국어 עברית العربية हिन्दी",
    "👩‍👩‍👧‍👦🏳️‍🌈\U0010ffff\ufeff\u200b\u2028",
    "▁Ġ Ċ <s></s><unk>[CLS]",
    *(random_text(seed) for seed in range(20)),
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_tokens_are_bytes(text: str, tokenizer: PreTrainedTokenizerBase) -> None:
    ids = list(text.encode())
    assert tokenizer.encode(text) == ids
    assert tokenizer(text).input_ids == ids
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_special_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    config = json.loads((TINY / "target/config.json").read_text())
    drafter = json.loads((TINY / "drafter/config.json").read_text())
    assert len(tokenizer) == config["vocab_size"]
    assert tokenizer.eos_token_id == config["eos_token_id"] == tokenizer.encode("<|endoftext|>")[0] == 256
    assert tokenizer.encode("a<|mask|>b") == [ord("a"), drafter["dflash_config"]["mask_token_id"], ord("b")]
    assert tokenizer.decode([ord("a"), 256, 257, ord("b")], skip_special_tokens=True) == "ab"
    assert tokenizer.model_max_length == config["max_position_embeddings"]
