"""What the parts of a step read of the trainer, instead of the trainer itself."""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator

from trl_ablate.config import AblationConfig


@dataclass(frozen=True)
class Setting:
    """The trainer's configuration, processes and metrics, in training or in an evaluation."""

    config: AblationConfig
    accelerator: Accelerator
    metrics: MutableMapping[str, list[float]]
    """Of this mode: lists of values by name, whose mean TRL logs."""
    training: bool
    group: int
    """Completions per prompt."""

    def gather(self, local: torch.Tensor) -> torch.Tensor:
        """The rows of all processes."""
        gathered: Any = self.accelerator.gather(local)
        return gathered

    def total(self, local: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        reduced: Any = self.accelerator.reduce(local, reduction="sum")
        return reduced

    def local_rows(self, rows: int) -> slice:
        """The place of this process's rows, of which each has so many, among those of all."""
        first = self.accelerator.process_index * rows
        return slice(first, first + rows)
