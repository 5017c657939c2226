"""Reports of factorial studies: sentences, tables, pictures, and numbers for `report.json`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import ttest_ind

from tests.support.synthetic_study import learning_rows, make_plan, write_run
from trl_ablate.study.factors import read_design, without
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.curves import planned_runs
from trl_ablate.study.report.document import Document, write_markdown
from trl_ablate.study.report.effect_pictures import _main_panel
from trl_ablate.study.report.factorial import answer, entries_of, factorial, spread_p
from trl_ablate.study.report.making import report_study
from trl_ablate.study.store import RunStore

DRAW = 100_000
"""Where the noise of the runs begins; one draw in twenty has a false alarm."""

FACTORS = {"scale": ["group", "none"], "norm": ["mean", "constant"], "lr": [1e-5, 1e-4]}
TWO = {"scale": ["group", "none"], "lr": [1e-5, 1e-4]}
LOST = {f"{scale}--3-seed{n}" for scale in ("group", "none") for n in range(3)}


def factorial_plan(factors, fraction="1", excluded=None):
    design = without(read_design(factors, fraction, "study"), excluded or {}, "study")
    return replace(make_plan(design.cells), design=design)


def write_factorial(folder, plan, top, *, missing=(), seeds_differ=0.0):
    """Runs that reach `top` of their cell's levels, and a seed's number times `seeds_differ` more;
    those that are missing have failed."""
    store = RunStore(folder)
    for number, arm in enumerate(plan.arms):
        for run in arm.runs:
            end = top(plan.design.cells[arm.name]) + seeds_differ * run.seed
            rows = learning_rows(DRAW + 1000 * number + run.seed, end)
            status = "failed" if f"{arm.name}-seed{run.seed}" in missing else "finished"
            write_run(store, run, arm.declared, rows, status=status)
    return store


def matters_only_at_a_high_rate(cell) -> float:
    return 0.7 - 0.25 * (cell["scale"] == "none" and cell["lr"] == 1e-4)


def rates(rate: float, low: float, high: float):
    """What `none` adds at a low and at a high learning rate, which itself adds `rate`."""

    def top(cell) -> float:
        is_high = cell["lr"] == 1e-4
        return 0.4 + rate * is_high + (cell["scale"] == "none") * (high if is_high else low)

    return top


SAID = {
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
    runs = planned_runs(plan, write_factorial(tmp_path, plan, top, **ends))
    analysis = analyse(runs, plan.primary_metric, plan.decide_on)
    found = factorial(plan, analysis)
    section = answer(found, analysis, plan)
    said = write_markdown(Document("", "", [section])).replace("\\", "")
    assert [words for words in expected if words not in said] == []
    assert not ("matters more" in said and case == "fraction")
    aliases = [entry.get("aliases") for entry in entries_of(found)]
    assert (["norm × length"] in aliases) == (case == "fraction")


def test_a_factor_that_cannot_be_estimated_has_no_line(tmp_path):
    """Of four cells two have runs: what one factor does is what the other does."""
    plan = factorial_plan(TWO)
    missing = {f"{cell}-seed{n}" for cell, of in plan.design.cells.items() for n in range(3)
               if (of["scale"] == "none") != (of["lr"] == 1e-4)}  # fmt: skip
    store = write_factorial(tmp_path, plan, lambda cell: 0.5, missing=missing)
    analysis = analyse(planned_runs(plan, store), plan.primary_metric, plan.decide_on)
    drawn = {}
    for factor in TWO:
        axes = Figure().subplots()
        _main_panel(axes, factor, factorial(plan, analysis), analysis)
        drawn[factor] = max(len(np.asarray(line.get_xdata())) for line in axes.lines)
    assert drawn == {"scale": 2, "lr": 1}  # a line, and the cells alone


def test_cells_without_any_spread_beside_others_spread_unequally():
    assert spread_p([[0.0] * 3, [0.1, 0.5, 0.9]]) == 0.0
    assert spread_p([[0.0] * 3, [0.2] * 3]) is None
    assert (spread_p([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]) or 0.0) > 0.9


def test_a_planted_interaction_is_found_and_by_cells_as_welch_has_it(tmp_path):
    plan = factorial_plan(FACTORS)
    store = write_factorial(tmp_path, plan, matters_only_at_a_high_rate, seeds_differ=0.02)
    found = factorial(plan, analyse(planned_runs(plan, store), plan.primary_metric))
    entries = {"×".join(e.get("factors", [e.get("factor")])): e for e in entries_of(found)}
    assert {name: entry["verdict"] for name, entry in entries.items()} == {
        "scale": "worse", "norm": "not distinguishable", "lr": "worse",
        "scale×norm": "not distinguishable", "scale×lr": "worse",
        "norm×lr": "not distinguishable",
    }  # fmt: skip
    assert entries["scale"]["levels"] == ["group", "none"]
    assert entries["scale×lr"]["levels"] == [["group", "none"], [1e-5, 1e-4]]
    assert all(entry["low"] < entry["estimate"] < entry["high"] for entry in entries.values())
    assert [name for name, entry in entries.items() if entry.get("by_cell")] == ["scale", "lr"]
    pairs = found.pairs(("scale", "none"))
    assert {*pairs} == {
        f"norm = {n}, lr = {r}" for n in ("mean", "constant") for r in ("1e-05", "0.0001")
    }
    test = ttest_ind(found.outcomes["none--mean--0.0001"], found.outcomes["group--mean--0.0001"],
                     equal_var=False)  # fmt: skip
    one = pairs["norm = mean, lr = 0.0001"]
    limits = test.confidence_interval(0.95**0.25)
    assert (one.low, one.high) == pytest.approx((limits.low, limits.high))


EVERY = {f"{scale}--{lr}-seed{n}" for scale in ("group", "none") for lr in ("1e-05", "0.0001")
         for n in range(3)}  # fmt: skip
BEGUN = ("group--1e-05-seed0", "group--0.0001-seed0")


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (EVERY - {*BEGUN[:1]}, "too few runs for intervals"),
        (EVERY - {*BEGUN}, "lr: on average 0.0001 against 1e-05: too few runs for a verdict"),
        ((), "(interactions.png)"),
    ],
)
def test_a_report_from_the_first_run_to_the_last(tmp_path, missing, words):
    """First everything is named as not estimable; nothing fails, and pictures have a size."""
    plan = factorial_plan(TWO)
    store = write_factorial(tmp_path / "runs", plan, lambda cell: 0.5, missing=missing)
    report_study(plan, store, Path("study.yaml"), tmp_path)
    assert words in (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    for name in ("effects.png", "interactions.png") if not missing else ():
        width, height = Image.open(tmp_path / name).size
        assert 300 < width < 2000 and 150 < height < 1000
