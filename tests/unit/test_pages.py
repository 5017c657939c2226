"""Every Markdown page: links, paths, names and commands exist, tables and numbers are those of the
code and of the reports."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
import yaml

from tests.conftest import REPOSITORY
from trl_ablate.bench import modes
from trl_ablate.cli.main import COMMANDS
from trl_ablate.cli.study import COMMANDS as OF_A_STUDY
from trl_ablate.config import AblationConfig
from trl_ablate.guard.rules import Action, GuardArguments
from trl_ablate.recipe.places import SHIPPED, shipped_studies
from trl_ablate.settings import choices
from trl_ablate.task import TaskArguments

MODES = {"study": {*OF_A_STUDY}, "bench": {*modes.MODES, "gpu", "MODE"}}
RECIPES = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in SHIPPED.glob("*.yaml")
}
PAGES = {
    str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8")
    for pattern in ("*.md", ".github/*.md", "recipes/**/*.md", "trl_ablate/**/*.md")
    for page in REPOSITORY.glob(pattern)
}
README, REFERENCE = PAGES["README.md"], PAGES["recipes/REFERENCE.md"]
FINDINGS, ANSWERS = (PAGES[f"recipes/studies/{name}.md"] for name in ("FINDINGS", "ANSWERS"))
HINTS = typing.get_type_hints(AblationConfig) | typing.get_type_hints(TaskArguments)

FENCED = re.compile(r"^(`{3,})[^\n]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> Iterator[str]:
    for link in re.findall(r"(?<!\\)\]\(([^)\s]+)\)", FENCED.sub("", text)):
        target, _, anchor = link.partition("#")
        file = folder / target
        if link.startswith("https://") or (file.exists() and not anchor):
            continue
        if not file.exists() or anchor not in anchors(file.read_text("utf-8") if target else text):
            yield link


def missing_paths(text: str) -> Iterator[str]:
    """Paths from the repository's root; a word in capitals is a placeholder."""
    for path in re.findall(
        r"(?<![\w/.-])(?:trl_ablate|tests|scripts|recipes|\.ci)/[\w./-]*[\w/]", text
    ):
        blank = any(len(part) > 1 and part.isupper() for part in re.split(r"[/.]", path))
        if not blank and not (REPOSITORY / path).exists():
            yield path


def unknown_names(text: str) -> Iterator[str]:
    names = re.findall(r"\btrl_ablate(?:\.\w+)+", text)
    for module, listed in re.findall(r"\bfrom (trl_ablate[.\w]*) import (\w+(?:, \w+)*)", text):
        names += [f"{module}.{name}" for name in listed.split(", ")]
    for name in names:
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            yield name


def wrong_commands(text: str) -> Iterator[str]:
    """Commands in code that do not exist, or whose mode, recipe or study does not exist."""
    code = [block.replace("\\\n", " ") for _, block in FENCED.findall(text)]
    code += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCED.sub("", text))]
    known = {"study": shipped_studies(), "train": RECIPES, "doctor": RECIPES}
    for line in re.split(r"\n|&&|;", "\n".join(code)):
        found = re.match(r"\s*(?:trl-ablate|.* -m trl_ablate) (\w[^#]*)", line)
        if not found:
            continue
        command, *words = found[1].split()
        mode = words.pop(0) if command in MODES and words else None
        name = words[0] if command in known and words else "--"
        written = re.match(r"(my_task|my_world)/|--|[A-Z_]+$", name)  # by `new`; an option; a gap
        named = written or name in known[command] or (REPOSITORY / name).exists()
        if command not in COMMANDS or not named or (mode and mode not in MODES[command]):
            yield line.strip()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_is_about_this_repository(page):
    assert not [*broken_links(PAGES[page], (REPOSITORY / page).parent)]
    assert not [*missing_paths(PAGES[page])]
    assert not [*unknown_names(PAGES[page])]
    assert page.endswith("REPORT.md") or not [*wrong_commands(PAGES[page])]  # reports are generated


def test_a_wrong_page_is_found():
    wrong = ("trl-ablate study run no_such", "trl-ablate study rnu chains")
    page = "# Here\n[x](#there) [y](#here) `recipes/NAME.yaml`, `recipes/no.yaml` "
    page += "from trl_ablate import AblationConfig, Ablation `{}`, `{}`".format(*wrong)
    assert [*broken_links(page, REPOSITORY)] == ["#there"]
    assert [*missing_paths(page)] == ["recipes/no.yaml"]
    assert [*unknown_names(page)] == ["trl_ablate.Ablation"]
    assert (*wrong_commands(page),) == wrong


def test_the_switch_table_is_that_of_the_code():
    """It starts in the README, and continues beside the recipes."""
    table = README + REFERENCE.partition("\n## More switches")[2]
    rows = re.findall(r"^\| `(\w+): (\w+)` \| .+ \| `([^`]+)` \|$", table, flags=re.MULTILINE)
    assert len(rows) == len(set(rows)) > 30
    for switch, value, recipe in rows:
        allowed = choices(HINTS[switch])
        assert value in allowed if allowed else len(value) == 1, (switch, value)
        declared = RECIPES[recipe].get(switch, getattr(AblationConfig, switch, None))
        assert not allowed or declared == value, (switch, value, recipe)


def test_lists_are_complete():
    assert {*COMMANDS} <= {*re.findall(r"trl-ablate (\w+)", "".join(PAGES.values()))}
    assert all(f"`template: {value}`" in REFERENCE for value in choices(HINTS["template"]))
    hints = typing.get_type_hints(GuardArguments)
    rules = [name.removeprefix("guard_") for name, hint in hints.items() if hint == Action]
    of_rules = PAGES["trl_ablate/guard/README.md"].partition("## Rules")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([^`]+)` \|", of_rules, flags=re.MULTILINE) == rules
    rooms = {path.parent.name for path in (REPOSITORY / "trl_ablate").glob("*/__init__.py")}
    listed = PAGES["CONTRIBUTING.md"].partition("```text\n")[2].partition("```")[0]
    assert {*re.findall(r"(\w+)/", listed)} == rooms
    reported = {path.parent.name for path in SHIPPED.glob("studies/*/report.json")}
    assert reported <= {*re.findall(r"\((\w+)/REPORT\.md\)", FINDINGS + ANSWERS)}


@pytest.mark.parametrize("page", [FINDINGS, ANSWERS], ids=["first", "more"])
def test_answers_have_the_numbers_of_their_reports(page):
    """In a table of answers, a row without a question belongs to the one above."""
    numbers = r"[+−]\d\.\d{3}(?: \[[^\]]+\])?|\d\.\d{3} ± \d\.\d{3}"
    study, rows, compared = None, 0, 0
    for first, row in re.findall(r"^\| ([^|]*)\|(.+)$", page, flags=re.MULTILINE):
        link = re.match(r"\[[^\]]+\]\((\w+)/REPORT\.md\)", first)
        study = (link and link[1]) if first.strip() else study
        if study:
            report = PAGES[f"recipes/studies/{study}/REPORT.md"].replace("\\", "")
            # what was expected stands last, as a difference of the study.yaml
            found = re.findall(numbers, row.removesuffix("|").rpartition("|")[0] or row)
            assert all(number in report for number in found)
            rows, compared = rows + 1, compared + len(found)
    assert compared >= rows / 2 > 0
