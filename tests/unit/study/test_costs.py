"""Comparisons at equal cost, learning curves as parameters, and pass@1 against pass@k."""

import numpy as np
import pytest

from tests.support.synthetic_study import METRIC, learning_rows, make_plan, write_run
from trl_ablate.metrics import GENERATED_TOKENS
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.costs import (
    at_equal_cost,
    axis_of_cost,
    costs_table,
    generated_tokens,
    time_alone,
)
from trl_ablate.study.report.curves import Run, Series, planned_runs
from trl_ablate.study.report.growth import Growth, fit, largest_k, sharpening_table, verdict
from trl_ablate.study.report.making import report_study
from trl_ablate.study.report.pictures import line_of
from trl_ablate.study.report.stats import Interval
from trl_ablate.study.store import RunStore


def run(arm: str, seed: int, values: list[float], tokens: float, **more) -> Run:
    """A run that generates that many tokens in each of its steps 1, 2, 3, ..."""
    steps = [float(step) for step in range(len(values))]
    drawn = {
        METRIC: Series(steps, values, [60 * step for step in steps]),
        GENERATED_TOKENS: Series(steps[1:], [tokens * step for step in steps[1:]]),
    }
    return Run(arm=arm, seed=seed, status=more.pop("status", "finished"), series=drawn, **more)


def record(minute: int, host: str = "one") -> dict:
    """Of a run that started at this minute and took three."""
    return {"host": host, "started": f"2026-01-01T00:{minute:02}:00+00:00", "seconds": 180.0}


def test_equal_tokens_by_hand():
    """The arm writes twice as much: after two of its four steps both have generated 400 tokens; it
    stands at 0.5 there, and the reference ends at 0.6."""
    runs = [run("grpo", s, [0.1, 0.2, 0.3, 0.5, 0.6 + 0.01 * s], 100) for s in range(3)]
    runs += [run("long", s, [0.1, 0.3, 0.5, 0.7, 0.9 + 0.01 * s], 200) for s in range(3)]
    analysis = analyse(runs, METRIC)
    found = at_equal_cost(analysis, generated_tokens)["long"]
    assert found.difference.mean == pytest.approx(0.5 - 0.61)
    assert analysis.decisive["long"].difference.mean == pytest.approx(0.3)
    assert found.verdict == "worse" and analysis.decisive["long"].verdict == "better"
    (grid,) = costs_table(analysis).blocks
    row = dict(zip(grid.header, grid.rows[0], strict=True))
    assert row["equal tokens"].startswith("−0.110") and row["equal steps"].startswith("+0.300")
    assert row["learns"] == "sooner" and row["equal time"] == "–"


def test_a_stopped_run_keeps_its_last_value():
    """It is compared at the tokens of the run that finished, not at the few that it generated."""
    runs = [run("grpo", s, [0.1, 0.4, 0.8, 0.8], 100) for s in range(2)]
    runs += [run("b", s, [0.1, 0.0], 100, status="stopped") for s in range(2)]
    found = at_equal_cost(analyse(runs, METRIC), generated_tokens)["b"]
    assert found.difference.mean == pytest.approx(0.0 - 0.8)


def test_times_count_only_if_the_machine_was_free():
    values = [0.1, 0.5, 0.6, 0.7]
    runs = [run("a", s, values, 1, record=record(10 * s)) for s in range(3)]
    runs += [run("b", s, values, 1, record=record(10 * s + 5)) for s in range(3)]
    cost = time_alone(runs)
    found = at_equal_cost(analyse(runs, METRIC), cost)["b"]
    assert found.difference.n == 3 and found.difference.mean == 0.0
    runs[3].record = record(1)  # beside the first run of the other arm
    assert at_equal_cost(analyse(runs, METRIC), time_alone(runs))["b"].difference.n == 2
    runs[3].record = record(1, host="two")
    assert at_equal_cost(analyse(runs, METRIC), time_alone(runs))["b"].difference.n == 3


