"""The vLLM engine in the training process: its seed, and the changes that a CPU needs.

TRL passes the rank of each process to its engine as the seed and ignores `--seed`; the engine
reseeds the generators of the process when it is built. On a GPU, nothing else in vLLM is changed.
On a CPU, vLLM packs every linear weight after loading it and deletes the original, so new weights
cannot be loaded. Here they stay unpacked.
"""

import os
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from accelerate.utils.other import get_free_port
from trl.generation import vllm_generation
from trl.import_utils import is_vllm_available

from trl_ablate.config import AblationConfig
from trl_ablate.trainer.temporary import replaced

SEED_STRIDE = 1_000_003
"""Distance between the seeds of two runs, or of two processes of an evaluation; far above any
number of ranks, run seed or number of samples."""

CPU_KV_CACHE = 2**30
"""Bytes of KV cache on a CPU; by default vLLM would use a share of the machine's memory."""


@contextmanager
def engine_as_configured(config: AblationConfig):
    """While TRL builds its engine: use `config.seed`, and make it work on a CPU."""
    if not (config.use_vllm and config.vllm_mode == "colocate" and is_vllm_available()):
        yield
        return
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    take_a_port()
    with ExitStack() as changes:
        if config.deterministic and not current_platform.is_cpu():
            os.environ["VLLM_BATCH_INVARIANT"] = "1"  # read whenever the engine chooses a kernel
        settings: dict[str, Any] = {}
        if current_platform.is_cpu():
            settings = {
                "dtype": "bfloat16" if config.bf16 else "float32",  # as the trainer
                "enforce_eager": True,  # compilation is slow
                "kv_cache_memory_bytes": CPU_KV_CACHE,
            }
            changes.enter_context(unpacked_weights())
        build = vllm_generation.LLM

        def engine(*args, **kwargs):  # TRL passes the rank as the seed
            seed = engine_seed(config.seed, kwargs["seed"])
            return build(*args, **{**kwargs, "seed": seed, **settings})

        changes.enter_context(replaced(vllm_generation, LLM=engine))
        yield


def take_a_port() -> None:
    """Name the port at which the engine will listen, unless a launcher did.

    TRL takes the first that is free of four, seconds before the engine listens there: of the runs
    that a study starts together, one on each GPU, all but one would fail.
    """
    if os.environ.get("MASTER_PORT", "").strip().lower() in ("", "0", "auto"):
        os.environ["MASTER_PORT"] = str(get_free_port())


def engine_seed(seed: int, rank: int) -> int:
    """The seed of an engine: different for every run seed and rank, and valid for NumPy."""
    return (seed * SEED_STRIDE + rank) % 2**32


@contextmanager
def unpacked_weights():
    """Let vLLM's CPU layers use the original weight, which a weight sync updates."""
    from vllm.model_executor.layers import utils  # pyright: ignore[reportMissingImports]

    packed = utils.dispatch_cpu_unquantized_gemm

    def plain(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            packed(layer, remove_weight)

    with replaced(utils, dispatch_cpu_unquantized_gemm=plain):
        yield
