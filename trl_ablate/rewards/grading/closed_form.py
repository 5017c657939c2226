r"""The approximate value of simple expressions such as `\frac{3\sqrt{5}-1}{7}` or `x^2-2x`.

It is used only to distinguish values: two expressions whose values differ clearly are not equal,
without algebra. If the values are about the same, math-verify decides. Each letter has a fixed
value (`i` and `e` their usual one), so equal expressions have equal values.

The grammar is small, so that each accepted text has one meaning: numbers, letters, `\pi`,
`\frac{}{}`, `\sqrt{}`, brackets, `+ - \cdot / ^`, and products without a sign if they are
unambiguous. All arithmetic uses floats, so time and memory are bounded.
"""

import cmath
import math
import re

_TOKEN = re.compile(
    r"\s*(\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z])|[-+*/^(){}\[\]])"
)
_CONSTANTS = {"i": 1j, "e": math.e}


class _NotClosedForm(Exception):
    """The text does not follow this grammar."""


def approximate(text: str) -> complex | None:
    """The value, or None if the text does not follow this grammar or has no finite value.

    The caller must bound the nesting of brackets, as the parser is recursive.
    """
    try:
        value = complex(_Parser(text).parse())
    except (_NotClosedForm, ArithmeticError):
        return None
    return value if cmath.isfinite(value) else None


def clearly_differ(one: complex, other: complex) -> bool:
    """Whether two values differ by more than the rounding of an answer."""
    return abs(one - other) > 1e-4 * max(1.0, abs(one), abs(other))


def letter_value(letter: str) -> complex:
    """The value substituted for a letter: between 1 and 2, different for each letter."""
    return _CONSTANTS.get(letter, 1.05 + 0.9 * abs(math.sin(ord(letter))))


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

    def parse(self) -> complex:
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

    def _sum(self) -> complex:
        value: complex = 0.0
        sign = self._take() if self._peek() in ("+", "-") else "+"
        while True:
            value += self._product() * (-1.0 if sign == "-" else 1.0)
            if self._peek() not in ("+", "-"):
                return value
            sign = self._take()

    def _product(self) -> complex:
        before = self._peek()
        value = self._power()
        while True:
            token = self._peek()
            if token in ("*", r"\cdot", r"\times", "/"):
                self._take()
                value = value / self._power() if token == "/" else value * self._power()
            elif token == r"\frac" and before[0].isdigit():  # 3\frac12 is a mixed number
                return value
            elif token in (r"\pi", r"\sqrt", r"\frac", "(") or token.isalpha():
                value *= self._power()
            else:
                return value

    def _power(self) -> complex:
        base = self._atom()
        if self._peek() != "^":
            return base
        self._take()
        exponent = self._argument()
        if not _is_positive(base) and not _is_small_integer(exponent):
            raise _NotClosedForm  # a root of a negative number has several values
        return base**exponent

    def _atom(self) -> complex:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token.isalpha():
            return letter_value(token)
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

    def _root(self) -> complex:
        degree: complex = 2.0
        if self._peek() == "[":
            self._take()
            degree = self._until("]")
        radicand = self._argument()
        if not _is_positive(radicand):
            raise _NotClosedForm
        return radicand ** (1.0 / degree)

    def _argument(self) -> complex:
        """The argument of a command: a group in braces, or one digit."""
        token = self._take()
        if token == "{":
            return self._until("}")
        if len(token) == 1 and token.isdigit():
            return float(token)
        raise _NotClosedForm

    def _until(self, closing: str) -> complex:
        value = self._sum()
        self._take(closing)
        return value


def _is_positive(value: complex) -> bool:
    return complex(value).imag == 0 and complex(value).real > 0


def _is_small_integer(value: complex) -> bool:
    value = complex(value)
    return value.imag == 0 and value.real.is_integer() and abs(value.real) <= 100
