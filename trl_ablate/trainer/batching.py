"""Microbatches with less padding: trimming, and regrouping by length.

TRL pads every completion to the longest of the rollout batch and splits the batch into microbatches
at random, so the model mostly processes padding. Here, each microbatch is cut to its own longest
prompt and completion, and the rows of an optimizer step are sorted by length before they are split
into microbatches. `forward_passes.py` has other measures.

The gradient stays the same, as it is a sum over the rows of an optimizer step. If the contribution
of a row depends on the other rows of its microbatch, the caller must not regroup.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

Batch = dict[str, Any]

PROMPT_KEYS = ("prompt_ids", "prompt_mask")
COMPLETION_KEYS = (
    "completion_ids", "completion_mask", "tool_mask", "old_per_token_logps", "ref_per_token_logps",
    "sampling_per_token_logps", "importance_sampling_ratio",
)  # fmt: skip
ROW_WEIGHTS = "row_weights"
"""Key of a factor of each row's loss; a batch without it has factor 1."""
BONUS_WEIGHTS = "bonus_weights"
"""Key of a factor of the entropy bonus; a batch without it has factor 1."""
ROW = "row"
"""Key of each row's place in its rollout batch; only an X-ray has it."""
ROW_KEYS = ("advantages", ROW_WEIGHTS, BONUS_WEIGHTS, ROW)
SCALAR_KEYS = ("num_items_in_batch",)
DRAWN = "drawn_microbatch"
"""Key of a regrouped batch: for each row, the index of the microbatch that TRL put it into."""

TEXT_KEYS = frozenset((*PROMPT_KEYS, *COMPLETION_KEYS, *ROW_KEYS, *SCALAR_KEYS))
"""The keys of a text batch; a batch with other keys (such as images) is not changed."""


def is_text(batch: Mapping[str, Any]) -> bool:
    """Whether all keys of a batch are known here, so that it may be trimmed and regrouped."""
    return batch.keys() <= TEXT_KEYS


def response_mask(batch: Mapping[str, Any]) -> Tensor:
    """`(N, T)`: 1 at the tokens that count in the loss; the output of tools does not."""
    mask_NT = batch["completion_mask"]
    return mask_NT * batch["tool_mask"] if "tool_mask" in batch else mask_NT


def weigh_microbatches(microbatches: list[Batch], key: str, total: Callable[[Any], Any]) -> None:
    """Turn weights of rows, 1 in groups that are kept and 0 in others, into the factor that makes
    the mean over all microbatches of the rollout batch one over those with a row that is kept.
    `total` sums a tensor over all processes."""
    filled = sum(bool(batch[key].any()) for batch in microbatches)
    device = microbatches[0][key].device
    all_filled, everything = total(torch.tensor([filled, len(microbatches)], device=device))
    factor = (everything / all_filled.clamp(min=1)).item()
    for batch in microbatches:
        batch[key] = torch.full_like(batch[key], factor)


def without_needless_padding(
    microbatches: list[Batch], together: int, passes: Any, idle_apart: bool
) -> tuple[list[Batch], dict[str, float]]:
    """Regroup and trim one rollout batch; also return its padded share before and after.

    Args:
        together: number of microbatches to regroup together; 1: do not regroup.
        passes: the forward passes, which know how many positions they compute; None: do not trim.
        idle_apart: rows whose advantage is 0 come first.
    """
    drawn = padded_fraction(microbatches)
    if together > 1:
        orders = (by_length, by_prompt) if passes and passes.shares else (by_length,)
        regrouped = [regroup(microbatches, together, order, idle_apart) for order in orders]
        microbatches = min(regrouped, key=partial(computed_positions, passes=passes))
    if passes is not None:
        microbatches = [trim(batch, passes.multiple) for batch in microbatches]
    left = padded_fraction(microbatches, passes)
    return microbatches, {"padding/fraction_drawn": drawn, "padding/fraction": left}


def trim(batch: Batch, multiple: int = 1) -> Batch:
    """Cut a microbatch to its own longest prompt and longest completion.

    Shapes: prompts `(N, S)`, padded left, are cut on the left; tensors `(N, T)`, padded right, are
    cut on the right; `(N, 1)` and `(N,)` are not cut. Widths are rounded up to a `multiple` if
    there are enough columns. At least two columns of completions are kept if there are two: TRL
    treats a single column as one value per sequence, and then counts masked rows in the mean.
    """
    start = max(0, batch["prompt_mask"].size(1) - width_of(batch["prompt_mask"], multiple))
    width = batch["completion_mask"].size(1)
    end = max(2, width_of(batch["completion_mask"], multiple))
    trimmed = {**batch, **{key: batch[key][:, start:] for key in PROMPT_KEYS}}
    for key in (*COMPLETION_KEYS, "advantages"):  # a subclass may give one to each token
        if key in batch and batch[key].shape[1:] == (width,):
            trimmed[key] = batch[key][:, :end]
    return trimmed


def of_two_columns(batch: Batch) -> Batch:
    """A text batch with rows that are masked: widened if completions are one column, see `trim`."""
    if batch["completion_mask"].size(1) > 1 or not is_text(batch):
        return batch
    keys = [key for key in COMPLETION_KEYS if key in batch]
    return {**batch, **{key: pad(batch[key], (0, 1), value=padding_of(key, 0)) for key in keys}}


