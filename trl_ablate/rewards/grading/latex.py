"""Processing LaTeX as text: boxes, braces, wrappers, and a normalised spelling.

Nothing is evaluated here, so it is safe to process hostile text in the training process. Every
function takes linear time: each regular expression either has a bounded repeat or cannot match the
same characters in two ways.
"""

import re
from unicodedata import normalize

_BRACE = re.compile(r"\\{1,3}(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)

_FRACTIONS = {
    one: r"\frac{{{}}}{{{}}}".format(*normalize("NFKC", one).split("\u2044"))
    for one in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
_SIGNS = {
    "π": r"\pi ", "∞": r"\infty ", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
    "≈": r"\approx ", "∅": r"\emptyset ",
    "\u2044": "/", "\u2212": "-", "±": r"\pm ", "≤": r"\leq ", "≥": r"\geq ", "∪": r"\cup ",
}  # fmt: skip
_UNICODE = str.maketrans(_FRACTIONS | _SIGNS)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")

TRIGONOMETRIC = r"\\(?:sin|cos|tan|cot|sec|csc)"
_TOKEN = r"(\\[a-zA-Z]+|\w)"

_SPELLINGS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)(?:, ?\\! ?|\{,\})(?=\d{3}(?!\d))", ""),
        (r"(?:^|(?<=[-+]))(\d{1,3}),(\d{3})(?= ?\\(?:pi|sqrt)|[-+]\d)", r"\g<1>\g<2>"),
        (r"(?<!\\)\\!", ""),
        (r"\{,\}", ","),
        (r"(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|[\s\u00a0\u2009\u202f]", " "),
        (r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:mbox|textnormal|textrm|textbf|textit|mathrm|mathbf|mathit|bf|rm)\s?\{", r"\\text{"),
        (r"\\text\{ ?([eix]) ?\}", r"\g<1>"),  # a number or a variable, not a unit
        (r"\\?[$£€]", ""),
        (r"(\\text\{[^{}]*[a-zA-Z])\^([23])\}", r"\g<1>}^\g<2>"),
        (r"(?<!\\)%", r"\\%"),
        (r"\^\s?\{\s?\\circ\s?\}|\^\s?\\circ(?![a-zA-Z])|\u00b0|\\degree(?![a-zA-Z])", r"^\\circ"),
        (r"\u221a ?(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z]))", r"\\sqrt{\g<1>\g<2>}"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![a-zA-Z\\])(sin|cos|tan|log|ln)(?= ?[\d(])", r"\\\g<1>"),
        (r"<=|\\le(?:qslant)?(?![a-zA-Z])", r"\\leq "),
        (r">=|\\ge(?:qslant)?(?![a-zA-Z])", r"\\geq "),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\s?,?\s?\\text\{\s?,?\s?(?:and|or)\s?\}\s?", ", "),
        (r"(?<=[\w)}\]]) ?,? (?:and|or) (?=[-+\\\w(])", ", "),
        (r"^\s*(?:\\approx(?![a-zA-Z])|=)", ""),
        (r" {2,}", " "),
        # A space next to punctuation has no meaning, except next to a point ("3 .5") and between
        # a comma and three digits, where it distinguishes the list "1, 234" from "1,234".
        (r" (?=[^\w. ])|(?<=[^\w,. ]) |(?<=,) (?!\d{3}(?!\d))", ""),
        # math-verify parses \frac\pi2 and \sin^2 t only with braces, and \frac only without commas.
        (rf"\\frac ?(?:{_TOKEN} ?)(?={_TOKEN}|\{{)", r"\\frac{\g<1>}"),
        (rf"(\\frac\{{[^{{}}]*\}}) ?{_TOKEN}", r"\g<1>{\g<2>}"),
        (r"(?<=\{)(\d{1,3}),(\d{3})(?:,(\d{3}))?(?=\})", r"\g<1>\g<2>\g<3>"),
        (rf"({TRIGONOMETRIC}\^)\{{?(\d)\}}? ?([a-zA-Z])(?![a-zA-Z])", r"\g<1>{\g<2>}{\g<3>}"),
    )
)

_REPEATING = re.compile(
    r"(?<![\w.])(?<!\d )(?<!\d,(?=\d{3}))(\d{0,9})\.(\d{0,9})\\(?:overline|bar)\{(\d{1,9})\}(?!\w)"
)
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MATH_QUOTES = (("**", "**"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}` (or `\fbox{}`) whose braces close; None without one.

    The last box is the one that opens last: of nested ones, the inner one. Escaped braces (`\{`)
    do not count.
    """
    start = end = -1
    opened: list[int] = []  # where the content of a box begins; -1 for other braces
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "}":
            if opened and (begins := opened.pop()) > start:
                start, end = begins, match.start()
        elif token == "{":
            opened.append(-1)
        elif token.endswith("{") and len(token) > 2:
            opened.append(match.end())
    return None if start < 0 else text[start:end]


def nesting_depth(text: str) -> int | None:
    """The nesting depth of brackets of any kind; None if (unescaped) braces do not balance.

    Round and square brackets need not balance, as in half-open intervals.
    """
    braces = others = deepest = 0
    for token in re.findall(r"\\.|[{}()\[\]]", text, re.DOTALL):
        braces += (token == "{") - (token == "}")
        others += (token in ("(", "[")) - (token in (")", "]"))
        if braces < 0:
            return None
        deepest = max(deepest, braces + abs(others))
    return deepest if braces == 0 else None


def strip_math_quotes(text: str) -> str:
    """The text without `$…$`, `\\(…\\)`, `\\[…\\]` or `**…**` around the whole of it."""
    text = text.strip()
    for opening, closing in _MATH_QUOTES:
        inner = text[len(opening) : -len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing)
        if wrapped and len(text) > len(opening) + len(closing) and opening not in inner:
            return inner.strip()
    return text


def tidy(text: str) -> str:
    r"""Normalise the spelling: `\dfrac` becomes `\frac`, `\,` a space, `\$` is removed, and so on.

    No rewrite changes a value: "1 2" does not become "12", and the list "1, 234" does not become
    "1,234". A full stop, comma or semicolon at the end is removed.
    """
    text = _in_latex(strip_math_quotes(text))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_as_fraction, text).strip()
    if text[:1] == "{" and text[-1:] == "}" and nesting_depth(text[1:-1]) is not None:
        text = text[1:-1].strip()
    if text[-1:] in (".", ",", ";") and len(text) > 1 and text[-2] != text[-1]:
        text = text[:-1].rstrip()
    return text


def _as_fraction(decimal: re.Match[str]) -> str:
    r"""`1.2\overline{34}`, which is 1234 - 12 over 990."""
    whole, fixed, cycle = decimal.groups()
    top = int(whole + fixed + cycle) - int(whole + fixed or 0)
    return rf"\frac{{{top}}}{{{(10 ** len(cycle) - 1) * 10 ** len(fixed)}}}"


def _in_latex(text: str) -> str:
    r"""Unicode's `½`, `x²`, `π`, `≤` as LaTeX writes them."""
    if text.isascii():
        return text
    for mark, characters in (("^", _RAISED), ("_", _LOWERED)):
        text = characters.sub(lambda run, mark=mark: f"{mark}{{{normalize('NFKC', run[0])}}}", text)
    return text.translate(_UNICODE)


def untext(text: str) -> str:
    r"""The text with every `\text{…}` replaced by its content."""
    return _WHOLE_TEXT.sub(lambda match: match.group(1), text)
