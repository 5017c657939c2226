"""A forward pass in which every prompt stands once, however many rows continue it.

The rows of a group have one prompt. A pass over padded rows computes it once for each of them; here
all prompts and all rows stand behind one another in a single row without padding:

    prefixes: each different prompt, without its last token
    tails:    of each row, the last token of its prompt and its response

Only attention sees more than one token at a time. There, a tail sees its prefix and itself, and a
prefix itself, so that no token's log-probability or gradient changes but for rounding. The keys and
values of a prefix are repeated for its tails; the gradient adds up what comes back.

The layout travels through the model as a keyword, to transformers' `sdpa` attention, which is
wrapped once. So it is there as well when gradient checkpointing computes a layer again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

KEYWORD = "shared_prompts"
"""Of the model's forward pass."""
Found = tuple[torch.Tensor | None, ...]
"""Results of a forward pass for each token, `(N, T)`; None for what it was not asked."""


@dataclass(frozen=True)
class Block:
    """Rows that attention computes together.

    `places_NR`: the place of each token in the packed row; `real_NR`: False at padding, on the
    right; `prefix_N`: which prefix each row continues, None for the prefixes.
    """

    places_NR: torch.Tensor
    real_NR: torch.Tensor
    prefix_N: torch.Tensor | None = None


@dataclass(frozen=True)
class Layout:
    """The prefixes, and blocks of tails of similar length, in their order in the packed row."""

    prefixes: Block
    tails: Sequence[Block]


def forward_shared(
    forward: Callable[..., tuple],
    ids_NL: torch.Tensor,
    mask_NL: torch.Tensor,
    completion_length: int,
    blocks: Callable[[torch.Tensor], Sequence[torch.Tensor]],
) -> Found:
    """The results of `forward_row` for each token, `(N, completion_length)`.

    Args:
        blocks: divides rows, by their lengths, into those that attention computes together.
    """
    wrap_attention()
    width = ids_NL.size(1) - completion_length
    prompt_mask_NS = mask_NL[:, :width].bool()
    prompts_NS = ids_NL[:, :width].masked_fill(~prompt_mask_NS, -1)
    distinct_BS, prefix_N = prompts_NS.unique(dim=0, return_inverse=True)
    prefix_BS = distinct_BS >= 0
    prefix_BS[:, -1:] = False  # the last token, as prompts are padded on the left
    tail_NL = mask_NL.bool()
    tail_NL[:, : width - 1] = False
    groups = blocks(tail_NL.sum(dim=1))
    order_N = torch.cat(list(groups))
    tail_NL, tails_NL = tail_NL[order_N], ids_NL[order_N]
    lengths_B, lengths_N = prefix_BS.sum(dim=1), tail_NL.sum(dim=1)
    start = int(lengths_B.sum())
    layout = Layout(
        _block(lengths_B, 0),
        _tails(lengths_N, start, prefix_N[order_N], [len(rows) for rows in groups]),
    )
    begin_N = lengths_B[prefix_N[order_N]]
    positions_NL = begin_N[:, None] + tail_NL.cumsum(dim=1) - 1
    positions_BS = prefix_BS.cumsum(dim=1) - 1
    response_NL = tail_NL.clone()
    response_NL[:, :width] = False
    found = forward_row(
        forward,
        torch.cat([distinct_BS[prefix_BS], tails_NL[tail_NL]]),
        torch.cat([positions_BS[prefix_BS], positions_NL[tail_NL]]),
        pad(response_NL[tail_NL], (start, 0)),
        mask_NL[order_N, width:].bool(),
        **{KEYWORD: layout},
    )
    back_N = torch.argsort(order_N)
    return tuple(None if value is None else value[back_N] for value in found)


