"""Every rule of the guard: when it fires, when it does not, and that it fires once; whether early
warnings are early, on recorded runs.

`tests/data/early_warnings.csv` holds six runs of the miniature, made by
`scripts/train.py recipes/sft_final.yaml --profile miniature --lr_scheduler_type
constant_with_warmup --warmup_steps 150 --grpo_steps 120`, with seeds 0 to 2 and
`--learning_rate` 2e-4 (the rate grows until training breaks) or 3e-5 (it grows to what is healthy).
"""

import math

import pytest

from tests.conftest import REPOSITORY
from trl_ablate import ConfigurationError
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.logs import read_logs
from trl_ablate.guard.replaying import replay
from trl_ablate.guard.rules import Guard, RecentSteps
from trl_ablate.metrics import ANSWER, FORMAT, GRAD_NORM, LENGTH, LENGTH_SPREAD

PUBLISHED = REPOSITORY / "recipes" / "studies" / "published" / "collapse.csv"
RECORDED = REPOSITORY / "tests" / "data" / "early_warnings.csv"

SPECIAL, FLAT = "completions/only_special", "frac_reward_zero_std"
GAP = "sampling/sampling_logp_difference/mean"
HEALTHY = {
    "loss": 0.1, "grad_norm": 1.0, LENGTH: 100.0, LENGTH_SPREAD: 0.1, "entropy": 1.0, "reward": 0.5,
    SPECIAL: 0.0, FLAT: 0.3, GAP: 0.004,
}  # fmt: skip


def alerts(rows, **settings):
    guard = Guard(GuardArguments(**settings))
    return [
        (alert.rule, alert.step)
        for step, row in enumerate(rows, start=1)
        for alert in guard.observe({"step": step, **HEALTHY, **row})
    ]


@pytest.mark.parametrize(
    ("rule", "metric", "fine", "bad", "speaks_after"),
    [
        ("nonfinite", "loss", 1e9, math.nan, 1),
        ("nonfinite", "grad_norm", 1.9, math.inf, 1),
        ("nonfinite", "grad_norm", 1.9, None, 1),
        ("length", LENGTH, 51.0, 49.0, 3),
        ("length", LENGTH, 199.0, 201.0, 3),
        ("entropy", "entropy", 0.051, 0.049, 3),
        ("reward", "reward", 0.26, 0.24, 3),
        ("special_tokens", SPECIAL, 0.4, 0.6, 3),
        ("no_variance", FLAT, 0.99, 1.0, 20),
        ("sampling", GAP, 0.019, 0.021, 3),
    ],
)
def test_a_rule_speaks_once_when_it_has_held(rule, metric, fine, bad, speaks_after):
    rows = [{}] * 12 + [{metric: bad}] * (speaks_after + 1)
    assert alerts(rows) == [(rule, 12 + speaks_after)]
    assert alerts(rows, **{f"guard_{rule}": "off"}) == []
    assert alerts([{}] * 12 + [{metric: fine}] * (speaks_after + 5)) == []
    if speaks_after > 1:
        assert alerts(rows[: 12 + speaks_after - 1] + [{}]) == []


@pytest.mark.parametrize("mark", ["reward", ANSWER])
@pytest.mark.parametrize(("risen", "fires"), [(0.09, True), (0.11, False)])
def test_another_length_is_fine_where_answers_get_better(mark, risen, fires):
    rows = [{mark: 0.5}] * 12 + [{LENGTH: 49.0, mark: 0.5 + risen}] * 5
    assert alerts(rows) == [("length", 15)] * fires


def wobbly(i):
    wave = math.sin(i)
    return {
        "grad_norm": 1 + 0.8 * wave,
        LENGTH: 100 + 30 * wave,
        LENGTH_SPREAD: 0.1 + 0.05 * wave,
        "entropy": 1.0 / (1 + i / 20),
        "reward": 0.5 + 0.2 * wave,
    }


def spikes(*norms):
    return [{"grad_norm": norm} for norm in norms]


def spreads(*values):
    return [{LENGTH_SPREAD: value} for value in values]


USUAL = spikes(*[1.0] * 30)
LEARNS = spreads(*[0.1 - i / 500 for i in range(40)])  # 0.031 is the lowest mean of ten
ALIKE = spreads(*[0.0] * 30)  # the lowest spread counts as a hundredth of the length at least
UNLEARNED = [{"reward": 0.1, "grad_norm": 0.2}] * 20
LEARNED = [{"reward": 0.6, "grad_norm": 1.0}] * 40


