"""Rounded weights against tables computed by hand."""

import pytest
import torch

from trl_ablate.rounding import rounded


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("bfloat16", [1 + 2**-9, 1 + 2**-7, -3.0], [1.0, 1 + 2**-7, -3.0]),  # 8 bits of mantissa
        ("float16", [1 + 2**-12, 1 + 2**-10, 70000.0], [1.0, 1 + 2**-10, float("inf")]),
        ("int8", [127.0, 64.4, -0.6], [127.0, 64.0, -1.0]),  # a step of 127 / 127
        ("int8", [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ("float8_e4m3fn", [448.0, 17.0, -0.9], [448.0, 16.0, -0.875]),  # 3 bits of mantissa
        ("float8_e4m3fn", [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_the_nearest_values(dtype, values, expected):
    assert rounded(torch.tensor([values]), dtype).tolist() == [expected]


def test_int8_has_a_step_for_each_row_and_float8_one_for_all():
    weight = torch.tensor([[127.0, 0.4], [12.7, 0.04]])
    assert rounded(weight, "int8")[1].tolist() == pytest.approx([12.7, 0.0])
    scaled = torch.tensor([[44.8, 1.7], [4.48, 0.0]])
    assert rounded(scaled, "float8_e4m3fn")[0].tolist() == pytest.approx([44.8, 1.6])


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_vectors_stay_as_they_are(dtype):
    norm = torch.tensor([1.2345678, 0.1])
    assert torch.equal(rounded(norm, dtype), norm)


def test_an_unknown_type_is_refused_by_name():
    with pytest.raises(ValueError, match="sampler_dtype is 'int4'; allowed: bfloat16"):
        rounded(torch.zeros(2, 2), "int4")
