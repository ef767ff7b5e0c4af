"""The target (DeepSeek-V3's dense MLA transformer) and the DFlash drafter for training.

Both are built from a published `config.json` and their parameters carry the published names, so that a state dict is a
checkpoint. Weights stay float32; on a GPU the caller runs them under autocast.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Config = dict[str, Any]


def rope_angles(positions: Tensor, dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., dim / 2] of [...] positions."""
    frequencies = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angles = positions.float()[..., None] * frequencies
    return angles.cos(), angles.sin()


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates [..., dim], dimension 2i paired with 2i + 1: DeepSeek's order."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2).to(x.dtype)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates [..., dim], dimension i paired with i + dim / 2: Qwen's order."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=1 / math.sqrt(inputs))
    return layer


class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = linear(hidden, inner)
        self.up_proj = linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LatentAttention(nn.Module):
    """Multi-head latent attention (arXiv 2405.04434, section 2.1)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads = config["num_attention_heads"]
        self.latent, self.rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        self.nope, self.value = config["qk_nope_head_dim"], config["v_head_dim"]
        self.scale = 1 / math.sqrt(self.nope + self.rope)
        self.q_a_proj = linear(hidden, config["q_lora_rank"])
        self.q_a_layernorm = nn.RMSNorm(config["q_lora_rank"], eps)
        self.q_b_proj = linear(config["q_lora_rank"], self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = linear(hidden, self.latent + self.rope)
        self.kv_a_layernorm = nn.RMSNorm(self.latent, eps)
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = linear(self.heads * self.value, hidden)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[..., hidden] to queries [..., heads, nope] and [..., heads, rope], latents and rotated keys."""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (self.heads, -1))
        q_nope, q_rope = q.split([self.nope, self.rope], dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.latent, self.rope], dim=-1)
        q_rope = rotate_pairs(q_rope, cos[..., None, :], sin[..., None, :])
        return q_nope, q_rope, self.kv_a_layernorm(latent), rotate_pairs(k_rope, cos, sin)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Causal attention over [B, S, hidden]; also returns the KV cache's rows [B, S, latent + rope]."""
        q_nope, q_rope, latent, k_rope = self.project(x, cos, sin)
        k_nope, v = self.kv_b_proj(latent).unflatten(-1, (self.heads, -1)).split([self.nope, self.value], dim=-1)
        q = torch.cat([q_nope, q_rope], dim=-1)
        k = torch.cat([k_nope, k_rope[..., None, :].expand(-1, -1, self.heads, -1).to(k_nope.dtype)], dim=-1)
        # The fused kernels want values as wide as keys.
        v = F.pad(v, (0, self.nope + self.rope - self.value))
        q, k, v = (t.to(v.dtype).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)[..., : self.value]
        return self.o_proj(mixed.transpose(1, 2).flatten(-2)), torch.cat([latent, k_rope.to(latent.dtype)], dim=-1)

    def step(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, length: int) -> Tensor:
        """One token [B, hidden] behind `length` rows of the cache [B, capacity, latent + rope]; adds its own row."""
        q_nope, q_rope, latent, k_rope = self.project(x, cos, sin)
        cache[:, length] = torch.cat([latent, k_rope], dim=-1)
        rows = cache[:, : length + 1]
        k_up, v_up = (
            self.kv_b_proj.weight.to(rows.dtype).unflatten(0, (self.heads, -1)).split([self.nope, self.value], dim=1)
        )
        absorbed = torch.einsum("bhd,hdc->bhc", q_nope.to(rows.dtype), k_up)
        q = torch.cat([absorbed, q_rope.to(rows.dtype)], dim=-1)
        weights = (torch.bmm(q, rows.transpose(1, 2)).float() * self.scale).softmax(-1).to(rows.dtype)
        mixed = torch.einsum("bhc,hdc->bhd", torch.bmm(weights, rows[..., : self.latent]), v_up)
        return self.o_proj(mixed.flatten(-2))


class TargetLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = LatentAttention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        attended, rows = self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), rows

    def step(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Tensor, length: int) -> Tensor:
        x = x + self.self_attn.step(self.input_layernorm(x), cos, sin, cache, length)
        return x + self.mlp(self.post_attention_layernorm(x))


