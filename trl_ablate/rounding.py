"""Weights rounded to a smaller type and back: what a sampler with that type would compute with."""

import torch
from torch import Tensor

LARGEST_FLOAT8 = 448.0
"""The largest finite value of float8_e4m3fn."""
LARGEST_INT8 = 127.0
BY_CONVERSION = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def rounded(weight: Tensor, dtype: str) -> Tensor:
    """The nearest values that `dtype` can hold, in the type and shape of `weight`.

    `bfloat16`, `float16`: by conversion; values above float16's range become infinite.
    `float8_e4m3fn`: scaled so that the largest absolute value of the tensor is 448. `int8`: scaled
    so that the largest absolute value of each row (of the last dimension) is 127. Both leave
    vectors (norms, biases) as they are, as quantised engines do. A row or tensor of zeros stays
    zero.
    """
    if dtype in BY_CONVERSION:
        return weight.to(BY_CONVERSION[dtype]).to(weight.dtype)
    if dtype not in ("float8_e4m3fn", "int8"):
        raise ValueError(
            f"sampler_dtype is '{dtype}'; allowed: bfloat16, float16, float8_e4m3fn, int8"
        )
    if weight.dim() < 2:
        return weight.clone()
    values = weight.float()
    if dtype == "int8":
        scale = values.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / LARGEST_INT8
        return (torch.round(values / scale) * scale).to(weight.dtype)
    scale = values.abs().max().clamp(min=1e-30) / LARGEST_FLOAT8
    return ((values / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)
