"""The blocks of a report; `rendering` writes them to files."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text."""

    kind: ClassVar = "text"
    text: str


@dataclass(frozen=True)
class Items:
    """A list of plain texts."""

    kind: ClassVar = "items"
    items: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table; all cells are text. Columns from `numbers_from` on are numbers."""

    kind: ClassVar = "grid"
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    numbers_from: int = 1


@dataclass(frozen=True)
class Picture:
    """A PNG image, and its file name beside the report."""

    kind: ClassVar = "picture"
    file: str
    png: bytes
    about: str


@dataclass(frozen=True)
class Code:
    """Text that keeps its line breaks; with a `title`, it is folded under the title."""

    kind: ClassVar = "code"
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
