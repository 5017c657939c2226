"""Word problems for a real language model: `miniature/words`, questions without a model of its own.

A problem is an opening, events that change a number, perhaps a sentence whose number does not
matter, and a question. Training and held-out problems share no sentence, name or thing, and no set
of numbers that matter, so that what carries over is arithmetic in words.

| level | what it takes |
|---|---|
| `0` | one operation, asked for outright |
| `1` | one operation |
| `1d` | one operation, beside a number that does not matter |
| `2` | two operations |
| `2u` | a unit is converted, then one operation |
| `3` | three operations |
"""

import random
import re
import zlib
from functools import cache
from typing import NamedTuple, NoReturn

from trl_ablate.miniature.world import Lesson, Question, Shape, Split, World

SIZES: dict[Split, int] = {"train": 6000, "validation": 1200}
SHARES = {"0": 0.4, "1": 0.3, "1d": 0.1, "2": 0.1, "2u": 0.05, "3": 0.05}
"""Of the problems at each level."""
HELD_OUT = 4
"""One set of numbers in so many is held out."""
FIRST, NEXT = range(2, 13), range(2, 10)
"""Numbers of things at first, and in all that follows."""
STYLES = ("direct", "worked")
_WORKING = re.compile(r"\d\s*(?:[-+*/×÷x]|\\times|\\div)\s*\d|=")


class Phrases(NamedTuple):
    """The sentences of a split. {n} and {m}: numbers; {a}: who it is about; {b}: someone else;
    {t}: the things."""

    names: tuple[str, ...]
    things: tuple[str, ...]
    openings: tuple[str, ...]
    packed: tuple[str, ...]
    more: tuple[str, ...]
    less: tuple[str, ...]
    asides: tuple[str, ...]
    questions: tuple[str, ...]
    sums: tuple[str, ...]
    differences: tuple[str, ...]
    units: tuple[tuple[int, str], ...]
    """How many parts a unit has, and the whole problem."""


PHRASES: dict[Split, Phrases] = {
    "train": Phrases(
        names=("Ann", "Ben", "Carla", "David", "Emma", "Frank", "Grace", "Henry"),
        things=("apples", "books", "pencils", "stickers", "marbles", "cookies", "shells", "coins"),
        openings=("{a} has {n} {t}.", "{a} starts the day with {n} {t}."),
        packed=("{a} has {m} bags with {n} {t} in each.", "{a} buys {m} packs of {n} {t}."),
        more=("{a} buys {n} more.", "{b} gives {a} {n} more.", "{a} finds {n} more."),
        less=("{a} gives {n} away.", "{a} loses {n}.", "{b} takes {n} from {a}."),
        asides=("{b} has {n} {t}.", "{a} is {n} years old."),
        questions=("How many {t} does {a} have now?", "How many {t} does {a} have in the end?"),
        sums=("{a} asks {b}: What is {n} plus {m}?", "{a} adds {n} and {m}. What is the result?"),
        differences=("{a} asks {b}: What is {n} minus {m}?",
                     "{a} takes {m} from {n}. What remains?"),
        units=(
            (7, "{a} is away for {m} weeks and {n} days. How many days is that?"),
            (12, "{a} has {m} dozen {t} and {n} more. How many {t} is that?"),
        ),
    ),
    "validation": Phrases(
        names=("Ines", "Jack", "Kim", "Leo", "Mia", "Noah", "Olga", "Paul"),
        things=("pears", "stamps", "buttons", "cards", "beads", "muffins", "stones", "balls"),
        openings=("{a} owns {n} {t}.", "There are {n} {t} on the table of {a}."),
        packed=("{a} fills {m} boxes with {n} {t} per box.",
                "On {m} days {a} gets {n} {t} a day."),
        more=("{a} gets {n} new {t}.", "{b} adds {n} {t} to those of {a}."),
        less=("Then {n} of them break.", "{a} sells {n} {t}."),
        asides=("{b} lives {n} miles away.", "It rains for {n} hours."),
        questions=("How many {t} are there now?", "How many {t} are left with {a}?"),
        sums=("Help {a}: what is the sum of {n} and {m}?", "{a} works out {n} + {m}. What is it?"),
        differences=("Help {a}: how much is {n} less {m}?", "{a} works out {n} - {m}. What is it?"),
        units=(
            (4, "{a} waits {m} hours and {n} quarters of an hour. How many quarter-hours is this?"),
            (10, "{a} pays {m} dimes and {n} cents. What is this in cents?"),
        ),
    ),
}  # fmt: skip


