"""The DFlash drafter beside SGLang's own, run by a real engine on the CPU, and beside the torch reference.

The reference is checked against the engine, so that the many cases compared with it alone are worth something.
"""

import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import sglang_probe
import torch
from conftest import ModelLogits, expect_weights_in_sglang
from safetensors.torch import load_file
from transformers import AutoConfig

TOLERANCE = 2e-5
TARGET = {"q_lora_rank": 32, "num_hidden_layers": 4, "first_k_dense_replace": 2, "num_experts_per_tok": 3}
# Three draft steps at least: the first token is the prefill's.
GENERATED = 4


def yarn(**keys: Any) -> dict[str, Any]:
    """A rope_scaling whose original length the tests' sequences exceed."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2, "beta_slow": 0.25}
    return {"rope_scaling": {**scaling, **keys}}


# By name: YaRN's settings as `transformers` and SGLang both read them.
YARN: dict[str, dict[str, Any]] = {
    "yarn": yarn(),
    "yarn, rope_type, betas by default": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    },
    "yarn, truncate false": yarn(truncate=False),
    "yarn, truncate false, equal betas": yarn(truncate=False, beta_fast=1.0, beta_slow=1.0),
    "yarn, mscale": {**yarn(mscale=1.0, mscale_all_dim=0.4, factor=32.0), "rope_theta": 50000.0},
    "yarn, mscale_all_dim alone": yarn(mscale_all_dim=1.0),
}
# What a real engine serves.
SERVED = {"plain": {}, "yarn": YARN["yarn, truncate false"]}


@dataclass(frozen=True)
class Served:
    """A prompt, what an engine generated behind it, and what its drafter proposed on the way."""

    target: Path
    draft: Path
    prompt: torch.Tensor
    generated: list[int]
    parameters: dict[str, torch.Tensor]
    steps: list[dict[str, torch.Tensor]]

    def tokens(self, step: dict[str, torch.Tensor]) -> torch.Tensor:
        """The committed tokens of a draft step, and its bonus token."""
        sequence = torch.cat([self.prompt, torch.tensor(self.generated, dtype=torch.int32)])
        return sequence[: int(step["committed"]) + 1]


@pytest.fixture(scope="module", params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    root = tmp_path_factory.mktemp("served")
    # Without experts: their kernel takes the interpreter a minute.
    config = reference.target_config(**{**TARGET, "first_k_dense_replace": TARGET["num_hidden_layers"]})
    _, prompt = reference.make_target(root / "target", config, seed=21, length=20)
    draft = reference.draft_config(config, **SERVED[request.param])
    reference.write_checkpoint(root / "draft", draft, reference.draft_weights(draft, seed=22))
    np.save(root / "prompt.npy", prompt.numpy())
    probe = [sys.executable, str(Path(__file__).with_name("sglang_probe.py"))]
    arguments = [str(root / name) for name in ("target", "draft", "prompt.npy", "out")] + [str(GENERATED)]
    with (root / "log").open("w") as log:
        result = subprocess.run(probe + arguments, stdout=log, stderr=subprocess.STDOUT, timeout=300)
    output = root / "out/output.json"
    if result.returncode != 0 or not output.exists():
        pytest.fail("SGLang did not answer:\n" + (root / "log").read_text()[-6000:])
    steps = sorted((root / "out").glob("step-*.safetensors"))
    return Served(
        root / "target",
        root / "draft",
        prompt,
        json.loads(output.read_text()),
        load_file(root / "out/draft.safetensors"),
        [load_file(step) for step in steps],
    )


def test_sglang_loads_every_weight(served: Served) -> None:
    """SGLang passes over names it does not know, and leaves what it misses uninitialised: so compare its parameters."""
    expect_weights_in_sglang(served.parameters, served.draft)


def test_sglang_agrees_with_the_reference(served: Served) -> None:
    model = reference.load_target(served.target)
    assert len(served.steps) >= 2
    sequence = torch.cat([served.prompt, torch.tensor(served.generated, dtype=torch.int32)])
    greedy = reference.target_logits(model, sequence).argmax(-1)[len(served.prompt) - 1 : -1]
    assert greedy.tolist() == served.generated
    for step in served.steps:
        expected = reference.draft_logits(served.draft, model, served.tokens(step))
        error = reference.relative_error(step["draft_logits"], expected)
        print(f"behind {int(step['committed'])} tokens: SGLang against the reference {error:.1e}")
        assert error <= TOLERANCE


def test_sglang_agrees_with_us(served: Served, model_logits: ModelLogits) -> None:
    for step in served.steps:
        ours = model_logits(served.target, served.tokens(step), served.draft)["draft_logits"]
        error = reference.relative_error(ours, step["draft_logits"])
        print(f"behind {int(step['committed'])} tokens: error {error:.1e}")
        assert error <= TOLERANCE


# By name: the changes to the drafter's config, those to its dflash_config, and the number of tokens.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "as served": ({}, {}, 50),
    "no context": ({}, {}, 1),
    "one token of context": ({"torch_dtype": "float32"}, {}, 2),
    "one kv head, wide heads": ({"num_key_value_heads": 1, "head_dim": 32, "torch_dtype": "float16"}, {}, 30),
    "a kv head each, three layers": ({"num_key_value_heads": 4, "num_hidden_layers": 3}, {}, 30),
    "rope_theta, eps": ({"rope_theta": 1e6, "rms_norm_eps": 1e-4, "torch_dtype": "float32"}, {}, 60),
    "block of 16, one feature": ({"intermediate_size": 40}, {"block_size": 16, "target_layer_ids": [1]}, 30),
    "block of 2, three features": ({}, {"block_size": 2, "target_layer_ids": [0, 1, 2]}, 30),
    "another mask token": ({}, {"mask_token_id": 5}, 30),
    **{name: ({**changes, "torch_dtype": "float32"}, {}, 50) for name, changes in YARN.items()},
    # SGLang does not read this one.
    "yarn, attention_factor": ({**yarn(attention_factor=1.4), "torch_dtype": "float32"}, {}, 50),
}


def rotations_in_sglang(folders: list[Path]) -> list[np.ndarray]:
    """[positions, head_dim]: cosines and sines of SGLang's drafters. For a process of its own: SGLang is changed."""
    sglang_probe._allow_cpu()
    from sglang.srt.models.dflash import DFlashDraftModel
    from sglang.srt.runtime_context import get_context, get_parallel

    with get_context().override_server_args(device="cpu"), get_parallel().override(tp_rank=0):
        models = [DFlashDraftModel(AutoConfig.from_pretrained(folder)) for folder in folders]
    return [model.layers[0].self_attn.rotary_emb.cos_sin_cache.numpy() for model in models]


