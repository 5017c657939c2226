"""How many rows of logits does a CPU turn into log-probabilities at once? As many as its cache has
room for.

TRL's LM head makes the logits of all tokens and a part of the vocabulary, a tile, and takes about
ten operations to log-probabilities or gradients. Each makes a new tensor of the tile's size. With a
real vocabulary that costs as much as the product that made the logits; a few rows at a time stay in
the cache. Every operation is of one row, so that the bits are the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from trl.kernels import chunked_logprob
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from trl_ablate.trainer.temporary import replaced

LOGITS_AT_ONCE = 2**19
"""2 MiB in float32: sixteen rows of TRL's widest tile."""


class LogProbsByRows(ChunkedLogProbFunction):
    """TRL's log-probabilities and entropies, and their gradients, a few rows at a time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        fold = by_rows(chunked_logprob._forward_tile)
        with replaced(chunked_logprob, _forward_tile=fold):
            return ChunkedLogProbFunction.forward(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        fold = by_rows(chunked_logprob._backward_tile)
        with replaced(chunked_logprob, _backward_tile=fold):
            return ChunkedLogProbFunction.backward(ctx, *gradients)


def by_rows(fold: Callable[..., None]) -> Callable[..., None]:
    """TRL's `fold(tile, stride, *values of each row, first column, number of columns)`, which
    changes the tile or the values in place, for a few rows after another."""

    def folded(tile: torch.Tensor, stride: int, *values: Any, **settings: Any) -> None:
        *of_rows, first, columns = values
        at_once = max(1, LOGITS_AT_ONCE // columns)
        for start in range(0, len(tile), at_once):
            rows = slice(start, start + at_once)
            fold(tile[rows], stride, *(one[rows] for one in of_rows), first, columns, **settings)

    return folded
