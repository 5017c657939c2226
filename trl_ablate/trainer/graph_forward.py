"""Decoding on a GPU: the forward pass of one token per row, recorded once for each generation.

A small model waits for Python, which calls about a thousand kernels for each token. A CUDA graph
calls them all at once. What is recorded is the model's own forward pass, in the precision in which
it is trained, over a cache with room for all tokens, so that every tensor keeps its place. Rows
that have ended stay in the cache and are not returned.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from trl_ablate.trainer.short_forward import CACHE, INPUTS, hooked

DEVICE = "cuda"
CELLS = 2**16
"""Rows times columns of the largest cache, of which each token reads all; measured to 40,800."""


class GraphForward:
    """The forward pass of one token per row, for a model that `may_be_recorded`.

    Args:
        inputs: of the model's own forward pass, after it has read the prompts.
        longest: length of the longest row at its end.
    """

    def __init__(self, model: Any, inputs: dict[str, Any], longest: int):
        self._model = model
        mask_NP = inputs["attention_mask"][:, :-1].bool()
        count, length = mask_NP.shape
        layers: list[Any] = [Layer(longest, read) for read in inputs[CACHE].layers]
        self._cache = Cache(layers=layers)
        self._seen_N11L = mask_NP.new_zeros(count, 1, 1, longest)
        self._seen_N11L[:, 0, 0, :length] = mask_NP
        self._column = torch.tensor([length], device=mask_NP.device)
        self._positions_N1 = inputs["position_ids"][:, -1:].clone()
        self._ids_N1 = torch.zeros_like(self._positions_N1)
        self._places_M = torch.arange(count, device=mask_NP.device)
        """Rows of the cache that have not ended."""
        self._logits_NV: Tensor
        self._next: Callable[[], None] = self._pass
        self._passes = 0

    def logits(self, ids_ML: Tensor) -> Tensor:
        self._ids_N1[self._places_M, 0] = ids_ML[:, -1]
        if self._passes == 1:  # the first has made what lasts: handles, copies of weights
            self._next = self._recorded()
        self._next()
        self._passes += 1
        return self._logits_NV[self._places_M]

    def keep(self, kept_M: Tensor) -> None:
        self._places_M = self._places_M[kept_M]

    def _pass(self) -> None:
        """What changes keeps its place."""
        self._seen_N11L.index_fill_(3, self._column, 1)
        inputs = {CACHE: self._cache, "attention_mask": self._seen_N11L, "use_cache": True}
        outputs = self._model(self._ids_N1, position_ids=self._positions_N1, **inputs)
        self._logits_NV = outputs.logits[:, -1].float()
        self._column += 1
        self._positions_N1 += 1

    def _recorded(self) -> Callable[[], None]:
        try:
            return recorded(self._pass)
        except RuntimeError as error:
            slower = f"a CUDA graph cannot be recorded, so decoding is slower: {error}"
            warnings.warn(slower, stacklevel=2)
            return self._pass


class Layer(StaticLayer):
    """A layer of the cache that stays at its place."""

    def __init__(self, longest: int, read: Any):
        super().__init__(longest)
        super().update(read.keys, read.values)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """In autocast, a pass may make them in another type than that of the prompts' cache."""
        keys, values = key_states.to(self.keys.dtype), value_states.to(self.values.dtype)
        return super().update(keys, values, *args, **kwargs)


def may_be_recorded(model: Any, inputs: dict[str, Any], longest: int) -> bool:
    """Whether a graph computes what this model computes, and gains time: on one GPU, without hooks,
    dropout, or routes that depend on values, with attention to all tokens, over a cache of some
    size."""
    return (
        model.device.type == DEVICE
        and {one.device for one in model.parameters()} == {model.device}
        and bool(model._can_compile_fullgraph)
        and model.config._attn_implementation == "sdpa"
        and inputs.keys() <= INPUTS
        and inputs["attention_mask"].dim() == inputs["position_ids"].dim() == 2
        and len(inputs["attention_mask"]) * longest <= CELLS
        and not any(hooked(one) or drops(one) for one in model.modules())
        and all(type(layer) is DynamicLayer for layer in inputs[CACHE].layers)
    )


def drops(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Dropout) and module.training and module.p > 0


@cache
def recordings(device: int) -> tuple[torch.cuda.Stream, list[torch.cuda.CUDAGraph]]:
    """The stream in which graphs are recorded, and the latest, whose memory the next one uses
    again: what another stream or pool has had stays reserved."""
    return torch.cuda.Stream(device), []


def recorded(run: Callable[[], None]) -> Callable[[], None]:
    """`run` as one call. It is not run here; tensors that it makes stay at their places."""
    stream, latest = recordings(torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(*(one.pool() for one in latest), capture_error_mode="thread_local")
        try:
            run()
        finally:
            graph.capture_end()
    latest[:] = [graph]
    return graph.replay
