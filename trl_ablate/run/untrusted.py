"""Text that this program did not write, made safe for a terminal, Markdown, HTML and pictures.

Questions, answers, names and error messages come from models, datasets, files and command lines.
Each place that shows them takes the function that is named after it. No torch.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

LABEL_LETTERS = 40
"""How many letters of a name a picture shows."""
UNLIMITED = 10_000
"""Columns of a terminal in which every table has room."""

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"  # lines, marks, halves of a pair
    "\U000e0000-\U000e007f]"  # invisible tags
)
_MARKDOWN = re.compile(r"([\\`*{}\[\]<>|~$]|&(?=[#\w]+;)|(?<![^\W_])_|_(?![^\W_])|(?<!\S)#)")
"""An underscore inside a word is no emphasis on GitHub and stays as it is."""
_BLOCK_START = re.compile(r"^(?:([+-](?=\s|$)|-+$|=+$)|(\d{1,9})([.)](?=\s|$)))")
"""A first word that makes a line a list item or a rule; `_MARKDOWN` has the other markup."""


def for_terminal(text: str) -> str:
    """Control characters, changes of direction and invisible marks as `\\x1b` or `\\u202e`: they
    could move the cursor, set the title, or show another text than the one that is copied."""
    return _UNSAFE.sub(_escaped, text.replace("\r\n", "\n"))


def on_one_line(text: str) -> str:
    """The same without line breaks: every run of blanks is one space."""
    return " ".join(for_terminal(text).split())


def for_markdown(text: str) -> str:
    """Plain text that Markdown leaves alone: no headings, emphasis, links, HTML or table cells."""
    shown = _MARKDOWN.sub(r"\\\1", on_one_line(text))
    return _BLOCK_START.sub(lambda it: f"\\{it[1]}" if it[1] else f"{it[2]}\\{it[3]}", shown)


def markdown_code(text: str, *, in_table: bool = False) -> str:
    """Text as an inline code span. In a table, bars are escaped: they end a cell even in code."""
    shown = on_one_line(text)
    shown = shown.replace("|", r"\|") if in_table else shown
    fence = "`" * (_longest_run("`", shown) + 1)
    edge = " " if not shown or "`" in (shown[0], shown[-1]) else ""
    return f"{fence}{edge}{shown}{edge}{fence}"


def markdown_fence(text: str, language: str = "text") -> str:
    """A fenced block; the fence has more backticks than the text has in a row."""
    fence = "`" * max(3, _longest_run("`", text) + 1)
    return f"{fence}{language}\n{for_terminal(text)}\n{fence}"


def markdown_table(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are already Markdown."""
    header = list(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def for_html(text: str) -> str:
    """Text for the content of an element or for a quoted attribute."""
    return html.escape(for_terminal(text))


def for_picture(text: str, letters: int = LABEL_LETTERS) -> str:
    """A label on one line; of a long text, both ends. Draw it without `parse_math`."""
    shown = on_one_line(text)
    if len(shown) <= letters:
        return shown
    end = letters // 3
    return f"{shown[: letters - end - 1]}…{shown[-end:]}"


class SafeConsole(Console):
    """A console without markup, emoji codes and control characters."""

    def __init__(self, **settings: Any):
        super().__init__(markup=False, emoji=False, highlight=False, **settings)

    def render_str(self, text: str, **settings: Any) -> Text:  # pyright: ignore
        return super().render_str(for_terminal(text), **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of anything printed; those of Rich's own cursor moves are left alone."""
        for segment in super().render(renderable, options):
            safe = segment.text if segment.control else for_terminal(segment.text)
            yield Segment(safe, segment.style, segment.control)


class FirstThatFits:
    """Of several forms of a table, the first that has room; if none has, the last one. A table that
    is cut hides numbers."""

    def __init__(self, *forms: Table):
        self._forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        unlimited = options.update(max_width=UNLIMITED)
        widths = ((form, Measurement.get(console, unlimited, form)) for form in self._forms)
        fitting = (form for form, width in widths if width.maximum <= options.max_width)
        yield next(fitting, self._forms[-1])


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _longest_run(letter: str, text: str) -> int:
    return max((len(run) for run in re.findall(f"{re.escape(letter)}+", text)), default=0)
