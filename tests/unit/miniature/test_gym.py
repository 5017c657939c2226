"""The world of reasoning-gym's chain_sum."""

import random
import sys

import pytest

from trl_ablate import ConfigurationError
from trl_ablate.data.choice import Selection, Source
from trl_ablate.data.questions import load_questions
from trl_ablate.miniature.worlds.gym_tasks import ChainSum, worked

QUESTION = "State the final answer to the following arithmetic problem: 3 - 4 + 8 ="


def test_the_steps_of_a_question():
    assert worked(QUESTION, random.Random(0), 0.0) == (" 3-4=-1, -1+8=7", 7)
    steps, answer = worked(QUESTION, random.Random(0), 1.0)
    assert answer != 7 and steps.endswith(f"={answer}")
    task = ChainSum()
    assert [task.style_of(text) for text in (steps, " <answer>7</answer>")] == ["steps", "direct"]


def test_right_solutions_are_right_and_attempts_are_at_times():
    pytest.importorskip("reasoning_gym", reason="pip install 'trl-ablate[gym]'")
    task, rng = ChainSum(), random.Random(0)
    answers = {each.question: each.answer for each in task.questions("train")}
    assert all(str(s.answer) == answers[s.question] for s in (task.right(rng) for _ in range(500)))
    tried = [task.attempt(rng) for _ in range(4000)]
    right = sum(str(each.answer) == answers[each.question] for each in tried) / len(tried)
    assert right == pytest.approx(0.34, abs=0.03)


def test_without_the_package_it_is_refused_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ConfigurationError, match="needs reasoning-gym.*pip install 'trl-ablate"):
        ChainSum().questions("train")
    assert len(load_questions(Source("miniature", "train"), Selection(3))) == 3
