"""Reading the prompts of a batch: their common beginning once, and the rest with little padding.

Prompts are padded left to the longest, and most begin with the same template. Here one row reads
the beginning for all; then rows of similar lengths read the rest of theirs together. In the cache
that results, the padding of a row stands behind the beginning. No position changes.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from trl_ablate.trainer.batching import groups_by_length
from trl_ablate.trainer.short_forward import CACHE

ROWS = 32
"""Prompts that are read together at most."""
WORTH = 0.9
"""Share of the batch's positions up to which reading them apart is worth its calls."""
Read = tuple[Tensor, Tensor]
"""Logits of the last tokens, `(N, V)`, and the mask of the cache, `(N, L)`."""


def read_apart(model: Any, ids_NL: Tensor, inputs: dict[str, Any]) -> Read | None:
    """Fill the inputs' cache, which is empty and will drop no column; None if that gains little.
    `model` is one that knows rows by their mask and positions alone."""
    mask_NL, cache = inputs["attention_mask"], inputs[CACHE]
    lengths_N, longest = mask_NL.sum(dim=1), ids_NL.size(1)
    if not (mask_NL[:, 1:] >= mask_NL[:, :-1]).all() or not lengths_N.all():
        return None  # not padded left
    begun = common_beginning(ids_NL, lengths_N)
    parts = groups_by_length(lengths_N, ROWS)
    widths = [int(lengths_N[rows[-1]]) - begun for rows in parts]
    read = sum(len(rows) * width for rows, width in zip(parts, widths, strict=True))
    if begun + read > WORTH * ids_NL.numel():
        return None
    whole_NL = behind(begun, longest - begun, lengths_N)
    beginning = deepcopy(cache)
    if begun:
        first = longest - int(lengths_N[0])
        ids_1B = ids_NL[:1, first : first + begun]
        _forward(model, ids_1B, torch.ones_like(ids_1B), beginning)
    logits, caches = [], []
    for rows, width in zip(parts, widths, strict=True):
        caches.append(deepcopy(beginning))
        caches[-1].batch_repeat_interleave(len(rows))
        mask_MP = behind(begun, width, lengths_N[rows])
        logits.append(_forward(model, ids_NL[rows, -width:], mask_MP, caches[-1]))
    for place in range(len(caches[0].layers)):
        layers = [one.layers[place] for one in caches]
        keys = widened(parts, [one.keys for one in layers], begun, longest)
        values = widened(parts, [one.values for one in layers], begun, longest)
        cache.update(keys, values, place)
    return torch.cat(logits)[torch.cat(parts).argsort()], whole_NL


def common_beginning(ids_NL: Tensor, lengths_N: Tensor) -> int:
    """How many tokens all prompts, padded left, begin with; each has one more."""
    places_B = torch.arange(int(lengths_N.min()) - 1, device=ids_NL.device)
    begin_NB = ids_NL.gather(1, ids_NL.size(1) - lengths_N[:, None] + places_B)
    return int((begin_NB == begin_NB[0]).all(dim=0).long().cumprod(dim=0).sum())


def behind(begun: int, width: int, lengths_N: Tensor) -> Tensor:
    """The mask, `(N, begun + width)`, of rows whose padding stands behind what is begun."""
    places_R = torch.arange(width, device=lengths_N.device)
    mask_NR = places_R >= width + begun - lengths_N[:, None]
    return torch.nn.functional.pad(mask_NR.long(), (begun, 0), value=1)


def widened(parts: list[Tensor], of_parts: list[Tensor], begun: int, longest: int) -> Tensor:
    """The keys or values of all rows, `(N, A, longest, D)`, of those of some rows each."""
    _, heads, _, size = of_parts[0].shape
    whole_NALD = of_parts[0].new_zeros(sum(map(len, parts)), heads, longest, size)
    for rows, one in zip(parts, of_parts, strict=True):
        whole_NALD[rows, :, :begun] = one[:, :, :begun]
        whole_NALD[rows, :, longest + begun - one.size(2) :] = one[:, :, begun:]
    return whole_NALD


def _forward(model: Any, ids_MT: Tensor, mask_MP: Tensor, cache: DynamicCache) -> Tensor:
    positions_MP = (mask_MP.cumsum(dim=1) - 1).clamp(min=0)
    outputs = model(
        input_ids=ids_MT,
        attention_mask=mask_MP,
        position_ids=positions_MP[:, -ids_MT.size(1) :],
        use_cache=True,
        logits_to_keep=1,
        **{CACHE: cache},
    )
    return outputs.logits[:, -1].to(torch.float32, copy=True)
