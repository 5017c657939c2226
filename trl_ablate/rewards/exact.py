r"""The cheap verdict: what can be decided on an answer without any algebra.

Most answers of a rollout batch are plain numbers, or the reference answer itself. They are decided
here, in microseconds and in the training process. `cheap_verdict` answers True only for the same
value in another spelling, and False only if no reading makes the two equal; everything else is
None, and goes to math-verify in a worker.

Decided here on purpose, because math-verify decides them otherwise:
- two terminating decimals are compared exactly (not after rounding to six places);
- different units, number bases or kinds of bracket differ (5 cm is not 5 m, 12_7 is not 12_8, the
  ordered pair (1,2) is not the set {1,2});
- words are compared as words, not as a product of letters in any order;
- "1 2" is nothing, rather than the mixed number 1 + 2.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from trl_ablate.rewards.closed_form import approximate, clearly_differ
from trl_ablate.rewards.latex import nesting_depth, tidy, untext
from trl_ablate.rewards.units import spell_out_magnitudes, split_unit

MAX_NESTING = 40

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?P<whole>{_DIGITS})?(?:\.(?P<decimals>\d*))?"
    r"(?:[eE](?P<exponent>[+-]?\d{1,2}))?"
)
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>\d+)(?: |(?=\\)))?"
    r"(?:\\frac ?\{ ?(?P<top>-?\d+)\}\{ ?(?P<bottom>\d+)\}"
    r"|\\frac ?(?P<top1>\d) ?(?P<bottom1>\d)|(?P<top2>\d+)/(?P<bottom2>\d+))"
)
_BASED = re.compile(r"(?P<digits>[0-9A-Fa-f]+)_\{?(?P<base>\d+)\}?")
_LOOSE_DIGITS = re.compile(r"(?<!frac)(?<!frac )(?<!_)\d \d(?!\d*/\d)")
_MANY = re.compile(r"\\cup|\\infty|\\begin\{|\\pm|\\in(?![a-zA-Z])")
_WORDS = re.compile(r"[^\W\d_]+(?:[ ,;'-]+[^\W\d_]+)*")
_MATH = re.compile(r"[\\^_{}=+*/<>|]")


@dataclass(frozen=True)
class Reading:
    r"""One answer, read without algebra.

    Attributes:
        tidied: the whole answer in light spelling.
        value: the same without a trailing unit; what math-verify gets to see.
        readable: its braces balance, and nest no deeper than an answer's ever do.
        unit: the canonical unit, if it is a known one.
        number: the exact value of a plain number, else None.
        approximation: about the value of a number or of a simple closed form, else None.
        percent: a percent sign follows the number.
        words: the answer as words (see `as_words`), if it is clearly words; else None.
        letters: the same for anything that could be words beside a reference that is.
    """

    tidied: str
    value: str
    readable: bool
    unit: str | None
    number: Fraction | None
    approximation: float | None
    percent: bool
    words: str | None
    letters: str | None


def read(text: str) -> Reading:
    """Reads an answer; meant for texts of bounded length (see `MathGrader.max_length`)."""
    tidied = tidy(text)
    words = as_words(tidied)
    value, unit = (tidied, None) if words else split_unit(spell_out_magnitudes(tidied))
    if unit is None and value.endswith(r"^\circ"):
        value, unit = value.removesuffix(r"^\circ"), "degree"
    if not words and value.startswith(r"\text{"):
        value = untext(value)
    percent = value.endswith(r"\%")
    amount = value.removesuffix(r"\%").rstrip()
    depth = nesting_depth(amount)
    readable = depth is not None and depth <= MAX_NESTING
    number = as_number(amount)
    return Reading(
        tidied=tidied,
        value=value,
        readable=readable,
        unit=unit,
        number=number,
        approximation=_approximation(number, amount) if readable else None,
        percent=percent,
        words=words,
        letters=words or as_words(rf"\text{{{tidied}}}"),
    )


def _approximation(number: Fraction | None, text: str) -> float | None:
    if number is None:
        return approximate(text)
    try:
        return float(number)
    except OverflowError:
        return None


def as_number(text: str) -> Fraction | None:
    r"""The exact value of a plain integer, decimal or simple fraction; None for anything else.

    Commas (or spaces) before groups of three digits separate thousands: "1,234" is a number.
    The exponent of "1e3" has at most two digits, so no number here is large enough to hurt.
    """
    if match := _NUMBER.fullmatch(text):
        whole, decimals = match["whole"] or "", match["decimals"] or ""
        if not whole and not decimals:
            return None
        whole = whole.replace(",", "").replace(" ", "")
        value = Fraction(int(whole + decimals), 10 ** len(decimals))
        value *= Fraction(10) ** int(match["exponent"] or 0)
        return -value if match["sign"] == "-" else value
    if match := _FRACTION.fullmatch(text):
        top = match["top"] or match["top1"] or match["top2"]
        bottom = match["bottom"] or match["bottom1"] or match["bottom2"]
        if int(bottom) == 0 or (match["whole"] and top.startswith("-")):
            return None
        value = int(match["whole"] or 0) + Fraction(int(top), int(bottom))
        return -value if match["sign"] == "-" else value
    return None


def as_words(tidied: str) -> str | None:
    r"""An answer made of words, in one spelling: lower case, `(A)` as `a`, "4:30 p.m." without dots.

    Bare letters are words only if three stand together in a row that no product of variables
    would have: a word of three letters or more. `xy` is a product; `\text{xy}` is a word.
    """
    plain = untext(tidied)
    if plain == tidied:
        if not re.search(r"[^\W\d_]{3}", plain) or _MATH.search(plain) or not plain[0].isalpha():
            return None
    elif _MATH.search(plain) or not re.search(r"[^\W\d_]", plain):
        return None
    elif plain[0].isdigit() and not re.fullmatch(r"\\text\{[^{}]*\}", tidied):
        return None  # a number with a unit
    plain = re.sub(r"\(\s*(\w)\s*\)", r"\1", plain)
    plain = re.sub(r"[\s]*[.'\"][\s]*", "", plain)
    plain = re.sub(r"\s+", " ", plain).strip(" ,;:").casefold()
    letters = [part.strip() for part in re.split(r",| and ", plain)]
    if len(letters) > 1 and all(len(part) == 1 for part in letters):
        plain = ",".join(sorted(letters))
    return re.sub(r"\s*,\s*", ",", plain) or None


def brackets(text: str) -> str | None:
    """The pair of brackets around a whole list: `()`, `[)`, `{}` …; None without a list in one."""
    body = text.replace(r"\{", "\x01").replace(r"\}", "\x02")
    if len(body) < 2 or body[0] not in "([\x01" or body[-1] not in ")]\x02":
        return None
    depth = 0
    listed = False
    for position, character in enumerate(body):
        depth += (character in "([{\x01") - (character in ")]}\x02")
        if depth == 0 and position < len(body) - 1:
            return None
        listed = listed or (character == "," and depth == 1)
    return (body[0] + body[-1]).translate({1: "{", 2: "}"}) if listed else None


def cheap_verdict(answer: Reading, gold: Reading) -> bool | None:
    """True or False if that much is certain without algebra, else None."""
    if answer.tidied == gold.tidied or _without_text(answer) == _without_text(gold):
        return True
    if gold.words is not None and answer.letters is not None:
        return _compare_words(answer.letters, gold.words)
    if answer.unit and gold.unit and answer.unit != gold.unit:
        return False
    if not answer.readable or not answer.value:
        return False
    if answer.number is not None and gold.number is not None:
        return _compare_numbers(answer, gold)
    return _compare_shapes(answer, gold)


def _without_text(reading: Reading) -> str:
    r"""`81\text{ teachers}` and `81 teachers` alike."""
    return re.sub(r"(?<=\d) (?=[a-zA-Z])", "", untext(reading.tidied))


def _compare_words(answer: str, gold: str) -> bool | None:
    if answer == gold:
        return True
    only_letters = _WORDS.fullmatch(answer) and _WORDS.fullmatch(gold)
    return False if only_letters else None


def _compare_numbers(answer: Reading, gold: Reading) -> bool | None:
    """Plain numbers are equal or not; only "0.333333" for 1/3, and percent, need math-verify."""
    assert answer.number is not None and gold.number is not None
    if answer.percent != gold.percent:
        return None
    if answer.number == gold.number:
        return True
    rounded = _terminates(answer.number) != _terminates(gold.number)
    if rounded and abs(answer.number - gold.number) < Fraction(1, 10**5):
        return None
    return False


def _terminates(number: Fraction) -> bool:
    """Whether the number can be written as a decimal."""
    bottom = number.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    return bottom == 1


def _compare_shapes(answer: Reading, gold: Reading) -> bool | None:
    """False for answers whose form or approximate value excludes equality; None otherwise."""
    if _LOOSE_DIGITS.search(answer.value):
        return False
    based_answer, based_gold = _BASED.fullmatch(answer.value), _BASED.fullmatch(gold.value)
    if based_answer and based_gold:
        return based_answer.groups() == based_gold.groups()
    brackets_answer, brackets_gold = brackets(answer.value), brackets(gold.value)
    if brackets_answer and brackets_gold:
        return False if brackets_answer != brackets_gold else None
    if _is_single(answer) and (brackets_gold or _MANY.search(gold.value)):
        return False
    if _is_single(gold) and (brackets_answer or _MANY.search(answer.value)):
        return False
    if answer.approximation is None or gold.approximation is None or answer.percent != gold.percent:
        return None
    return False if clearly_differ(answer.approximation, gold.approximation) else None


def _is_single(reading: Reading) -> bool:
    """One number, as opposed to a list, an interval or a matrix."""
    return reading.approximation is not None
