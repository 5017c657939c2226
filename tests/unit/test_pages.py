"""Every Markdown page: links, paths, names and commands exist, tables and numbers are those of the
code and of the reports."""

import re
import runpy
import shlex
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY
from trl_ablate.bench import modes
from trl_ablate.cli.main import COMMANDS
from trl_ablate.cli.study import COMMANDS as OF_A_STUDY
from trl_ablate.config import AblationConfig
from trl_ablate.guard.rules import Action, GuardArguments
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.settings import choices
from trl_ablate.task import TaskArguments

MODES = {"study": {*OF_A_STUDY}, "bench": {*modes.MODES, "gpu", "MODE"}}
RECIPES = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in SHIPPED.glob("*.yaml")
}
STUDIES = {path.parent.name for path in SHIPPED.glob("studies/*/study.yaml")}
PAGES = {
    str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8")
    for pattern in ("*.md", ".github/*.md", "recipes/**/*.md", "trl_ablate/**/*.md")
    for page in REPOSITORY.glob(pattern)
}
README, RECIPES_PAGE = PAGES["README.md"], PAGES["recipes/REFERENCE.md"]
SWITCHES = README + RECIPES_PAGE.partition("\n## More switches")[2]
"""The table of switches starts in the README, and continues beside the recipes."""
FOUND = [PAGES[f"recipes/studies/{name}.md"] for name in ("FINDINGS", "ANSWERS")]
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
    dotted = re.findall(r"\btrl_ablate(?:\.\w+)+", text)
    for module, names in re.findall(r"\bfrom (trl_ablate[.\w]*) import (\w+(?:, \w+)*)", text):
        dotted += [f"{module}.{name}" for name in names.split(", ")]
    for name in dotted:
        parent, _, last = name.rpartition(".")
        try:
            known = last in vars(import_module(parent)) or bool(import_module(name))
        except ModuleNotFoundError:
            known = last in getattr(import_module(parent), "__all__", ())
        if not known:
            yield name


def wrong_commands(text: str) -> Iterator[str]:
    """Commands of this project, in code, that it does not have, or with a recipe or a study that
    does not exist."""
    lines = [block.replace("\\\n", " ") for _, block in FENCED.findall(text)]
    found = [part.strip() for line in "\n".join(lines).splitlines() for part in line.split("&&")]
    found += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCED.sub("", text))]
    for line in found:
        script = re.match(r"(?:python3?|accelerate launch|torchrun) .*?(scripts/\w+\.py)", line)
        ours = re.match(r"(?:trl-ablate|.* -m trl_ablate) ([\w].*)", line)
        wrong = script and not (REPOSITORY / script[1]).exists()
        if wrong or (ours and not are_right(shlex.split(ours[1], comments=True))):
            yield line


def are_right(words: list[str]) -> bool:
    """Whether the words after `trl-ablate` are a command with arguments that it accepts."""
    if "|" in words:  # a list of the commands
        return set(words) <= {*COMMANDS, "|"}
    command, *rest = words
    if command in MODES and rest and rest.pop(0) not in MODES[command]:
        return False
    known = {"study": STUDIES, "train": RECIPES, "doctor": RECIPES}.get(command)
    written = r"(my_task|my_world)/|--|[A-Z_]+$"  # by `new`; an option; a placeholder
    return command in COMMANDS and all(
        re.match(written, word) or (REPOSITORY / word).exists() or word in known
        for word in (rest[:1] if known else [])
    )


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_is_about_this_repository(page):
    assert not [*broken_links(PAGES[page], (REPOSITORY / page).parent)]
    assert not [*missing_paths(PAGES[page])]
    assert not [*unknown_names(PAGES[page])]
    assert page.endswith("REPORT.md") or not [*wrong_commands(PAGES[page])]  # reports are generated


