"""A report as Markdown for GitHub, with pictures beside it, and as one HTML page.

The page has its pictures inline and tables that a click sorts, and needs no network.
"""

import base64
from collections.abc import Callable
from pathlib import Path

from trl_ablate.run.untrusted import (
    for_html,
    for_markdown,
    for_terminal,
    markdown_fence,
    on_one_line,
)
from trl_ablate.study.report.document import Block, Code, Document, Grid, Items, Picture, Text
from trl_ablate.study.verdict import Verdict

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

    parts = [f"# {shown(document.title)}", shown(document.lead)]
    for section in document.sections:
        parts.append(f"## {shown(section.title)}")
        parts += [_markdown(block, shown, clean) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block, shown: Clean, clean: Clean) -> str:
    match block:
        case Text(text):
            return shown(text)
        case Items(items):
            return "\n".join(f"- {shown(item)}" for item in items)
        case Picture(file, _, about):
            return f"![{shown(about)}]({file})"
        case Code(text, title):
            fenced = markdown_fence(clean(text))
            summary = for_html(on_one_line(clean(title)))  # in HTML, where Markdown is plain text
            folded = f"<details><summary>{summary}</summary>\n\n{fenced}\n\n</details>"
            return folded if title else fenced
        case Grid(header, rows, note, numbers_from):
            ruler = ["---:" if i >= numbers_from else "---" for i in range(len(header))]
            cells = [[shown(cell) for cell in row] for row in (header, *rows)]
            lines = [f"| {' | '.join(row)} |" for row in [cells[0], ruler, *cells[1:]]]
            return "\n".join(lines) + (f"\n\n{shown(note)}" if note else "")


def write_page(document: Document, clean: Clean = str) -> str:
    """The page; every text that the template shows is cleaned and escaped."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    def shown(value: object) -> object:
        if isinstance(value, str) and not isinstance(value, Markup):
            return for_terminal(clean(value))
        return value

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["mark"] = _mark
    environment.filters["base64"] = lambda png: Markup(base64.b64encode(png).decode())
    return environment.get_template("page.html.j2").render(document=document)


def _mark(text: str) -> str | None:
    """The class of a cell."""
    return next((word.replace(" ", "-") for word in MARKED if word in text), None)
