"""The documentation as a site: every page of the repository, with pictures, links and a search."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.run.json_files import read_object

pytestmark = pytest.mark.slow
pytest.importorskip("material", reason="mkdocs is not installed: pip install 'trl-ablate[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "-f", ".ci/site/mkdocs.yml"]
    subprocess.run([*line, "--site-dir", str(folder)], check=True, timeout=300, cwd=REPOSITORY)
    return folder


def test_every_page_is_there_and_asks_for_nothing_elsewhere(site):
    pages = [*REPOSITORY.glob("*.md")]
    pages += [*(REPOSITORY / "recipes").rglob("*.md"), *(REPOSITORY / "trl_ablate").rglob("*.md")]
    assert len(pages) > 30
    for page in pages:
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        text = (site / page.relative_to(REPOSITORY).with_name(name)).read_text("utf-8")
        assert not re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"(?:https?:)?//", text), name
        assert not re.search(r"<img(?![^>]*alt=\"[^\"])[^>]*>", text), name
        body = text.partition("<article")[2].partition("</article>")[0]
        assert "```" not in body and not re.search(r"<p>\|", body), page  # Markdown that stayed raw


def test_the_gallery_shows_every_picture_of_a_report_and_the_search_knows_pages(site):
    shown = set(re.findall(r'<img[^>]+src="([^"]+)"', (site / "gallery.html").read_text("utf-8")))
    wanted = {
        f"recipes/studies/{report.parent.name}/{file}"
        for report in (REPOSITORY / "recipes/studies").glob("*/REPORT.md")
        for file in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", report.read_text("utf-8"))
    }
    assert wanted and wanted <= shown and all((site / each).is_file() for each in wanted)
    found = read_object(site / "search" / "search_index.json")["docs"]
    pages = {each["location"].partition("#")[0] for each in found if "baseline" in each["text"]}
    assert {"index.html", "recipes/REFERENCE.html", "recipes/studies/FINDINGS.html"} <= pages