def test_sglang_rotates_as_the_reference(tmp_path: Path) -> None:
    configs = [reference.draft_config(reference.target_config(**TARGET), **changes) for changes in YARN.values()]
    folders = [tmp_path / str(i) for i in range(len(configs))]
    for folder, config in zip(folders, configs, strict=True):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        tables = pool.submit(rotations_in_sglang, folders).result(timeout=200)
    positions = torch.arange(60)
    for name, config, table in zip(YARN, configs, tables, strict=True):
        expected = torch.cat(reference.draft_rotation(config, positions), dim=-1)
        error = reference.relative_error(torch.from_numpy(table)[: len(positions)], expected)
        print(f"{name}: error {error:.1e}")
        assert error <= 1e-5


def test_block_size_beside_dflash_config(model_logits: ModelLogits, tmp_path: Path) -> None:
    """Where published drafters have it, and the number of the target's layers."""
    config = reference.target_config(**TARGET)
    model, tokens = reference.make_target(tmp_path / "target", config, 31, 20)
    draft = reference.draft_config(config)
    for key in ("block_size", "num_target_layers"):
        draft[key] = draft["dflash_config"].pop(key)
    reference.write_checkpoint(tmp_path / "draft", draft, reference.draft_weights(draft, 32))
    logits = model_logits(tmp_path / "target", tokens, tmp_path / "draft")["draft_logits"]
    expected = reference.draft_logits(tmp_path / "draft", model, tokens)
    assert reference.relative_error(logits, expected) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_draft_logits(name: str, model_logits: ModelLogits, tmp_path: Path) -> None:
    changes, dflash, length = CASES[name]
    config = reference.target_config(**TARGET)
    seed = list(CASES).index(name)
    model, tokens = reference.make_target(tmp_path / "target", config, seed, length)
    draft = reference.draft_config(config, **changes)
    draft["dflash_config"].update(dflash)
    reference.write_checkpoint(tmp_path / "draft", draft, reference.draft_weights(draft, seed + 100))

    output = model_logits(tmp_path / "target", tokens, tmp_path / "draft")

    expected = reference.draft_logits(tmp_path / "draft", model, tokens)
    assert output["draft_logits"].shape == expected.shape
    error = reference.relative_error(output["draft_logits"], expected)
    print(f"{name}: error {error:.1e}")
    assert error <= TOLERANCE
    assert reference.relative_error(output["logits"], reference.target_logits(model, tokens)) <= TOLERANCE