class TargetBody(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(TargetLayer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class Target(nn.Module):
    """Dense DeepseekV3ForCausalLM with `q_lora_rank` and plain rope."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = TargetBody(config)
        self.lm_head = linear(config["hidden_size"], config["vocab_size"])
        for layer in self.model.layers:  # each block starts as the identity
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rope_angles(positions, self.config["qk_rope_head_dim"], self.config["rope_theta"])

    def logits(self, x: Tensor) -> Tensor:
        return self.lm_head(self.model.norm(x).to(self.lm_head.weight.dtype))

    def run(self, tokens: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """[B, S] tokens to logits [B, S, vocab], each layer's output [B, S, hidden] and its KV rows."""
        cos, sin = self.angles(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.model.embed_tokens(tokens)
        outputs, caches = [], []
        for layer in self.model.layers:
            x, rows = layer(x, cos[None], sin[None])
            outputs.append(x)
            caches.append(rows)
        return self.logits(x), outputs, caches

    def forward(self, tokens: Tensor) -> Tensor:
        return self.run(tokens)[0]

    def step(self, tokens: Tensor, caches: list[Tensor], length: int) -> Tensor:
        """[B] tokens at position `length` to logits [B, vocab]."""
        cos, sin = self.angles(torch.tensor(length, device=tokens.device))
        x = self.model.embed_tokens(tokens)
        for layer, cache in zip(self.model.layers, caches, strict=True):
            x = layer.step(x, cos[None], sin[None], cache, length)
        return self.logits(x)


class DraftAttention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, self.dim = config["hidden_size"], config["head_dim"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.q_proj = linear(hidden, self.heads * self.dim)
        self.k_proj = linear(hidden, self.kv_heads * self.dim)
        self.v_proj = linear(hidden, self.kv_heads * self.dim)
        self.o_proj = linear(self.heads * self.dim, hidden)
        self.q_norm = nn.RMSNorm(self.dim, config["rms_norm_eps"])
        self.k_norm = nn.RMSNorm(self.dim, config["rms_norm_eps"])

    def heads_of(self, x: Tensor, norm: nn.RMSNorm, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate_halves(norm(x.unflatten(-1, (-1, self.dim))), cos[..., None, :], sin[..., None, :])

    def forward(
        self,
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        context: Tensor,
        context_angles: tuple[Tensor, Tensor],
        mask: Tensor,
    ) -> Tensor:
        """Block rows [B, Q, hidden] over the context [B, S, hidden] and themselves, where mask [B, 1, Q, S + Q]."""
        q = self.heads_of(self.q_proj(x), self.q_norm, *angles)
        k = torch.cat(
            [
                self.heads_of(self.k_proj(context), self.k_norm, *context_angles),
                self.heads_of(self.k_proj(x), self.k_norm, *angles),
            ],
            dim=1,
        )
        v = torch.cat([self.v_proj(context), self.v_proj(x)], dim=1).unflatten(-1, (-1, self.dim))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=2) for t in (k, v))
        q, k, v = (t.to(v.dtype).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class DraftLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(config["hidden_size"], config["rms_norm_eps"])


class Drafter(nn.Module):
    """DFlash (arXiv 2602.06036) as SGLang's DFlashDraftModel computes it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        dflash = config["dflash_config"]
        self.block, self.mask_token = dflash["block_size"], dflash["mask_token_id"]
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.fc = linear(hidden * len(dflash["target_layer_ids"]), hidden)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(DraftLayer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = nn.RMSNorm(hidden, eps)
        for layer in self.layers:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)

    def features(self, outputs: list[Tensor]) -> Tensor:
        """[B, S, n * hidden] of the target's layer outputs."""
        return torch.cat([outputs[i] for i in self.config["dflash_config"]["target_layer_ids"]], dim=-1)

    def forward(
        self,
        features: Tensor,
        tokens: Tensor,
        anchors: Tensor,
        embedding: Tensor,
        head: Tensor,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, A, block - 1, vocab] for the positions behind each anchor.

        A block starts at its anchor's token, of tokens [B, S], and sees the features before it. `embedding` and `head`
        [vocab, hidden] are the target's. Where `lengths` [B, A] are given, a block is cut to that many positions: what
        stands behind them means nothing, and nothing before them depends on it.
        """
        count, length = anchors.shape[1], features.shape[1]
        device = anchors.device
        first = tokens.gather(1, anchors)[..., None]
        inputs = torch.cat(
            [first, first.new_full((1, 1, 1), self.mask_token).expand(*first.shape[:2], self.block - 1)], -1
        )
        positions = (anchors[..., None] + torch.arange(self.block, device=device)).flatten(1)
        angles = rope_angles(positions, self.config["head_dim"], self.config["rope_theta"])
        context_angles = rope_angles(
            torch.arange(length, device=device)[None], self.config["head_dim"], self.config["rope_theta"]
        )
        sees_context = (torch.arange(length, device=device) < anchors[..., None]).repeat_interleave(self.block, dim=1)
        block_of = torch.arange(count, device=device).repeat_interleave(self.block)
        sees_block = (block_of[:, None] == block_of).expand(len(anchors), -1, -1)
        if lengths is not None:
            kept = torch.arange(self.block, device=device) < lengths[..., None]
            sees_block = sees_block & kept.flatten(1)[:, None]
        mask = torch.cat([sees_context, sees_block], dim=-1)[:, None]

        context = self.hidden_norm(self.fc(features))
        x = F.embedding(inputs.flatten(1), embedding)
        for layer in self.layers:
            x = x + layer.self_attn(layer.input_layernorm(x), angles, context, context_angles, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return F.linear(self.norm(x.unflatten(1, (count, self.block))[:, :, 1:]), head)
