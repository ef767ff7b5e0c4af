"""The logits of random checkpoints, beside those that `transformers` computes in float32 from the same folder.

The weights are stored in each config's type; both sides convert them to float32, so that only rounding differs.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import reference
from conftest import ModelLogits

TOLERANCE = 2e-5

MOE = {"first_k_dense_replace": 1, "num_hidden_layers": 3}
GROUPS = {**MOE, "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}


def yarn(**keys: Any) -> dict[str, Any]:
    """A rope_scaling whose original length the tests' sequences exceed; a key set to None is left out."""
    scaling = {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 32,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    scaling.update(keys)
    return {"rope_scaling": {key: value for key, value in scaling.items() if value is not None}}


# By name: the changes to reference.target_config, and the number of files.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "dense": ({"torch_dtype": "float32"}, 1),
    "dense, tied": ({"tie_word_embeddings": True}, 1),
    "dense, float16, 2 files": ({"torch_dtype": "float16", "q_lora_rank": 40}, 2),
    "dense, one layer": ({"num_hidden_layers": 1, "first_k_dense_replace": 1, "torch_dtype": "float32"}, 1),
    "q_lora, tied, rms_norm_eps 1e-5": (
        {"q_lora_rank": 24, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": True},
        1,
    ),
    "moe": (MOE, 1),
    "moe, weights not normalised": ({**MOE, "norm_topk_prob": False, "torch_dtype": "float32"}, 1),
    "moe, one expert a token, no dense layer": ({**MOE, "first_k_dense_replace": 0, "num_experts_per_tok": 1}, 1),
    "moe, all experts": ({**MOE, "num_experts_per_tok": 8, "n_shared_experts": 3}, 1),
    "moe, groups": ({**GROUPS, "q_lora_rank": 32, "routed_scaling_factor": 2.5, "torch_dtype": "float32"}, 1),
    "moe, groups, 4 files": ({**GROUPS, "topk_group": 3, "n_shared_experts": 2, "torch_dtype": "float16"}, 4),
    "yarn as DeepSeek V3": ({**GROUPS, **yarn(), "q_lora_rank": 32, "routed_scaling_factor": 2.5}, 3),
    "yarn as Kimi K2": (
        {**MOE, **yarn(factor=32.0, beta_fast=1.0, beta_slow=1.0), "rope_theta": 50000.0, "q_lora_rank": 32},
        1,
    ),
    "yarn, mscale 0.707, not the same": ({**yarn(mscale=0.707, mscale_all_dim=0.5), "torch_dtype": "float32"}, 1),
    "yarn without mscale": (yarn(mscale=None, mscale_all_dim=None), 1),
    "yarn, mscale_all_dim alone": ({**yarn(mscale=None), "torch_dtype": "float16"}, 1),
    "yarn, attention_factor": ({**yarn(attention_factor=1.3, factor=4.0), "torch_dtype": "float32"}, 1),
    "yarn, truncate false": (
        {**yarn(truncate=False, factor=4.0, beta_fast=4, beta_slow=0.5), "torch_dtype": "float32"},
        1,
    ),
    "yarn, truncate false, equal betas": ({**yarn(truncate=False, beta_fast=1, beta_slow=1), "q_lora_rank": 16}, 1),
    "yarn, rope_type": ({**yarn(type=None, rope_type="yarn", beta_fast=4, factor=2.5), "q_lora_rank": 16}, 2),
}


def random_sizes(generator: random.Random) -> dict[str, int]:
    return {
        "vocab_size": generator.randrange(50, 200),
        "hidden_size": generator.randrange(32, 80, 4),
        "intermediate_size": generator.randrange(24, 100),
        "moe_intermediate_size": generator.randrange(8, 40),
        "num_attention_heads": generator.randrange(1, 7),
        "kv_lora_rank": generator.choice([16, 32, 48, 64]),
        "qk_rope_head_dim": generator.choice([16, 32]),
        "qk_nope_head_dim": generator.randrange(8, 40),
        "v_head_dim": generator.randrange(8, 40),
    }


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, model_logits: ModelLogits, tmp_path: Path) -> None:
    changes, shards = CASES[name]
    generator = random.Random(name)
    config = reference.target_config(**{**random_sizes(generator), **changes})
    folder, length = tmp_path / "target", generator.randrange(33, 80)
    model, tokens = reference.make_target(folder, config, generator.randrange(1000, 10**6), length, shards)
    expected = reference.target_logits(model, tokens)

    logits = model_logits(folder, tokens)["logits"]

    assert logits.shape == expected.shape
    error = reference.relative_error(logits, expected)
    exact = reference.relative_error(expected, reference.target_logits(model.double(), tokens))
    print(f"{name}: error {error:.1e}; transformers' own, against its float64, {exact:.1e}")
    assert error <= TOLERANCE


def test_one_token(model_logits: ModelLogits, tmp_path: Path) -> None:
    model, tokens = reference.make_target(tmp_path / "target", reference.target_config(), 7, 1)
    logits = model_logits(tmp_path / "target", tokens)["logits"]
    assert reference.relative_error(logits, reference.target_logits(model, tokens)) <= TOLERANCE
