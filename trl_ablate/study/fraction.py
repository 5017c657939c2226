"""Fractions of a factorial design of two-level factors: which cells run, and what stays mixed.

The levels of a factor are coded -1 (first) and +1 (second). A *word* is a set of factors whose
product of codes is the same in every cell of the fraction; the set of all words is the defining
relation. An effect cannot be separated from its product with any word: they are *aliases*. The
cell of all first levels, the reference, is in every fraction. Pure.

Source: Box, Hunter and Hunter, Statistics for Experimenters, 2nd edition, chapter 6.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

Word = frozenset[str]


def defining_words(names: Sequence[str], halvings: int) -> tuple[Word, ...]:
    """The words of the fraction 1 / 2^halvings with the fewest short words (minimum aberration),
    shortest first. The last `halvings` factors follow from products of the others."""
    basic, derived = names[: len(names) - halvings], names[len(names) - halvings :]
    products = [
        frozenset(chosen)
        for size in range(len(basic), 0, -1)
        for chosen in combinations(basic, size)
    ]
    relations = (
        _all_products([product | {name} for product, name in zip(chosen, derived, strict=True)])
        for chosen in combinations(products, halvings)
    )
    best = min(relations, key=lambda words: _aberration(words, len(names)), default=())
    return tuple(sorted(best, key=lambda word: (len(word), [name not in word for name in names])))


def in_fraction(codes: Mapping[str, int], words: Iterable[Word]) -> bool:
    """Whether a cell is in the fraction: the product over each word is that of the reference."""
    return all(_product(codes, word) == (-1) ** len(word) for word in words)


def aliases_of(effect: Word, words: Iterable[Word]) -> list[Word]:
    """The effects that the fraction cannot separate from this one, shortest first."""
    return sorted((effect ^ word for word in words), key=lambda alias: (len(alias), sorted(alias)))


def _product(codes: Mapping[str, int], word: Word) -> int:
    found = 1
    for name in word:
        found *= codes[name]
    return found


def _all_products(generators: Sequence[Word]) -> tuple[Word, ...]:
    found: list[Word] = []
    for generator in generators:
        found += [generator, *(generator ^ word for word in found)]
    return tuple(found)


def _aberration(words: Iterable[Word], longest: int) -> list[int]:
    """The number of words of each length, from 1 on."""
    lengths = [len(word) for word in words]
    return [lengths.count(length) for length in range(1, longest + 1)]
