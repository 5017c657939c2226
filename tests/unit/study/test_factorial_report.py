"""Reports of factorial studies: sentences, tables, pictures, and numbers for `report.json`."""

import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image
from scipy.stats import ttest_ind

from tests.support.factorial_study import factorial_plan, write_factorial
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.report.document import Items, Text
from trl_ablate.study.report.effect_pictures import effect_pictures
from trl_ablate.study.report.effect_sections import answer
from trl_ablate.study.report.factorial import entries_of, factorial, spread_p
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore

FACTORS = {"scale": ["group", "none"], "norm": ["mean", "constant"], "lr": [1e-5, 1e-4]}


SCALE_AND_NORM = [(("scale", 1),), (("norm", 1),)]


def matters_only_at_a_high_rate(cell) -> float:
    return 0.7 - 0.25 * (cell["scale"] == "none" and cell["lr"] == 1e-4)


def words_of(plan, store: RunStore) -> str:
    """The text of the answer."""
    runs = planned_runs(plan, store)
    analysis = analyse(runs, plan.primary_metric, plan.decide_on)
    texts = []
    for block in answer(factorial(plan, runs), analysis, plan).blocks:
        texts += [block.text] if isinstance(block, Text) else []
        texts += block.items if isinstance(block, Items) else []
    return "\n".join(texts)


def verdicts(plan, store: RunStore) -> dict[str, str]:
    found = entries_of(factorial(plan, planned_runs(plan, store)))
    return {"×".join(e.get("factors", [e.get("factor")])): e["verdict"] for e in found}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    plan = factorial_plan(FACTORS)
    folder = tmp_path_factory.mktemp("planted")
    return plan, write_factorial(folder, plan, matters_only_at_a_high_rate, seeds_differ=0.02)


def test_a_planted_interaction_is_found_and_an_absent_one_is_not(planted):
    plan, store = planted
    assert verdicts(plan, store) == {
        "scale": "worse", "norm": "not distinguishable", "lr": "worse",
        "scale×norm": "not distinguishable", "scale×lr": "worse",
        "norm×lr": "not distinguishable",
    }  # fmt: skip


def test_the_sentence_that_a_reader_needs(planted):
    said = words_of(*planted)
    assert "scale matters more with lr = 0.0001: none instead of group is −0.2" in said
    assert "norm: on average constant is not distinguishable from mean" in said
    assert "No interaction was seen in scale × norm, norm × lr; the intervals allow" in said


def test_opposite_and_larger_effects_have_their_own_sentences(tmp_path):
    plan = factorial_plan({"scale": ["group", "none"], "lr": [1e-5, 1e-4]})

    def said(folder: str, rate: float, low: float, high: float) -> str:
        def top(cell) -> float:
            is_high = cell["lr"] == 1e-4
            return 0.4 + rate * is_high + (cell["scale"] == "none") * (high if is_high else low)

        return words_of(plan, write_factorial(tmp_path / folder, plan, top))

    crossing = said("a", rate=0.0, low=0.25, high=-0.25)
    assert "scale helps with lr = 1e-05 and hurts with lr = 0.0001: none instead" in crossing
    more = said("b", rate=0.15, low=0.12, high=0.4)
    assert "scale matters more with lr = 0.0001: none instead of group is +0.1" in more


def test_cells_without_any_spread_beside_others_spread_unequally():
    assert spread_p([[0.0] * 3, [0.1, 0.5, 0.9]]) == 0.0
    assert spread_p([[0.0] * 3, [0.2] * 3]) is None
    assert (spread_p([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]) or 0.0) > 0.9


def test_a_fraction_does_not_say_which_of_two_interactions_it_is(tmp_path):
    """The planted one is scale × lr; its alias norm × length comes first in the model."""
    factors = {"norm": ["mean", "constant"], "length": [1, 2], **FACTORS}
    plan = factorial_plan(factors, fraction="1/2")
    store = write_factorial(tmp_path, plan, matters_only_at_a_high_rate)
    said = words_of(plan, store)
    assert "matters more" not in said
    assert "cannot tell which: norm × length or scale × lr. Difference of differences" in said
    assert "not estimable: " in said and "scale × lr (with norm × length)" in said
    assert "Fraction 1/2, defining relation I = norm × length × scale × lr." in said
    entries = entries_of(factorial(plan, planned_runs(plan, store)))
    assert ["norm × length"] in [entry.get("aliases") for entry in entries]


def test_entries_for_the_json_file(planted):
    plan, store = planted
    entries = entries_of(factorial(plan, planned_runs(plan, store)))
    assert json.loads(json.dumps(entries, allow_nan=False)) == entries
    main, interaction = entries[0], entries[4]
    assert main["factor"] == "scale" and main["levels"] == ["group", "none"]
    assert interaction["factors"] == ["scale", "lr"]
    assert interaction["levels"] == [["group", "none"], [1e-5, 1e-4]]
    for entry in entries:
        assert entry["low"] < entry["estimate"] < entry["high"]