def forward_row(
    forward: Callable[..., tuple],
    ids_P: torch.Tensor,
    positions_P: torch.Tensor,
    response_P: torch.Tensor,
    response_NT: torch.Tensor,
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
    places = (response_NT, response_P[1:])
    return tuple(None if value is None else _unpacked(value[0], *places) for value in found)


def _unpacked(values_P: torch.Tensor, response_NT: torch.Tensor, response_P: torch.Tensor):
    return values_P.new_zeros(response_NT.shape).masked_scatter(response_NT, values_P[response_P])


def joined(parts: Sequence[Sequence[Any]], places: Sequence[torch.Tensor] | None = None) -> Found:
    """The results of several passes as those of one, with the rows of each in its places."""
    back_N = None if places is None else torch.argsort(torch.cat(list(places)))
    whole = [None if None in column else torch.cat(column) for column in zip(*parts, strict=True)]
    return tuple(one if one is None or back_N is None else one[back_N] for one in whole)


def computed_tokens(ids_NL: torch.Tensor, mask_NL: torch.Tensor, completion_length: int) -> int:
    """The length of the packed row of `forward_shared`."""
    width = ids_NL.size(1) - completion_length
    prompts_NS = ids_NL[:, :width].masked_fill(mask_NL[:, :width] == 0, -1)
    distinct_BS = prompts_NS.unique(dim=0)
    prefixes = int((distinct_BS >= 0).sum()) - len(distinct_BS)
    return prefixes + len(ids_NL) + int(mask_NL[:, width:].sum())


def _block(lengths_N: torch.Tensor, start: int, prefix_N: torch.Tensor | None = None) -> Block:
    """Rows of these lengths behind one another, from a place on."""
    columns_R = torch.arange(int(lengths_N.max()), device=lengths_N.device)
    first_N = start + lengths_N.cumsum(dim=0) - lengths_N
    real_NR = columns_R < lengths_N[:, None]
    return Block((first_N[:, None] + columns_R).masked_fill(~real_NR, start), real_NR, prefix_N)


def _tails(
    lengths_N: torch.Tensor, start: int, prefix_N: torch.Tensor, sizes: list[int]
) -> list[Block]:
    blocks = []
    for lengths, prefix in zip(lengths_N.split(sizes), prefix_N.split(sizes), strict=True):
        blocks.append(_block(lengths, start, prefix))
        start += int(lengths.sum())
    return blocks


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
    plain: Callable[..., torch.Tensor],
    states_1HPD: Sequence[torch.Tensor],
    layout: Layout,
    window: int | None,
) -> torch.Tensor:
    """Queries, keys and values of a packed row to outputs `(1, P, H, D)`."""
    prefixes = [_rows(state, layout.prefixes) for state in states_1HPD]
    lengths_B = layout.prefixes.real_NR.sum(dim=1)
    prefix_length = layout.prefixes.real_NR.size(1)
    outputs = []
    if prefix_length:
        mask = None if window is None else _causal(prefix_length, window, lengths_B.device)
        outputs.append(plain(*prefixes, mask)[layout.prefixes.real_NR])
    for block in layout.tails:
        query, key, value = (_rows(state, block) for state in states_1HPD)
        key = torch.cat([prefixes[1][block.prefix_N], key], dim=2)
        value = torch.cat([prefixes[2][block.prefix_N], value], dim=2)
        mask = _seen(lengths_B[block.prefix_N], prefix_length, block.real_NR.size(1), window)
        outputs.append(plain(query, key, value, mask)[block.real_NR])
    return torch.cat(outputs)[None]


def _rows(state_1HPD: torch.Tensor, block: Block) -> torch.Tensor:
    """`(N, H, R, D)`; padding repeats a token, and no real token sees it."""
    return state_1HPD[0].transpose(0, 1)[block.places_NR].transpose(1, 2)


def _causal(length: int, window: int, device: torch.device) -> torch.Tensor:
    place_R = torch.arange(length, device=device)
    distance_RR = place_R[:, None] - place_R
    return ((distance_RR >= 0) & (distance_RR < window))[None, None]


def _seen(lengths_N: torch.Tensor, prefix: int, tail: int, window: int | None) -> torch.Tensor:
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