def test_curves_are_drawn_against_time_only_if_the_machine_was_free():
    runs = [run("a", s, [0.1, 0.5, 0.7], 200, record=record(10 * s)) for s in range(2)]
    cost, name = axis_of_cost(runs, METRIC)
    line = line_of(runs, METRIC, cost=cost)
    assert name == "time" and line is not None and list(line.x) == [0, 60, 120]
    runs[1].record = record(1)  # beside the first
    cost, name = axis_of_cost(runs, METRIC)
    line = line_of(runs, METRIC, cost=cost)
    assert name == "generated tokens" and line is not None and list(line.x) == [0, 200, 400]
    for one in runs:
        del one.series[GENERATED_TOKENS]
    assert axis_of_cost(runs, METRIC)[1] == "time"  # all that is known


def planted(growth: Growth, noise: float = 0.0, seed: int = 0) -> Series:
    steps = np.arange(0.0, 61.0, 4.0)
    values = np.concatenate([[growth.start], growth.at(steps[1:])])
    values += np.random.default_rng(seed).normal(0, noise, len(values)) if noise else 0.0
    return Series(steps.tolist(), values.tolist())


@pytest.mark.parametrize("growth", [Growth(0.05, 0.9, 2.0, 10.0), Growth(0.2, 0.6, 3.0, 30.0)])
def test_planted_parameters_are_found(growth):
    found, series = fit(planted(growth)), planted(growth)
    longer = np.linspace(0, 60, 200)  # a long curve is averaged in blocks
    long = fit(Series(longer.tolist(), np.interp(longer, series.steps, series.values).tolist()))
    assert found is not None and long is not None
    assert pytest.approx(found.A, abs=0.03) == long.A
    assert pytest.approx(growth.A, abs=0.02) == found.A
    assert pytest.approx(growth.B, rel=0.15) == found.B
    assert found.C_mid == pytest.approx(growth.C_mid, rel=0.1)


def test_what_has_no_fit():
    assert fit(Series([0.0, 1.0, 2.0], [0.1, 0.2, 0.3])) is None  # too few points
    steps = [float(step) for step in range(10)]
    assert fit(Series(steps, [0.5] + [0.4] * 9)) is None  # never above its start
    assert fit(Series([], [])) is None


ARMS = {"grpo": {"top": 0.8}, "able": {"top": 0.7}, "narrow": {"top": 0.6}}
RISES = {"grpo": (0.4, 0.0), "able": (0.3, 0.2), "narrow": (0.2, -0.2)}


@pytest.fixture
def passes(tmp_path):
    """Three arms, three seeds; pass@8 begins at 0.5 and moves by what is passes, ± 0.01."""
    plan, store = make_plan(ARMS), RunStore(tmp_path / "runs")
    for arm in plan.arms:
        for run in arm.runs:
            rows = [dict(row) for row in learning_rows(run.seed, ARMS[arm.name]["top"])]
            evaluated = [row for row in rows if "eval_reward" in row]
            for place, row in enumerate(evaluated):
                share, noise = place / (len(evaluated) - 1), 0.01 * (run.seed - 1)
                rises = RISES[arm.name]
                row["eval_pass@1"] = 0.1 + share * (rises[0] + noise)
                row["eval_pass@8"] = 0.5 + share * (rises[1] + noise)
            write_run(store, run, ARMS[arm.name], rows)
    return plan, store


def test_more_able_takes_both():
    up, down = (Interval(3, rise, rise - 0.1, rise + 0.1) for rise in (0.2, -0.2))
    assert [verdict(one, up) for one in (up, down)] == ["more able", "pass@k alone is seen to rise"]


def test_each_arm_is_named_by_what_rose(passes, tmp_path):
    plan, store = passes
    analysis = analyse(planned_runs(plan, store), plan.primary_metric)
    assert largest_k(analysis) == 8
    section = sharpening_table(analysis)
    rows = {row[0]: row[1:] for row in section.blocks[0].rows}
    assert [rows[name][-1] for name in ARMS] == ["sharper", "more able", "narrower"]
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert "## pass@1 and pass@k" in (tmp_path / "out" / "REPORT.md").read_text(encoding="utf-8")
    # three rises of 0.39, 0.4 and 0.41: t(0.975, 2) = 4.303 times 0.01 / sqrt(3)
    assert rows["grpo"][:4] == ["0.100", "+0.400 [+0.375, +0.425]", "0.500",
                                "+0.000 [−0.025, +0.025]"]  # fmt: skip
