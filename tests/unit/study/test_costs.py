"""Comparisons at equal cost, learning curves as parameters, and pass@1 against pass@k."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.support.synthetic_study import METRIC, write_study
from trl_ablate.metrics import GENERATED_TOKENS
from trl_ablate.study.report.analysis import analyse
from trl_ablate.study.report.costs import (
    TOKENS,
    at_equal_cost,
    axis_of_cost,
    costs_table,
    generated_tokens,
    time_alone,
)
from trl_ablate.study.report.curves import Run, Series, planned_runs
from trl_ablate.study.report.growth import Growth, fit, largest_k, sharpening_table
from trl_ablate.study.report.making import report_study
from trl_ablate.study.report.pictures import line_of


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
    runs += [run("long", s, [0.1, 0.3, 0.5, 0.7, 0.9 + 0.02 * s], 200) for s in range(3)]
    analysis = analyse(runs, METRIC)
    found = at_equal_cost(analysis, generated_tokens)["long"]
    assert found.difference.mean == pytest.approx(0.5 - 0.61)
    assert analysis.decisive["long"].difference.mean == pytest.approx(0.31)
    assert found.verdict == "worse" and analysis.decisive["long"].verdict == "better"
    (grid,) = costs_table(analysis).blocks
    row = dict(zip(grid.header, grid.rows[0], strict=True))
    assert row["equal tokens"].startswith("−0.110") and row["equal steps"].startswith("+0.310")
    assert row["learns"] == "sooner" and row["equal time"] == "–"


@pytest.mark.parametrize(
    ("every", "planned", "equal", "learns"),
    [(1, 4, "+0.310", "sooner"), (2, 4, "+0.310", "–"), (1, 2, "+0.209", "–")],
)
def test_arms_that_are_evaluated_or_end_at_other_steps(every, planned, equal, learns):
    """Of the arm every step or every other one; or its reference is planned for two steps."""
    runs = [run("grpo", s, [0.1, 0.2, 0.3 + 0.001 * s, 0.5, 0.6][: planned + 1], 100,
                planned_steps=planned) for s in range(3)]  # fmt: skip
    runs += [run("long", s, [0.1, 0.3, 0.5 + 0.01 * s, 0.7, 0.91 + 0.02 * (s - 1)], 100,
                 planned_steps=4) for s in range(3)]  # fmt: skip
    for one in runs[3:]:
        curve = one.series[METRIC]
        one.series[METRIC] = Series(curve.steps[::every], curve.values[::every])
    (grid,) = costs_table(analyse(runs, METRIC)).blocks
    row = dict(zip(grid.header, grid.rows[0], strict=True))
    assert row["equal steps"].startswith(equal) and row["learns"] == learns
    assert ("shorter run" in grid.note) == (learns == "–")


def test_nothing_is_read_off_before_the_first_evaluation():
    """The reference ends at 400 tokens; the arm, evaluated from its third step on, has 600 there,
    or 300 in one of three seeds."""
    runs = [run("grpo", s, [0.1, 0.2, 0.3, 0.5, 0.6], 100) for s in range(3)]
    runs += [run("late", s, [0.1, 0.3, 0.5, 0.7, 0.9], (200, 200, 100)[s]) for s in range(3)]
    for one in runs[3:]:
        curve = one.series[METRIC]
        one.series[METRIC] = Series(curve.steps[3:], curve.values[3:], curve.seconds[3:])
    found = at_equal_cost(analyse(runs, METRIC), generated_tokens)["late"].difference
    assert (found.n, found.mean) == (1, pytest.approx(0.9 - 0.6))


def test_a_stopped_run_keeps_its_last_value():
    """It is compared at the tokens of the run that finished, not at the few that it generated."""
    runs = [run("grpo", s, [0.1, 0.4, 0.8, 0.8], 100) for s in range(2)]
    runs += [run("b", s, [0.1, 0.0], 100, status="stopped") for s in range(2)]
    found = at_equal_cost(analyse(runs, METRIC), generated_tokens)["b"]
    assert found.difference.mean == pytest.approx(0.0 - 0.8)


def test_times_count_only_if_the_machine_was_free():
    """So do curves that are drawn against time."""
    values = [0.1, 0.5, 0.6, 0.7]
    runs = [run("a", s, values, 200, record=record(10 * s)) for s in range(3)]
    runs += [run("b", s, values, 200, record=record(10 * s + 5)) for s in range(3)]

    def pairs() -> int:
        return at_equal_cost(analyse(runs, METRIC), time_alone(runs))["b"].difference.n

    def axis() -> tuple[str, list[float]]:
        cost, name = axis_of_cost(runs, METRIC)
        line = line_of(runs[:3], METRIC, cost=cost)
        assert line is not None
        return name, list(line.x)

    assert pairs() == 3 and axis() == ("time", [0, 60, 120, 180])
    runs[3].record = record(1, host="two")
    assert pairs() == 3
    runs[3].record = record(1)  # beside the first run of the other arm
    assert pairs() == 2 and axis() == ("generated tokens", [0, 200, 400, 600])
    runs[3].record = record(5)
    runs[0].record = record(0) | {"seconds": 980.0, "seconds_before": 800.0}  # resumed at 0:00
    assert pairs() == 2  # where its first part ran is not known, and no other run is beside it
    for one in runs:
        del one.series[GENERATED_TOKENS]
    assert axis()[0] == "time"  # all that is known


def test_a_trial_that_is_not_compared_shares_the_machine_and_a_second_name_of_a_run_does_not():
    runs = [
        run(arm, s, [0.1, 0.5 + 0.1 * s], 200, record=record(10 * s + minute),
            directory=Path(f"{arm}{s}"))
        for arm, minute in (("a", 0), ("b", 5)) for s in range(3)
    ]  # fmt: skip
    twins = [replace(one, arm="twin") for one in runs]
    trial = run("a", 10000, [0.1, 0.5], 200, record=record(1) | {"seconds": 1800.0})

    def equal_time(beside: list[Run]) -> str:
        (grid,) = costs_table(replace(analyse(runs, METRIC), beside=beside)).blocks
        return grid.rows[0][grid.header.index("equal time")]

    assert equal_time([]) == equal_time(twins) != equal_time([*runs, trial]) == "–"
    assert [axis_of_cost(runs, METRIC, also)[1] for also in (runs, [trial])] == ["time", TOKENS]


@pytest.mark.parametrize("growth", [Growth(0.05, 0.9, 2.0, 10.0), Growth(0.2, 0.6, 3.0, 30.0)])
def test_planted_parameters_are_found(growth):
    steps = np.arange(0.0, 61.0, 4.0)
    values = np.concatenate([[growth.start], growth.at(steps[1:])])
    found = fit(Series(steps.tolist(), values.tolist()))
    longer = np.linspace(0, 60, 200)  # a long curve is averaged in blocks
    long = fit(Series(longer.tolist(), np.interp(longer, steps, values).tolist()))
    assert found is not None and long is not None
    assert pytest.approx(growth.A, abs=0.02) == found.A
    assert pytest.approx(found.A, abs=0.03) == long.A
    assert pytest.approx(growth.B, rel=0.15) == found.B
    assert found.C_mid == pytest.approx(growth.C_mid, rel=0.1)


def test_what_has_no_fit():
    assert fit(Series([0.0, 1.0, 2.0], [0.1, 0.2, 0.3])) is None  # too few points
    steps = [float(step) for step in range(10)]
    assert fit(Series(steps, [0.5] + [0.4] * 9)) is None  # never above its start
    assert fit(Series(steps, [0.2] + [1.0] * 9)) is None  # risen before it was evaluated
    straight = [0.2 + 0.04 * step for step in steps]
    assert fit(Series(steps, straight)) is None  # its ceiling is out of sight
    late = [0.0, *np.arange(42.0, 61.0, 2.0)]
    rise = Growth(0.24, 0.85, 2.0, 20.0).at(np.array(late[1:]))
    assert fit(Series(late, [0.24, *rise])) is None
    assert fit(Series([], [])) is None


RISES = {"grpo": (0.4, 0.0), "able": (0.3, 0.2), "narrow": (0.2, -0.2), "odd": (-0.2, 0.2),
         "equal": (0.125, 0.125)}  # fmt: skip


def test_each_arm_is_named_by_what_rose(tmp_path):
    """Of pass@1 and pass@8 in two evaluations; each seed rises by what its arm does, ± 0.01."""
    arms = {arm: {"top": 0.5 + number / 10} for number, arm in enumerate(RISES)}
    plan, store = write_study(tmp_path / "runs", arms)
    for arm, run, step in product(plan.arms, range(3), (0, 1)):
        noise = 0.01 * (run - 1) * (arm.name != "equal")
        one, many = (step * (rise + noise) for rise in RISES[arm.name])
        store.directory(arm.runs[run].id).append_metrics({
            "step": 21 + step, "grpo_step": 21 + step, "seconds": 99, METRIC: 0.5,
            "eval_pass@1": 0.3 + one, "eval_pass@8": 0.5 + many,
        })  # fmt: skip
    analysis = analyse(planned_runs(plan, store), METRIC)
    assert largest_k(analysis) == 8
    rows = {row[0]: row[1:] for row in sharpening_table(analysis).blocks[0].rows}
    verdicts = ["sharper", "more able", "narrower", "pass@k alone is seen to rise",
                "too few seeds"]  # fmt: skip
    assert [rows[name][-1] for name in RISES] == verdicts
    # three rises of 0.39, 0.4 and 0.41: t(0.975, 2) = 4.303 times 0.01 / sqrt(3)
    assert rows["grpo"][:4] == ["0.300", "+0.400 [+0.375, +0.425]", "0.500",
                                "+0.000 [−0.025, +0.025]"]  # fmt: skip
    report_study(plan, store, tmp_path / "study.yaml", tmp_path / "out")
    assert "## pass@1 and pass@k" in (tmp_path / "out" / "REPORT.md").read_text(encoding="utf-8")