class Problem(NamedTuple):
    """Its sentences, the numbers that matter, and the answer."""

    sentences: tuple[str, ...]
    numbers: tuple[int, ...]
    answer: int


def opening(rng: random.Random, said: Phrases, packed: bool) -> Problem:
    """Things at first: a number of them, or packs, which take one operation."""
    n = rng.choice(NEXT if packed else FIRST)
    if not packed:
        return Problem((rng.choice(said.openings).replace("{n}", str(n)),), (n,), n)
    m = rng.choice(NEXT)
    return Problem((_filled(rng.choice(said.packed), n, m),), (n, m), n * m)


def after_event(rng: random.Random, said: Phrases, before: Problem) -> Problem:
    """The problem with one event more: things come, or go while some are left."""
    n = rng.choice(NEXT)
    goes = n < before.answer and rng.random() < 0.5
    sentence = _filled(rng.choice(said.less if goes else said.more), n)
    answer = before.answer - n if goes else before.answer + n
    return Problem((*before.sentences, sentence), (*before.numbers, n), answer)


def bare(rng: random.Random, said: Phrases) -> Problem:
    """One operation, asked for outright; its first number is the larger one."""
    m, n = sorted(rng.sample(FIRST, 2))
    goes = rng.random() < 0.5
    sentence = rng.choice(said.differences if goes else said.sums)
    return Problem((_filled(sentence, n, m),), (n, m), n - m if goes else n + m)


def in_units(rng: random.Random, said: Phrases) -> Problem:
    n, m, (parts, text) = rng.choice(NEXT), rng.choice(NEXT), rng.choice(said.units)
    return Problem((_filled(text, n, m),), (n, m), parts * m + n)


def drawn(rng: random.Random, level: str, said: Phrases) -> Problem:
    """A random problem of a level, whose people and things have no names yet."""
    if level in ("0", "2u"):
        return (bare if level == "0" else in_units)(rng, said)
    operations = int(level[0])
    packed = rng.random() < 0.3
    found = opening(rng, said, packed)
    for _ in range(operations - packed):
        found = after_event(rng, said, found)
    sentences = [*found.sentences, rng.choice(said.questions)]
    if level == "1d":
        sentences.insert(
            rng.randint(1, len(sentences) - 1), _filled(rng.choice(said.asides), rng.choice(NEXT))
        )
    return found._replace(sentences=tuple(sentences))


def _filled(sentence: str, n: int, m: int = 0) -> str:
    return sentence.replace("{n}", str(n)).replace("{m}", str(m))


def split_of(numbers: tuple[int, ...]) -> Split:
    """The one split in which this set of numbers may occur, in whatever order."""
    held_out = zlib.crc32(repr(sorted(numbers)).encode()) % HELD_OUT == 0
    return "validation" if held_out else "train"


@cache
def problems_of(split: Split) -> tuple[Question, ...]:
    """As many different problems as the split has, in a fixed order."""
    said, rng = PHRASES[split], random.Random(f"words {split}")
    found: dict[str, Question] = {}
    for level, share in SHARES.items():
        wanted = len(found) + round(share * SIZES[split])
        while len(found) < wanted:
            problem = drawn(rng, level, said)
            if split_of(problem.numbers) == split:
                a, b = rng.sample(said.names, 2)
                text = " ".join(problem.sentences).format(a=a, b=b, t=rng.choice(said.things))
                found.setdefault(text, Question(text, str(problem.answer), level))
    return tuple(found.values())


class Words:
    styles: tuple[str, ...] = STYLES

    def style_of(self, completion: str) -> str:
        """Whether arithmetic is written down before the answer, or only the answer."""
        return "worked" if _WORKING.search(completion) else "direct"

    def questions(self, split: Split) -> list[Question]:
        return list(problems_of(split))

    def attempt(self, rng: random.Random) -> NoReturn:
        raise NotImplementedError("words has no model to teach")

    right = attempt


WORDS = World(
    name="words",
    files=(__file__,),
    task=Words(),
    template_shares={},
    format_shares={},
    lesson=Lesson(steps=0, texts_per_step=0, matrix_rate=0.0, other_rate=0.0),
    shape=Shape(width=0, layers=0, heads=0, inner_width=0),
)
WORLDS = (WORDS,)
