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
_CONSTANTS = {"i": 1j, "e": math.e, r"\pi": math.pi}


class _NotClosedForm(Exception):
    """The text does not follow this grammar."""


def approximate(text: str) -> complex | None:
    """The value, or None if the text does not follow this grammar or has no finite value.

    The caller must bound the nesting of brackets, as the parser is recursive.
    """
    try:
        value = complex(_Parser(text).whole())
    except (_NotClosedForm, ArithmeticError):
        return None
    return value if cmath.isfinite(value) else None


class _Parser:
    """Recursive descent; one method for each level of precedence."""

    def __init__(self, text: str) -> None:
        if re.search(r"(?<![a-zA-Z\\])[a-zA-Z]{3,}", text):  # a word such as sqrt is no product
            raise _NotClosedForm
        self._rest = _TOKEN.findall(text)[::-1]
        if "".join(self._rest[::-1]) != re.sub(r"\s", "", text) or text != text.rstrip():
            raise _NotClosedForm

    def whole(self) -> complex:
        value = self._sum()
        if self._rest:
            raise _NotClosedForm
        return value

    def _next(self) -> str:
        return self._rest[-1] if self._rest else ""

    def _take(self, *allowed: str) -> str:
        if not self._rest or (allowed and self._rest[-1] not in allowed):
            raise _NotClosedForm
        return self._rest.pop()

    def _sum(self) -> complex:
        value: complex = 0.0
        sign = self._take() if self._next() in ("+", "-") else "+"
        while True:
            value += self._product() * (-1.0 if sign == "-" else 1.0)
            if self._next() not in ("+", "-"):
                return value
            sign = self._take()

    def _product(self) -> complex:
        first = self._next()
        value = self._power()
        while token := self._next():
            if token in ("*", r"\cdot", r"\times", "/"):
                self._take()
                value = value / self._power() if token == "/" else value * self._power()
            elif token == r"\frac" and first[0].isdigit():  # 3\frac12 is a mixed number
                return value
            elif token in (r"\pi", r"\sqrt", r"\frac", "(") or token.isalpha():
                value *= self._power()
            else:
                return value
        return value

    def _power(self) -> complex:
        base = self._atom()
        if self._next() != "^":
            return base
        self._take()
        exponent = complex(self._argument())
        small = not exponent.imag and exponent.real.is_integer() and abs(exponent.real) <= 100
        if not small and not _is_positive(base):
            raise _NotClosedForm  # a root of a negative number has several values
        return base ** (exponent if exponent.imag else exponent.real)

    def _atom(self) -> complex:
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return float(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token.isalpha():  # between 1 and 2, different for each letter
            return 1.05 + 0.9 * abs(math.sin(ord(token)))
        if token == "(":
            return self._until(")")
        if token == r"\frac":
            top = self._argument()
            return top / self._argument()
        if token != r"\sqrt":
            raise _NotClosedForm
        degree: complex = 2.0
        if self._next() == "[":
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
