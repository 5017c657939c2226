"""Which rows of a data set are used: by conditions on its columns, by level and subject, by pass
rate.

`filter` is such as `level >= 3 and subject in [Algebra, Geometry]`. A condition is a column, an
operator and a value; conditions are joined by `and`. Nothing is evaluated as Python. Values are
numbers, true, false, null, words, texts in quotes, and after `in` and `not in` a list in brackets.
Numbers are compared with numbers: a text such as "Level 5" counts as the one number in it. Texts
are compared as they are, capitals included.
"""

import logging
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from trl_ablate.data.row_files import read_file
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import asked

logger = logging.getLogger(__name__)

_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
OPERATORS = ("==", "!=", *_ORDER, "in", "not in", "contains")
_CONDITION = re.compile(
    r"""\s*(?:"(?P<quoted>[^"]+)"|(?P<column>[\w.\-/]+))
        \s*(?P<operator>==|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b|\bcontains\b)
        \s*(?P<value>\[[^\]]*\]|"[^"]*"|'[^']*'|.+?)\s*""",
    re.VERBOSE,
)
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_SECOND = re.compile(r"==|!=|[<>]|&&|\|\||\b(?:and|or)\b|^\[(?![^\]]*\]$)", re.IGNORECASE)
"""Signs outside of quotes that a value is more than one value, or a list without its end."""
_PART = re.compile(r"""\s*("[^"]*"|'[^']*'|[^,]+)\s*(?:,|$)""")
_AND = re.compile(r"""\band\b(?=(?:[^"']|"[^"]*"|'[^']*')*$)""")
_NUMBER = re.compile(r"(?:(?<!\w)[-+])?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Condition:
    column: str
    operator: str
    value: Any
    text: str

    def holds(self, found: Any) -> bool:
        """Whether a column's value meets the condition; a missing value is only equal to null."""
        if self.operator in ("==", "!=", "in", "not in"):
            values = self.value if isinstance(self.value, list) else [self.value]
            return any(_equal(found, one) for one in values) == (self.operator in ("==", "in"))
        if found is None:
            return False
        if self.operator == "contains":
            return _contains(found, self.value)
        number = _number_of(found)
        if number is None:
            raise ConfigurationError(
                f"filter '{self.text}' compares column '{self.column}' with a number, but a row "
                f"has {found!r}; compare it with ==, != or in, or leave such rows out before: "
                f'"{self.column} != {str(found)!r} and {self.text}"'
            )
        return _ORDER[self.operator](number, self.value)


def conditions(given: str | Sequence[str] | None) -> list[Condition]:
    """The conditions of the setting `filter`."""
    texts = [given] if isinstance(given, str) else given or []
    return [_condition(part.strip()) for text in texts for part in _AND.split(text)]


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            f"filter '{text}' is not a condition; write COLUMN OPERATOR VALUE with one of "
            f"{', '.join(OPERATORS)}, such as 'level >= 3', and join conditions with `and`"
        )
    sign, value = " ".join(found["operator"].split()), found["value"]
    if not value.strip(" ="):
        raise ConfigurationError(f"filter '{text}' has no value at its end; give one")
    if _SECOND.search(_QUOTED.sub("", value)):
        raise ConfigurationError(
            f"filter '{text}' has {value!r} after {sign}; join conditions with `and`, end a list "
            "with ], and write a text with other such signs in quotes"
        )
    is_list = sign.endswith("in")
    if is_list and not value.startswith("["):
        raise ConfigurationError(f"filter '{text}' needs a list after {sign}; write [a, b]")
    parts = [part for part in _PART.findall(value[1:-1]) if part.strip()]
    parsed: Any = [_value(part) for part in parts] if is_list else _value(value)
    if sign == "contains":
        parsed = value  # as written: 007 is not 7 in a text
    if sign in _ORDER and type(parsed) not in (int, float):
        raise ConfigurationError(
            f"filter '{text}' has {parsed!r} after {sign}; give a number, or use == or !="
        )
    return Condition(found["quoted"] or found["column"], sign, parsed, text)


def _value(text: str) -> Any:
    text = text.strip()
    if _QUOTED.fullmatch(text):
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return _number_in(text) if _NUMBER.fullmatch(text) else text


