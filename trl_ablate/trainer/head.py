"""The LM head computes the tokens of responses only.

Its cost grows with the vocabulary. TRL leaves out positions without a label, but only on GPUs with
Triton, as other devices might compile again for each number of positions; and in a row that was
moved to the left, padding and prompts have labels. Here, only tokens whose result is used have one,
and positions without one are left out on a CPU, too.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from trl.trainer import utils as trl_utils

from trl_ablate.trainer.temporary import replaced


def of_responses(forward: Callable[..., tuple], model: Any) -> Callable[..., tuple]:
    """TRL's `forward(model, ids, mask, completion_length)` as a forward pass for
    `forward_trimmed` and `forward_packed`."""

    def call(
        ids_NL: torch.Tensor,
        mask_NL: torch.Tensor,
        width: int,
        labelled_NL: torch.Tensor,
        **instead: Any,
    ) -> tuple:
        with labelled_positions_only(ids_NL.device):
            return forward(with_labels(model, labelled_NL, instead), ids_NL, mask_NL, width)

    return call


def with_labels(
    model: Any, labelled_NL: torch.Tensor, instead: Mapping[str, Any]
) -> Callable[..., Any]:
    """The model with labels at these tokens only, as TRL ignores padding, and with these inputs
    instead of TRL's."""

    def call(*, labels: torch.Tensor, **inputs: Any) -> Any:
        return model(labels=labels.masked_fill(labelled_NL == 0, -100), **{**inputs, **instead})

    return call


def labelled_positions_only(device: torch.device) -> AbstractContextManager[None]:
    """Let TRL's head leave out positions without a label, on this device as on a GPU."""
    if device.type != "cpu":
        return nullcontext()
    return replaced(trl_utils, _use_triton=lambda device: True)
