"""The forward pass of a microbatch, in the way that computes fewest tokens. Same log-probabilities.

The rows are moved to the left and trimmed, packed behind one another, or share their prompts
(`shared_prompts.py`). The LM head computes the tokens of responses only, on a CPU a few rows of
logits at a time. Rows whose advantage is 0 take no backward pass: their log-probabilities are only
needed for what is logged.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from trl.kernels import chunked_logprob
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer import utils as trl_utils

from trl_ablate.trainer.architectures import check_packs, may_move_rows, may_share
from trl_ablate.trainer.batching import groups_by_length, width_of
from trl_ablate.trainer.shared_prompts import (
    Found,
    computed_tokens,
    forward_row,
    forward_shared,
    joined,
)
from trl_ablate.trainer.temporary import replaced

POSITIONS_OF_A_PASS = 256
"""On a CPU, a forward and backward pass of the miniature costs about as much as this many positions
in a larger one. It is less in a larger model."""
WORTH = 0.7
"""Prompts are shared if this share of the positions, or less, is left: one long row costs more of
a small model. With 0.78 left, the miniature's shape took 1.28 times as long as without sharing."""
LOGITS_AT_ONCE = 2**19
"""2 MiB in float32: sixteen rows of TRL's widest tile."""
TEXT_FORWARD = frozenset(("compute_entropy", "compute_aux_loss"))


def passes_of(trainer: Any) -> "Passes | None":
    """How a trainer makes forward passes; None: with TRL's padding."""
    args, model, accelerator = trainer.args, trainer.model, trainer.accelerator
    trims = args.trim_microbatches and may_move_rows(model, aux_loss=trainer.aux_loss_enabled)
    if args.padding_free:
        check_packs(model.config.model_type, trimmed=trims)
    if not trims:
        return None
    # A pass has a high fixed cost on a GPU, and several processes have to take equally many
    splits = accelerator.num_processes == 1 and accelerator.device.type == "cpu"
    return Passes(
        multiple=args.trimmed_to_multiple_of,
        least_saved=POSITIONS_OF_A_PASS if splits else None,
        packs=args.padding_free,
        shares=args.shares_prompts and may_share(model),
    )


@dataclass(frozen=True)
class Passes:
    """How forward passes are made."""

    multiple: int = 1
    """Widths of trimmed rows are multiples of it."""
    least_saved: int | None = None
    """Positions for which they are split into passes; None: they are not."""
    packs: bool = False
    shares: bool = False

    def __call__(
        self,
        forward: Callable[..., tuple],
        ids_NL: Tensor,
        mask_NL: Tensor,
        completion_length: int,
        rows_at_once: int | None = None,
    ) -> Found:
        """The results of `forward(ids, mask, completion_length, labelled)` for each token, at lower
        cost: `(N, completion_length)` each, or None, and 0 at padding. `labelled` is 1 at the
        tokens whose results are used."""
        if self.packs or self.worth_sharing(ids_NL, mask_NL, completion_length):
            whole = forward_packed if self.packs else forward_shared
            size = rows_at_once or len(ids_NL)
            parts = zip(ids_NL.split(size), mask_NL.split(size), strict=True)
            return joined([whole(forward, ids, mask, completion_length) for ids, mask in parts])
        trimmed = partial(_moved_left, forward, width=completion_length, multiple=self.multiple)
        groups = groups_by_length(mask_NL.sum(dim=1), rows_at_once, self.least_saved)
        if len(groups) == 1:
            return trimmed(ids_NL, mask_NL)
        return joined([trimmed(ids_NL[rows], mask_NL[rows]) for rows in groups], groups)

    def worth_sharing(self, ids_NL: Tensor, mask_NL: Tensor, completion_length: int) -> bool:
        if not self.shares:
            return False
        trimmed = self._trimmed_positions(mask_NL)
        return computed_tokens(ids_NL, mask_NL, completion_length) <= WORTH * trimmed

    def positions(self, ids_NL: Tensor, mask_NL: Tensor, completion_length: int) -> tuple[int, int]:
        """How many positions a pass over these rows computes, and how many of them are padding."""
        if self.packs:
            return int(mask_NL.sum()), 0
        if self.worth_sharing(ids_NL, mask_NL, completion_length):
            return computed_tokens(ids_NL, mask_NL, completion_length), 0
        trimmed = self._trimmed_positions(mask_NL)
        return trimmed, trimmed - int(mask_NL.sum())

    def _trimmed_positions(self, mask_NL: Tensor) -> int:
        groups = groups_by_length(mask_NL.sum(dim=1), None, self.least_saved)
        widths = [min(mask_NL.size(1), width_of(mask_NL[rows], self.multiple)) for rows in groups]
        return sum(len(rows) * width for rows, width in zip(groups, widths, strict=True))


def needs_all_processes(model: Any) -> bool:
    """Whether DDP exchanges something in this pass, so that every process has to make it with
    gradients: it reduces them, or it rebuilds its buckets. It does the latter once, in the first
    pass with gradients after a reduction, unless it looks for unused parameters."""
    of_ddp = (one for one in model.modules() if isinstance(one, DistributedDataParallel))
    ddp = next(of_ddp, None)
    if ddp is None:
        return False
    rebuilds = ddp.static_graph or not ddp.find_unused_parameters
    return ddp.require_backward_grad_sync or (rebuilds and not ddp._has_rebuilt_buckets)


