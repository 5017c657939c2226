"""The miniature's questions: sums of two two-digit numbers, in two fixed sets."""

import random
from typing import Literal, get_args

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = get_args(Split)

SMALLEST, LARGEST = 10, 99
VALIDATION_SHARE = 0.25
SPLIT_SEED = 20_260


def operands(split: Split) -> list[tuple[int, int]]:
    """Every ordered pair of the split; `47+38` and `38+47` are always in the same split."""
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; allowed are 'train' and 'validation'")
    numbers = range(SMALLEST, LARGEST + 1)
    unordered = [(a, b) for a in numbers for b in numbers if a <= b]
    random.Random(SPLIT_SEED).shuffle(unordered)
    cut = round(len(unordered) * VALIDATION_SHARE)
    chosen = unordered[:cut] if split == "validation" else unordered[cut:]
    return chosen + [(b, a) for a, b in chosen if a != b]


def question(a: int, b: int) -> str:
    return f"What is {a}+{b}?"


def problems(split: Split, size: int, seed: int = 0) -> list[dict[str, str]]:
    """`size` different problems of the split, as `{"question": ..., "answer": ...}`.

    The same arguments always give the same list. A shorter list is the beginning of a longer one,
    so a larger evaluation keeps the problems of a smaller one.
    """
    pairs = operands(split)
    if size > len(pairs):
        raise ValueError(f"size is {size}; the miniature's {split} set has {len(pairs)} problems")
    random.Random(seed).shuffle(pairs)
    return [{"question": question(a, b), "answer": str(a + b)} for a, b in pairs[:size]]
