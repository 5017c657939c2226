"""What several parts share: a random model, lengths of completions, alternating trainings."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trl_ablate import miniature
from trl_ablate.bench import synthetic, train_time
from trl_ablate.bench.gpu.registry import Setup
from trl_ablate.bench.tables import median

AS_TRL_PADS = {"trim_microbatches": False, "regroup_by_length": False}

Settings = Mapping[str, Any]


def random_model(
    setup: Setup, shape: str | None = None, vocabulary: int | None = None
) -> PreTrainedModel:
    """A model with random weights, drawn on the device and kept on the CPU: what is measured
    trains copies of it, and the card holds one copy only."""
    torch.manual_seed(0)
    with torch.device(setup.device):
        model: Any = synthetic.random_model(shape or setup.shape, miniature.tokenizer(), vocabulary)
    return model.to("cpu")


def save_random_model(setup: Setup, folder: Path, shape: str | None = None) -> None:
    """A model with random weights and its tokenizer as a folder, for engines and commands."""
    random_model(setup, shape).save_pretrained(folder)
    miniature.tokenizer().save_pretrained(folder)


def lengths(setup: Setup, rows: int) -> list[int]:
    """Forced lengths of completions: log-normal, mean 343 and cap 1024; a twentieth at toy size."""
    mean, cap = (17.0, 51) if setup.toy else (343.0, 1024)
    return synthetic.lengths(rows, mean, cap, seed=0)


def workload(setup: Setup, rows: int, **sizes: Any) -> train_time.Workload:
    """One round of a warm-up step and one that counts; at toy size an eighth of the rows."""
    sizes = {"steps": 1, "rounds": 1, "prompt_length": 12 if setup.toy else 96} | sizes
    return train_time.Workload(lengths(setup, max(16, rows // 8) if setup.toy else rows), **sizes)


def measure(
    setup: Setup,
    load: train_time.Workload,
    ways: Mapping[str, tuple[bool, Settings]],
    model: PreTrainedModel | None = None,
) -> dict[str, train_time.Measured]:
    """Train in each way: name -> (whether by stock TRL, settings)."""
    builds: dict[str, train_time.Build] = {
        name: partial(train_time.stock if by_trl else train_time.ours, **settings)
        for name, (by_trl, settings) in ways.items()
    }
    model = random_model(setup) if model is None else model
    return train_time.compare(model, miniature.tokenizer(), load, builds)


def cost(name: str, one: train_time.Measured, load: train_time.Workload) -> dict[str, Any]:
    """A row: time and memory of one way."""
    return {
        "what": name,
        "s/step": median(one.seconds),
        "µs/token": 1e6 * median(one.seconds) / sum(load.lengths_N),
        "peak GiB": one.peak / 2**30,
        "padded": one.padded,
    }


def apart(one: train_time.Measured, other: train_time.Measured) -> float:
    """Largest relative difference of the gradient norms of two ways."""
    return train_time.differences(one, other)["gradient norms, relative"]
