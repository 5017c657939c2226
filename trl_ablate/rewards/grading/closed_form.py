r"""The approximate value of simple expressions such as `\frac{3\sqrt{5}-1}{7}` or `x^2-2x`.

It only distinguishes values: expressions whose values differ clearly are not equal, without
algebra; else math-verify decides. Each letter has a fixed value (`i` and `e` their usual one). The
grammar is small, so that each accepted text has one meaning: numbers, letters, `\pi`, `\frac{}{}`,
`\sqrt{}`, brackets, `+ - \cdot / ^`, and products without a sign if they are unambiguous. All
arithmetic uses floats, so time and memory are bounded.
"""

import cmath
import math
import re

_TOKEN = re.compile(
    r"\s*(\d+(?:\.\d+)?|\.\d+|[a-zA-Z]|\\(?:frac|sqrt|pi|cdot|times)(?![a-zA-Z])|[-+*/^(){}\[\]])"
)
_WORD = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z]{3,}")
_CONSTANTS = {"i": 1j, "e": math.e, r"\pi": math.pi}


def approximate(text: str) -> complex | None:
    """The value, or None if the text does not follow this grammar or has no finite value.

    The caller must bound the nesting of brackets, as the parser is recursive.
    """
    try:
        value = complex(_Parser(text).until(""))
    except (ValueError, ArithmeticError):
        return None
    return value if cmath.isfinite(value) else None


class _Parser:
    """Recursive descent; one method for each level of precedence. An empty token ends the text.

    Raises `ValueError` for a text that does not follow the grammar.
    """

    def __init__(self, text: str) -> None:
        tokens = _TOKEN.findall(text)
        known = "".join(tokens) == re.sub(r"\s", "", text) and text == text.rstrip()
        if not known or _WORD.search(text):  # a word such as sqrt is no product
            raise ValueError(text)
        self._rest = ["", *reversed(tokens)]

    def until(self, closing: str) -> complex:
        value = self._sum()
        self._take(closing)
        return value

    def _next(self) -> str:
        return self._rest[-1]

    def _take(self, *allowed: str) -> str:
        if allowed and self._next() not in allowed:
            raise ValueError(self._next())
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
        mixed = self._next()[:1].isdigit()  # 3\frac12 is a mixed number, and no product
        value = self._power()
        while token := self._next():
            if token in ("*", r"\cdot", r"\times", "/"):
                self._take()
                value = value / self._power() if token == "/" else value * self._power()
            elif token.isalpha() or token in (r"\pi", r"\sqrt", "(", "" if mixed else r"\frac"):
                value *= self._power()
            else:
                break
        return value

    def _power(self) -> complex:
        base = self._atom()
        if self._next() != "^":
            return base
        self._take()
        exponent = complex(self._argument())
        small = not exponent.imag and exponent.real.is_integer() and abs(exponent.real) <= 100
        if not small:
            _check_positive(base)
        return base ** (exponent if exponent.imag else exponent.real)

    def _atom(self) -> complex:
        token = self._take()
        if token[:1].isdigit() or token[:1] == ".":
            return float(token)
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if token.isalpha():  # between 1 and 2, different for each letter
            return 1.05 + 0.9 * abs(math.sin(ord(token)))
        if token == "(":
            return self.until(")")
        if token == r"\frac":
            top = self._argument()
            return top / self._argument()
        if token != r"\sqrt":
            raise ValueError(token)
        degree: complex = 2.0
        if self._next() == "[":
            self._take()
            degree = self.until("]")
        radicand = self._argument()
        _check_positive(radicand)
        return radicand ** (1.0 / degree)

    def _argument(self) -> complex:
        """The argument of a command: a group in braces, or one digit."""
        token = self._take()
        if token == "{":
            return self.until("}")
        if len(token) == 1 and token.isdigit():
            return float(token)
        raise ValueError(token)


def _check_positive(base: complex) -> None:
    """A root of a negative number has several values."""
    if complex(base).imag != 0 or complex(base).real <= 0:
        raise ValueError(base)