def is_text_forward(arguments: dict[str, Any]) -> bool:
    """Whether the only input of TRL's forward pass is tokens."""
    return all(value is None for name, value in arguments.items() if name not in TEXT_FORWARD)


def of_responses(forward: Callable[..., tuple], model: Any) -> Callable[..., tuple]:
    """TRL's `forward(model, ids, mask, completion_length)` as a forward pass for `Passes`, with
    other inputs of the model where these are given.

    The cost of the LM head grows with the vocabulary. TRL leaves out positions without a label, but
    only on GPUs with Triton, and in a row that was moved to the left, padding and prompts have one.
    Here, only tokens whose result is used have one, and the others are left out on a CPU, too.
    """

    def call(
        ids_NL: Tensor, mask_NL: Tensor, width: int, labelled_NL: Tensor, **instead: Any
    ) -> tuple:
        def labelled(*, labels: Tensor, **inputs: Any) -> Any:
            return model(labels=labels.masked_fill(labelled_NL == 0, -100), **{**inputs, **instead})

        if ids_NL.device.type != "cpu":
            return forward(labelled, ids_NL, mask_NL, width)
        head = {"_use_triton": lambda device: True, "_ChunkedLogProbFunction": LogProbsByRows}
        with replaced(trl_utils, **head):
            return forward(labelled, ids_NL, mask_NL, width)

    return call


def _moved_left(
    forward: Callable[..., tuple], ids_NL: Tensor, mask_NL: Tensor, width: int, multiple: int
) -> Found:
    """Forward pass with every row moved to the left, so that all padding is at its end, and cut to
    the longest row.

    A token of a causal model does not depend on later tokens. So no mask is needed, attention uses
    its faster, purely causal path, and the width is that of the longest row. Padded separately,
    prompts and completions need the longest prompt plus the longest completion.
    """
    prompt_width = mask_NL.size(1) - width
    labelled_NL = mask_NL.clone()
    labelled_NL[:, :prompt_width] = 0
    if mask_NL.all():
        return forward(ids_NL, mask_NL, width, labelled_NL)
    first_N1 = mask_NL.argmax(dim=1, keepdim=True)
    longest_row = min(mask_NL.size(1), width_of(mask_NL, multiple))
    shortest_prompt = prompt_width - int(first_N1.max())
    columns_NL = first_N1 + torch.arange(longest_row, device=ids_NL.device)
    left_NL = columns_NL.clamp(max=mask_NL.size(1) - 1)
    ids_NL = ids_NL.gather(1, left_NL)
    labelled_NL = labelled_NL.gather(1, left_NL) * (columns_NL == left_NL)
    completion = max(1, longest_row - shortest_prompt)
    found = forward(ids_NL, torch.ones_like(ids_NL), completion, labelled_NL)
    place_NT = first_N1.max() - first_N1 + torch.arange(width, device=ids_NL.device)
    padding_NT = mask_NL[:, prompt_width:] == 0
    return tuple(
        None
        if value is None
        else value.gather(1, place_NT.clamp(max=value.size(1) - 1)).masked_fill(padding_NT, 0.0)
        for value in found
    )


def forward_packed(
    forward: Callable[..., tuple], ids_NL: Tensor, mask_NL: Tensor, width: int
) -> Found:
    """The results of `forward_row` from one row without padding.

    The positions of each row start at 0, by which transformers tells the rows apart: flash
    attention computes each by itself, other kinds of attention mask what belongs to other rows.
    """
    real_NL = mask_NL.bool()
    response_NL = real_NL.clone()
    response_NL[:, : mask_NL.size(1) - width] = False
    found = forward_row(
        forward,
        ids_NL[real_NL],
        (mask_NL.cumsum(dim=1) - 1)[real_NL],
        response_NL[real_NL],
        response_NL[:, -width:],
    )
    return tuple(found)


def without_gradient_of(
    idle_N: Tensor, passes: Callable[..., Found], ids_NL: Tensor, mask_NL: Tensor, *more: Any
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
    return joined(parts, places)


class LogProbsByRows(ChunkedLogProbFunction):
    """TRL's log-probabilities and entropies, and their gradients, a few rows at a time.

    TRL's LM head makes the logits of all tokens and a part of the vocabulary, a tile, and takes
    about ten operations from there, each with a new tensor of the tile's size. With a real
    vocabulary that costs a CPU as much as the product that made the logits; a few rows stay in its
    cache. Every operation is of one row, so that the bits are the same.
    """

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

    def folded(tile: Tensor, stride: int, *values: Any, **settings: Any) -> None:
        *of_rows, first, columns = values
        at_once = max(1, LOGITS_AT_ONCE // columns)
        for start in range(0, len(tile), at_once):
            rows = slice(start, start + at_once)
            fold(tile[rows], stride, *(one[rows] for one in of_rows), first, columns, **settings)

    return folded
