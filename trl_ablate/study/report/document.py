"""The blocks of a report; `markdown` and `page` write them to files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


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
    """Blocks under a heading."""

    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Document:
    """A report: a title, its question, and sections."""

    title: str
    lead: str
    sections: list[Section] = field(default_factory=list)


def with_texts(document: Document, change: Callable[[str], str]) -> Document:
    """The document with `change` applied to every text."""
    sections = [
        Section(change(section.title), [_changed(block, change) for block in section.blocks])
        for section in document.sections
    ]
    return Document(change(document.title), change(document.lead), sections)


def _changed(block: Block, change: Callable[[str], str]) -> Block:
    match block:
        case Text(text):
            return Text(change(text))
        case Items(items):
            return Items([change(item) for item in items])
        case Grid(header, rows, note, numbers_from):
            cells = [[change(cell) for cell in row] for row in (header, *rows)]
            return Grid(cells[0], cells[1:], change(note), numbers_from)
        case Picture(file, png, about):
            return Picture(file, png, change(about))
        case Code(text, title):
            return Code(change(text), change(title))
