"""Runs a real SGLang engine with a DFlash drafter on the CPU and records what the drafter does. Two roles:

    python sglang_probe.py TARGET_DIR DRAFT_DIR TOKENS.npy OUT_DIR COUNT

generates COUNT tokens greedily behind the prompt, in float32, one request; and SGLang's processes load this file as a
plugin, through an entry point that the driver writes. OUT_DIR receives

    output.json             the generated tokens
    draft.safetensors       every parameter of the loaded drafter
    step-N.safetensors      of draft step N, i32 `committed` [1], the number of tokens before the bonus token, and f32
                            `draft_logits` [block-1, vocab]

SGLang has no DFLASH on the CPU. What the plugin changes is what stands in the way of that, not what is computed: the
model, the worker, the caches and the Triton kernels, run by Triton's interpreter, are SGLang's.
"""

import importlib.machinery
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

ALGORITHM = "KDTREE_PROBE"
OUT_VARIABLE = "KDTREE_PROBE_OUT"
ENTRY_POINT = "[sglang.srt.plugins]\nkdtree_probe = sglang_probe:register\n"


def register() -> None:
    """The plugin's entry point. SGLang only logs its exceptions; the driver then fails on the unknown algorithm."""
    _allow_cpu()
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=False, spec_class=_algorithm_class())(
        lambda _server_args: _worker_class()
    )


def _allow_cpu() -> None:
    import torch

    # The rotary embedding looks for a compiled kernel, and then uses its own torch code.
    for name in ("vllm", "vllm._custom_ops"):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules.setdefault(name, module)
    sys.modules["vllm._custom_ops"].rotary_embedding = None
    # On the CPU there is only YaRN; the factory of the other devices has everything.
    import sglang.srt.layers.rotary_embedding.factory as rope_factory

    rope_factory.get_rope_cpu = lambda *args: rope_factory.get_rope(*args[:-1])
    # The Triton version of the slot bookkeeping is chosen by device.
    import sglang.kernels.ops.speculative.cache_locs as cache_locs

    cache_locs._is_xpu = True
    # The CPU has no streams.
    torch.Tensor.record_stream = lambda self, stream: None
    # The model runner converts the block's embeddings to bfloat16 whatever the model's type is.
    torch.Tensor.bfloat16 = lambda self: self


def _algorithm_class() -> type:
    """DFLASH for a device that SGLang does not allow it on."""
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Algorithm(CustomSpecAlgo):
        def is_dflash(self) -> bool:
            return True

        def is_dflash_family(self) -> bool:
            return True

        def supports_target_verify_for_draft(self) -> bool:
            return True

        def carries_draft_hidden_states(self) -> bool:
            return False

        def need_topk(self) -> bool:
            return False

        def create_future_map(self, device: Any, pool: Any, *rest: Any, **options: Any) -> FutureMap:
            return FutureMap(device, self, pool, *rest, **options)

        def handle_server_args(self, server_args: Any) -> None:
            server_args.speculative_num_steps = 1
            server_args.speculative_eagle_topk = 1

    return Algorithm


def _worker_class() -> type:
    """SGLang's DFLASH worker, which also writes down what its drafter answers."""
    import torch
    from safetensors.torch import save_file
    from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

    class Worker(DFlashWorkerV2):
        probe_steps = 0

        def forward_batch_generation(self, batch: Any, *rest: Any, **options: Any) -> Any:
            # A tensor of the scheduler that the step itself may change.
            self.probe_committed = batch.seq_lens.clone()
            return super().forward_batch_generation(batch, *rest, **options)

        def _greedy_sample_from_vocab_parallel_head(self, *, hidden_states: Any, lm_head: Any, **options: Any) -> Any:
            out = Path(os.environ[OUT_VARIABLE])
            if self.probe_steps == 0:
                parameters = {name: p.detach().clone() for name, p in self.draft_model.named_parameters()}
                save_file(parameters, out / "draft.safetensors")
            # The head is padded to a multiple of 64 rows.
            logits = hidden_states @ lm_head.weight[: lm_head.org_vocab_size].T
            step = {"committed": self.probe_committed.to(torch.int32), "draft_logits": logits.contiguous()}
            save_file(step, out / f"step-{self.probe_steps}.safetensors")
            self.probe_steps += 1
            return super()._greedy_sample_from_vocab_parallel_head(
                hidden_states=hidden_states, lm_head=lm_head, **options
            )

    return Worker


def main() -> None:
    target, draft, tokens, out, count = sys.argv[1:]
    info = Path(out) / "kdtree_probe-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kdtree_probe\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    # The processes that SGLang starts find the plugin by these.
    here = str(Path(__file__).parent)
    os.environ.update({OUT_VARIABLE: out, "TRITON_INTERPRET": "1", "SGLANG_PLUGINS": "kdtree_probe"})
    os.environ["PYTHONPATH"] = os.pathsep.join([out, here])
    sys.path[:0] = [out, here]

    import numpy as np
    import sglang

    dflash = json.loads((Path(draft) / "config.json").read_text())["dflash_config"]
    engine = sglang.Engine(
        model_path=target,
        speculative_algorithm=ALGORITHM,
        speculative_draft_model_path=draft,
        speculative_draft_attention_backend="triton",
        speculative_num_draft_tokens=dflash["block_size"],
        device="cpu",
        dtype="float32",
        attention_backend="triton",
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        mem_fraction_static=0.3,
        max_total_tokens=512,
        max_running_requests=1,
        page_size=1,
        random_seed=1,
    )
    sampling = {"temperature": 0, "max_new_tokens": int(count), "ignore_eos": True}
    answer = engine.generate(input_ids=[np.load(tokens).tolist()], sampling_params=sampling)[0]
    (Path(out) / "output.json").write_text(json.dumps(answer["output_ids"]))
    engine.shutdown()


if __name__ == "__main__":
    main()
