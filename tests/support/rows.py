"""What a run ends with, without the values that depend on the clock or the machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from trl_ablate.run.directory import RunDirectory

OF_THE_MACHINE = re.compile(
    r"(^|_)(time|memory|profiling)/|runtime$|_time$|per_second$|^seconds$|^grader/restarts$"
)


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """The rest is the same in every run of the same training."""
    return {name: value for name, value in row.items() if not OF_THE_MACHINE.search(name)}


def outcome(output: Path) -> tuple[list[dict], list[dict], dict]:
    """What a run ends with: weights, last and best; what it logged but for times; the best step."""
    run = RunDirectory(output)
    weights = [
        {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}
        for folder in (run.checkpoint_last, run.checkpoint_best)
        for file in folder.glob("*.safetensors")
    ]
    return weights, [without_times(row) for row in run.metrics()], run.best() or {}
