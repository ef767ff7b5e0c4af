"""What the tests of this folder share: the checkpoints of tests/model/reference.py, and the program under test."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/model"))

import reference  # noqa: E402

ModelLogits = Callable[..., dict[str, torch.Tensor]]


@pytest.fixture
def model_logits(tmp_path: Path) -> ModelLogits:
    """A function (target folder, [T] tokens, drafter's folder or None) that answers model_logits' output tensors."""
    program = Path(os.environ.get("KDTREE_MODEL_LOGITS", ROOT / "build/dev/tests/model_logits"))
    if not program.exists():
        pytest.fail(f"{program} is missing: build the dev preset")

    def run(target: Path, tokens: torch.Tensor, draft: Path | None = None) -> dict[str, torch.Tensor]:
        tokens_file, output = tmp_path / "tokens.npy", tmp_path / "logits.safetensors"
        np.save(tokens_file, tokens.to(torch.int32).numpy())
        command = [program, target, tokens_file, output, *([draft] if draft else [])]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return load_file(output)

    return run


def expect_weights_in_sglang(parameters: dict[str, torch.Tensor], folder: Path) -> None:
    """SGLang's parameters are the drafter's weights, all of them; it keeps some of them side by side in one."""
    ours = reference.read_weights(folder)
    for name, parameter in parameters.items():
        for fused, parts in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
            if fused in name:
                expected = torch.cat([ours.pop(name.replace(fused, part)) for part in parts])
                break
        else:
            expected = ours.pop(name)
        assert torch.equal(parameter, expected), name
    assert not ours, "not used by SGLang"
