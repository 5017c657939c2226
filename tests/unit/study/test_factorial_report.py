"""Reports of factorial studies: sentences, tables, pictures, and numbers for `report.json`."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image
from scipy.stats import ttest_ind

from tests.support.factorial_study import factorial_plan, write_factorial
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.report.document import Items, Text
from trl_ablate.study.report.factorial import answer, entries_of, factorial, spread_p
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore

FACTORS = {"scale": ["group", "none"], "norm": ["mean", "constant"], "lr": [1e-5, 1e-4]}


SCALE_AND_NORM = [(("scale", "none"),), (("norm", "constant"),)]


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


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    plan = factorial_plan(FACTORS)
    folder = tmp_path_factory.mktemp("planted")
    return plan, write_factorial(folder, plan, matters_only_at_a_high_rate, seeds_differ=0.02)


def test_a_planted_interaction_is_found_and_an_absent_one_is_not(planted):
    plan, store = planted
    entries = entries_of(factorial(plan, planned_runs(plan, store)))
    assert json.loads(json.dumps(entries, allow_nan=False)) == entries
    found = {"×".join(e.get("factors", [e.get("factor")])): e for e in entries}
    assert {name: entry["verdict"] for name, entry in found.items()} == {
        "scale": "worse", "norm": "not distinguishable", "lr": "worse",
        "scale×norm": "not distinguishable", "scale×lr": "worse",
        "norm×lr": "not distinguishable",
    }  # fmt: skip
    assert found["scale"]["levels"] == ["group", "none"]
    assert found["scale×lr"]["levels"] == [["group", "none"], [1e-5, 1e-4]]
    assert all(entry["low"] < entry["estimate"] < entry["high"] for entry in entries)


TWO = {"scale": ["group", "none"], "lr": [1e-5, 1e-4]}
FALLEN = {f"group--constant--{lr}-seed{n}" for lr in ("1e-05", "0.0001") for n in range(3)}
LOST = {f"{scale}--3-seed{n}" for scale in ("group", "none") for n in range(3)}


def rates(rate: float, low: float, high: float):
    """What `none` adds at a low and at a high learning rate, which itself adds `rate`."""

    def top(cell) -> float:
        is_high = cell["lr"] == 1e-4
        return 0.4 + rate * is_high + (cell["scale"] == "none") * (high if is_high else low)

    return top


SAID = {
    "seen at one level": (FACTORS, {}, matters_only_at_a_high_rate, {}, [
        "scale matters more with lr = 0.0001: none instead of group is −0.2",
        "norm: on average constant is not distinguishable from mean",
        "No interaction was seen in scale × norm, norm × lr; the intervals allow"]),
    "opposite": (TWO, {}, rates(0.0, 0.25, -0.25), {}, [
        "scale helps with lr = 1e-05 and hurts with lr = 0.0001: none instead"]),
    "larger": (TWO, {}, rates(0.15, 0.12, 0.4), {}, [
        "scale matters more with lr = 0.0001: none instead of group is +0.1"]),
    # the planted one is scale × lr; its alias norm × length comes first in the model
    "fraction": ({"norm": ["mean", "constant"], "length": [1, 2], **FACTORS}, {"fraction": "1/2"},
                 matters_only_at_a_high_rate, {}, [
        "cannot tell which: norm × length or scale × lr. Difference of differences",
        "not estimable: ", "scale × lr (with norm × length)",
        "Fraction 1/2, defining relation I = norm × length × scale × lr."]),
    # without collapses norm has no effect; two of its cells fall to nothing
    "collapsed": (FACTORS, {}, lambda cell: 0.7, {"collapsed": FALLEN}, [
        "Collapsed: group--constant--1e-05 (3 of 3 runs), group--constant--0.0001 (3",
        "norm: constant instead of mean, cell by cell: ",
        "in the 2 of 4 pairs of cells in which no run collapsed"]),
    "left out": ({"scale": ["group", "none"], "lr": [1, 2, 3]},
                 {"excluded": {"none--2": "it may not be"}}, lambda cell: 0.5, {"missing": LOST}, [
        "Excluded cell none--2: it may not be.",
        "No run with lr = 3 has an outcome: nothing is estimated about this level.",
        "not estimable: scale × lr 2 (with scale, lr 2)",
        "This estimate also contains scale × lr 2",
        "6 of 15 runs have no outcome: 3 of group--3, 3 of none--3."]),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_the_sentences_that_a_reader_needs(case, tmp_path):
    factors, options, top, ends, expected = SAID[case]
    plan = factorial_plan(factors, **options)
    said = words_of(plan, write_factorial(tmp_path, plan, top, **ends))
    assert [words for words in expected if words not in said] == []
    assert ("Collapsed" in said) == (case == "collapsed")
    assert not ("on average" in said and case == "collapsed")
    assert not ("matters more" in said and case == "fraction")


def test_cells_without_any_spread_beside_others_spread_unequally():
    assert spread_p([[0.0] * 3, [0.1, 0.5, 0.9]]) == 0.0
    assert spread_p([[0.0] * 3, [0.2] * 3]) is None
    assert (spread_p([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]) or 0.0) > 0.9


def test_an_entry_names_what_a_fraction_cannot_separate(tmp_path):
    plan = factorial_plan({"length": [1, 2], **FACTORS}, fraction="1/2")
    store = write_factorial(tmp_path, plan, matters_only_at_a_high_rate)
    entries = entries_of(factorial(plan, planned_runs(plan, store)))
    assert ["length × scale"] in [entry.get("aliases") for entry in entries]


def test_an_effect_that_depends_on_another_is_said_by_cells_as_welch_has_it(planted):
    plan, store = planted
    found = factorial(plan, planned_runs(plan, store))
    (scale, norm) = (effect for effect in found.effects if effect.term in SCALE_AND_NORM)
    assert found.by_cell(scale) and not found.by_cell(norm)
    assert [entry.get("by_cell", False) for entry in entries_of(found)][:3] == [True, False, True]
    pairs = found.pairs(("scale", "none"))
    assert {*pairs} == {
        f"norm = {n}, lr = {r}" for n in ("mean", "constant") for r in ("1e-05", "0.0001")
    }
    test = ttest_ind(found.outcomes["none--mean--0.0001"], found.outcomes["group--mean--0.0001"],
                     equal_var=False)  # fmt: skip
    one = pairs["norm = mean, lr = 0.0001"]
    limits = test.confidence_interval(0.95**0.25)
    assert (one.low, one.high) == pytest.approx((limits.low, limits.high))


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
    for name in ("effects.png", "interactions.png"):
        width, height = Image.open(tmp_path / name).size
        assert name in text and 300 < width < 2000 and 150 < height < 1000
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
