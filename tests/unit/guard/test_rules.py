"""Every rule of the guard: when it fires, when it does not, and that it fires once."""

import math

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.replaying import replay
from trl_ablate.guard.rules import Guard

HEALTHY = {
    "loss": 0.1,
    "grad_norm": 1.0,
    "completions/mean_length": 100.0,
    "completions/length_spread": 0.1,
    "entropy": 1.0,
    "reward": 0.5,
    "completions/only_special": 0.0,
    "frac_reward_zero_std": 0.3,
    "sampling/sampling_logp_difference/mean": 0.004,
}


def alerts(rows, **settings):
    guard = Guard(GuardArguments(**settings))
    return [
        (alert.rule, alert.step)
        for step, row in enumerate(rows, start=1)
        for alert in guard.observe({"step": step, **HEALTHY, **row})
    ]


def wobbly(i):
    wave = math.sin(i)
    return {
        "grad_norm": 1 + 0.8 * wave,
        "completions/mean_length": 100 + 30 * wave,
        "completions/length_spread": 0.1 + 0.05 * wave,
        "entropy": 1.0 / (1 + i / 20),
        "reward": 0.5 + 0.2 * wave,
    }


@pytest.mark.parametrize(
    "rows",
    [
        [wobbly(i) for i in range(200)],
        [{"reward": -0.5 - i / 100} for i in range(30)],  # it has not fallen from zero
        [{"completions/mean_length": 51.0}] * 7,
        [{"completions/mean_length": 199.0}] * 7,
        [{"entropy": 0.051}] * 7,
        [{"reward": 0.26}] * 7,
        [{"completions/only_special": 0.4}] * 7,
        [{"frac_reward_zero_std": 0.99}] * 7,
    ],
)
def test_a_healthy_run_and_values_just_inside_a_threshold_are_fine(rows):
    assert alerts(rows if len(rows) > 7 else [{}] * 12 + rows) == []
    evaluated = {"step": 3, "eval_reward": 0.0, "loss": None, "grad_norm": None, "reward": None}
    assert Guard(GuardArguments()).observe(evaluated) == []


@pytest.mark.parametrize(
    ("rule", "bad", "speaks_after"),
    [
        ("nonfinite", {"loss": math.nan}, 1),
        ("nonfinite", {"grad_norm": math.inf}, 1),
        ("nonfinite", {"grad_norm": None}, 1),
        ("length", {"completions/mean_length": 49.0}, 3),
        ("length", {"completions/mean_length": 201.0}, 3),
        ("entropy", {"entropy": 0.049}, 3),
        ("reward", {"reward": 0.24}, 3),
        ("special_tokens", {"completions/only_special": 0.6}, 3),
        ("no_variance", {"frac_reward_zero_std": 1.0}, 20),
        ("sampling", {"sampling/sampling_logp_difference/mean": 0.05}, 3),
    ],
)
def test_a_rule_speaks_once_when_it_has_held(rule, bad, speaks_after):
    rows = [{}] * 12 + [bad] * (speaks_after + 1)
    assert alerts(rows) == [(rule, 12 + speaks_after)]
    assert alerts(rows, **{f"guard_{rule}": "off"}) == []
    if speaks_after > 1:
        assert alerts(rows[: 12 + speaks_after - 1] + [{}]) == []


def spikes(*norms):
    return [{"grad_norm": norm} for norm in norms]


def spreads(*values):
    return [{"completions/length_spread": value} for value in values]


USUAL = spikes(*[1.0] * 30)
LEARNS = spreads(*[0.1 - i / 500 for i in range(40)])  # 0.031 is the lowest mean of ten
ALIKE = spreads(*[0.0] * 30)  # the lowest spread counts as a hundredth of the length at least
UNLEARNED = [{"reward": 0.1, "grad_norm": 0.2}] * 20
LEARNED = [{"reward": 0.6, "grad_norm": 1.0}] * 40


@pytest.mark.parametrize(
    ("before", "after", "settings", "told"),
    [
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


def test_loss_or_norm_is_enough_to_check_for_numbers_that_are_not_finite():
    for row, unread in (({"loss": 0.1}, False), ({"grad_norm": 0.1}, False), ({}, True)):
        found = replay([{"step": 1, "reward": 1.0, **row}], GuardArguments())
        assert ("nonfinite" in found.unread) is unread


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
