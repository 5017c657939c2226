"""A report as Markdown for GitHub. Pictures are files beside it."""

from trl_ablate.run.untrusted import for_html, for_markdown, markdown_fence, on_one_line
from trl_ablate.study.report.document import Block, Code, Document, Grid, Items, Picture, Text


def write_markdown(document: Document) -> str:
    parts = [f"# {for_markdown(document.title)}", for_markdown(document.lead)]
    for section in document.sections:
        parts.append(f"## {for_markdown(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return for_markdown(text)
        case Items(items):
            return "\n".join(f"- {for_markdown(item)}" for item in items)
        case Picture(file, _, about):
            return f"![{for_markdown(about)}]({file})"
        case Code():
            return _code(block)
        case Grid():
            return _grid(block)


def _grid(grid: Grid) -> str:
    ruler = ["---:" if i >= grid.numbers_from else "---" for i in range(len(grid.header))]
    rows = [[for_markdown(cell) for cell in row] for row in (grid.header, *grid.rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in [rows[0], ruler, *rows[1:]]]
    return "\n".join(lines) + (f"\n\n{for_markdown(grid.note)}" if grid.note else "")


def _code(code: Code) -> str:
    """Folded under its title; the title is inside HTML, where Markdown is not interpreted."""
    fenced = markdown_fence(code.text)
    if not code.title:
        return fenced
    return (
        f"<details><summary>{for_html(on_one_line(code.title))}</summary>\n\n{fenced}\n\n</details>"
    )