def test_collapsed_cells_are_named_and_effects_said_without_them(planted, tmp_path):
    """One level of norm: without collapses it has no effect; two of its cells fall to nothing."""
    plan = factorial_plan(FACTORS)
    fallen = ["group--constant--1e-05", "group--constant--0.0001"]
    names = {f"{cell}-seed{seed}" for cell in fallen for seed in (0, 1, 2)}
    store = write_factorial(tmp_path, plan, lambda cell: 0.7, collapsed=names)
    said = words_of(plan, store)
    assert "Collapsed: group--constant--1e-05 (3 of 3 runs), group--constant--0.0001 (3" in said
    assert "on average" not in said
    assert "norm: constant instead of mean, cell by cell: " in said
    assert "in the 2 of 4 pairs of cells in which no run collapsed" in said
    assert "Collapsed" not in words_of(*planted)


def test_an_effect_that_depends_on_another_is_said_by_cells_as_welch_has_it(planted):
    plan, store = planted
    found = factorial(plan, planned_runs(plan, store))
    (scale, norm) = (effect for effect in found.effects if effect.term in SCALE_AND_NORM)
    assert found.by_cell(scale) and not found.by_cell(norm)
    assert [entry.get("by_cell", False) for entry in entries_of(found)][:3] == [True, False, True]
    pairs = found.pairs(("scale", 1))
    assert {*pairs} == {
        f"norm = {n}, lr = {r}" for n in ("mean", "constant") for r in ("1e-05", "0.0001")
    }
    test = ttest_ind(found.outcomes["none--mean--0.0001"], found.outcomes["group--mean--0.0001"],
                     equal_var=False)  # fmt: skip
    one = pairs["norm = mean, lr = 0.0001"]
    limits = test.confidence_interval(0.95**0.25)
    assert (one.low, one.high) == pytest.approx((limits.low, limits.high))


def test_excluded_cells_failed_runs_and_lost_levels(tmp_path):
    factors = {"scale": ["group", "none"], "lr": [1, 2, 3]}
    plan = factorial_plan(factors, excluded={"none--2": "it may not be"})
    lost = {f"{cell}-seed{seed}" for cell in ("group--3", "none--3") for seed in (0, 1, 2)}
    store = write_factorial(tmp_path, plan, lambda cell: 0.5, missing=lost)
    said = words_of(plan, store)
    assert "Excluded cell none--2: it may not be." in said
    assert "No run with lr = 3 has an outcome: nothing is estimated about this level." in said
    assert "not estimable: scale × lr 2 (with scale, lr 2)" in said
    assert "This estimate also contains scale × lr 2" in said
    assert "6 of 15 runs have no outcome: 3 of group--3, 3 of none--3." in said


def test_a_report_of_a_factorial_study(planted, tmp_path):
    plan, store = planted
    written = {path.name for path in report_study(plan, store, Path("study.yaml"), tmp_path)}
    assert written == {
        "REPORT.md", "report.html", "report.json", "runs.csv", "curves.png", "effects.png",
        "interactions.png",
    }  # fmt: skip
    text = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert text.index("matters more") < text.index("## Effects") < text.index("## Curves")
    assert "## Against" not in text and "too few seeds" not in text
    assert "effects.png" in text and "interactions.png" in text
    with (tmp_path / "runs.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 24


FIRST = "group--mean--1e-05"
"""The cell of all first levels."""


def test_a_report_before_there_is_a_cell_for_each_effect(tmp_path):
    """The first runs of a study: everything is named as not estimable, nothing fails."""
    plan = factorial_plan(FACTORS)
    assert plan.design is not None
    later = {f"{cell}-seed{seed}" for cell in plan.design.cells for seed in (0, 1, 2)}
    store = write_factorial(
        tmp_path / "runs", plan, lambda cell: 0.5, missing=later - {f"{FIRST}-seed0"}
    )
    report_study(plan, store, Path("study.yaml"), tmp_path)
    assert "too few runs for intervals" in (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    store = write_factorial(
        tmp_path / "more", plan, lambda cell: 0.5,
        missing=later - {f"{FIRST}-seed0", "group--mean--0.0001-seed0"},
    )  # fmt: skip
    said = words_of(plan, store)
    assert "lr: on average 0.0001 against 1e-05: too few runs for a verdict" in said


def test_pictures_of_effects(planted):
    plan, store = planted
    runs = planned_runs(plan, store)
    found, analysis = factorial(plan, runs), analyse(runs, plan.primary_metric)
    pictures = effect_pictures(found, analysis)
    sizes = [Image.open(io.BytesIO(picture.png)).size for picture in pictures]
    assert [picture.file for picture in pictures] == ["effects.png", "interactions.png"]
    assert all(300 < width < 2000 and 150 < height < 1000 for width, height in sizes)
    assert effect_pictures(found, analysis)[1].png == pictures[1].png  # reproducible
