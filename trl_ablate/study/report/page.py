"""A report as one HTML page: inline pictures, tables that a click sorts, no network access."""

import base64

from trl_ablate.run.untrusted import for_html
from trl_ablate.study.report.document import Block, Code, Document, Grid, Items, Picture, Text

MARKED = (
    "better", "worse", "equivalent", "undecided", "not decided", "collapsed", "failed", "stopped",
    "too few seeds",
)  # fmt: skip
"""Words that colour their cell."""

CSS = """
:root { color-scheme: light; --ink: #222; --faint: #6b6b6b; --rule: #e4e4e4; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: #fff;
       max-width: 1120px; margin: 3rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .6rem; }
.lead { font-size: 1.1rem; color: var(--faint); margin: .3rem 0 1.5rem; }
p, ul { max-width: 75ch; }
img { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem .35rem 0; text-align: left; border-bottom: 1px solid var(--rule);
         vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0;
            padding: 0; cursor: pointer; text-align: inherit; }
th button:hover, th button:focus-visible { text-decoration: underline; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.note { font-size: .85rem; color: var(--faint); }
.better, .equivalent { color: #00684a; font-weight: 600; }
.worse, .collapsed, .failed { color: #a83e00; font-weight: 600; }
.stopped, .too-few-seeds, .undecided, .not-decided { color: #7a5b00; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .82rem;
      white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; padding: 0 .75rem; }
  h2 { margin-top: 1.8rem; }
  li { overflow-wrap: anywhere; }
}
"""

SORT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement, table = header.closest("table");
    const column = header.cellIndex, body = table.tBodies[0];
    const descending = header.getAttribute("aria-sort") !== "descending";
    const value = row => {
      const text = row.cells[column].textContent.replaceAll("\\u2212", "-").trim();
      const number = parseFloat(text.replace("+", ""));
      return Number.isNaN(number) ? text : number;
    };
    const before = (a, b) => typeof a === typeof b
      ? (typeof a === "number" ? a - b : a.localeCompare(b)) : (typeof a === "number" ? 1 : -1);
    const rows = [...body.rows].sort((a, b) => before(value(a), value(b)));
    body.append(...(descending ? rows.reverse() : rows));
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  });
}
"""


def write_page(document: Document) -> str:
    body = [
        f"<h1>{for_html(document.title)}</h1>",
        f'<p class="lead">{for_html(document.lead)}</p>',
    ]
    for section in document.sections:
        body.append(f"<h2>{for_html(section.title)}</h2>")
        body += [_block(block) for block in section.blocks]
    content = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{for_html(document.title)}</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n{content}\n<script>{SORT}</script>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{for_html(text)}</p>"
        case Items(items):
            return "<ul>" + "".join(f"<li>{for_html(item)}</li>" for item in items) + "</ul>"
        case Picture(_, png, about):
            data = base64.b64encode(png).decode()
            return f'<img alt="{for_html(about)}" src="data:image/png;base64,{data}">'
        case Code(text, title):
            text = f"<pre>{for_html(text)}</pre>"
            return (
                f"<details><summary>{for_html(title)}</summary>{text}</details>" if title else text
            )
        case Grid():
            return _grid(block)


def _grid(grid: Grid) -> str:
    def number(column: int) -> str:
        return ' class="number"' if column >= grid.numbers_from else ""

    head = "".join(
        f'<th{number(i)}><button type="button">{for_html(name)}</button></th>'
        for i, name in enumerate(grid.header)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td{number(i)}>{_marked(cell) if i else for_html(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in grid.rows
    )
    note = f'<p class="note">{for_html(grid.note)}</p>' if grid.note else ""
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>" + note
    )


def _marked(text: str) -> str:
    marked = next((word for word in MARKED if word in text), None)
    if marked is None:
        return for_html(text)
    return f'<span class="{marked.replace(" ", "-")}">{for_html(text)}</span>'