def width_of(mask_NT: Tensor, multiple: int = 1) -> int:
    """Number of columns for the longest row, rounded up to a multiple; at least 1."""
    longest = max(1, int(mask_NT.sum(dim=1).max()))
    return -(-longest // multiple) * multiple


def regroup(
    microbatches: Sequence[Batch],
    per_step: int,
    order: Callable[[Batch], Tensor],
    idle_apart: bool = False,
) -> list[Batch]:
    """Sort the rows of every `per_step` consecutive microbatches and split them again; `DRAWN`
    records the original microbatch of each row."""
    regrouped: list[Batch] = []
    for first in range(0, len(microbatches), per_step):
        step = microbatches[first : first + per_step]
        rows = concatenated(step)
        sizes = torch.tensor([len(batch["prompt_mask"]) for batch in step])
        drawn = torch.arange(len(step)).repeat_interleave(sizes)
        rows[DRAWN] = drawn.to(rows["prompt_mask"].device)
        places = order(rows)
        if idle_apart:
            advantages = rows["advantages"].reshape(len(places), -1)
            places = places[(advantages[places] != 0).any(dim=1).int().argsort(stable=True)]
        regrouped += [taken(rows, part) for part in places.chunk(len(step))]
    return regrouped


def as_drawn(regrouped: Sequence[Batch]) -> list[Batch]:
    """The microbatches that TRL drew, from all that `regroup` made of them."""
    rows = concatenated(regrouped)
    drawn_N = rows.pop(DRAWN)
    return [taken(rows, drawn_N == place) for place in range(int(drawn_N.max()) + 1)]


def by_length(rows: Batch) -> Tensor:
    """The rows by the length of prompt plus completion."""
    lengths_N = rows["prompt_mask"].sum(dim=1) + rows["completion_mask"].sum(dim=1)
    return torch.argsort(lengths_N, stable=True)


def by_prompt(rows: Batch) -> Tensor:
    """The rows of a prompt together, by their length."""
    prompts_NS = rows["prompt_ids"].masked_fill(rows["prompt_mask"] == 0, -1)
    places = by_length(rows)
    _, prompt_N = prompts_NS[places].unique(dim=0, return_inverse=True)
    return places[torch.argsort(prompt_N, stable=True)]


def groups_by_length(
    lengths_N: Tensor, at_most: int | None = None, least_saved: int | None = None
) -> list[Tensor]:
    """The rows sorted by length, in groups of at most `at_most`; each is split where this saves at
    least `least_saved` positions of padding."""
    order_N = torch.argsort(lengths_N, stable=True)
    groups = order_N.split(at_most or len(order_N))
    if least_saved is None:
        return list(groups)
    return [part for rows in groups for part in _split(rows, lengths_N[rows], least_saved)]


def _split(rows: Tensor, lengths_M: Tensor, least_saved: int) -> list[Tensor]:
    """Split sorted rows where the shorter ones save most, as often as it is worth it."""
    saved_M = torch.arange(len(rows), device=rows.device) * (lengths_M[-1] - lengths_M.roll(1))
    at = int(saved_M.argmax())
    if at == 0 or saved_M[at] < least_saved:
        return [rows]
    return [
        part
        for few in (slice(0, at), slice(at, None))
        for part in _split(rows[few], lengths_M[few], least_saved)
    ]


def padded_fraction(batches: Sequence[Batch], passes: Any = None) -> float:
    """The share of padding among the positions of these microbatches, or, of all that these forward
    passes compute."""
    positions = padding = 0
    for rows in map(rows_of, batches):
        of_rows = rows[1].numel(), int((rows[1] == 0).sum())
        computed, padded = passes.positions(*rows) if passes else of_rows
        positions, padding = positions + computed, padding + padded
    return padding / positions


def computed_positions(batches: Sequence[Batch], passes: Any) -> int:
    return sum(passes.positions(*rows_of(batch))[0] for batch in batches) if passes else 0


def rows_of(batch: Batch) -> tuple[Tensor, Tensor, int]:
    """Tokens and mask of prompts with completions, and the width of the completions."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, mask, batch["completion_ids"].size(1)


def concatenated(batches: Sequence[Batch], padding_id: int = 0) -> Batch:
    """The rows of several batches as one, padded to the same width: prompts left, others right."""
    rows = dict(batches[0])
    for key in [key for key in rows if key not in SCALAR_KEYS]:
        parts = [batch[key] for batch in batches]
        if parts[0].dim() > 1:
            widest, value = max(part.size(1) for part in parts), padding_of(key, padding_id)
            missing = [widest - part.size(1) for part in parts]
            sides = [(each, 0) if key in PROMPT_KEYS else (0, each) for each in missing]
            padded = zip(parts, sides, strict=True)
            parts = [pad(part, side, value=value) for part, side in padded]
        rows[key] = torch.cat(parts)
    return rows


def padding_of(key: str, padding_id: int) -> int:
    if key in ("prompt_ids", "completion_ids"):
        return padding_id
    return 1 if key in ("tool_mask", "importance_sampling_ratio") else 0  # VESPO takes its log


def taken(rows: Batch, index: Any) -> Batch:
    return {key: value if key in SCALAR_KEYS else value[index] for key, value in rows.items()}
