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
