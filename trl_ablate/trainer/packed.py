"""Which products of matrices are faster with weights packed beforehand, and how are they packed?

A product of a few rows, as in decoding, takes up to half of its time for the layout of its weights.
oneDNN makes the same product of weights that were packed once. They are a copy: they are made for
one generation, in which no weight changes, and freed at its end.
"""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trl_ablate.trainer.temporary import replaced

Product = Callable[[torch.Tensor], torch.Tensor]
LEAST = 2**17
"""Weights of a matrix from which packing pays: below, the call itself takes longer."""


class Packed:
    """`functional.linear` with one weight, without gradient; in autocast's type, if that is on."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, rows: int):
        self._dtype = product_dtype(weight)
        packed = weight.detach().to(self._dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(packed, rows)
        self._bias = None if bias is None else bias.detach().to(self._dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self._dtype)
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")


def product(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Product:
    """The product of about `rows` rows with a weight: packed, where that is faster."""
    if gains(weight):
        return Packed(weight, bias, rows)
    return lambda x: functional.linear(x, weight, bias)


def product_dtype(weight: torch.Tensor) -> torch.dtype:
    """That of autocast, but not bfloat16 where the processor has to imitate it: float32 is exact
    and takes a third of the time."""
    if not torch.is_autocast_enabled("cpu"):
        return weight.dtype
    dtype = torch.get_autocast_dtype("cpu")
    return torch.float32 if dtype == torch.bfloat16 and not has_bf16_products() else dtype


def gains(weight: torch.Tensor) -> bool:
    """Whether packing this weight pays."""
    return (
        type(weight.data) is torch.Tensor  # not one that is spread over processes
        and weight.device.type == "cpu"
        and weight.numel() >= LEAST
        and torch.backends.mkldnn.is_available()
        and product_dtype(weight) in (torch.float32, torch.bfloat16)
    )


def has_bf16_products() -> bool:
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@contextmanager
def packed_weights(model: nn.Module, rows: int):
    """Let the linear layers of a model, adapters' included, use packed weights."""
    with ExitStack() as stack:
        linear: list[Any] = [one for one in model.modules() if type(one) is nn.Linear]
        for one in linear:
            if "forward" not in vars(one) and not torch.is_grad_enabled() and gains(one.weight):
                forward = Packed(one.weight, one.bias, rows)
                stack.enter_context(replaced(one, forward=forward))
        yield
