"""Factorial designs: factors and their levels, the cells that run, and the names of their arms.

    factors: {baseline: [group_mean, none], learning_rate: [1e-5, 3e-5, 1e-4]}
    fraction: 1/2                 only with three or more factors of two levels

The first level of every factor is the reference cell. A fraction halves the cells of the two-level
factors; factors with more levels are crossed with all of them.

In a fraction the levels are coded -1 (first) and +1 (second). A *word* is a set of factors whose
product of codes is the same in every cell that runs; the set of all words is the defining relation.
An effect cannot be separated from its product with any word: they are *aliases*. Pure.

Source: Box, Hunter and Hunter, Statistics for Experimenters, 2nd edition, chapter 6.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from math import prod
from typing import Any

from trl_ablate.errors import ConfigurationError

MAX_CELLS = 256
HALVINGS = {"1": 0, "1/2": 1, "1/4": 2, "1/8": 3, "1/16": 4}
MAX_HALVED = 8
"""Two-level factors in a fraction; more would make the search for the best fraction long."""
LEAST_RESOLUTION = 3
"""With a defining word of two factors, their main effects would be one and the same."""
MAX_LETTERS = 80
SEPARATOR = "--"
UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

Word = frozenset[str]


@dataclass(frozen=True)
class Design:
    """A factorial design. All fields are what JSON can hold."""

    factors: Mapping[str, list[Any]]
    """Factor -> its levels; the first one is the reference."""
    cells: Mapping[str, Mapping[str, Any]]
    """Arm -> factor -> level; the first arm is the reference."""
    fraction: str = "1"
    words: list[list[str]] = field(default_factory=list)
    """The defining relation of a fraction: the factors of each word."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Cells that no recipe may have, and why."""


def read_design(factors: Mapping[str, list[Any]], fraction: str, what: str) -> Design:
    """Check the factors of a study and list the cells; `what` names the study in messages."""
    if not factors:
        raise ConfigurationError(f"{what}: factors is empty; name a setting and its levels")
    for name, levels in factors.items():
        if len({level_text(level) for level in levels}) != len(levels) or len(levels) < 2:
            raise ConfigurationError(
                f"{what}: factor '{name}' has the levels {levels}; give at least two, and each once"
            )
    words = _words(factors, fraction, what)
    number = prod(map(len, factors.values())) // (len(words) + 1)
    if number > MAX_CELLS:
        raise ConfigurationError(
            f"{what}: the factors have {number} cells; the limit is {MAX_CELLS}; use fewer "
            "levels, or a smaller `fraction`"
        )
    cells = []
    for places in product(*map(range, map(len, factors.values()))):
        codes = {name: 1 if place else -1 for name, place in zip(factors, places, strict=True)}
        if in_fraction(codes, words):
            chosen = zip(factors.items(), places, strict=True)
            cells.append({name: levels[place] for (name, levels), place in chosen})
    return Design(
        factors=dict(factors),
        cells={safe_name([*map(level_text, cell.values())], cell): cell for cell in cells},
        fraction=fraction,
        words=[[name for name in factors if name in word] for word in words],
    )


def without(design: Design, excluded: Mapping[str, str], what: str) -> Design:
    """The design without the cells that no recipe may have, and why. The reference may not be among
    them, nor all cells of a level: then the level itself is wrong."""
    left = {name: cell for name, cell in design.cells.items() if name not in excluded}
    reference = next(iter(design.cells))
    if reference not in left:
        raise ConfigurationError(
            f"{what}: the first level of every factor, the reference, is refused: "
            f"{excluded[reference]}"
        )
    of_cells = {name: [f"{factor} {level_text(level)}" for factor, level in cell.items()]
                for name, cell in design.cells.items()}  # fmt: skip
    seen = {level for name in left for level in of_cells[name]}
    for name, levels in of_cells.items():
        for level in levels:
            if level not in seen:
                raise ConfigurationError(
                    f"{what}: {level} is refused in every cell: {excluded[name]}"
                )
    return replace(design, cells=left, excluded=dict(excluded))


