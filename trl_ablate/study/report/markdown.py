"""A report as Markdown, as GitHub shows it. Pictures are files beside it."""

import re

from trl_ablate.study.report.document import Block, Code, Document, Grid, Items, Picture, Text


def write_markdown(document: Document) -> str:
    parts = [f"# {escape(document.title)}", escape(document.lead)]
    for section in document.sections:
        parts.append(f"## {escape(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Plain text that Markdown leaves alone: no emphasis, links, HTML or table cells of its own.

    An underscore inside a word is no emphasis on GitHub and stays as it is.
    """
    return re.sub(r"([\\`*{}\[\]<>|~]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return escape(text)
        case Items(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Picture(file, _, about):
            return f"![{escape(about)}]({file})"
        case Code():
            return _code(block)
        case Grid():
            return _grid(block)


def _grid(grid: Grid) -> str:
    ruler = ["---:" if i >= grid.numbers_from else "---" for i in range(len(grid.header))]
    rows = [[escape(cell).replace("\n", " ") for cell in row] for row in (grid.header, *grid.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in [rows[0], ruler, *rows[1:]]]
    return "\n".join(lines) + (f"\n\n{escape(grid.note)}" if grid.note else "")


def _code(code: Code) -> str:
    """Fenced with more backticks than the text has in a row: rollouts hold anything."""
    longest = max((len(run) for run in re.findall("`+", code.text)), default=0)
    fence = "`" * max(3, longest + 1)
    fenced = f"{fence}text\n{code.text}\n{fence}"
    if not code.title:
        return fenced
    return f"<details><summary>{escape(code.title)}</summary>\n\n{fenced}\n\n</details>"
