"""The usual level, the recent steps, and whether early warnings are early: on recorded runs.

`tests/data/early_warnings.csv` holds six runs of the miniature, made by
`scripts/train.py recipes/sft_final.yaml --profile miniature --lr_scheduler_type
constant_with_warmup --warmup_steps 150 --grpo_steps 120`, with seeds 0 to 2 and
`--learning_rate` 2e-4 (the rate grows until training breaks) or 3e-5 (it grows to what is healthy).
"""

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.replaying import replay
from trl_ablate.guard.rules import Guard, RecentSteps
from trl_ablate.metrics import ANSWER, FORMAT, GRAD_NORM, LENGTH, LENGTH_SPREAD

PUBLISHED = Path(__file__).parents[3] / "recipes" / "studies" / "published" / "collapse.csv"
RECORDED = Path(__file__).parents[2] / "data" / "early_warnings.csv"
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def recorded():
    """(arm, seed) to its logged rows."""
    runs = defaultdict(list)
    with RECORDED.open() as file:
        for line in csv.DictReader(file):
            arm, seed = line.pop("arm"), int(line.pop("seed"))
            runs[arm, seed].append({key: float(value) for key, value in line.items()})
    return runs


def first_alerts(rows):
    """The first step at which each rule fired."""
    guard, first = Guard(GuardArguments()), {}
    for row in rows:
        for alert in guard.observe(row):
            first.setdefault(alert.rule, alert.step)
    return first


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("rule", "steps"), [("grad_norm", 25), ("length_spread", 20)])
def test_both_warn_before_the_reward_has_fallen(recorded, seed, rule, steps):
    first = first_alerts(recorded["breaking", seed])
    assert first["reward"] - first[rule] > steps


@pytest.mark.parametrize("seed", SEEDS)
def test_neither_warns_in_a_healthy_run(recorded, seed):
    rows = recorded["healthy", seed]
    assert first_alerts(rows) == {}
    assert sum(row["reward"] for row in rows[-10:]) / 10 > 0.8


def recent(rows, window=2, history=4, learned=0.5):
    steps = RecentSteps((GRAD_NORM, LENGTH_SPREAD), window, history, learned)
    for row in rows:
        steps.see(row)
    return steps


def test_the_last_steps_are_compared_with_those_before():
    rows = [{"reward": 1.0, GRAD_NORM: float(i)} for i in range(1, 10)]
    assert recent(rows[:3]).compared(GRAD_NORM) is None
    assert recent(rows[:4]).compared(GRAD_NORM) == ([3, 4], [1, 2])
    assert recent(rows).compared(GRAD_NORM) == ([8, 9], [4, 5, 6, 7])
    assert recent(rows).compared(LENGTH_SPREAD) is None
    rows = [{"reward": -float(i), GRAD_NORM: float(i)} for i in range(1, 5)]
    assert recent(rows).compared(GRAD_NORM) == ([3, 4], [1, 2])  # no reward is above 0 yet
    norms = (1.0, None, 2.0, float("nan"), 3.0, 0.0, 4.0)
    rows = [{"reward": 1.0, GRAD_NORM: value} for value in norms]
    assert recent(rows, history=9).compared(GRAD_NORM) == ([3, 4], [1, 2])


def test_optimizer_steps_of_one_rollout_batch_are_one_step():
    rows = []
    for step in range(4):
        rows.append({"reward": 1.0, LENGTH_SPREAD: 0.1 + step, GRAD_NORM: step + 0.1})
        rows.append({"loss": 0.0, GRAD_NORM: step + 0.5})
    assert recent(rows).compared(GRAD_NORM) == ([2.1, 2.5, 3.1, 3.5], [0.1, 0.5, 1.1, 1.5])
    assert recent(rows).compared(LENGTH_SPREAD) == ([2.1, 3.1], [0.1, 1.1])


def shortcuts(lengths, formats, answers):
    rows = [
        {LENGTH: length, FORMAT: form, ANSWER: right, "reward": 1.0, "step": step}
        for step, (length, form, right) in enumerate(zip(lengths, formats, answers, strict=True))
    ]
    return [a.step for a in replay(rows, GuardArguments()).alerts if a.rule == "shortcut"]


@pytest.mark.parametrize(
    ("length", "form", "answers", "fires"),
    [
        (25, 0.95, 0.08, True),
        (35, 0.95, 0.08, False),  # not short
        (25, 0.85, 0.08, False),  # the format is not learned
        (25, 0.95, 0.15, False),  # it learns
        (40, 0.95, 0.08, False),  # half of the first length, and not short
    ],
)
def test_a_shortcut_is_short_in_format_and_wrong(length, form, answers, fires):
    found = shortcuts([80] * 10 + [length] * 9, [form] * 19, [0.02] * 10 + [answers] * 9)
    assert found == ([12] if fires else [])
    assert shortcuts([20] * 30, [0.99] * 30, [0.02] * 30) == []  # they were always short


def test_published_runs_that_failed_and_that_learned():
    runs = defaultdict(list)
    with PUBLISHED.open() as file:
        for line in csv.DictReader(file):
            row = {key.removeprefix("eval_"): float(value) for key, value in line.items()
                   if value and key.startswith(("eval_", "step"))}  # fmt: skip
            runs[line["group"], line["seed"]].append(row)
    arguments = GuardArguments(guard_window=2, guard_history=2, guard_patience=1)
    first = {
        place: [alert.step for alert in replay(runs[place], arguments).alerts
                if alert.rule == "shortcut"]
        for place in (("C", "114514"), ("C", "666"), ("C", "721"), ("D", "0"))
    }  # fmt: skip
    assert first == {("C", "114514"): [50], ("C", "666"): [], ("C", "721"): [], ("D", "0"): []}