def safe_name(parts: Sequence[str], identity: Any) -> str:
    """A name that can be part of a path: `none--group--3e-05`.

    If a letter had to be replaced, or parts could be confused, or the name is too long, it ends
    with a hash of `identity`.
    """
    plain = SEPARATOR.join(parts)
    safe = UNSAFE.sub("_", plain)
    clear = safe == plain and not any(SEPARATOR in part for part in parts)
    if clear and len(safe) <= MAX_LETTERS:
        return safe
    whole = json.dumps(identity, sort_keys=True)
    return f"{safe[: MAX_LETTERS - 7]}-{hashlib.sha256(whole.encode()).hexdigest()[:6]}"


def level_text(level: Any) -> str:
    """A level as it stands in names, tables and sentences; other levels of a factor differ in it,
    also `1` and `true`, which Python calls equal."""
    if isinstance(level, float):
        return f"{level:g}"
    return level if isinstance(level, str) else json.dumps(level)


def product_text(names: Iterable[str]) -> str:
    return " × ".join(names)


def alias_lines(design: Design) -> list[str]:
    """What the fraction cannot separate, a line for each main effect and two-way interaction; of
    several aliases, those of up to three factors and otherwise the shortest."""
    words = [frozenset(word) for word in design.words]
    effects = [frozenset(e) for size in (1, 2) for e in combinations(design.factors, size)]
    lines, mentioned = [], set()
    for effect in effects if words else []:
        aliases = aliases_of(effect, words)
        shown = [alias for alias in aliases if len(alias) <= 3] or aliases[:1]
        if effect not in mentioned:
            each = ((name for name in design.factors if name in one) for one in (effect, *shown))
            lines.append(" = ".join(map(product_text, each)))
        mentioned |= {effect, *(alias for alias in aliases if len(alias) <= 2)}
    return lines


def relation_text(design: Design) -> str:
    """The defining relation: `I = a × b × c`; the sign is that of the reference cell."""
    signed = [("" if len(word) % 2 == 0 else "−") + product_text(word) for word in design.words]
    return " = ".join(["I", *signed])


def _words(factors: Mapping[str, list[Any]], fraction: str, what: str) -> tuple[Word, ...]:
    if fraction not in HALVINGS:
        raise ConfigurationError(
            f"{what}: fraction is {fraction}; it takes one of {', '.join(HALVINGS)}"
        )
    halvings = HALVINGS[fraction]
    if not halvings:
        return ()
    halved = [name for name, levels in factors.items() if len(levels) == 2]
    if len(halved) > MAX_HALVED:
        raise ConfigurationError(
            f"{what}: a fraction of {len(halved)} two-level factors; the limit is {MAX_HALVED}"
        )
    words = defining_words(halved, halvings) if len(halved) > halvings else ()
    if not words or len(words[0]) < LEAST_RESOLUTION:
        raise ConfigurationError(
            f"{what}: fraction {fraction} of {len(halved)} two-level factors cannot separate their "
            "main effects; use a larger fraction, or more factors of two levels"
        )
    return words


def defining_words(names: Sequence[str], halvings: int) -> tuple[Word, ...]:
    """The words of the fraction 1 / 2^halvings with the fewest short words (minimum aberration),
    shortest first. The last `halvings` factors follow from products of the others."""
    basic, derived = names[:-halvings], names[-halvings:]
    sizes = range(len(basic), 0, -1)
    products = [frozenset(chosen) for size in sizes for chosen in combinations(basic, size)]

    def relation(chosen: Iterable[Word]) -> list[Word]:
        """The products of all generators."""
        words: list[Word] = []
        for generator in (word | {name} for word, name in zip(chosen, derived, strict=True)):
            words += [generator, *(generator ^ word for word in words)]
        return words

    def aberration(words: Iterable[Word]) -> list[int]:
        """The number of words of each length, from 1 on."""
        lengths = [len(word) for word in words]
        return [lengths.count(length) for length in range(1, len(names) + 1)]

    relations = map(relation, combinations(products, halvings))
    best = min(relations, key=aberration, default=[])
    return tuple(sorted(best, key=lambda word: (len(word), [name not in word for name in names])))


def in_fraction(codes: Mapping[str, int], words: Iterable[Word]) -> bool:
    """Whether a cell is in the fraction: the product over each word is that of the reference."""
    return all(prod(codes[name] for name in word) == (-1) ** len(word) for word in words)


def aliases_of(effect: Word, words: Iterable[Word]) -> list[Word]:
    """The effects that the fraction cannot separate from this one, shortest first."""
    return sorted((effect ^ word for word in words), key=lambda alias: (len(alias), sorted(alias)))