@pytest.mark.parametrize(
    ("errors", "text", "wrong"),
    [
        (lambda text: broken_links(text, REPOSITORY), "# Here\n[x](#there) [y](#here)", "#there"),
        (missing_paths, "`recipes/NAME.yaml` and `recipes/no.yaml`,", "recipes/no.yaml"),
        (unknown_names, "from trl_ablate import AblationConfig, Ablation", "trl_ablate.Ablation"),
        (wrong_commands, "`trl-ablate study run no_such`", "trl-ablate study run no_such"),
        (wrong_commands, "`python scripts/learn.py x`", "python scripts/learn.py x"),
    ],
)
def test_a_wrong_page_is_found(errors, text, wrong):
    assert [*errors(text)] == [wrong]


def test_the_pages_show_every_command():
    shown = re.findall(r"trl-ablate (\w+)", "".join(PAGES.values()))
    assert {*COMMANDS} <= {*shown}


def test_the_switch_table_is_that_of_the_code():
    rows = re.findall(r"^\| `(\w+): (\w+)` \| .+ \| `([^`]+)` \|$", SWITCHES, flags=re.MULTILINE)
    assert len(rows) == len(set(rows)) > 30
    for switch, value, recipe in rows:
        allowed = choices(HINTS[switch])
        assert value in allowed if allowed else len(value) == 1, (switch, value)
        declared = RECIPES[recipe].get(switch, getattr(AblationConfig, switch, None))
        assert not allowed or declared == value, (switch, value, recipe)


def first_cells(page: str, section: str) -> list[str]:
    """The names in code that begin the rows of a section's tables."""
    text = PAGES[page].partition(section)[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


def test_lists_are_complete():
    assert sorted(first_cells("recipes/REFERENCE.md", "## All recipes")) == sorted(RECIPES)
    for value in choices(HINTS["template"]):
        assert f"`template: {value}`" in RECIPES_PAGE
    hints = typing.get_type_hints(GuardArguments)
    rules = [name.removeprefix("guard_") for name, hint in hints.items() if hint == Action]
    assert first_cells("trl_ablate/guard/README.md", "## Rules") == rules
    rooms = {path.parent.name for path in (REPOSITORY / "trl_ablate").glob("*/__init__.py")}
    listed = PAGES["CONTRIBUTING.md"].partition("```text\n")[2].partition("```")[0]
    assert set(re.findall(r"(\w+)/", listed)) == rooms


def answers(text: str) -> list[tuple[str, str]]:
    """The rows of tables of answers: study, and what stands beside it. A row without a question
    belongs to the one above."""
    found, study = [], None
    for first, rest in re.findall(r"^\| ([^|]*)\|(.+)$", text, flags=re.MULTILINE):
        if link := re.match(r"\[[^\]]+\]\((?:recipes/studies/)?(\w+)/REPORT\.md\)", first):
            study = link[1]
        elif first.strip():
            study = None
        found += [(study, rest)] if study else []
    return found


@pytest.mark.parametrize("text", [README, *FOUND], ids=["README", "findings", "more answers"])
def test_answers_have_the_numbers_of_their_reports(text):
    numbers = r"[+−]\d\.\d{3}(?: \[[^\]]+\])?|\d\.\d{3} ± \d\.\d{3}"
    rows, compared = answers(text), 0
    for study, row in rows:
        report = PAGES[f"recipes/studies/{study}/REPORT.md"].replace("\\", "")
        # what was expected stands last, as a difference of the study.yaml
        found = re.findall(numbers, row.removesuffix("|").rpartition("|")[0] or row)
        assert all(number in report for number in found)
        compared += len(found)
    assert compared >= len(rows) / 2 > 0


def test_every_report_is_linked():
    reported = {path.parent.name for path in SHIPPED.glob("studies/*/report.json")}
    linked = {name for text in FOUND for name in re.findall(r"\((\w+)/REPORT\.md\)", text)}
    assert reported <= linked


def test_the_packages_page_has_the_commands_of_an_installed_package(monkeypatch):
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/trl-ablate")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://github.com")
    hook = runpy.run_path(str(REPOSITORY / ".ci" / "hatch_build.py"))["Repository"]
    metadata: dict = {"version": "1.0"}
    hook(str(REPOSITORY), {}).update(metadata)
    page = metadata["readme"]["text"]
    assert "pip install trl-ablate && trl-ablate train quickstart" in page
    assert "pytest" not in page and "scripts/" not in page
