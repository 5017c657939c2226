"""The styles of a world's answers, as metrics."""

import pytest

from trl_ablate.miniature.worlds.chains import ANSWERED
from trl_ablate.training.rewards import style_metrics, with_styles_logged

COMPLETIONS = [
    " </think> <answer>3</answer>",
    " </think> <answer>4</answer>",
    " +1=3 </think> <answer>3</answer>",
    " 2+1=4, 4-1=3 </think> <answer>3</answer>",
    " what",
]


def right(prompts, completions, completion_ids, answer, log_metric=None, **_):
    return [
        None if text == " what" else float(gold in text)
        for text, gold in zip(completions, answer, strict=True)
    ]


def test_shares_rewards_and_lengths_of_each_style():
    found = style_metrics(ANSWERED, COMPLETIONS[:4], [1.0, 0.0, 1.0, None], [5, 7, 9, 20])
    assert found == {
        "style/direct": 0.5,
        "style/direct_reward": 0.5,
        "style/direct_length": 6.0,
        "style/terse": 0.25,
        "style/terse_reward": 1.0,
        "style/terse_length": 9.0,
        "style/full": 0.25,
        "style/full_length": 20.0,  # ungraded: it has no reward
    }
    found = style_metrics(ANSWERED, COMPLETIONS[:2], [1.0, 0.0], [5, 5])
    assert found["style/full"] == 0.0
    assert "style/full_reward" not in found and "style/full_length" not in found


def test_the_reward_that_marks_the_answer_logs_the_styles_and_returns_the_same_marks():
    logged = {}
    (reward,) = with_styles_logged([right], "miniature/chains")
    words = ([""] * 5, COMPLETIONS, [[1]] * 5, ["3"] * 5)
    marks = reward(*words, log_metric=logged.__setitem__)
    assert marks == right(*words) == [1.0, 0.0, 1.0, 1.0, None]
    assert reward.__name__ == "right"
    assert logged["style/direct"] == pytest.approx(3 / 5)  # "what" has no equation
    assert logged["style/direct_reward"] == 0.5
    assert reward(*words) == marks  # without a log


def test_only_the_last_reward_before_a_penalty_logs():
    def eos_penalty(*_, **__):
        return []

    def form(*_, **__):
        return []

    rewards = with_styles_logged([form, right, eos_penalty], "miniature/chains")
    assert rewards[0] is form and rewards[2] is eos_penalty
    assert rewards[1] is not right and rewards[1].__name__ == "right"
    for dataset in ("miniature/sums", "math", "questions.jsonl"):  # without styles
        assert with_styles_logged([right], dataset) == [right]
