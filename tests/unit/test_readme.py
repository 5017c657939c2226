"""Statements of the pages on switches, recipes, studies and rooms, checked against the code."""

import json
import re
import typing
from collections.abc import Mapping, Sequence

import pytest
import yaml

from tests.conftest import REPOSITORY
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.settings import choices

PAGES = {
    name: (REPOSITORY / name).read_text(encoding="utf-8")
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "recipes/REFERENCE.md",
        "recipes/studies/ANSWERS.md",
        "trl_ablate/bench/LAB.md",
        "trl_ablate/guard/README.md",
    )
}
README = PAGES["README.md"]
SWITCHES = README + PAGES["recipes/REFERENCE.md"].partition("\n## More switches")[2]
"""The table of switches starts in the README, and continues beside the recipes."""
ALL_ANSWERS = PAGES["recipes/studies/ANSWERS.md"]
STUDIES = sorted(path.parent for path in (SHIPPED / "studies").glob("*/report.json"))
RECIPES = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in SHIPPED.glob("*.yaml")
}

DEFAULTS = {
    "importance_sampling_level": "token",
    "group_filter": "none",
    "kl_estimator": "k3",
    "kl_in": "loss",
    "multi_objective_aggregation": "sum_then_normalize",
}
"""What README shows of the base that it leaves at the default."""

NOT_IN_THE_TABLE = {
    "loss_type": "length_norm chooses it; the others are TRL's objectives, which cispo shows",
    "template": "listed in recipes/REFERENCE.md",
    "vllm_mode": "where an engine runs",
    "vllm_importance_sampling_mode": "TRL's; tis, seq_tis, icepop and seq_mask show them",
}
"""Settings with choices that a recipe declares and README's table leaves out, and why."""

Row = tuple[str, str, str]


def rows_of(text: str) -> list[Row]:
    """(switch, value, recipe) of each row of the switch table."""
    return re.findall(r"^\| `(\w+): (\w+)` \| .+ \| `([^`]+)` \|$", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def hints() -> dict[str, typing.Any]:
    from trl_ablate.config import AblationConfig
    from trl_ablate.task import TaskArguments

    return typing.get_type_hints(AblationConfig) | typing.get_type_hints(TaskArguments)


def wrong_rows(rows: Sequence[Row], hints: Mapping[str, typing.Any]) -> list[str]:
    """Errors of the table on switches, their values and the recipes."""
    wrong = [f"{row} occurs twice" for row in set(rows) if rows.count(row) > 1]
    for switch, value, recipe in rows:
        if switch not in hints:
            wrong.append(f"{switch} is not a setting")
            continue
        allowed = choices(hints[switch])
        if (allowed and value not in allowed) or (not allowed and len(value) > 1):
            wrong.append(f"{switch} does not take {value}")
        declared = RECIPES.get(recipe, {})
        if recipe == "grpo":
            declared = DEFAULTS | declared
        if switch not in declared or (allowed and declared[switch] != value):
            wrong.append(f"{recipe} does not declare {switch}: {value}")
    for switch in {switch for switch, *_ in rows} & hints.keys():
        shown = {value for name, value, _ in rows if name == switch}
        missing = set(choices(hints[switch])) - {None} - shown
        wrong += [f"{switch}: {value} is missing" for value in sorted(missing)]
    return wrong


def test_the_switch_table_is_that_of_the_code(hints):
    from trl_ablate.config import AblationConfig

    rows = rows_of(SWITCHES)
    assert not wrong_rows(rows, hints)
    assert {name: getattr(AblationConfig, name) for name in DEFAULTS} == DEFAULTS
    declared = {key for name, keys in RECIPES.items() if name != "grpo" for key in keys}
    with_choices = {key for key in declared & hints.keys() if choices(hints[key])}
    assert with_choices - {switch for switch, *_ in rows} == NOT_IN_THE_TABLE.keys()


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ("`baseline: none`", "`baseline: no`", "baseline does not take no"),
        ("`baseline: none`", "`base: none`", "base is not a setting"),
        ("| `rloo` |", "| `nsr` |", "nsr does not declare baseline: leave_one_out"),
        ("| `rloo` |", "| `dr_grpo` |", "dr_grpo does not declare baseline: leave_one_out"),
        ("| `baseline: none` | reward |", "| none |", "baseline: none is missing"),
        ("`num_iterations: e`", "`num_iterations: many`", "num_iterations does not take many"),
    ],
)
def test_a_wrong_row_is_found(hints, before, after, wrong):
    assert before in README
    assert wrong in wrong_rows(rows_of(SWITCHES.replace(before, after)), hints)


def test_every_template_is_listed(hints):
    for value in choices(hints["template"]):
        assert f"`template: {value}`" in PAGES["recipes/REFERENCE.md"]


