#!/usr/bin/env python3
"""Writes tests/model/golden/: small random checkpoints and the logits that `transformers` computes from them.

    build/serving-venv/bin/python tests/model/make_golden.py [FOLDER]

Each golden folder is a checkpoint (config.json and weights) with expected.safetensors beside it: i32 `tokens` [T], f32
`logits` [T, vocab], and in `dflash`, a drafter for the target `q_lora`, f32 `draft_logits` [block-1, vocab]. Where there
is a variants.json, the same weights were also run with other configurations: it gives, by name, keys of config.json and
their values, and the results are `logits_NAME` or `draft_logits_NAME`. The same bytes come out of every run on one
machine.
"""

import copy
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import DeepseekV3ForCausalLM

import reference

LENGTH = 40
# The float32 logits against float64, and what a mistake must change at least, both relative to the largest logit.
TOLERANCE = 2e-6
NOTICEABLE = 1e-3


@dataclass(frozen=True)
class Golden:
    """One golden target: its config's changes, config changes that stand for mistakes its logits must expose, and by
    name changes to run the same weights with."""

    seed: int
    changes: dict[str, Any]
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)
    shards: int = 1
    latent_gain: float = 1.0


YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 2.0,
    "beta_slow": 0.25,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
# Kimi K2's betas are equal, which leaves a ramp of one step.
KIMI_YARN = {**YARN, "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale_all_dim": 1.0}

TARGETS = {
    "dense": Golden(1, {"torch_dtype": "float32", "tie_word_embeddings": True}, [{"rope_theta": 1000.0}]),
    "q_lora": Golden(2, {"q_lora_rank": 32, "num_hidden_layers": 4, "first_k_dense_replace": 4}),
    "moe": Golden(
        3,
        {
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "num_nextn_predict_layers": 1,
        },
        [{"n_group": 1, "topk_group": 1}, {"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}],
    ),
    "yarn": Golden(
        4,
        {
            "torch_dtype": "float16",
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
            "rope_scaling": YARN,
        },
        [
            {"norm_topk_prob": True},
            {"rope_scaling": None},
            {"rope_scaling": {**YARN, "mscale_all_dim": 1.0}},
            {"rope_scaling": {**YARN, "attention_factor": 1.0}},
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 128}},
        ],
        {"untruncated": {"rope_scaling": {**YARN, "truncate": False}}},
        shards=3,
    ),
    "kimi": Golden(
        5,
        {
            "q_lora_rank": 24,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 2.827,
            "rms_norm_eps": 1e-5,
            "rope_theta": 50000.0,
            "rope_scaling": KIMI_YARN,
        },
        [{"rope_scaling": {**KIMI_YARN, "beta_fast": 32.0}}],
        latent_gain=0.02,
    ),
}

DRAFT_YARN = {key: value for key, value in YARN.items() if "mscale" not in key}
DRAFT_VARIANTS = {
    "yarn": {"rope_scaling": DRAFT_YARN},
    "yarn_mscale": {"rope_scaling": YARN},
    "yarn_attention_factor": {"rope_scaling": {**DRAFT_YARN, "attention_factor": 1.5}},
    "yarn_untruncated": {"rope_scaling": {**DRAFT_YARN, "truncate": False}},
}


def check_precision(
    name: str, compute: Callable[[DeepseekV3ForCausalLM], torch.Tensor], model: DeepseekV3ForCausalLM
) -> torch.Tensor:
    """The float32 result of `compute`, which must agree with its float64 result."""
    result = compute(model)
    error = reference.relative_error(result, compute(copy.deepcopy(model).double()))
    print(f"{name:28} {tuple(result.shape)} std {float(result.std()):.2f}, float32 against float64 {error:.1e}")
    assert error < TOLERANCE, "the float32 reference is imprecise"
    assert 1 < float(result.std()) < 3, "logits of an unusual scale"
    return result


def check_mistakes(
    name: str, golden: Golden, model: DeepseekV3ForCausalLM, folder: Path, tokens: torch.Tensor, logits: torch.Tensor
) -> None:
    """Every mistake that this golden is there for must change its logits."""
    wrong = {str(mistake): reference.load_target(folder, **copy.deepcopy(mistake)) for mistake in golden.mistakes}
    if name == "moe":
        wrong["no bias of the router"] = copy.deepcopy(model)
        for layer in wrong["no bias of the router"].model.layers[golden.changes["first_k_dense_replace"] :]:
            layer.mlp.gate.e_score_correction_bias.zero_()
    if name == "kimi":
        # transformers leaves the norms of the latents at 1e-6, whatever rms_norm_eps is.
        wrong["rms_norm_eps in the inner norms"] = copy.deepcopy(model)
        for layer in wrong["rms_norm_eps in the inner norms"].model.layers:
            for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
                assert norm.variance_epsilon == 1e-6
                norm.variance_epsilon = model.config.rms_norm_eps
    for mistake, other in wrong.items():
        difference = reference.relative_error(reference.target_logits(other, tokens), logits)
        assert difference > NOTICEABLE, f"{mistake}: changes the logits by {difference:.1e} only"


