"""What README says about the committed studies, against their numbers."""

import csv
import re

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.study.report.analysis import ArmResult
from trl_ablate.study.report.curves import Summary

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
STUDIES = sorted(path.parent for path in (SHIPPED / "studies").glob("*/runs.csv"))


def mixed_arms(study) -> set[str]:
    """Arms of which some seeds collapsed or never learned and others did not."""
    seeds: dict[str, list[Summary]] = {}
    with (study / "runs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            final = next(float(row[key]) for key in row if key.startswith("final_"))
            collapsed = float(row["collapsed_at"]) if row["collapsed_at"] else None
            seeds.setdefault(row["arm"], []).append(Summary(final, final, 0, final, collapsed))
    arms = [ArmResult(name, (), tuple(found), {}) for name, found in seeds.items()]
    return {arm.name for arm in arms if arm.is_mixed}


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_misleading_intervals_are_marked(study):
    (row,) = [line for line in README.splitlines() if f"recipes/studies/{study.name}/R" in line]
    assert bool(mixed_arms(study)) is ("†" in row)


def test_what_no_false_alarm_allows():
    """Exact one-sided 95 % bound for 0 of n: the rate p with (1 - p)^n = 0.05."""
    found = re.search(
        r"No false alarm in (\d+) runs\s+allows a rate of up to (\d+) %, none in (\d+) up to "
        r"(\d+) % \(exact one-sided 95 % bounds\)",
        README,
    )
    assert found is not None
    for runs, percent in (found.groups()[:2], found.groups()[2:]):
        assert round(100 * (1 - 0.05 ** (1 / int(runs)))) == int(percent)


def test_no_claim_of_every_choice():
    from trl_ablate import config

    for text in (README, config.AblationConfig.__doc__ or ""):
        assert "every choice" not in text
    assert "Other choices are no settings yet: dynamic sampling" in README
