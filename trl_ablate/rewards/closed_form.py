r"""The approximate value of simple closed forms such as `\frac{3\sqrt{5}-1}{7}` or `2\pi`.

Only to tell values apart: two forms whose values differ clearly are not equal, and need no
algebra. Whether two forms of about the same value are equal is left to math-verify. The grammar is
kept small, so that what it accepts has one meaning: numbers, `\pi`, `\frac{}{}`, `\sqrt{}`,
brackets, `+ - \cdot / ^`, and products without a sign where nothing else can be meant. All
arithmetic is on floats: nothing here can take long or grow large.
"""

import math
import re

_TOKEN = re.compile(
    r"\s*(\d+(?:\.\d+)?|\.\d+|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z])|[-+*/^(){}\[\]])"
)


class _NotClosedForm(Exception):
    """The text is nothing this grammar knows."""


def approximate(text: str) -> float | None:
    """The value, or None for whatever is no simple closed form with a finite real value.

    Give it texts of bounded nesting: brackets recurse.
    """
    try:
        value = _Parser(text).parse()
    except (_NotClosedForm, ArithmeticError):
        return None
    return value if math.isfinite(value) else None


def clearly_differ(one: float, other: float) -> bool:
    """Whether two values are further apart than rounding an answer could explain."""
    return abs(one - other) > 1e-4 * max(1.0, abs(one), abs(other))


class _Parser:
    """Recursive descent; one method for each level of precedence."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise _NotClosedForm
            self._tokens.append(match.group(1))
            position = match.end()
        self._next = 0

    def parse(self) -> float:
        value = self._sum()
        if self._next < len(self._tokens):
            raise _NotClosedForm
        return value

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, *allowed: str) -> str:
        token = self._peek()
        if not token or (allowed and token not in allowed):
            raise _NotClosedForm
        self._next += 1
        return token

    def _sum(self) -> float:
        value = 0.0
        sign = self._take() if self._peek() in ("+", "-") else "+"
        while True:
            value += self._product() * (-1.0 if sign == "-" else 1.0)
            if self._peek() not in ("+", "-"):
                return value
            sign = self._take()

    def _product(self) -> float:
        before = self._peek()
        value = self._power()
        while True:
            token = self._peek()
            if token in ("*", r"\cdot", r"\times", "/"):
                self._take()
                value = value / self._power() if token == "/" else value * self._power()
            elif token in (r"\pi", r"\sqrt", "("):
                value *= self._power()
            elif token == r"\frac" and not before[0].isdigit():  # "3\frac12" is a mixed number
                value *= self._power()
            else:
                return value

    def _power(self) -> float:
        base = self._atom()
        if self._peek() != "^":
            return base
        self._take()
        power = base ** self._argument()
        if not isinstance(power, float):  # a root of a negative number
            raise _NotClosedForm
        return power

    def _atom(self) -> float:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token == r"\pi":
            return math.pi
        if token == "(":
            return self._until(")")
        if token == r"\frac":
            top = self._argument()
            return top / self._argument()
        if token == r"\sqrt":
            return self._root()
        raise _NotClosedForm

    def _root(self) -> float:
        degree = 2.0
        if self._peek() == "[":
            self._take()
            degree = self._until("]")
        radicand = self._argument()
        if radicand < 0:
            raise _NotClosedForm
        return radicand ** (1.0 / degree)

    def _argument(self) -> float:
        """What a command applies to: a group in braces, or one digit."""
        token = self._take()
        if token == "{":
            return self._until("}")
        if len(token) == 1 and token.isdigit():
            return float(token)
        raise _NotClosedForm

    def _until(self, closing: str) -> float:
        value = self._sum()
        self._take(closing)
        return value
