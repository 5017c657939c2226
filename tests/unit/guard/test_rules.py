"""Every rule of the guard: when it fires, when it does not, and that it fires once."""

import math

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.guard.arguments import GuardArguments
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


def test_a_healthy_run_is_left_in_peace():
    wobbly = [
        {
            "grad_norm": 1 + 0.8 * math.sin(i),
            "completions/mean_length": 100 + 30 * math.sin(i),
            "completions/length_spread": 0.1 + 0.05 * math.sin(i),
            "entropy": 1.0 / (1 + i / 20),
            "reward": 0.5 + 0.2 * math.sin(i),
        }
        for i in range(200)
    ]
    assert alerts(wobbly) == []


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


@pytest.mark.parametrize(
    ("just_inside"),
    [
        {"completions/mean_length": 51.0},
        {"completions/mean_length": 199.0},
        {"entropy": 0.051},
        {"reward": 0.26},
        {"completions/only_special": 0.4},
        {"frac_reward_zero_std": 0.99},
    ],
)
def test_just_inside_the_threshold_is_fine(just_inside):
    assert alerts([{}] * 12 + [just_inside] * 7) == []


def spikes(*norms):
    return [{"grad_norm": norm} for norm in norms]


def test_two_high_gradient_norms_are_ordinary_and_three_in_ten_are_told():
    usual = spikes(*[1.0] * 30)
    assert alerts([*usual, *spikes(9, 1, 1, 1, 9, 1, 1, 1, 1, 1, 9)]) == []
    assert alerts([*usual, *spikes(9, 1, 1, 1, 9, 1, 1, 1, 1, 9)]) == [("grad_norm", 40)]
    assert alerts([*usual, *spikes(*[1.9] * 12)]) == []


def test_a_single_gradient_norm_far_above_the_usual_is_told():
    usual = spikes(*[1.0] * 30)
    assert alerts([*usual, *spikes(21, 1, 1)]) == [("spike", 31)]
    assert alerts([*usual, *spikes(19, 1, 1)]) == []
    assert alerts([*usual, *spikes(21)], guard_spike="off") == []


def spreads(*values):
    return [{"completions/length_spread": value} for value in values]


def test_groups_whose_lengths_come_to_differ_again_are_told():
    learns = spreads(*[0.1 - i / 500 for i in range(40)])  # 0.031 is the lowest mean of ten
    assert alerts(learns) == []
    assert alerts([*learns, *spreads(*[0.05] * 20)]) == []
    assert alerts([*learns, *spreads(*[0.055] * 20)]) == [("length_spread", 50)]


def test_the_least_spread_is_not_taken_for_less_than_a_hundredth_of_the_length():
    alike = spreads(*[0.0] * 30)
    assert alerts([*alike, *spreads(*[0.017] * 20)]) == []
    assert alerts([*alike, *spreads(*[0.018] * 20)]) == [("length_spread", 40)]
    least = {"guard_length_spread_least": 0.005}
    assert alerts([*alike, *spreads(*[0.017] * 20)], **least) == [("length_spread", 36)]


@pytest.mark.parametrize(
    ("rule", "bad"),
    [
        ("grad_norm", {"grad_norm": 9.0}),
        ("length_spread", {"completions/length_spread": 0.5}),
    ],
)
def test_an_early_warning_can_be_silenced(rule, bad):
    rows = [*[{}] * 20, *[bad] * 6]
    assert [name for name, _ in alerts(rows)] == [rule]
    assert alerts(rows, **{f"guard_{rule}": "off"}) == []


def test_steps_before_learning_set_in_are_not_usual():
    before = [{"reward": 0.1, "grad_norm": 0.2}] * 20
    learned = [{"reward": 0.6, "grad_norm": 1.0}] * 40
    assert alerts([*before, *learned]) == []
    assert alerts([*before, *learned], guard_learned=0.0) == [("grad_norm", 23)]


def test_a_reward_below_zero_has_not_fallen_from_zero():
    assert alerts([{"reward": -0.5 - i / 100} for i in range(30)]) == []


def test_a_rule_speaks_again_after_the_trouble_has_ceased():
    rows = [{}] * 12 + [{"reward": 0.1}] * 5 + [{}] * 2 + [{"reward": 0.1}] * 5
    assert alerts(rows) == [("reward", 15), ("reward", 22)]


def test_evaluation_rows_are_no_steps():
    assert Guard(GuardArguments()).observe({"step": 3, "eval_reward": 0.0}) == []


def test_the_alert_carries_the_numbers():
    guard = Guard(GuardArguments(guard_reward="stop", guard_patience=1))
    guard.observe({"step": 1, "loss": 0.0, "reward": 0.8})
    (alert,) = guard.observe({"step": 2, "loss": 0.0, "reward": 0.1})
    assert (alert.rule, alert.action, alert.step) == ("reward", "stop", 2)
    assert (alert.value, alert.reference) == (0.1, 0.8)
    assert alert.sentence == "reward is 0.1; its best was 0.8"


@pytest.mark.parametrize(
    "wrong",
    [
        {"guard_length_factor": 1.0},
        {"guard_length_spread_factor": 1.0},
        {"guard_window": 1},
        {"guard_history": 9},
        {"guard_patience": 0},
    ],
)
def test_thresholds_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigurationError):
        GuardArguments(**wrong)
