"""Small random checkpoints in the published formats, and what they compute: DeepseekV3 by `transformers`, the DFlash
drafter by the few lines of torch below. Both make_golden.py and the tests under tests/serving use this file.
"""

import copy
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.utils import logging

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

# load_target looks at the loading report itself.
logging.set_verbosity_error()
logging.disable_progress_bar()

# Two float32 implementations may choose different experts when scores are closer than their rounding errors.
ROUTING_MARGIN = 1e-4


def target_config(**changes: Any) -> Config:
    """A config.json of DeepseekV3ForCausalLM with the keys, in the spelling, of DeepSeek's own checkpoints."""
    config: Config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
        "first_k_dense_replace": 2,
        "moe_layer_freq": 1,
        "moe_intermediate_size": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    assert changes.keys() <= config.keys() | {"num_nextn_predict_layers"}, changes.keys() - config.keys()
    config.update(changes)
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config


def draft_config(target: Config, **changes: Any) -> Config:
    """A config.json of a DFlash drafter for `target`, as SGLang reads it."""
    config: Config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": target["vocab_size"],
        "hidden_size": target["hidden_size"],
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": target["max_position_embeddings"],
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dflash_config": {
            "block_size": 8,
            "target_layer_ids": [0, 2],
            "num_target_layers": target["num_hidden_layers"],
            "mask_token_id": target["vocab_size"] - 1,
        },
    }
    assert changes.keys() <= config.keys(), changes.keys() - config.keys()
    config.update(changes)
    return config


def dflash_keys(config: Config) -> Config:
    """The drafter's own keys: `dflash_config`, but published drafters have some of them beside it."""
    return {**config, **config["dflash_config"]}


