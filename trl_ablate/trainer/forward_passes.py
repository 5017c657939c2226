"""The forward pass of a microbatch, in the way that computes fewest tokens. Same log-probabilities.

The rows are trimmed (`batching.py`), packed (`packing.py`), or share their prompts
(`shared_prompts.py`). Rows whose advantage is 0 take no backward pass: their gradient is 0, and
their log-probabilities are only needed for what is logged.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trl_ablate.trainer.batching import forward_trimmed, groups_by_length, width_of
from trl_ablate.trainer.packing import forward_packed
from trl_ablate.trainer.shared_prompts import computed_tokens, forward_shared

Found = tuple[torch.Tensor | None, ...]
PADDING_OF_A_BLOCK = 256
"""The padding that is worth one more call of attention."""
WORTH = 0.7
"""Prompts are shared if this share of the positions, or less, is left: one long row costs more of
a small model. With 0.78 left, the miniature's shape took 1.28 times as long as without sharing."""


@dataclass(frozen=True)
class Passes:
    """How the forward passes of a trainer are made.

    `multiple` and `least_saved` are those of `forward_trimmed`.
    """

    multiple: int = 1
    least_saved: int | None = None
    packs: bool = False
    shares: bool = False

    def __call__(
        self,
        forward: Callable[..., tuple],
        ids_NL: torch.Tensor,
        mask_NL: torch.Tensor,
        completion_length: int,
        rows_at_once: int | None = None,
    ) -> Found:
        """The results of `forward` for each token, `(N, completion_length)` or None."""
        rows = (ids_NL, mask_NL, completion_length)
        if self.packs:
            return forward_packed(forward, *rows, rows_at_once)
        if not self.worth_sharing(*rows):
            return forward_trimmed(forward, *rows, rows_at_once, self.multiple, self.least_saved)
        size = rows_at_once or len(ids_NL)
        blocks = partial(groups_by_length, least_saved=PADDING_OF_A_BLOCK)
        parts = [
            forward_shared(forward, ids, mask, completion_length, blocks)
            for ids, mask in zip(ids_NL.split(size), mask_NL.split(size), strict=True)
        ]
        return tuple(
            None if None in column else torch.cat(column) for column in zip(*parts, strict=True)
        )

    def worth_sharing(
        self, ids_NL: torch.Tensor, mask_NL: torch.Tensor, completion_length: int
    ) -> bool:
        if not self.shares:
            return False
        trimmed = self._trimmed_positions(mask_NL)
        return computed_tokens(ids_NL, mask_NL, completion_length) <= WORTH * trimmed

    def positions(
        self, ids_NL: torch.Tensor, mask_NL: torch.Tensor, completion_length: int
    ) -> tuple[int, int]:
        """How many positions a pass over these rows computes, and how many of them are padding."""
        if self.packs:
            return int(mask_NL.sum()), 0
        if self.worth_sharing(ids_NL, mask_NL, completion_length):
            return computed_tokens(ids_NL, mask_NL, completion_length), 0
        trimmed = self._trimmed_positions(mask_NL)
        return trimmed, trimmed - int(mask_NL.sum())

    def _trimmed_positions(self, mask_NL: torch.Tensor) -> int:
        groups = groups_by_length(mask_NL.sum(dim=1), None, self.least_saved)
        widths = [min(mask_NL.size(1), width_of(mask_NL[rows], self.multiple)) for rows in groups]
        return sum(len(rows) * width for rows, width in zip(groups, widths, strict=True))


def without_gradient_of(
    idle_N: torch.Tensor,
    passes: Callable[..., Found],
    ids_NL: torch.Tensor,
    mask_NL: torch.Tensor,
    *more: Any,
) -> Found:
    """The results of `passes(ids, mask, *more)`, without a gradient for the idle rows."""
    parts: list[Sequence[Any]] = []
    places = []
    for chosen_N, grad in ((idle_N, torch.no_grad()), (~idle_N, nullcontext())):
        (rows,) = chosen_N.nonzero(as_tuple=True)
        if len(rows):
            with grad:
                parts.append(passes(ids_NL[rows], mask_NL[rows], *more))
            places.append(rows)
    back_N = torch.argsort(torch.cat(places))
    return tuple(
        None if None in column else torch.cat(column)[back_N] for column in zip(*parts, strict=True)
    )


def with_zero_gradients(loss: torch.Tensor, model: torch.nn.Module) -> torch.Tensor:
    """A loss that no parameter has an effect on, with a gradient of 0 for each of them, so that
    optimizer and hooks find what a backward pass leaves."""
    one_each = [p.view(-1)[:1] for p in model.parameters() if p.requires_grad and p.numel()]
    return loss + 0.0 * sum(one.float().sum() for one in one_each)