def _equal(found: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return str(found).casefold() == str(value).casefold()
    if isinstance(value, int | float):
        return _number_of(found) == value
    return found is None if value is None else str(found) == value


def _contains(found: Any, value: str) -> bool:
    if isinstance(found, str):
        return (value[1:-1] if _QUOTED.fullmatch(value) else value) in found
    return isinstance(found, Sequence) and any(_equal(one, _value(value)) for one in found)


def _number_of(found: Any) -> float | None:
    """The number that a value is, or the only number in a text."""
    if isinstance(found, bool) or not isinstance(found, int | float | Decimal | str):
        return None
    numbers = _NUMBER.findall(found) if isinstance(found, str) else [str(found)]
    return _number_in(numbers[0]) if len(numbers) == 1 else None


def _number_in(text: str) -> float:
    """A whole number exactly, as an id may have more digits than a float."""
    return int(text) if text.lstrip("+-").isdecimal() and len(text) < 100 else float(text)


def filtered(
    rows: list[dict[str, Any]], given: str | Sequence[str] | None, name: str
) -> list[dict[str, Any]]:
    """The rows that meet all conditions; refuses a column that no row has."""
    wanted = conditions(given)
    for one in wanted:
        if rows and not any(one.column in row for row in rows):
            raise ConfigurationError(
                f"filter '{one.text}' names the column '{one.column}', which dataset {name!r} does "
                f"not have; it has {', '.join(columns_of(rows))}"
            )
    return [row for row in rows if all(one.holds(row.get(one.column)) for one in wanted)]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def of_these(
    column: str, chosen: Sequence[int | str] | None, rows: list[dict[str, Any]], name: str
) -> list[dict[str, Any]]:
    """The rows whose level or subject is one of those chosen, each of which some row has to have;
    5, "5" and "Level 5" are equal, and so are upper and lower case."""

    def plain(value: Any) -> str:
        return str("" if value is None else value).casefold().removeprefix(column).strip()

    if not chosen:
        return rows
    wanted = {plain(value) for value in chosen}
    values = [plain(row.get(column)) for row in rows]
    if missing := sorted(wanted - set(values)):
        there = ", ".join(sorted(set(values) - {""})) or "none at all"
        raise ConfigurationError(
            f"{column}s={missing!r} match no row of dataset {name!r}; it has {there}."
        )
    return [row for row, value in zip(rows, values, strict=True) if value in wanted]


def by_pass_rate(
    rows: list[dict[str, Any]], file: str, low: float, high: float, name: str
) -> list[dict[str, Any]]:
    """The rows whose question has a pass rate from `low` to `high`, both included, by the file that
    `evaluate --per_question` writes. A row without a question is found by its prompt."""
    rates = _rates(file)
    known = [(row, rates[question]) for row in rows if (question := asked(row)) in rates]
    if rows and not known:
        raise ConfigurationError(
            f"pass_rate: {file} has none of the {len(rows)} questions of dataset {name!r}; make it "
            "with `trl-ablate evaluate MODEL --dataset D --eval_split train --per_question FILE`"
        )
    kept = [row for row, rate in known if low <= rate <= high]
    if rows and not kept:
        raise ConfigurationError(
            f"pass_rate: none of {len(known)} questions of dataset {name!r} has a rate between "
            f"{low} and {high}; widen `between`"
        )
    logger.warning(
        "pass_rate kept %d of %d questions of %s; %d have no rate in %s",
        len(kept), len(rows), name, len(rows) - len(known), file,
    )  # fmt: skip
    return kept


def _rates(file: str) -> dict[str, float]:
    if not os.path.isfile(file):
        raise ConfigurationError(
            f"pass_rate: there is no file {file}; create it, or correct the path"
        )
    found: dict[str, float] = {}
    for row in read_file(Path(file)):
        if row.defect is not None:
            raise ConfigurationError(
                f"pass_rate: {row.place}: {row.defect}; correct the line, or make the file again"
            )
        try:
            if row.values["pass_rate"] is not None:
                found[row.values["question"]] = float(row.values["pass_rate"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"pass_rate: {row.place}, has no question and pass_rate ({error!r}); make it "
                "with `trl-ablate evaluate --per_question`"
            ) from error
    return found
