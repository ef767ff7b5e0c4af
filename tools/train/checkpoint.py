"""Training states as numbered shards of at most 15 MiB, and published checkpoints."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

SHARD = 15 << 20


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes PATH.000, PATH.001, … A state that is there already is replaced when the new one is complete: only a crash
    among the renames would lose both."""
    memory = io.BytesIO()
    torch.save(state, memory)
    data = memory.getvalue()
    parts = [data[i : i + SHARD] for i in range(0, len(data), SHARD)]
    for i, part in enumerate(parts):
        path.with_name(f"{path.name}.{i:03}.new").write_bytes(part)
    for old in path.parent.glob(f"{path.name}.[0-9][0-9][0-9]"):
        old.unlink()
    for i in range(len(parts)):
        path.with_name(f"{path.name}.{i:03}.new").rename(path.with_name(f"{path.name}.{i:03}"))


def load_state(path: Path) -> dict[str, Any] | None:
    """The state at PATH, or None where there is none."""
    parts = sorted(path.parent.glob(f"{path.name}.[0-9][0-9][0-9]"))
    if not parts:
        return None
    data = b"".join(part.read_bytes() for part in parts)
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def publish(model: nn.Module, folder: Path) -> None:
    """A Hugging Face folder: config.json and the weights in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Tensor] = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")


def load_published(model_type: type[nn.Module], folder: Path) -> nn.Module:
    """The model of a published folder, its weights in float32."""
    model = model_type(json.loads((folder / "config.json").read_text()))
    model.load_state_dict({name: t.float() for name, t in load_file(folder / "model.safetensors").items()})
    return model.eval()
