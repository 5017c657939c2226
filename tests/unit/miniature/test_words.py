"""The word problems: every answer is found again by a reader of sentences that shares no code."""

import re
from collections import Counter

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import has_levels, problems, world_of_model
from trl_ablate.miniature.worlds.words import SHARES, WORDS, problems_of

N = r"(\d+)"
ROWS = {"train": problems_of("train"), "validation": problems_of("validation")}
STARTS = rf"has {N} \w+\.|starts the day with {N}|owns {N}|There are {N}"
PACKS = rf"{N} bags with {N}|{N} packs of {N}|{N} boxes with {N}|On {N} days \w+ gets {N}"
COMES = rf"buys {N} more|\w+ gives \w+ {N} more|finds {N}|gets {N} new|adds {N} \w+ to"
GOES = rf"gives {N} away|loses {N}|takes {N} from|{N} of them break|sells {N}"
UNITS = {"weeks": 7, "dozen": 12, "hours and": 4, "dimes": 10}


def numbers_in(pattern: str, sentence: str) -> list[int]:
    found = re.search(pattern, sentence)
    return [int(group) for group in found.groups() if group] if found else []


def solved(question: str) -> tuple[int, int, int, tuple[int, ...]]:
    """The answer; how many operations, and sentences that do not matter; the numbers that do."""
    for word, parts in UNITS.items():
        if word in question:
            m, n = map(int, re.findall(N, question))
            return m * parts + n, 2, 0, (min(m, n), max(m, n))
    first, *others = re.split(r"(?<=\.) ", question)[:-1]
    packs, starts = numbers_in(PACKS, first), numbers_in(STARTS, first)
    value, operations = (packs[0] * packs[1], 1) if packs else (starts[0], 0)
    numbers, aside = packs or starts, 0
    for sentence in others:
        comes, goes = numbers_in(COMES, sentence), numbers_in(GOES, sentence)
        value, numbers = value + sum(comes) - sum(goes), numbers + comes + goes
        operations, aside = operations + bool(comes or goes), aside + (not comes and not goes)
    return value, operations, aside, tuple(sorted(numbers))


@pytest.mark.parametrize("split", ROWS)
def test_an_independent_reader_finds_every_answer_and_level(split):
    for question, answer, level in ROWS[split]:
        value, operations, aside, _ = solved(question)
        assert (str(value), value > 0) == (answer, True), question
        assert (operations, aside) == (int((level or "")[0]), int(level == "1d")), question


def test_what_is_held_out_is_new():
    numbers = {split: {solved(row.question)[3] for row in rows} for split, rows in ROWS.items()}
    assert not numbers["train"] & numbers["validation"]
    phrases = {
        split: {re.sub(r"\d+", "#", part) for row in rows for part in row.question.split(". ")}
        for split, rows in ROWS.items()
    }
    assert not phrases["train"] & phrases["validation"]


def test_sizes_and_levels():
    sizes = {"train": 6000, "validation": 1200}
    for split, rows in ROWS.items():
        assert len({row.question for row in rows}) == len(rows) == sizes[split]
        counts = Counter(row.level for row in rows)
        assert {level: count / len(rows) for level, count in counts.items()} == SHARES
    assert 0.5 / len(ROWS["validation"]) ** 0.5 <= 0.015
    assert has_levels("miniature/words")
    assert problems("train", 2, world="words")[0].keys() == {"question", "answer", "level"}


@pytest.mark.parametrize(
    ("completion", "style"),
    [("Ann has 12 apples, so \\boxed{12}", "direct"), ("7 + 5, \\boxed{12}", "worked"),
     ("$3 \\times 4$", "worked"), ("x = 12", "worked"), ("", "direct")],
)  # fmt: skip
def test_whether_arithmetic_is_written_down(completion, style):
    assert WORDS.task.style_of(completion) == style


def test_it_has_no_model():
    with pytest.raises(ConfigurationError, match="no model of its own; give a language model"):
        world_of_model("miniature/words")
