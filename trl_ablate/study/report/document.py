"""The blocks of a report, and how they are written: as Markdown for GitHub with pictures beside it,
and as one HTML page with its pictures inline and tables that a click sorts, without a network.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl_ablate.run.untrusted import (
    for_html,
    for_markdown,
    for_terminal,
    markdown_fence,
    on_one_line,
)
from trl_ablate.study.verdict import Verdict


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of plain texts."""

    items: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table; all cells are text. Columns from `numbers_from` on are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    numbers_from: int = 1


@dataclass(frozen=True)
class Picture:
    """A PNG image, and its file name beside the report."""

    file: str
    png: bytes
    about: str


@dataclass(frozen=True)
class Code:
    """Text that keeps its line breaks; with a `title`, it is folded under the title."""

    text: str
    title: str = ""


Block = Text | Items | Grid | Picture | Code


@dataclass
class Section:
    """Blocks under a heading. A report leaves out a section without blocks."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Document:
    """A report: a title, its question, and sections."""

    title: str
    lead: str
    sections: list[Section] = field(default_factory=list)

    @property
    def pictures(self) -> list[Picture]:
        blocks = [block for section in self.sections for block in section.blocks]
        return [block for block in blocks if isinstance(block, Picture)]


Columns = Sequence[tuple[str, Callable[[Any], str]]]
"""Header, and the cell of an item."""


def table(
    title: str, items: Iterable[Any], columns: Columns, note: str = "", numbers_from: int = 1
) -> Section:
    """A section with a row for each item; without items it is empty."""
    header, cells = zip(*columns, strict=True)
    rows = [[cell(item) for cell in cells] for item in items]
    return Section(title, [Grid(header, rows, note, numbers_from)] if rows else [])


Clean = Callable[[str], str]

MARKED = (
    Verdict.BETTER, Verdict.WORSE, Verdict.EQUIVALENT, Verdict.UNDECIDED, Verdict.NOT_DECIDED,
    Verdict.TOO_FEW, "collapsed", "failed", "stopped",
)  # fmt: skip
"""Words that colour their cell."""


def write_markdown(document: Document, clean: Clean = str) -> str:
    """The document, with `clean` applied to every text."""

    def shown(text: str) -> str:
        return for_markdown(clean(text))

    def written(block: Block) -> str:
        match block:
            case Text(text):
                return shown(text)
            case Items(items):
                return "\n".join(f"- {shown(item)}" for item in items)
            case Picture(file, _, about):
                return f"![{shown(about)}]({file})"
            case Code(text, title):
                fenced = markdown_fence(clean(text))
                summary = for_html(on_one_line(clean(title)))  # HTML, where Markdown is plain text
                folded = f"<details><summary>{summary}</summary>\n\n{fenced}\n\n</details>"
                return folded if title else fenced
            case Grid(header, rows, note, numbers_from):
                ruler = ["---:" if i >= numbers_from else "---" for i in range(len(header))]
                cells = [[shown(cell) for cell in row] for row in (header, *rows)]
                lines = [f"| {' | '.join(row)} |" for row in [cells[0], ruler, *cells[1:]]]
                return "\n".join(lines) + (f"\n\n{shown(note)}" if note else "")

    parts = [f"# {shown(document.title)}", shown(document.lead)]
    for section in document.sections:
        parts += [f"## {shown(section.title)}", *map(written, section.blocks)]
    return "\n\n".join(parts) + "\n"


def write_page(document: Document, clean: Clean = str) -> str:
    """The page; every text that the template shows is cleaned and escaped."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    def shown(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Markup):
            return for_terminal(clean(value))
        return value

    def mark(text: str) -> str | None:
        """The class of a cell."""
        return next((word.replace(" ", "-") for word in MARKED if word in text), None)

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["mark"] = mark
    environment.filters["base64"] = lambda png: Markup(base64.b64encode(png).decode())
    return environment.get_template("page.html.j2").render(document=document)
