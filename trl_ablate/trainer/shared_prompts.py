"""A forward pass in which every prompt stands once, however many rows continue it.

The rows of a group have one prompt. A pass over padded rows computes it once for each of them; here
all prompts and all rows stand behind one another in a single row without padding:

    prefixes: each different prompt, without its last token
    tails:    of each row, the last token of its prompt and its response

Only attention sees more than one token at a time. There, a tail sees its prefix and itself, and a
prefix itself, so that no token's log-probability or gradient changes but for rounding. The keys and
values of a prefix are repeated for its tails; the gradient adds up what comes back.

The layout travels through the model as a keyword, to transformers' `sdpa` attention, which is
wrapped once: it is there as well when gradient checkpointing computes a layer again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trl_ablate.trainer.batching import groups_by_length

KEYWORD = "shared_prompts"
"""Of the model's forward pass."""
PADDING_OF_A_BLOCK = 256
"""The padding that is worth one more call of attention."""
Found = tuple[Tensor | None, ...]
"""Results of a forward pass for each token, `(N, T)`; None for what it was not asked."""


@dataclass(frozen=True)
class Block:
    """Rows that attention computes together.

    `places_NR`: the place of each token in the packed row; `real_NR`: False at padding, on the
    right; `prefix_N`: which prefix each row continues, None for the prefixes.
    """

    places_NR: Tensor
    real_NR: Tensor
    prefix_N: Tensor | None = None


Layout = tuple[Block, Sequence[Block]]
"""The prefixes, and blocks of tails of similar length, in their order in the packed row."""


def forward_shared(
    forward: Callable[..., tuple],
    ids_NL: Tensor,
    mask_NL: Tensor,
    completion_length: int,
    least_saved: int = PADDING_OF_A_BLOCK,
) -> Found:
    """The results of `forward_row` for each token, `(N, completion_length)`. Attention computes
    rows of similar length together: it is called once more where this saves `least_saved`."""
    wrap_attention()
    width = ids_NL.size(1) - completion_length
    distinct_BS, prefix_N = _prompts(ids_NL, mask_NL, width).unique(dim=0, return_inverse=True)
    prefix_BS = distinct_BS >= 0
    prefix_BS[:, -1:] = False  # the last token, as prompts are padded on the left
    tail_NL = mask_NL.bool()
    tail_NL[:, : width - 1] = False
    groups = groups_by_length(tail_NL.sum(dim=1), None, least_saved)
    order_N = torch.cat(groups)
    tail_NL, tails_NL, prefix_N = tail_NL[order_N], ids_NL[order_N], prefix_N[order_N]
    lengths_B, lengths_N = prefix_BS.sum(dim=1), tail_NL.sum(dim=1)
    end = start = int(lengths_B.sum())
    tails = []
    sizes = [len(rows) for rows in groups]
    for lengths, prefix in zip(lengths_N.split(sizes), prefix_N.split(sizes), strict=True):
        tails.append(_block(lengths, end, prefix))
        end += int(lengths.sum())
    positions_NL = lengths_B[prefix_N][:, None] + tail_NL.cumsum(dim=1) - 1
    positions_BS = prefix_BS.cumsum(dim=1) - 1
    response_NL = tail_NL.clone()
    response_NL[:, :width] = False
    found = forward_row(
        forward,
        torch.cat([distinct_BS[prefix_BS], tails_NL[tail_NL]]),
        torch.cat([positions_BS[prefix_BS], positions_NL[tail_NL]]),
        pad(response_NL[tail_NL], (start, 0)),
        mask_NL[order_N, width:].bool(),
        **{KEYWORD: (_block(lengths_B, 0), tails)},
    )
    return joined([found], [order_N])


def _prompts(ids_NL: Tensor, mask_NL: Tensor, width: int) -> Tensor:
    return ids_NL[:, :width].masked_fill(mask_NL[:, :width] == 0, -1)


def computed_tokens(ids_NL: Tensor, mask_NL: Tensor, completion_length: int) -> int:
    """The length of the packed row of `forward_shared`."""
    width = ids_NL.size(1) - completion_length
    distinct_BS = _prompts(ids_NL, mask_NL, width).unique(dim=0)
    prefixes = int((distinct_BS >= 0).sum()) - len(distinct_BS)
    return prefixes + len(ids_NL) + int(mask_NL[:, width:].sum())


