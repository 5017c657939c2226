"""Estimates from several samples per prompt, against tables and subsets."""

import math
import statistics
from itertools import combinations

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import (
    TRL_METRICS,
    by_group,
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
    ("rewards", "samples", "mean", "error"),
    [
        ([0.0, 1.0, 1.0, 0.5, None], 1, 2.5 / 4, statistics.stdev([0.0, 1.0, 1.0, 0.5]) / 2),
        # means of the prompts 1, 0 and 1/2 have the standard deviation 1/2, whatever the samples
        ([*[1.0] * 10, *[0.0] * 10, *[1.0] * 5, *[0.0] * 5], 10, 0.5, 0.5 / 3**0.5),
        ([1.0, None, 0.0, 0.0], 2, 0.5, 0.5),  # of 1 and 0
        ([1.0], 1, 1.0, 0.0),
    ],
)
def test_a_prompt_counts_once_whatever_its_samples(rewards, samples, mean, error):
    found = summary([row(reward) for reward in rewards], samples)
    assert (found["reward"], found["reward_stderr"]) == pytest.approx((mean, error))
    assert found["ungraded"] == rewards.count(None) / len(rewards)
    errors = standard_errors([row(reward) for reward in rewards], samples)
    assert errors["reward"] == found["reward_stderr"]
    assert errors.keys() == found.keys() - {"reward_stderr"}


def test_the_format_of_what_is_not_graded_does_not_count():
    found = summary([row(None, format_reward=1.0), row(0.0, format_reward=0.0)])
    assert found["format_reward"] == 0 and found["ungraded"] == 0.5


@pytest.mark.parametrize("samples", [1, 2, 6])
def test_every_metric_has_its_name(samples):
    rows = [row(1.0, format_reward=1.0, answer_reward=1.0)] * samples
    found = {f"eval_{name}" for name in (*summary(rows, samples), *TRL_METRICS)}
    assert found == set(metric_names(samples))
    assert passes(samples) == {1: [1], 2: [1, 2], 6: [1, 2, 4, 6]}[samples]
    of_one_shot = {"eval_reward_stderr", "eval_mean_length", "eval_truncated", "eval_ungraded"}
    rates = {name for name in found if "@" in name}
    assert found - set(metric_names(samples, one_shot=False)) == of_one_shot | rates
    named = {name.replace("eval_", "eval_mine_") for name in found}
    assert set(metric_names(samples, ["mine"])) == found | named


@pytest.mark.parametrize(
    ("totals", "samples", "deviation", "equal"),
    [
        ([6, 3, 2, 2], 2, statistics.stdev([6, 3, 2, 2]), 0.5),
        ([1.0, None, None, None], 2, None, 0.0),  # with one graded sample it is not known
        ([1.0, None], 1, None, 1.0),  # as in TRL
        ([-math.inf, 1.0], 2, None, 0.0),
        ([math.nan, 1.0], 2, None, 0.0),
    ],
)
def test_trls_metrics_of_rewards(totals, samples, deviation, equal):
    found = reward_metrics({"a": totals}, totals, samples)
    assert found["reward_std"] == found["rewards/a/std"] == pytest.approx(deviation)
    assert found["frac_reward_zero_std"] == equal


OF_TOOLS = {"tools/call_frequency": 2.0, "tools/failure_frequency": 0.5}
NO_CALL = {"tools/call_frequency": 0.0, "tools/failure_frequency": 0.0}
OF_STYLE = {"style/direct": 1.0, "style/direct_reward": 0.0, "style/direct_length": 5.0}


@pytest.mark.parametrize(
    ("one", "other", "counts", "expected"),
    [
        (
            {"mine": 1.0, "late": math.nan},
            {"mine": 5.0, "other": 7.0},
            [3, 1],
            {"mine": 2.0, "late": None, "other": 7.0},
        ),
        # 3 completions with 6 tool calls, of which 3 failed; 1 completion with 2, of which none
        (
            OF_TOOLS,
            {**OF_TOOLS, "tools/failure_frequency": 0.0},
            [3, 1],
            {**OF_TOOLS, "tools/failure_frequency": 3 / 8},
        ),
        (NO_CALL, NO_CALL, [4, 2], NO_CALL),
        ({"grader/ungraded": 3.0}, {"grader/ungraded": 1.0}, [8, 8], {"grader/ungraded": 4.0}),
        # one direct answer in 2 is right, and of the next 100 none is
        (
            {**OF_STYLE, "style/direct": 0.5, "style/direct_reward": 1.0},
            OF_STYLE,
            [2, 100],
            {**OF_STYLE, "style/direct": 101 / 102, "style/direct_reward": 1 / 101},
        ),
    ],
)
def test_calls_of_different_sizes_are_merged_by_what_they_are_means_of(
    one, other, counts, expected
):
    assert merged([one, other], counts) == expected


def test_pass_rates_of_questions():
    rewards = (("a", 1.0), ("a", 0.0), ("b", None), ("b", 1.0), ("c", None), ("c", None))
    rows = [{"question": question, **row(reward)} for question, reward in rewards]
    assert pass_rates(rows, 2) == [
        {"question": "a", "pass_rate": 0.5, "graded": 2},
        {"question": "b", "pass_rate": 1.0, "graded": 1},
        {"question": "c", "pass_rate": None, "graded": 0},
    ]


def test_metrics_of_groups_are_those_of_their_rows():
    rows = [row(r, group=group) for group, r in (("2", 1.0), ("2", 0.0), ("1", 1.0), ("1", 1.0))]
    found = by_group(rows, 2, "level")
    assert (found["reward/level=1"], found["reward/level=2"]) == (1.0, 0.5)
    assert found["pass@2/level=2"] == 1.0 and "mean_length/level=1" not in found
    assert by_group([row(1.0)], 1, None) == {}
    many = [row(1.0, group=str(index)) for index in range(51)]
    with pytest.raises(ConfigurationError, match="eval_by is 'name', which has 51 values"):
        by_group(many, 1, "name")