def recipes_listed(text: str) -> list[str]:
    section = text.partition("## All recipes")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, flags=re.MULTILINE)


def test_every_recipe_is_listed_once():
    text = PAGES["recipes/REFERENCE.md"]
    assert sorted(recipes_listed(text)) == sorted(RECIPES)
    assert sorted(recipes_listed(text.replace("| `rloo` |", "| `grpo` |"))) != sorted(RECIPES)


@pytest.mark.parametrize(
    ("name", "lines", "words"), [("README.md", 110, 900), ("CONTRIBUTING.md", 60, 900)]
)
def test_short_pages_stay_short(name, lines, words):
    assert fits(PAGES[name], lines, words)


@pytest.mark.parametrize(("more", "fit"), [("", True), ("word ", False), ("\n", False)])
def test_a_page_that_grows_is_found(more, fit):
    assert fits("two words\n" * 3 + more, lines=3, words=6) is fit


def fits(text: str, lines: int, words: int) -> bool:
    return len(text.splitlines()) <= lines and len(text.split()) <= words


def test_the_rooms_are_those_of_the_package():
    text = PAGES["CONTRIBUTING.md"]
    rooms = {path.parent.name for path in (REPOSITORY / "trl_ablate").glob("*/__init__.py")}
    assert rooms_listed(text) == rooms
    assert rooms_listed(text.replace("prompts/  ", "templates/")) != rooms


def rooms_listed(text: str) -> set[str]:
    return set(re.findall(r"(\w+)/", text.partition("```text\n")[2].partition("```")[0]))


def test_the_rules_are_those_of_the_guard():
    from trl_ablate.guard.rules import Action, GuardArguments

    rules = [
        name.removeprefix("guard_")
        for name, hint in typing.get_type_hints(GuardArguments).items()
        if hint == Action
    ]
    page = PAGES["trl_ablate/guard/README.md"]
    assert rules_listed(page) == rules
    assert rules_listed(page.replace("| `spike` |", "| `spikes` |")) != rules


def rules_listed(text: str) -> list[str]:
    section = text.partition("## Rules")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_the_number_of_measured_architectures():
    from trl_ablate.trainer.architectures import RELATIVE

    for name in ("README.md", "trl_ablate/bench/LAB.md"):
        (number,) = re.findall(r"(\d+)\]?\s+\[?architectures\b", PAGES[name])
        assert int(number) == len(RELATIVE)


def answers(text: str) -> dict[str, str]:
    """Study -> its row in a table of answers."""
    link = r"^\| \[[^\]]+\]\((?:recipes/studies/)?(\w+)/REPORT\.md\) \|(.+)$"
    return dict(re.findall(link, text, flags=re.MULTILINE))


def unsupported(text: str) -> list[str]:
    """Numbers in a table of answers that are missing in the study's report."""
    missing = []
    for study, row in answers(text).items():
        report = (SHIPPED / "studies" / study / "REPORT.md").read_text(encoding="utf-8")
        numbers = r"[+−]\d\.\d{3}(?: \[[^\]]+\])?|\d\.\d{3} ± \d\.\d{3}"
        shown = re.findall(numbers, row)
        missing += [number for number in shown if number not in report.replace("\\", "")]
    return missing


@pytest.mark.parametrize("text", [README, ALL_ANSWERS], ids=["README", "all answers"])
def test_answers_have_the_numbers_of_their_reports(text):
    assert not unsupported(text)
    other = re.sub(r"(?<=[+−]\d\.\d\d)\d(?= \[[+−])", lambda d: str(9 - int(d[0])), text, count=1)
    assert other != text and unsupported(other)


def test_all_answers_are_all_studies():
    assert answers(ALL_ANSWERS).keys() == {path.name for path in STUDIES}
    assert len(answers(README)) == 4


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_misleading_intervals_are_marked(study):
    report = json.loads((study / "report.json").read_text(encoding="utf-8"))
    assert bool(report["details"]["mixed"]) is ("†" in answers(ALL_ANSWERS)[study.name])


def test_what_no_false_alarm_allows():
    """Exact one-sided 95 % bound for 0 of n: the rate p with (1 - p)^n = 0.05."""
    found = re.search(
        r"No false alarm in (\d+) runs\s+allows a rate of up to (\d+) %, none in (\d+) up to "
        r"(\d+) % \(exact\s+one-sided 95 % bounds\)",
        PAGES["trl_ablate/guard/README.md"],
    )
    assert found is not None
    for runs, percent in (found.groups()[:2], found.groups()[2:]):
        assert round(100 * (1 - 0.05 ** (1 / int(runs)))) == int(percent)
