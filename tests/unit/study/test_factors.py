"""Factorial designs: cells, fractions, aliases and names, against tables of the textbooks."""

from itertools import product

import pytest

from trl_ablate.study.factors import (
    alias_lines,
    defining_words,
    in_fraction,
    read_design,
    relation_text,
)


def two_levels(names: str) -> dict[str, list]:
    return {name: ["low", "high"] for name in names}


@pytest.mark.parametrize(
    ("factors", "halvings", "lengths"),
    [  # lengths of the words of the minimum aberration designs, Box, Hunter and Hunter, table 6.22
        (3, 1, [3]),
        (5, 2, [3, 3, 4]),
        (6, 2, [4, 4, 4]),
        (7, 4, [3] * 7 + [4] * 7 + [7]),
        (8, 2, [5, 5, 6]),
        (8, 4, [4] * 14 + [8]),
    ],
)
def test_fractions_are_those_of_minimum_aberration(factors, halvings, lengths):
    names = "ABCDEFGH"[:factors]
    words = defining_words(names, halvings)
    assert sorted(map(len, words)) == lengths
    cells = [dict(zip(names, codes, strict=True)) for codes in product((-1, 1), repeat=factors)]
    kept = [cell for cell in cells if in_fraction(cell, words)]
    assert len(kept) == 2 ** (factors - halvings)
    assert all(sum(cell[name] for cell in kept) == 0 for name in names)  # balanced
    assert kept[0] == dict.fromkeys(names, -1)  # with the reference


def test_aliases_of_the_half_fraction_of_four_factors():
    """I = ABCD: A = BCD, AB = CD (Box, Hunter and Hunter, section 6.5)."""
    design = read_design(two_levels("ABCD"), "1/2", "study")
    assert relation_text(design) == "I = A × B × C × D"
    assert alias_lines(design) == [
        "A = B × C × D", "B = A × C × D", "C = A × B × D", "D = A × B × C",
        "A × B = C × D", "A × C = B × D", "A × D = B × C",
    ]  # fmt: skip
    assert relation_text(read_design(two_levels("ABC"), "1/2", "s")) == "I = −A × B × C"


def test_a_fraction_is_crossed_with_factors_of_more_levels():
    design = read_design({**two_levels("ABC"), "lr": [1e-5, 3e-5, 1e-4]}, "1/2", "study")
    assert len(design.cells) == 4 * 3
    assert "low--low--low--0.0001" in design.cells and "high--high--low--3e-05" in design.cells
    assert "high--low--low--1e-05" not in design.cells
    assert "A × lr = B × C × lr" in alias_lines(design)


def test_names_are_in_order_safe_short_and_different():
    """They do not change when a factor gets more levels."""
    small = read_design({"a": [1, 2], "b": ["x", "y", "z"]}, "1", "study")
    assert list(small.cells) == ["1--x", "1--y", "1--z", "2--x", "2--y", "2--z"]
    assert small.cells["2--z"] == {"a": 2, "b": "z"} and alias_lines(small) == []
    large = read_design({"a": [1, 2, 3], "b": ["x", "y", "z", None]}, "1", "study")
    assert set(small.cells) < set(large.cells) and "3--null" in large.cells
    odd = ["a/b", "a b", "../a", ["x"], "é" * 90, "x" * 90, "y" * 90, "x--y", True, 1, 1.5]
    names = list(read_design({"a": ["first", *odd]}, "1", "study").cells)
    assert len(set(names)) == 1 + len(odd)
    assert all(len(name) <= 80 and name.isascii() and "/" not in name for name in names)
    assert names[-3:] == ["true", "1", "1.5"]
    mixed = read_design({"a": ["x--y", "x"], "b": ["z", "y--z"]}, "1", "study")
    assert len(mixed.cells) == 4