def check_variants(results: dict[str, torch.Tensor]) -> None:
    """Each must be noticeable beside each other."""
    for (name, logits), (other, others) in itertools.combinations(results.items(), 2):
        difference = reference.relative_error(others, logits)
        assert difference > NOTICEABLE, f"{name} and {other}: logits differ by {difference:.1e} only"


def write_variants(folder: Path, variants: dict[str, dict[str, Any]]) -> None:
    if variants:
        (folder / "variants.json").write_text(json.dumps(variants, indent=2) + "\n")


def add_unused_mtp_layer(folder: Path, config: reference.Config) -> None:
    """Published DeepSeek checkpoints hold the layer of multi-token prediction behind the last one; nothing reads it."""
    weights = reference.read_weights(folder)
    prefix = f"model.layers.{config['num_hidden_layers']}"
    extra = {f"{prefix}.{norm}.weight": torch.ones(config["hidden_size"]) for norm in ("enorm", "hnorm")}
    reference.write_checkpoint(folder, config, {**weights, **extra})
    reference.load_target(folder, ignored=frozenset(extra))


def wrap_as_kimi(folder: Path, config: reference.Config) -> None:
    """Turns a DeepseekV3 checkpoint into the published form of Kimi K2.5: a text model inside a multimodal one."""
    wrapper = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": config["torch_dtype"],
        "text_config": {**config, "model_type": "kimi_k2"},
        "vision_config": {"hidden_size": 8, "vt_num_hidden_layers": 0},
        "tie_word_embeddings": False,
    }
    weights = {f"language_model.{name}": tensor for name, tensor in reference.read_weights(folder).items()}
    weights["vision_tower.encoder.final_layernorm.weight"] = torch.ones(8)
    weights["mm_projector.pre_norm.weight"] = torch.ones(8)
    reference.write_checkpoint(folder, wrapper, weights)


def variant_logits(name: str, golden: Golden, folder: Path, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    results = {}
    for variant, changes in golden.variants.items():
        model = reference.load_target(folder, **copy.deepcopy(changes))
        results[f"logits_{variant}"] = check_precision(
            f"{name} {variant}", lambda m: reference.target_logits(m, tokens), model
        )
    return results


def make_target(name: str, golden: Golden, root: Path) -> tuple[DeepseekV3ForCausalLM, torch.Tensor, torch.Tensor]:
    folder, config = root / name, reference.target_config(**golden.changes)
    model, tokens = reference.make_target(folder, config, golden.seed, LENGTH, golden.shards, golden.latent_gain)
    logits = check_precision(name, lambda m: reference.target_logits(m, tokens), model)
    assert reference.attention_entropy(model, tokens) < 0.8, "attention is nearly uniform"
    check_mistakes(name, golden, model, folder, tokens, logits)
    results = {"logits": logits, **variant_logits(name, golden, folder, tokens)}
    check_variants(results)
    if name == "moe":
        add_unused_mtp_layer(folder, config)
    if name == "kimi":
        wrap_as_kimi(folder, config)
    write_variants(folder, golden.variants)
    save_file({"tokens": tokens, **results}, folder / "expected.safetensors")
    return model, tokens, logits


def make_dflash(model: DeepseekV3ForCausalLM, tokens: torch.Tensor, logits: torch.Tensor, root: Path) -> None:
    folder = root / "dflash"
    config = reference.draft_config(reference.target_config(**TARGETS["q_lora"].changes))
    reference.write_checkpoint(folder, config, reference.draft_weights(config, seed=6))
    results = {}
    for variant, changes in {"": {}, **DRAFT_VARIANTS}.items():
        name = f"draft_logits_{variant}" if variant else "draft_logits"
        results[name] = check_precision(
            f"dflash {variant}", lambda m, changes=changes: reference.draft_logits(folder, m, tokens, **changes), model
        )
    check_variants(results)
    write_variants(folder, DRAFT_VARIANTS)
    save_file({"tokens": tokens, "logits": logits, **results}, folder / "expected.safetensors")


def main() -> None:
    # The order of a sum may depend on the number of threads.
    torch.set_num_threads(1)
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "golden"
    made = {name: make_target(name, golden, root) for name, golden in TARGETS.items()}
    make_dflash(*made["q_lora"], root)
    sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in sorted(root.iterdir())}
    print(f"{sum(sizes.values())} bytes: {sizes}")


if __name__ == "__main__":
    main()
