"""Own rewards in an evaluation, broken down by sets and groups."""

import pytest
from datasets import Dataset

from tests.support.trainers import PROMPTS
from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import by_group
from trl_ablate.reward_specs import reward_specs
from trl_ablate.rewards import MathGrader
from trl_ablate.rewards.own.chosen import Rewards, Tools, chosen_rewards

FILE = """
def even(completions, level, **kwargs):
    return [float((len(text) + n) % 2) for text, n in zip(completions, level, strict=True)]

async def long(completions, log_metric, **kwargs):
    log_metric("mean_text", sum(map(len, completions)) / len(completions))
    return [min(len(text), 20) / 20 for text in completions]
"""


def questions(count=16):
    return Dataset.from_dict(
        {"prompt": PROMPTS[:count], "level": [index % 3 for index in range(count)]}
    )


@pytest.fixture
def file(tmp_path):
    (tmp_path / "reward.py").write_text(FILE)
    return tmp_path / "reward.py"


def rewards(file, *names):
    specs = reward_specs([f"{file}:{name}" for name in names])
    return chosen_rewards(specs, Tools(MathGrader(1), None, lambda name: None)).functions


def test_an_evaluation_by_a_column_and_with_rewards_of_a_set(both, file):
    even, long = rewards(file, "even", "long")
    sets = {"": questions(6), "apart": questions(4), "long": questions(2)}
    pair = both(reward_funcs=[even], train_dataset=questions(), eval_dataset=sets)
    trainer = pair.one_shot(eval_by="level", outcome_gate="even")
    trainer.rewards_of_sets = {
        "apart": Rewards([long, even], [0.5, 0.0]),
        "long": Rewards([long], [1.0]),  # without the gate
    }
    metrics = trainer.evaluate()
    parts = [metrics[f"eval_reward/level={level}"] for level in range(3)]
    assert metrics["eval_reward"] == pytest.approx(sum(parts) / 3)  # two questions of each
    assert "eval_rewards/long/mean" not in metrics
    assert metrics["eval_apart_reward"] == pytest.approx(
        0.5 * metrics["eval_apart_rewards/long/mean"]
    )
    assert {f"eval_apart_reward/level={level}" for level in range(3)} <= metrics.keys()
    assert metrics["eval_long_reward"] == metrics["eval_long_rewards/long/mean"]
    assert trainer.reward_func_names == ["even"]


def test_metrics_of_groups_are_those_of_their_rows():
    rows = [
        {"group": group, "reward": reward, "length": 1, "truncated": False}
        for group, reward in (("2", 1.0), ("2", 0.0), ("1", 1.0), ("1", 1.0))
    ]
    found = by_group(rows, 2, "level")
    assert (found["reward/level=1"], found["reward/level=2"]) == (1.0, 0.5)
    assert found["pass@2/level=2"] == 1.0 and "mean_length/level=1" not in found
    assert by_group([{"reward": 1.0, "length": 1, "truncated": False}], 1, None) == {}
    many = [{**rows[0], "group": str(index)} for index in range(51)]
    with pytest.raises(ConfigurationError, match="eval_by is 'name', which has 51 values"):
        by_group(many, 1, "name")
