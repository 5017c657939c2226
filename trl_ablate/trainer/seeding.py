"""Random state of an evaluation: it depends on the seed and does not change that of the training.

The generators that a completion or a reward may use are seeded at the start of an evaluation and
restored at its end: those of torch, Python and NumPy (newer vLLM engines on a GPU draw the seed of
a request from NumPy). A vLLM server has its own generator for requests without a seed, so every
question is sent with a seed.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
    seed = evaluation_seed(trainer)
    with ExitStack() as stack:
        stack.enter_context(_generators(seed, trainer.accelerator.device))
        if _asks_a_server(trainer):
            stack.enter_context(_seeded_requests(trainer.vllm_generation.vllm_client, seed))
        yield


def evaluation_seed(trainer: Any) -> int:
    """The seed of this process's evaluation. It is equal in processes that share one engine, as
    they must sample the same tokens."""
    config = trainer.args
    shared = config.use_vllm and config.vllm_mode == "colocate"
    engine_size = config.vllm_tensor_parallel_size if shared else 1
    return config.seed + SEED_STRIDE * (1 + trainer.accelerator.process_index // engine_size)


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


def _asks_a_server(trainer: Any) -> bool:
    server = trainer.args.use_vllm and trainer.args.vllm_mode == "server"
    return server and trainer.accelerator.is_main_process


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

        def ask(index: int, seed: int) -> dict[str, Any]:
            return generate(
                prompts=[prompts[index]],
                features=None if features is None else [features[index]],
                n=n,
                generation_kwargs={**(generation_kwargs or {}), "seed": seed},
                **sampling,
            )

        first, seed = seed, seed + len(prompts) * n
        with ThreadPoolExecutor(max_workers=min(REQUESTS_AT_ONCE, len(prompts))) as requests:
            answers = list(requests.map(ask, range(len(prompts)), range(first, seed, n)))
        return {
            key: None if value is None else [row for answer in answers for row in answer[key]]
            for key, value in answers[0].items()
        }

    with replaced(client, generate=one_by_one):
        yield
