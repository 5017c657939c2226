"""Parse an answer without algebra: its number, its unit, its words.

All functions expect a text of bounded length and take linear time.

math-verify ignores known units, so it finds 5 cm equal to 5 m. Here a unit that only one answer has
is ignored too (the question usually fixes the unit), but two known units must be the same. There is
no conversion: if the question asks for metres, 100 cm is not accepted for 1 m.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from trl_ablate.rewards.grading.closed_form import approximate
from trl_ablate.rewards.grading.latex import nesting_depth, tidy, untext

MAX_NESTING = 40

BASED_NUMERAL = re.compile(r"(?P<digits>-?[0-9A-Fa-f]+(?:\.[0-9A-Fa-f]+)?)_\{?(?P<base>\d+)\}?")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?P<whole>{_DIGITS})?(?:\.(?P<decimals>\d*))?"
    r"(?:[eE](?P<exponent>[+-]?\d{1,2}))?"
)
_FRACTION = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>\d+)(?: |(?=\\)))?"
    r"(?:\\frac ?\{ ?(?P<top>-?\d+)\}\{ ?(?P<bottom>\d+)\}|(?P<top2>\d+)/(?P<bottom2>\d+))"
)
NAMED = re.compile(r"(?P<name>[a-zA-Z]|\\[a-z]+) ?=(?P<value>(?:[^=,<>]|(?<=\d),(?=\d{3}(?!\d)))*)")
_SHORT_WORDS = ("no", "ok", "am", "pm", "up")
_MATH = re.compile(r"[\\^_{}=+*/<>|]")

_UNITS = """
mm millimeter millimeters millimetre millimetres | cm centimeter centimeters centimetre centimetres
m meter meters metre metres | km kilometer kilometers kilometre kilometres
in inch inches | ft foot feet | yd yard yards | mi mile miles | unit units
s sec secs second seconds | min mins minute minutes | h hr hrs hour hours
day days | week weeks | month months | year years yr yrs
g gram grams | kg kilogram kilograms | lb lbs pound pounds | oz ounce ounces
l liter liters litre litres | ml milliliter milliliters millilitre millilitres
gallon gallons gal | dollar dollars usd | cent cents | euro euros
degree degrees deg | radian radians rad | a.m am | p.m pm
mph miles/hour | km/h kmh kph | m/s | cm/s | ft/s feet/second
"""
"""Each unit, and its other spellings."""
_CANONICAL = {
    spelling: spellings[0]
    for spellings in map(str.split, re.split(r"[|\n]", _UNITS))
    for spelling in spellings
}
_PREFIX_POWERS = {"square": "2", "sq": "2", "sq.": "2", "cubic": "3", "cu": "3", "cu.": "3"}

# Letters outside of \text are a unit only if they are a word of this table with two letters or
# more; a single letter is a variable.
_BARE_WORDS = "|".join(
    sorted((re.escape(word) for word in _CANONICAL if len(word) > 1), key=len, reverse=True)
)
_POWER = r"(?:\^\{?(?P<power>[23])\}?)?"
_TEXT_UNIT = re.compile(r"\\text\{(?P<unit>(?!\d)[^{}]*)\}" + _POWER + r"$")
_PREFIX = r"(?:square|cubic|sq|cu)\.? ?"
_BARE_UNIT = re.compile(
    rf"(?<=[\d}}) ])(?P<unit>(?:{_PREFIX})?(?:{_BARE_WORDS})|{_PREFIX}(?<= )m){_POWER}$",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    r"(?P<number>[-+]?(?:\d+/\d+|\d[\d.,]*(?<![.,])|\\frac\{\d+\}\{\d+\})) ?"
    r"(?P<unit>[a-zA-Z]{2,}(?: [a-zA-Z]{2,})*)"
)
_DOLLARS = re.compile(r"\s*-?(?:\\\$|\$(?=[^$]*$)) ?[\d.]")
_OF_A_UNIT = {*_CANONICAL, "of", "on", "to", "at", "by"}
"""Words of two letters that are no product of variables."""
_OTHER_VALUE = (
    "and", "or", "dozen", "half", "squared", "cubed", "factorial", "times", "plus", "minus",
    "remainder",
)  # fmt: skip
"""Words after a number that make another value of it, or of which one is a second one."""
_NUMERALS = """
one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
_NO_UNIT = {
    *_OTHER_VALUE, *_NUMERALS.split(), "hundred", "thousand", "million", "billion", "trillion",
    "percent", "mod", "over", "divided", "choose", "root", "point", "not", "less",
    "sin", "cos", "tan", "cot", "sec", "csc", "log", "exp",
}  # fmt: skip
_SECOND_VALUE = re.compile(
    rf"(?<=[\w)}}\]%!']) ?\\text\{{(?=[^{{}}]*(?:(?<![a-zA-Z])\d|\b(?:{'|'.join(_OTHER_VALUE)})\b))"
)
_EXPONENTS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(
    r"(?<=[\d}) ]) ?(?:\\text\{ ?(?P<word>W)\b(?P<rest>[^{}]*)\}|(?P<bare>W)\b)".replace(
        "W", "|".join(_EXPONENTS)
    ),
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reading:
    """One answer, parsed without algebra."""

    tidied: str  # the whole answer in normalised spelling
    name: str | None  # the `x` of an answer `x=…`
    value: str  # the answer without the name and without a unit at its end
    readable: bool  # its braces balance, nest at most `MAX_NESTING` deep, and hide no other value
    unit: str | None  # the canonical name of a known unit
    number: Fraction | None  # the exact value of a plain number
    approximations: tuple[complex, ...] | None  # of a simple expression, or each of a list
    percent: bool
    words: str | None  # the answer as words (see `as_words`) if it is clearly words
    letters: str | None  # also if it only may be words; used if the reference answer is words


def read(text: str) -> Reading:
    """Parse an answer of bounded length (see `grader.MAX_LENGTH`)."""
    tidied = tidy(text)
    named = NAMED.fullmatch(tidied)
    whole = named["value"].strip() if named else tidied
    if _AMOUNT.fullmatch(inside := untext(whole).strip()) and split_unit(inside)[0] != inside:
        whole = inside  # `\text{18 dollars}`
    words = as_words(whole)
    value, unit = (whole, None) if words else split_unit(spell_out_magnitudes(whole))
    if unit is None and value.endswith(r"^\circ"):
        value, unit = value.removesuffix(r"^\circ"), "degree"
    if unit is None and _DOLLARS.match(text):
        unit = "dollar"
    if not words and value.startswith(r"\text{"):
        value = untext(value)
    amount = value.removesuffix(r"\%").rstrip()
    depth, number = nesting_depth(amount), as_number(amount)
    readable = depth is not None and depth <= MAX_NESTING and not _SECOND_VALUE.search(tidied)
    return Reading(
        tidied=tidied,
        name=named["name"] if named else None,
        value=value,
        readable=readable,
        unit=unit,
        number=number,
        approximations=_approximations(number, amount) if readable and words is None else None,
        percent=value.endswith(r"\%"),
        words=words,
        letters=words or as_words(rf"\text{{{whole}}}"),
    )


def spell_out_magnitudes(text: str) -> str:
    r"""`5\text{ million}` as `5\times 10^{6}`. Treated as a unit, "million" would be ignored."""

    def power_of_ten(match: re.Match[str]) -> str:
        exponent = _EXPONENTS[(match["word"] or match["bare"]).lower()]
        rest = (match["rest"] or "").strip()
        return rf"\times 10^{{{exponent}}}" + (rf"\text{{ {rest}}}" if rest else "")

    return _MAGNITUDE.sub(power_of_ten, text)


def split_unit(text: str) -> tuple[str, str | None]:
    r"""A tidied answer as (value, unit): `("5", "cm^2")` for `5\text{ square centimeters}`.

    Of units that are not in the table, `\text{…}` is removed, and so are bare words after a number;
    after anything else they stay in the value.
    """
    amount = _AMOUNT.fullmatch(text)
    words = amount["unit"].lower().split() if amount else []
    if amount and all(one in _OF_A_UNIT or len(one) > 2 and one not in _NO_UNIT for one in words):
        return amount["number"], _canonical(amount["unit"], None)
    in_text = _TEXT_UNIT.search(text)
    match = in_text or _BARE_UNIT.search(text)
    if match is None:
        return text, None
    value = text[: match.start()].rstrip()
    if not re.search(r"\d|\\pi|\\sqrt|\\frac|[a-z)]$", value) or value.endswith((",", "=", "{")):
        return text, None
    unit = _canonical(match["unit"], match["power"])
    return (value, unit) if unit or in_text else (text, None)


def lone_unit(text: str) -> str | None:
    """That of `18 m`, which is a variable unless the other answer has a unit."""
    letter = re.search(r"[\d})] ([a-z])$", text)
    return _CANONICAL.get(letter[1]) if letter else None


def _canonical(words: str, power: str | None) -> str | None:
    """One spelling for each unit of the table, e.g. `cm^2`; None for anything else."""
    parts = words.lower().strip().split()
    if parts == ["miles", "per", "hour"]:
        return "mph"
    if len(parts) == 2 and parts[0] in _PREFIX_POWERS:
        power = _PREFIX_POWERS[parts.pop(0)]
    unit = _CANONICAL.get(parts[0].rstrip(".")) if len(parts) == 1 else None
    return f"{unit}^{power}" if unit and power else unit


def _approximations(number: Fraction | None, text: str) -> tuple[complex, ...] | None:
    if number is not None:
        return (complex(float(number)),) if abs(number) < 10**300 else None
    if (based := BASED_NUMERAL.fullmatch(text)) and re.fullmatch(r"[-\d.]+", based["digits"]):
        return (complex(based["digits"]),) if len(based["digits"]) < 300 else None
    values = [approximate(part) for part in split_list(text)[1]]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def split_list(text: str) -> tuple[str | None, list[str]]:
    """The brackets around a whole list (`()`, `[)`, `{}` …; None without any) and its elements;
    `(None, [text])` if it is no list."""
    body = text.replace(r"\{", "\x01").replace(r"\}", "\x02")
    commas: dict[int, list[int]] = {0: [], 1: []}  # by the depth of brackets
    depth, whole = 0, body[:1] in ("(", "[", "\x01") and body[-1:] in (")", "]", "\x02")
    for position, character in enumerate(body):
        depth += (character in "([{\x01") - (character in ")]}\x02")
        if character == "," and depth in commas:
            commas[depth].append(position)
        whole = whole and (depth != 0 or position == len(body) - 1)
    around = body[0] + body[-1] if whole and commas[1] else None
    ends = [0, *commas[1], len(body) - 1] if around else [-1, *commas[0], len(body)]
    parts = [body[start + 1 : end] for start, end in pairwise(ends)]
    return (around and around.translate({1: "{", 2: "}"})), parts


def as_number(text: str) -> Fraction | None:
    r"""The exact value of a plain integer, decimal or simple fraction; None for anything else.

    Commas (or spaces) before groups of three digits separate thousands: "1,234" is a number.
    The exponent of "1e3" has at most two digits, so numbers stay small enough to compute with.
    """
    if match := _NUMBER.fullmatch(text):
        decimals = match["decimals"] or ""
        digits = re.sub("[, ]", "", match["whole"] or "") + decimals
        if not digits:
            return None
        exponent = int(match["exponent"] or 0) - len(decimals)
        value = int(digits) * Fraction(10) ** exponent
    elif match := _FRACTION.fullmatch(text):
        top, bottom = match["top"] or match["top2"], int(match["bottom"] or match["bottom2"])
        if bottom == 0 or (match["whole"] and top.startswith("-")):
            return None
        value = int(match["whole"] or 0) + Fraction(int(top), bottom)
    else:
        return None
    return -value if match["sign"] == "-" else value


def as_words(tidied: str) -> str | None:
    r"""Words in a normalised spelling: lower case, `(A)` as `a`, "4:30 p.m." without its dots.

    None if the text may be something else: outside of `\text{}`, letters are words only if there
    are three in a row, since `xy` is a product of variables, or if they are one of a few words.
    """
    plain = untext(tidied)
    if plain.replace(".", "").casefold() in _SHORT_WORDS:
        pass
    elif plain == tidied:
        if not re.search(r"[^\W\d_]{3}", plain) or _MATH.search(plain) or not plain[0].isalpha():
            return None
    elif _MATH.search(plain) or not re.search(r"[^\W\d_]", plain):
        return None
    elif re.match(r"[-+]?\.?\d", plain) and not re.fullmatch(r"\\text\{[^{}]*\}", tidied):
        return None  # a number with a unit
    plain = re.sub(r"\(\s*(\w)\s*\)", r"\1", plain)
    plain = re.sub(r"[\s]*[.'\"][\s]*", "", plain)
    plain = re.sub(r"\s+", " ", plain).strip(" ,;:").casefold()
    letters = [part.strip() for part in re.split(r",| and ", plain)]
    if len(letters) > 1 and all(len(part) == 1 for part in letters):
        plain = ",".join(sorted(letters))
    return re.sub(r"\s*,\s*", ",", plain) or None
