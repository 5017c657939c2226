"""Estimates from several samples per prompt, against tables and subsets."""

import math
import statistics
from itertools import combinations

import pytest

from trl_ablate.estimates import (
    TRL_METRICS,
    merged,
    metric_names,
    pass_at,
    pass_rates,
    passes,
    reward_metrics,
    standard_errors,
    success_rates,
    summary,
)


@pytest.mark.parametrize("samples", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_success(samples):
    for successes in range(samples + 1):
        drawn = [1] * successes + [0] * (samples - successes)
        for k in range(1, samples + 1):
            subsets = [max(subset) for subset in combinations(drawn, k)]
            share = sum(subsets) / len(subsets)
            assert pass_at(k, samples, successes) == pytest.approx(share)


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_k_are_the_powers_of_two_and_all(samples, expected):
    assert passes(samples) == expected


NO, YES = False, True
ONE = [1 / 3, 1 / 4]


@pytest.mark.parametrize(
    ("successes", "rates"),
    [
        # c = 0, 1, 4 of n = 4
        (
            [[NO, NO, NO, NO], [NO, YES, NO, NO], [YES, YES, YES, YES]],
            {"pass@1": [0, 1 / 4, 1], "pass@2": [0, 1 / 2, 1], "pass@4": [0, 1, 1]},
        ),
        # as if an ungraded sample was not drawn: c = 1 of 3, none, and 1 of 4, which has the pass@4
        (
            [[YES, None, NO, NO], [None] * 4, [NO, NO, NO, YES]],
            {"pass@1": ONE, "pass@2": [2 / 3, 3 / 6], "pass@4": [1]},
        ),
    ],
)
def test_each_prompt_has_its_rates(successes, rates):
    assert success_rates(successes) == {"avg@4": rates["pass@1"], **rates}


def row(reward, **parts):
    return {"reward": reward, "length": 5, "truncated": False, **parts}


@pytest.mark.parametrize(
    ("rows", "rate"),
    [
        # r1_zero gives no reward for a right answer in the wrong format; the XML templates give 2
        ([row(0.0, answer_reward=1.0), row(0.0, answer_reward=0.0)], 0.5),
        ([row(3.0, answer_reward=2.0), row(1.0, answer_reward=0.0)], 0.5),
        ([row(0.1), row(0.0), row(-1.0), row(None)], 1 / 3),  # without one, any reward
        ([row(None), row(None)], None),
        ([row(1.0)], None),
    ],
)
def test_success_is_the_answer_whatever_its_format_and_worth(rows, rate):
    found = summary(rows, samples=len(rows))
    assert found.get(f"avg@{len(rows)}") == rate
    assert rate is not None or not [name for name in found if "@" in name]


@pytest.mark.parametrize(
    ("rewards", "samples", "error"),
    [
        ([0.0, 1.0, 1.0, 0.5, None], 1, statistics.stdev([0.0, 1.0, 1.0, 0.5]) / 2),
        # means of the prompts 1, 0 and 1/2 have the standard deviation 1/2, whatever the samples
        ([1.0, 1.0, 0.0, 0.0, 1.0, 0.0], 2, 0.5 / 3**0.5),
        ([*[1.0] * 10, *[0.0] * 10, *[1.0] * 5, *[0.0] * 5], 10, 0.5 / 3**0.5),
        ([1.0], 1, 0.0),
    ],
)
def test_samples_of_a_prompt_count_once_in_the_error(rewards, samples, error):
    found = summary([row(reward) for reward in rewards], samples)["reward_stderr"]
    assert found == pytest.approx(error)


def test_means_weigh_prompts_alike_where_some_samples_are_ungraded():
    rows = [row(1.0), row(None), row(0.0), row(0.0)]
    found = summary(rows, samples=2)
    assert (found["reward"], found["ungraded"]) == (0.5, 0.25)


@pytest.mark.parametrize("samples", [1, 2, 6])
def test_every_metric_has_its_name(samples):
    rows = [row(1.0, format_reward=1.0, answer_reward=1.0)] * samples
    found = {f"eval_{name}" for name in (*summary(rows, samples), *TRL_METRICS)}
    assert found == set(metric_names(samples))
    of_one_shot = {"eval_reward_stderr", "eval_mean_length", "eval_truncated", "eval_ungraded"}
    rates = {name for name in found if "@" in name}
    assert found - set(metric_names(samples, one_shot=False)) == of_one_shot | rates
    named = {name.replace("eval_", "eval_mine_") for name in found}
    assert set(metric_names(samples, ["mine"])) == found | named


def test_every_mean_has_its_error():
    """Two prompts: lengths 5 and 7, rewards 1 and 0, pass@2 1 and 0; errors are half of that."""
    rows = [row(1.0), row(1.0), row(0.0, length=7), row(0.0, length=7)]
    found = standard_errors(rows, samples=2)
    assert (found["mean_length"], found["reward"], found["pass@2"]) == pytest.approx((1, 0.5, 0.5))
    assert set(found) == set(summary(rows, samples=2)) - {"reward_stderr"}


def test_trls_metrics_of_rewards_by_hand():
    """Two questions with two samples: 1, 3 and 2, 2; the second function grades the first row."""
    found = reward_metrics(
        {"a": [1.0, 3.0, 2.0, 2.0], "b": [5.0, None, None, None]}, [6, 3, 2, 2], 2
    )
    assert found == {
        "rewards/a/mean": 2.0,
        "rewards/a/std": pytest.approx((2 / 3) ** 0.5),
        "rewards/b/mean": 5.0,
        "rewards/b/std": None,
        "reward_std": pytest.approx(statistics.stdev([6, 3, 2, 2])),
        "frac_reward_zero_std": 0.5,
    }


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_rewards_that_are_not_finite_have_no_deviation(value):
    found = reward_metrics({"a": [value, 1.0]}, [value, 1.0], 2)
    assert found["rewards/a/std"] is found["reward_std"] is None
    assert found["frac_reward_zero_std"] == 0.0


def test_a_question_with_one_graded_sample_is_not_one_without_variance():
    assert reward_metrics({}, [1.0, None, None, None], 2)["frac_reward_zero_std"] == 0.0
    assert reward_metrics({}, [1.0, None], 1)["frac_reward_zero_std"] == 1.0  # as in TRL


def test_calls_of_different_sizes_are_merged_by_what_they_are_means_of():
    """3 completions with 6 tool calls, of which 3 failed; 1 completion with 2, of which none."""
    nan = float("nan")
    calls = [
        {"tools/call_frequency": 2.0, "tools/failure_frequency": 0.5, "mine": 1.0, "late": nan},
        {"tools/call_frequency": 2.0, "tools/failure_frequency": 0.0, "mine": 5.0, "other": 7.0},
    ]
    assert merged(calls, [3, 1]) == {
        "tools/call_frequency": 2.0,
        "tools/failure_frequency": 3 / 8,
        "mine": 2.0,
        "late": None,
        "other": 7.0,
    }


def test_rewards_and_lengths_of_a_style_are_merged_by_its_completions():
    """One direct answer in 2 is right, and of the next 100 none is."""
    few = {"style/direct": 0.5, "style/direct_reward": 1.0, "style/direct_length": 5.0}
    many = {"style/direct": 1.0, "style/direct_reward": 0.0, "style/direct_length": 5.0}
    assert merged([few, many], [2, 100]) == {
        "style/direct": 101 / 102,
        "style/direct_reward": 1 / 101,
        "style/direct_length": 5.0,
    }


def test_no_tool_call_is_no_failure():
    call = {"tools/call_frequency": 0.0, "tools/failure_frequency": 0.0}
    assert merged([call, call], [4, 2]) == call


def test_pass_rates_of_questions():
    rewards = (("a", 1.0), ("a", 0.0), ("b", None), ("b", 1.0), ("c", None), ("c", None))
    rows = [{"question": question, **row(reward)} for question, reward in rewards]
    assert pass_rates(rows, 2) == [
        {"question": "a", "pass_rate": 0.5, "graded": 2},
        {"question": "b", "pass_rate": 1.0, "graded": 1},
        {"question": "c", "pass_rate": None, "graded": 0},
    ]
