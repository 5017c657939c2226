"""Units after a number: their spellings, and which units differ.

math-verify ignores known units, so it finds 5 cm equal to 5 m. Here a unit that only one answer has
is ignored too (the question usually fixes the unit), but two known units must be the same. There is
no conversion: if the question asks for metres, 100 cm is not accepted for 1 m.
"""

import re

_UNITS = """
mm millimeter millimeters millimetre millimetres | cm centimeter centimeters centimetre centimetres
m meter meters metre metres | km kilometer kilometers kilometre kilometres
in inch inches | ft foot feet | yd yard yards | mi mile miles | unit units
s sec secs second seconds | min mins minute minutes | h hr hrs hour hours
day days | week weeks | month months | year years yr yrs
g gram grams | kg kilogram kilograms | lb lbs pound pounds | oz ounce ounces
l liter liters litre litres | ml milliliter milliliters millilitre millilitres
gallon gallons gal | dollar dollars usd | cent cents | euro euros
degree degrees deg | radian radians rad | mph miles/hour | km/h kmh kph
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
_TEXT_UNIT = re.compile(r"\\text\{(?P<unit>[^{}]*)\}" + _POWER + r"$")
_BARE_UNIT = re.compile(
    rf"(?<=[\d}}) ])(?P<unit>(?:(?:square|cubic|sq|cu)\.? ?)?(?:{_BARE_WORDS})){_POWER}$",
    re.IGNORECASE,
)
_EXPONENTS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_MAGNITUDE = re.compile(
    r"(?<=[\d}) ]) ?(?:\\text\{ ?(?P<word>W)\b(?P<rest>[^{}]*)\}|(?P<bare>W)\b)".replace(
        "W", "|".join(_EXPONENTS)
    ),
    re.IGNORECASE,
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

    The unit is None if there is none or if it is not in the table; an unknown `\text{…}` is then
    removed, and unknown bare words stay in the value. A text that is only a unit is a value.
    """
    in_text = _TEXT_UNIT.search(text)
    match = in_text or _BARE_UNIT.search(text)
    if match is None:
        return text, None
    value = text[: match.start()].rstrip()
    if not re.search(r"\d|\\pi|\\sqrt|\\frac|[a-z)]$", value) or value.endswith((",", "=", "{")):
        return text, None
    unit = _canonical(match["unit"], match["power"])
    return (value, unit) if unit or in_text else (text, None)


def _canonical(words: str, power: str | None) -> str | None:
    """One spelling for each unit of the table, e.g. `cm^2`; None for anything else."""
    parts = words.lower().strip().split()
    if parts == ["miles", "per", "hour"]:
        return "mph"
    if len(parts) == 2 and parts[0] in _PREFIX_POWERS:
        power = _PREFIX_POWERS[parts.pop(0)]
    unit = _CANONICAL.get(parts[0].rstrip(".")) if len(parts) == 1 else None
    return f"{unit}^{power}" if unit and power else unit