class _Random:
    """Random weights whose scale makes each of them matter."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """[rows, columns]; unit inputs give outputs of standard deviation `gain`."""
        return torch.randn(rows, columns, generator=self.generator) * (gain / math.sqrt(columns))

    def norm(self, size: int) -> torch.Tensor:
        """[size], around 1."""
        return 1 + 0.2 * torch.randn(size, generator=self.generator)


def _mlp(random: _Random, prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{prefix}.gate_proj.weight", random.matrix(inner, hidden, 1.5)
    yield f"{prefix}.up_proj.weight", random.matrix(inner, hidden)
    yield f"{prefix}.down_proj.weight", random.matrix(hidden, inner)


def target_weights(config: Config, seed: int, latent_gain: float = 1.0) -> Tensors:
    """Float32 weights under their published names. A small `latent_gain` makes the latent norm's epsilon felt."""
    random = _Random(seed)
    hidden, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, v, q_rank = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
    )
    # Queries and keys of this gain give scores with a standard deviation of about 1.5.
    gain = 1.25
    weights: Tensors = {"model.embed_tokens.weight": random.matrix(config["vocab_size"], hidden, 2.0)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        if q_rank is None:
            weights[f"{attention}.q_proj.weight"] = random.matrix(heads * (nope + rope), hidden, gain)
        else:
            weights[f"{attention}.q_a_proj.weight"] = random.matrix(q_rank, hidden, latent_gain)
            weights[f"{attention}.q_a_layernorm.weight"] = random.norm(q_rank)
            weights[f"{attention}.q_b_proj.weight"] = random.matrix(heads * (nope + rope), q_rank, gain)
        kv_a = random.matrix(latent + rope, hidden, gain)
        kv_a[:latent] *= latent_gain
        weights[f"{attention}.kv_a_proj_with_mqa.weight"] = kv_a
        weights[f"{attention}.kv_a_layernorm.weight"] = random.norm(latent)
        weights[f"{attention}.kv_b_proj.weight"] = random.matrix(heads * (nope + v), latent, gain)
        weights[f"{attention}.o_proj.weight"] = random.matrix(hidden, heads * v)
        weights[f"{prefix}.input_layernorm.weight"] = random.norm(hidden)
        weights[f"{prefix}.post_attention_layernorm.weight"] = random.norm(hidden)
        if layer < config["first_k_dense_replace"]:
            weights.update(_mlp(random, f"{prefix}.mlp", hidden, config["intermediate_size"]))
            continue
        inner, experts = config["moe_intermediate_size"], config["n_routed_experts"]
        weights[f"{prefix}.mlp.gate.weight"] = random.matrix(experts, hidden)
        bias = 0.3 * torch.randn(experts, generator=random.generator)
        weights[f"{prefix}.mlp.gate.e_score_correction_bias"] = bias
        for expert in range(experts):
            weights.update(_mlp(random, f"{prefix}.mlp.experts.{expert}", hidden, inner))
        shared = inner * config["n_shared_experts"]
        weights.update(_mlp(random, f"{prefix}.mlp.shared_experts", hidden, shared))
    weights["model.norm.weight"] = random.norm(hidden)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random.matrix(config["vocab_size"], hidden, 2.0)
    return weights


def draft_weights(config: Config, seed: int) -> Tensors:
    """Float32 weights of a DFlash drafter: no embedding and no head, which are the target's."""
    random = _Random(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    features = len(dflash_keys(config)["target_layer_ids"])
    weights: Tensors = {
        "fc.weight": random.matrix(hidden, features * hidden),
        "hidden_norm.weight": random.norm(hidden),
        "norm.weight": random.norm(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"layers.{layer}"
        attention = f"{prefix}.self_attn"
        weights[f"{attention}.q_proj.weight"] = random.matrix(heads * head_dim, hidden)
        weights[f"{attention}.k_proj.weight"] = random.matrix(kv_heads * head_dim, hidden)
        weights[f"{attention}.v_proj.weight"] = random.matrix(kv_heads * head_dim, hidden, 1.5)
        weights[f"{attention}.o_proj.weight"] = random.matrix(hidden, heads * head_dim)
        # Queries and keys are normalised by head: their norms' weights set the scale of the scores.
        weights[f"{attention}.q_norm.weight"] = 1.5 * random.norm(head_dim)
        weights[f"{attention}.k_norm.weight"] = 1.5 * random.norm(head_dim)
        weights[f"{prefix}.input_layernorm.weight"] = random.norm(hidden)
        weights[f"{prefix}.post_attention_layernorm.weight"] = random.norm(hidden)
        weights.update(_mlp(random, f"{prefix}.mlp", hidden, config["intermediate_size"]))
    return weights


def write_checkpoint(folder: Path, config: Config, weights: Tensors, shards: int = 1) -> None:
    """Replaces `folder` by config.json and the weights, in one file or in `shards` files with their index.

    Weights take the config's torch_dtype, except the routers' biases, which are published in float32.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    dtype = DTYPES[config.get("text_config", config)["torch_dtype"]]
    stored = {
        name: tensor.to(torch.float32 if name.endswith("e_score_correction_bias") else dtype).contiguous()
        for name, tensor in weights.items()
    }
    if shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    # Dealt out like cards, so that one layer's weights lie in different files.
    files = [f"model-{shard + 1:05}-of-{shards:05}.safetensors" for shard in range(shards)]
    weight_map = {name: files[i % shards] for i, name in enumerate(sorted(stored))}
    for file in files:
        part = {name: stored[name] for name in weight_map if weight_map[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def read_weights(folder: Path) -> Tensors:
    """Every tensor of a checkpoint folder, in float32."""
    weights: Tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, "pt") as file:
            weights.update({name: file.get_tensor(name).float() for name in file.keys()})
    return weights


def load_target(folder: Path, ignored: frozenset[str] = frozenset(), **changes: Any) -> DeepseekV3ForCausalLM:
    """The checkpoint in float32 as `transformers` loads it. It must use every weight but those named in `ignored`.

    `changes` replace keys of config.json.
    """
    config = DeepseekV3Config.from_dict({**json.loads((folder / "config.json").read_text()), **changes})
    model, info = DeepseekV3ForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert set(info["unexpected_keys"]) <= ignored, info
    return model.eval()


@torch.no_grad()
def target_logits(model: DeepseekV3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """[T] tokens to [T, vocab] logits."""
    return model(input_ids=tokens[None].long(), use_cache=False).logits[0]


@torch.no_grad()
def target_features(model: DeepseekV3ForCausalLM, tokens: torch.Tensor, layers: list[int]) -> torch.Tensor:
    """[T] tokens to [T, len(layers) * hidden]: the residual stream behind each of `layers`, none of them the last."""
    assert max(layers) < model.config.num_hidden_layers - 1, "the last entry of hidden_states is normalised"
    outputs = model(input_ids=tokens[None].long(), use_cache=False, output_hidden_states=True)
    return torch.cat([outputs.hidden_states[layer + 1][0] for layer in layers], dim=-1)


@torch.no_grad()
def attention_entropy(model: DeepseekV3ForCausalLM, tokens: torch.Tensor) -> float:
    """Mean entropy of the attention rows over that of uniform rows: 1 is uniform, 0 looks at one token."""
    attentions = model(input_ids=tokens[None].long(), use_cache=False, output_attentions=True).attentions
    rows = torch.stack([layer[0] for layer in attentions])[:, :, 1:]
    uniform = torch.log(torch.arange(2, len(tokens) + 1).float())
    return float((torch.special.entr(rows).sum(-1) / uniform).mean())


@torch.no_grad()
def routing_margin(model: DeepseekV3ForCausalLM, tokens: torch.Tensor) -> float:
    """The smallest distance, over all tokens and layers, between a score that was chosen and one that was not."""
    margins = [math.inf]

    def measure(gate: Any, inputs: tuple[torch.Tensor, ...], _output: Any) -> None:
        scores = F.linear(inputs[0].view(-1, gate.hidden_dim).float(), gate.weight.float()).sigmoid()
        groups = (scores + gate.e_score_correction_bias.float()).view(len(scores), gate.num_group, -1)
        group_scores = groups.topk(2, dim=-1).values.sum(-1)
        if gate.topk_group < gate.num_group:
            margins.append(_gap(group_scores, gate.topk_group))
        kept = torch.zeros_like(group_scores).scatter(1, group_scores.topk(gate.topk_group).indices, 1.0).bool()
        margins.append(_gap(groups.masked_fill(~kept[..., None], -math.inf).flatten(1), gate.top_k))

    hooks = [
        module.register_forward_hook(measure)
        for module in model.modules()
        if type(module).__name__ == "DeepseekV3TopkRouter"
    ]
    target_logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return min(margins)


def _gap(scores: torch.Tensor, k: int) -> float:
    """Smallest distance between the k-th and the next of each row of [rows, n] scores."""
    ranked = scores.sort(dim=-1, descending=True).values
    return float((ranked[:, k - 1] - ranked[:, k]).min()) if k < ranked.shape[1] else math.inf


def random_tokens(count: int, below: int, seed: int) -> torch.Tensor:
    """[count] int32 tokens under `below`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(below, (count,), generator=generator, dtype=torch.int32)


def make_target(
    folder: Path, config: Config, seed: int, length: int, shards: int = 1, latent_gain: float = 1.0
) -> tuple[DeepseekV3ForCausalLM, torch.Tensor]:
    """Writes a random checkpoint; returns it loaded, with `length` tokens for which its routing is unambiguous.

    The mask token of the drafters, the vocabulary's last, is not among the tokens.
    """
    for attempt in range(20):
        write_checkpoint(folder, config, target_weights(config, seed + 1000 * attempt, latent_gain), shards)
        tokens = random_tokens(length, config["vocab_size"] - 1, seed + 1000 * attempt)
        model = load_target(folder)
        if routing_margin(model, tokens) >= ROUTING_MARGIN:
            return model, tokens
    raise RuntimeError(f"no seed from {seed} on gives an unambiguous routing")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension of [..., n]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


def draft_rotation(config: Config, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float64 cosine and sine [T, head_dim / 2] of the drafter's heads at [T] positions, with YaRN's amplitude.

    The frequencies are those of `transformers`' Qwen3, the layers of the published drafters.
    """
    # A configuration adds keys to the dictionaries that it is made from.
    rotary = Qwen3RotaryEmbedding(Qwen3Config.from_dict(copy.deepcopy(config)))
    angles = positions.double()[:, None] * rotary.inv_freq.double()
    return angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [T, heads, d]; dimension i is paired with i + d/2."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def dflash_logits(
    folder: Path, embedding: torch.Tensor, head: torch.Tensor, features: torch.Tensor, bonus: int, **changes: Any
) -> torch.Tensor:
    """The drafter's logits [block-1, vocab] for the positions that follow `bonus`.

    `embedding` and `head` [vocab, hidden] are the target's; `features` [P, n * hidden] are its hidden states at the
    positions 0..P-1 before the bonus token. Computes in the type of `features`. The context enters each layer as keys
    and values only, made from the projected features as they are: the input norm is the block's alone. Every row of
    the block sees the whole context and the whole block. `changes` replace keys of config.json.
    """
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    dtype, eps = features.dtype, config["rms_norm_eps"]
    dflash, head_dim = dflash_keys(config), config["head_dim"]
    weights = {name: tensor.to(dtype) for name, tensor in read_weights(folder).items()}
    embedding, head = embedding.to(dtype), head.to(dtype)

    count, block = len(features), dflash["block_size"]
    inputs = torch.tensor([bonus] + [dflash["mask_token_id"]] * (block - 1))
    cos, sin = draft_rotation(config, torch.arange(count + block))
    context = rms_norm(features @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    x = embedding[inputs]
    for layer in range(config["num_hidden_layers"]):
        w = {name.split(".", 2)[2]: t for name, t in weights.items() if name.startswith(f"layers.{layer}.")}
        normed = rms_norm(x, w["input_layernorm.weight"], eps)
        source = torch.cat([context, normed])
        q = (normed @ w["self_attn.q_proj.weight"].T).unflatten(-1, (-1, head_dim))
        k = (source @ w["self_attn.k_proj.weight"].T).unflatten(-1, (-1, head_dim))
        v = (source @ w["self_attn.v_proj.weight"].T).unflatten(-1, (-1, head_dim))
        q = rotate_halves(rms_norm(q, w["self_attn.q_norm.weight"], eps), cos[count:], sin[count:])
        k = rotate_halves(rms_norm(k, w["self_attn.k_norm.weight"], eps), cos, sin)
        group = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(head_dim)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        x = x + mixed.flatten(1) @ w["self_attn.o_proj.weight"].T
        normed = rms_norm(x, w["post_attention_layernorm.weight"], eps)
        gated = F.silu(normed @ w["mlp.gate_proj.weight"].T) * (normed @ w["mlp.up_proj.weight"].T)
        x = x + gated @ w["mlp.down_proj.weight"].T
    return rms_norm(x[1:], weights["norm.weight"], eps) @ head.T


@torch.no_grad()
def draft_logits(folder: Path, model: DeepseekV3ForCausalLM, tokens: torch.Tensor, **changes: Any) -> torch.Tensor:
    """The drafter's logits [block-1, vocab] when the last of the [T] tokens is the bonus token.

    `changes` replace keys of the drafter's config.json.
    """
    layers = dflash_keys(json.loads((folder / "config.json").read_text()))["target_layer_ids"]
    # Causal, so the bonus token changes none of the others; and without context there would be nothing to run.
    features = target_features(model, tokens, layers)[:-1]
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return dflash_logits(folder, embedding, head, features, int(tokens[-1]), **changes)


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected magnitude."""
    return float((value.double() - expected.double()).abs().max() / expected.double().abs().max())
