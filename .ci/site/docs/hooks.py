"""Which pages the site has: the Markdown files of the repository, where they lie. None is copied.

A page keeps its path, so that links between pages are right on the site as in the checkout. Files
that a page links to come along. The gallery is made of the pictures in the reports of the studies.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[3]
PATTERNS = ("*.md", ".github/*.md", "recipes/**/*.md", "trl_ablate/**/*.md")
LINK = re.compile(r"\]\(([^)#\s]+)")
PICTURE = re.compile(r"!\[([^\]]+)\]\(([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = sorted({page for pattern in PATTERNS for page in ROOT.glob(pattern)})
    for path in sorted({*pages, *(linked for page in pages for linked in linked_files(page))}):
        uri = path.relative_to(ROOT).as_posix().removeprefix(".")  # Pages leave out .github
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    files.append(File.generated(config, "gallery.md", content=gallery()))
    return files


def linked_files(page: Path) -> Iterator[Path]:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file() and path.suffix != ".md":
            yield path


def gallery() -> str:
    """Each report's question and pictures, which lead to the report."""
    parts = ["# Gallery", "The pictures of the studies; each leads to its report."]
    for report in sorted((ROOT / "recipes/studies").glob("*/REPORT.md")):
        text, folder = report.read_text(encoding="utf-8"), f"recipes/studies/{report.parent.name}"
        title, question = text.split("\n\n")[:2]
        pictures = PICTURE.findall(text)
        parts += [f"## {title.removeprefix('# ')}", question]
        parts += [f"[![{about}]({folder}/{file})]({folder}/REPORT.md)" for about, file in pictures]
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, **_: object) -> str:
    """GitHub reads Markdown inside of `<details>`, as the reports have it."""
    markdown = markdown.replace("](.github/", "](github/")
    return markdown.replace("<details>", '<details markdown="1">')