def forward_row(
    forward: Callable[..., tuple],
    ids_P: Tensor,
    positions_P: Tensor,
    response_P: Tensor,
    response_NT: Tensor,
    **inputs: Any,
) -> Found:
    """The results of `forward(ids, mask, completion_length, labelled, **inputs)` for one packed row
    of P tokens: those of response tokens, in the places of `response_NT`, and 0 elsewhere.
    `labelled` is 1 at the tokens whose results are used, and `inputs` replace those of the model.
    """
    ids_1P = ids_P[None]
    found = forward(
        ids_1P,
        torch.ones_like(ids_1P),
        len(ids_P) - 1,  # nothing predicts the first token, which is of a prompt
        response_P[None].long(),
        attention_mask=None,
        position_ids=positions_P[None],
        use_cache=False,
        **inputs,
    )

    def unpacked(values_P: Tensor) -> Tensor:
        values_NT = values_P.new_zeros(response_NT.shape)
        return values_NT.masked_scatter(response_NT, values_P[response_P[1:]])

    return tuple(None if value is None else unpacked(value[0]) for value in found)


def joined(parts: Sequence[Sequence[Any]], places: Sequence[Tensor] | None = None) -> Found:
    """The results of several passes as those of one, with the rows of each in its places."""
    back_N = None if places is None else torch.argsort(torch.cat(list(places)))
    whole = [None if None in column else torch.cat(column) for column in zip(*parts, strict=True)]
    return tuple(one if one is None or back_N is None else one[back_N] for one in whole)


def _block(lengths_N: Tensor, start: int, prefix_N: Tensor | None = None) -> Block:
    """Rows of these lengths behind one another, from a place on."""
    columns_R = torch.arange(int(lengths_N.max()), device=lengths_N.device)
    first_N = start + lengths_N.cumsum(dim=0) - lengths_N
    real_NR = columns_R < lengths_N[:, None]
    return Block((first_N[:, None] + columns_R).masked_fill(~real_NR, start), real_NR, prefix_N)


def wrap_attention() -> None:
    """Let transformers' `sdpa` attention follow a layout if it gets one."""
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if getattr(plain, "follows_layouts", False):
        return

    def sdpa(module, query, key, value, attention_mask, *more, **keywords):
        layout = keywords.pop(KEYWORD, None)
        if layout is None:
            return plain(module, query, key, value, attention_mask, *more, **keywords)

        def part(*tensors):
            return plain(module, *tensors, *more, **keywords)[0]

        window = keywords.get("sliding_window")
        return _attention(part, (query, key, value), layout, window), None

    sdpa.follows_layouts = True
    ALL_ATTENTION_FUNCTIONS.register("sdpa", sdpa)


def _attention(
    plain: Callable[..., Tensor], states_1HPD: Sequence[Tensor], layout: Layout, window: int | None
) -> Tensor:
    """Queries, keys and values of a packed row to outputs `(1, P, H, D)`."""
    prefixes, tails = layout
    before = [_rows(state, prefixes) for state in states_1HPD]
    lengths_B, prefix_length = prefixes.real_NR.sum(dim=1), prefixes.real_NR.size(1)
    outputs = []
    if prefix_length:
        alone = (torch.zeros_like(lengths_B), 0, prefix_length, window)
        mask = None if window is None else _seen(*alone)
        outputs.append(plain(*before, mask)[prefixes.real_NR])
    for block in tails:
        query, key, value = (_rows(state, block) for state in states_1HPD)
        key = torch.cat([before[1][block.prefix_N], key], dim=2)
        value = torch.cat([before[2][block.prefix_N], value], dim=2)
        mask = _seen(lengths_B[block.prefix_N], prefix_length, block.real_NR.size(1), window)
        outputs.append(plain(query, key, value, mask)[block.real_NR])
    return torch.cat(outputs)[None]


def _rows(state_1HPD: Tensor, block: Block) -> Tensor:
    """`(N, H, R, D)`; padding repeats a token, and no real token sees it."""
    return state_1HPD[0].transpose(0, 1)[block.places_NR].transpose(1, 2)


def _seen(lengths_N: Tensor, prefix: int, tail: int, window: int | None) -> Tensor:
    """`(N, 1, tail, prefix + tail)`: which keys each query of a tail sees."""
    device = lengths_N.device
    column_S, place_R = torch.arange(prefix, device=device), torch.arange(tail, device=device)
    of_prefix_N1S = (column_S < lengths_N[:, None])[:, None]
    distance_RR = place_R[:, None] - place_R
    of_tail_RR = distance_RR >= 0
    if window is None:
        of_prefix_NRS = of_prefix_N1S.expand(-1, tail, -1)
    else:
        distance_NRS = lengths_N[:, None, None] + place_R[:, None] - column_S
        of_prefix_NRS = of_prefix_N1S & (distance_NRS < window)
        of_tail_RR = of_tail_RR & (distance_RR < window)
    of_tail_NRR = of_tail_RR.expand(len(lengths_N), -1, -1)
    return torch.cat([of_prefix_NRS, of_tail_NRR], dim=2)[:, None]