@pytest.mark.parametrize(
    ("before", "after", "settings", "told"),
    [
        ([wobbly(i) for i in range(200)], [], {}, []),
        ([{"reward": -0.5 - i / 100} for i in range(30)], [], {}, []),  # not fallen from zero
        (USUAL, spikes(9, 1, 1, 1, 9, 1, 1, 1, 1, 1, 9), {}, []),
        (USUAL, spikes(9, 1, 1, 1, 9, 1, 1, 1, 1, 9), {}, [("grad_norm", 40)]),  # three in ten
        (USUAL, spikes(*[1.9] * 12), {}, []),
        (USUAL, spikes(9, 9, 9), {"guard_grad_norm": "off"}, []),
        (USUAL, spikes(21, 1, 1), {}, [("spike", 31)]),
        (USUAL, spikes(19, 1, 1), {}, []),
        (USUAL, spikes(21), {"guard_spike": "off"}, []),
        (USUAL, [{"grad_norm": 21.0, "reward": 0.1}], {}, [("spike", 31)]),  # in a weak batch
        (spikes(*[0.0] * 25), spikes(*[0.3] * 20), {}, []),  # 0 is no gradient, not a usual one
        (spikes(*[0.0, 0.0, 0.0, 0.4] * 20), [], {}, []),
        (LEARNS, [], {}, []),
        (LEARNS, spreads(*[0.05] * 20), {}, []),
        (LEARNS, spreads(*[0.055] * 20), {}, [("length_spread", 50)]),
        (LEARNS, spreads(*[0.055] * 20), {"guard_length_spread": "off"}, []),
        (ALIKE, spreads(*[0.017] * 20), {}, []),
        (ALIKE, spreads(*[0.018] * 20), {}, [("length_spread", 40)]),
        (ALIKE, spreads(*[0.017] * 20), {"guard_length_spread_least": 0.005},
         [("length_spread", 36)]),
        (UNLEARNED, LEARNED, {}, []),  # steps before learning set in are not usual
        (UNLEARNED, LEARNED, {"guard_learned": 0.0}, [("grad_norm", 23)]),
        ([{}] * 12, [*[{"reward": 0.1}] * 5, *[{}] * 2, *[{"reward": 0.1}] * 5], {},
         [("reward", 15), ("reward", 22)]),  # again after the trouble has ceased
        ([*[{}] * 4, {"entropy": math.nan}], [*[{}] * 8, *[{"entropy": 0.049}] * 4], {},
         [("entropy", 16)]),  # a number that is missing at first is left out
    ],
)  # fmt: skip
def test_what_came_before_decides(before, after, settings, told):
    assert alerts([*before, *after], **settings) == told


def test_what_rules_read_of_a_row():
    """Loss or norm is enough to check for numbers that are not finite; evaluations are no rows."""
    for row, unread in (({"loss": 0.1}, False), ({"grad_norm": 0.1}, False), ({}, True)):
        found = replay([{"step": 1, "reward": 1.0, **row}], GuardArguments())
        assert ("nonfinite" in found.unread) is unread
    evaluated = {"step": 3, "eval_reward": 0.0, "loss": None, "grad_norm": None, "reward": None}
    assert Guard(GuardArguments()).observe(evaluated) == []


def test_the_alert_carries_the_numbers():
    guard = Guard(GuardArguments(guard_reward="stop", guard_patience=1))
    guard.observe({"step": 1, "loss": 0.0, "reward": 0.8})
    (alert,) = guard.observe({"step": 2, "loss": 0.0, "reward": 0.1})
    assert (alert.rule, alert.action, alert.step) == ("reward", "stop", 2)
    assert (alert.value, alert.reference) == (0.1, 0.8)
    assert alert.sentence == "reward is 0.1; its best was 0.8"


@pytest.mark.parametrize(
    ("name", "value"),
    [("length_factor", 1.0), ("window", 1), ("history", 9), ("patience", 0),
     ("reward", "Stop"), ("reward", False), ("length_factor", math.nan), ("window", 2.5),
     ("reward_factor", "3"), ("learned", True)],
)  # fmt: skip
def test_thresholds_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ConfigurationError, match=f"guard_{name}"):
        GuardArguments(**{f"guard_{name}": value})


def runs_of(file, column):
    """The column's value and the seed, to the logged rows."""
    return {(getattr(log.owner, column), log.owner.seed): log.rows for log in read_logs(file)}


def first_alerts(rows):
    """The first step at which each rule fired."""
    alerts = replay(rows, GuardArguments()).alerts
    return {alert.rule: alert.step for alert in reversed(alerts)}


def test_both_warn_before_the_reward_has_fallen_and_not_in_a_healthy_run():
    recorded = runs_of(RECORDED, "arm")
    for seed in "012":
        first = first_alerts(recorded["breaking", seed])
        assert first["reward"] - first["grad_norm"] > 25
        assert first["reward"] - first["length_spread"] > 20
        rows = recorded["healthy", seed]
        assert first_alerts(rows) == {}
        assert sum(row["reward"] for row in rows[-10:]) / 10 > 0.8


def recent(rows, history=4):
    steps = RecentSteps(GuardArguments(guard_window=2, guard_history=history, guard_learned=0.5))
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
    first = [{LENGTH: 80, FORMAT: form, ANSWER: 0.02}] * 10
    found = alerts([*first, *[{LENGTH: length, FORMAT: form, ANSWER: answers}] * 9])
    assert [alert for alert in found if alert[0] == "shortcut"] == [("shortcut", 13)] * fires
    always = [{LENGTH: 20, FORMAT: 0.99, ANSWER: 0.02}] * 30
    assert alerts(always) == []


def test_published_runs_that_failed_and_that_learned():
    runs = runs_of(PUBLISHED, "group")
    arguments = GuardArguments(guard_window=2, guard_history=2, guard_patience=1)

    def fired(*run):
        rows = [{key.removeprefix("eval_"): value for key, value in row.items()
                 if key.startswith(("eval_", "step"))} for row in runs[run]]  # fmt: skip
        found = replay(rows, arguments).alerts
        return [alert.step for alert in found if alert.rule == "shortcut"]

    assert fired("C", "114514") == [50]
    assert fired("C", "666") == fired("C", "721") == fired("D", "0") == []
