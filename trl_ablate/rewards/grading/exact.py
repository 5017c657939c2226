r"""The cheap verdict: compare two answers without algebra.

Most answers in a rollout batch are decided here, within microseconds, in the training process: True
only if the answer is the same value in another spelling, False only if no interpretation makes the
two equal, and None otherwise; then a worker asks math-verify.

Some cases are decided here because math-verify decides them differently:
- Two terminating decimals are compared exactly, not after rounding to six places, and no value is
  rounded to 0 (math-verify finds 0.0 equal to \frac{1}{13983816}).
- Different units, number bases or kinds of bracket are different (5 cm is not 5 m, 12_7 is not
  12_8, the ordered pair (1,2) is not the set {1,2}).
- Words are compared as words, not as a product of letters in any order.
- "1 2" is not a value; math-verify reads the mixed number 1 + 2.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from string import ascii_lowercase

from trl_ablate.rewards.grading.latex import TRIGONOMETRIC, untext
from trl_ablate.rewards.grading.reading import (
    BASED_NUMERAL,
    NAMED,
    Reading,
    lone_unit,
    read,
    split_list,
)

PLACES = 6
"""Decimals to which math-verify rounds."""
_LOOSE_DIGITS = re.compile(r"(?<!frac)(?<!frac )(?<!_)\d(?: |\\text\{)\d(?!\d*/\d)")
_MANY = re.compile(r"\\cup|\\infty|\\begin\{|\\pm|\\in(?![a-zA-Z])")
_ENDS_IN_UNIT = re.compile(r"(?:[\d}) ] ?[a-zA-Z]{2,}|[\d})] [a-hj-zA-Z])(?:\^\{?[23]\}?)?$")
"""A single letter is a unit only after a space (`4t` is a product), and `i` is a number."""
_SUM = re.compile(r"(?<=[\w)}\]])(?<!\d[eE])[-+]")
_RELATION = re.compile(r"[<>]|\\[lg]eq")
_VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]")
_LAST_FACTOR = re.compile(
    rf"(?:(?<!\d)\d*(?<=[\d}}])|(?<={TRIGONOMETRIC} )|(?<=\\log )|(?<=\\ln ))([a-hj-z])$"
)
"""math-verify drops it, as a unit."""
_FUNCTION = re.compile(rf"(?:{TRIGONOMETRIC}|\\log|\\ln)(?![a-z])")
_SIGNS = re.compile(r"[-+*/^=<>.,:;\s]+")  # no value
_WORDS = re.compile(r"[^\W\d_]+(?:[ ,;'-]+[^\W\d_]+)*")


def cheap_verdict(answer: Reading, gold: Reading) -> bool | None:
    """True or False if this is certain without algebra, else None."""
    if answer.tidied == gold.tidied or _without_text(answer) == _without_text(gold):
        return True
    if answer.tidied == gold.tidied.replace(", ", ","):
        return True  # if the reference is the list "81, 256", the answer "81,256" is that list
    if (other := _in_the_form_of(gold, answer)) is not None:
        return cheap_verdict(other, gold)
    if gold.words is not None and answer.letters is not None:
        return _compare_words(answer, gold)
    if _differ_in_units(answer, gold):
        return False
    if not answer.readable or not answer.value or _SIGNS.fullmatch(answer.value):
        return False
    if not _same_kind_of_statement(answer, gold):
        return None
    if answer.number is not None and gold.number is not None:
        percents = gold.percent - answer.percent  # 50\% is right for 50 and for 0.5
        scaled = {answer.number, answer.number * Fraction(100) ** percents}
        verdicts = [_compare_numbers(one, gold.number) for one in scaled]
        return next((one for one in (True, None) if one in verdicts), False)
    return _compare_shapes(answer, gold)


def for_algebra(answer: Reading, gold: Reading) -> tuple[str, str]:
    """The texts for math-verify: the values, or the whole answers if the equations matter."""
    answer = _in_the_form_of(gold, answer) or answer
    texts = answer.tidied, gold.tidied
    if _same_kind_of_statement(answer, gold):
        texts = _in_digits(answer), _in_digits(gold)
    return _with_factor(*texts), _with_factor(*reversed(texts))


def _in_digits(one: Reading) -> str:
    """The value, with a number as math-verify reads it: to it 1e3 and 3 1/2 are products. A decimal
    stays, as it compares only these after rounding."""
    stays = one.number is None or one.percent or re.fullmatch(r"[-+.0-9]+", one.value)
    return one.value if stays else str(one.number)


def _in_the_form_of(gold: Reading, answer: Reading) -> Reading | None:
    r"""Where the reference is `(3,4)`, the answer `y=4, x=3` as that; where it is a union of
    intervals, the answer `x<-5, x>7` as that. None of any other answer."""
    text = None
    if r"\cup" in gold.value:
        text = _as_intervals(answer.tidied)
    elif split_list(gold.value)[0] == "()" and "=" in answer.tidied:
        text = _as_coordinates(answer.tidied)
    return None if text is None else read(text)


def _as_coordinates(text: str) -> str | None:
    """`(3,4)` for `y=4, x=3`: the values in the order of their names, if these are neighbours."""
    parts = [NAMED.fullmatch(part.strip()) for part in split_list(text)[1]]
    values = {part["name"]: part["value"].strip() for part in parts if part}
    names = sorted(values)
    if len(parts) < 2 or len(names) < len(parts) or "".join(names) not in ascii_lowercase:
        return None
    return f"({','.join(values[name] for name in names)})"


def _as_intervals(text: str) -> str | None:
    r"""`(-\infty,-5)\cup(7,\infty)` for `x<-5, x>7`, which are inequalities of one letter."""
    found = [each for each in map(_interval, re.split(r"\\cup|,", text)) if each]
    if len(found) <= text.count(",") or len({letter for letter, _ in found}) != 1:
        return None
    return r"\cup".join(interval for _, interval in found)


def _interval(text: str) -> tuple[str, str] | None:
    r"""The letter and the interval of an inequality such as `x<3` or `1<x\leq 2`."""
    sides = [side.strip() for side in _RELATION.split(text)]
    signs = _RELATION.findall(text)
    rising = {sign in ("<", r"\leq") for sign in signs}
    if len(rising) != 1 or len(sides) > 3:
        return None
    if rising == {False}:
        sides, signs = sides[::-1], signs[::-1]
    if len(sides) == 2:
        letter_first = sides[0].isalpha()
        sides = [r"-\infty", *sides] if letter_first else [*sides, r"\infty"]
        signs = ["<", *signs] if letter_first else [*signs, "<"]
    low, letter, high = sides
    if len(letter) != 1 or not letter.isalpha():
        return None
    opening, closing = "(["["eq" in signs[0]], ")]"["eq" in signs[1]]
    return letter, f"{opening}{low},{high}{closing}"


def _with_factor(text: str, other: str) -> str:
    """A text whose last letter is kept, where it is a variable: the other has it, too, or this is
    no single number before it."""
    last = _LAST_FACTOR.search(text)
    is_variable = last and last[1] in _VARIABLE.findall(other)
    if last and (is_variable or _SUM.search(text) or _FUNCTION.search(text)):
        return f"{text[: last.start()]}{{{last[0]}}}"
    return text


def _differ_in_units(answer: Reading, gold: Reading) -> bool:
    """Whether both have a known unit, and not the same."""
    if not answer.unit and not gold.unit:
        return False
    units = {one.unit or lone_unit(one.value) for one in (answer, gold)}
    return len(units - {None}) > 1


def _same_kind_of_statement(answer: Reading, gold: Reading) -> bool:
    """Whether `x=` may be ignored: both have it, or one has it and the other has no equation."""
    if answer.name and gold.name:
        return answer.name == gold.name
    return not ((answer.name and "=" in gold.value) or (gold.name and "=" in answer.value))


def _without_text(reading: Reading) -> str:
    r"""The same text for `81\text{ teachers}` and `81 teachers`, but not for `1\text{2}` and 12."""
    apart = re.sub(r"(?<=\d)\\text\{(?=\d)", r"\\text{ ", reading.tidied)
    return re.sub(r"(?<=\d) (?=[a-zA-Z])", "", untext(apart))


def _compare_words(answer: Reading, gold: Reading) -> bool | None:
    """Only short words such as `abc` and `cab` outside of `\text` may be the same product of
    letters, which is left to math-verify."""
    ours, theirs = answer.letters or "", gold.words or ""
    if ours == theirs:
        return True
    bare = "\\text" not in answer.tidied + gold.tidied
    if bare and len(theirs) <= 3 and sorted(ours) == sorted(theirs):
        return None
    return False if _WORDS.fullmatch(ours) and _WORDS.fullmatch(theirs) else None


def _compare_numbers(answer: Fraction, gold: Fraction) -> bool | None:
    """Only a rounded value such as 0.333333 for 1/3 is left to math-verify, which rounds to six
    places; a value that would become 0 is not."""
    if answer == gold:
        return True
    # Whether each is a finite decimal: 2 and 5 alone divide its bottom.
    finite = [pow(10, one.bit_length(), one) == 0 for one in (answer.denominator, gold.denominator)]
    rounded = finite[0] != finite[1] and round(gold, PLACES) != 0
    return None if rounded and abs(answer - gold) < Fraction(1, 10**5) else False


def _compare_shapes(answer: Reading, gold: Reading) -> bool | None:
    """False if the form or the approximate value rules out equality; None otherwise."""
    if answer.number is None and _LOOSE_DIGITS.search(answer.value):
        return False
    numerals = [BASED_NUMERAL.fullmatch(one.value) for one in (answer, gold)]
    if numerals[0] and numerals[1]:
        return numerals[0].groups() == numerals[1].groups()
    if not _is_solved(answer.tidied) and _is_solved(gold.tidied):
        return False
    around = [split_list(one.value)[0] for one in (answer, gold)]
    if all(around) and around[0] != around[1]:
        return False
    units = [_ENDS_IN_UNIT.search(one.value) for one in (answer, gold)]
    if any(units) and not all(units):
        return None  # the letters may be a unit that is not in the table
    ours, theirs = answer.approximations, gold.approximations
    if ours is not None and theirs is not None:
        scales = (1.0,) if answer.percent == gold.percent else (1.0, 0.01, 100.0)
        scaled = [[value * scale for value in theirs] for scale in scales]
        # A sum may cancel, so that its value is as inexact as its largest term.
        least = 1.0 if _SUM.search(answer.value) or _SUM.search(gold.value) else 0.0
        return None if any(_all_alike(ours, values, least) for values in scaled) else False
    pairs = (ours, gold), (theirs, answer)
    no_number = any(known and _is_no_number(other, len(known)) for known, other in pairs)
    return False if no_number else None


def _is_solved(text: str) -> bool:
    r"""Whether an inequality has its variable alone, as `-2\leq x<7`; true of what is none.
    math-verify solves `x^2<4`, so that the question would be its answer."""
    with_letters = [side.strip() for side in _RELATION.split(text) if _VARIABLE.search(side)]
    alone = len(with_letters) == 1 and re.fullmatch(r"[a-zA-Z]|\|[a-zA-Z]\|", with_letters[0])
    return bool(alone or not _RELATION.search(text))


def _all_alike(ours: Sequence[complex], theirs: Sequence[complex], least: float) -> bool:
    """Whether every value has a counterpart in the other answer, in any order."""
    alike = [[_alike(our, their, least) for their in theirs] for our in ours]
    return all(map(any, alike)) and all(map(any, zip(*alike, strict=True)))


def _alike(our: complex, their: complex, least: float) -> bool:
    """Whether two values differ by no more than the rounding of an answer: relative to the larger
    one (or to `least`), or to six places if neither becomes 0."""
    smaller, larger = sorted((abs(our), abs(their)))
    places = 10.0**-PLACES if round(smaller, PLACES) else 0.0
    return abs(our - their) <= max(1e-4 * max(least, larger), places)


def _is_no_number(reading: Reading, values: int) -> bool:
    r"""Whether it is words (two letters may be a product) or, if compared with a single value, an
    interval, a matrix or `\pm`."""
    if reading.words is not None:
        return len(reading.words) > 2 and _WORDS.fullmatch(reading.words) is not None
    return values == 1 and _MANY.search(reading.value) is not None
