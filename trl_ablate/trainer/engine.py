"""The vLLM engine in the training process: its seed, and what it needs to train on a CPU.

TRL gives the engine of each process its rank for a seed, whatever `--seed` says, and the engine
draws from the process's own generators, which building it reseeds. So both follow from the engine's
seed, which is set here, while TRL builds the engine. Nothing else of vLLM is touched on a GPU.

On a CPU vLLM packs every linear weight as it loads and drops the original, so that no later weight
can be loaded; there the engine keeps the weights as they are.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from trl.generation import vllm_generation
from trl.import_utils import is_vllm_available

from trl_ablate.config import AblationConfig
from trl_ablate.trainer.temporary import replaced

SEED_STRIDE = 1_000_003
"""Distance between the seeds of two runs' engines: no number of ranks comes near it."""

CPU_KV_CACHE = 2**30
"""Bytes of KV cache on a CPU, where vLLM would take its share of the whole memory."""


@contextmanager
def engine_as_configured(config: AblationConfig):
    """While TRL builds its engine: seeded by `config.seed`, and able to train on a CPU."""
    if not (config.use_vllm and config.vllm_mode == "colocate" and is_vllm_available()):
        yield
        return
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    with ExitStack() as changes:
        settings: dict[str, Any] = {}
        if current_platform.is_cpu():
            settings = cpu_settings(config)
            changes.enter_context(unpacked_weights())
        changes.enter_context(replaced(vllm_generation, LLM=_seeded(config.seed, settings)))
        yield


def engine_seed(seed: int, rank: int) -> int:
    """The seed of an engine: other for every run seed and every rank, and one that NumPy takes."""
    return (seed * SEED_STRIDE + rank) % 2**32


def cpu_settings(config: AblationConfig) -> dict[str, Any]:
    """For a CPU: the trainer's precision, a small cache, no minutes of compilation."""
    return {
        "dtype": "bfloat16" if config.bf16 else "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": CPU_KV_CACHE,
    }


@contextmanager
def unpacked_weights():
    """Let vLLM's CPU layers multiply by the weight itself, where a weight sync finds it."""
    from vllm.model_executor.layers import utils  # pyright: ignore[reportMissingImports]

    packed = utils.dispatch_cpu_unquantized_gemm

    def plain(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            packed(layer, remove_weight)

    with replaced(utils, dispatch_cpu_unquantized_gemm=plain):
        yield


def _seeded(seed: int, settings: dict[str, Any]) -> Callable:
    """vLLM's `LLM`, built with our seed in place of the rank that TRL passes, and our settings."""
    build = vllm_generation.LLM

    def engine(*args, **kwargs):
        return build(*args, **{**kwargs, "seed": engine_seed(seed, kwargs["seed"]), **settings})

    return engine
