"""Random state of an evaluation: it depends on the seed and does not change that of the training.

Seeded at its start and restored at its end are the generators of torch, Python and NumPy (newer
vLLM engines on a GPU draw the seed of a request from NumPy). A vLLM server has its own generator
for requests without a seed, so every question is sent with one.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from trl_ablate.trainer.engine import SEED_STRIDE
from trl_ablate.trainer.temporary import replaced

REQUESTS_AT_ONCE = 64
"""The number of connections that TRL's client keeps."""


@contextmanager
def own_randomness(trainer: Any):
    """Until the end of the block, sampling depends only on the run's seed and the process."""
    config, accelerator = trainer.args, trainer.accelerator
    # Processes that share one engine must sample the same tokens
    shared = config.use_vllm and config.vllm_mode == "colocate"
    engine = accelerator.process_index // (config.vllm_tensor_parallel_size if shared else 1)
    seed = config.seed + SEED_STRIDE * (1 + engine)
    server = config.use_vllm and config.vllm_mode == "server" and accelerator.is_main_process
    client = trainer.vllm_generation.vllm_client if server else None
    with (
        _generators(seed, accelerator.device),
        _seeded_requests(client, seed) if server else nullcontext(),
    ):
        yield


@contextmanager
def _generators(seed: int, device: torch.device):
    training = random.getstate(), np.random.get_state()
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(training[0])
            np.random.set_state(training[1])


@contextmanager
def _seeded_requests(client: Any, seed: int):
    """Let TRL's vLLM client send every question as a request with its own seed.

    vLLM samples the n completions of a request with its seed, seed + 1, and so on; with one seed
    for all prompts, all would be sampled with the same noise.
    """
    generate = client.generate

    def one_by_one(
        prompts: list,
        features: list | None = None,
        n: int = 1,
        generation_kwargs: dict[str, Any] | None = None,
        **sampling: Any,
    ) -> dict[str, Any]:
        nonlocal seed
        seeds = range(seed, seed + len(prompts) * n, n)
        seed = seeds.stop

        def ask(row: int) -> dict[str, Any]:
            return generate(
                prompts=[prompts[row]],
                features=None if features is None else [features[row]],
                n=n,
                generation_kwargs={**(generation_kwargs or {}), "seed": seeds[row]},
                **sampling,
            )

        with ThreadPoolExecutor(max_workers=min(REQUESTS_AT_ONCE, len(prompts))) as requests:
            answers = list(requests.map(ask, range(len(prompts))))
        return {
            key: None if value is None else [row for answer in answers for row in answer[key]]
            for key, value in answers[0].items()
        }

    with replaced(client, generate=one_by_one):
        yield
