"""Rounded weights against tables computed by hand."""

import pytest
import torch

from trl_ablate.rounding import rounded


@pytest.mark.parametrize(
    ("dtype", "weight", "expected"),
    [
        ("bfloat16", [1 + 2**-9, 1 + 2**-7, -3.0], [1.0, 1 + 2**-7, -3.0]),  # 8 bits of mantissa
        ("float16", [1 + 2**-12, 1 + 2**-10, 70000.0], [1.0, 1 + 2**-10, float("inf")]),
        # steps of 127 / 127, of 12.7 / 127 and, of a row without values, of nothing
        ("int8", [[127.0, 64.4, -0.6], [12.7, 0.04, 0], [0.0] * 3],
         [[127.0, 64.0, -1.0], [12.7, 0.0, 0], [0.0] * 3]),
        ("float8_e4m3fn", [[448.0, 17.0, -0.9]], [[448.0, 16.0, -0.875]]),  # 3 bits of mantissa
        # one scale for all rows: 448 / 44.8, with which 4.48 is between 44 and 48
        ("float8_e4m3fn", [[44.8, 1.7], [4.48, 0.0]], [[44.8, 1.6], [4.4, 0.0]]),
        ("float8_e4m3fn", [[0.0, 0.0]], [[0.0, 0.0]]),
        # vectors (norms and biases) stay as they are
        ("int8", [1.2345678, 0.1], [1.2345678, 0.1]),
        ("float8_e4m3fn", [1.2345678, 0.1], [1.2345678, 0.1]),
    ],
)  # fmt: skip
def test_the_nearest_values(dtype, weight, expected):
    found = rounded(torch.tensor(weight), dtype)
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=0)


def test_an_unknown_type_is_refused_by_name():
    with pytest.raises(ValueError, match="sampler_dtype is 'int4'; allowed: bfloat16"):
        rounded(torch.zeros(2, 2), "int4")
