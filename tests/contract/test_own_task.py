"""Own rewards in an evaluation, broken down by sets and groups."""

import pytest
from datasets import Dataset

from tests.support.trainers import PROMPTS
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


def questions(count):
    levels = [index % 3 for index in range(count)]
    return Dataset.from_dict({"prompt": PROMPTS[:count], "level": levels})


def test_an_evaluation_by_a_column_and_with_rewards_of_a_set(both, tmp_path):
    (tmp_path / "reward.py").write_text(FILE)
    specs = reward_specs([f"{tmp_path}/reward.py:{name}" for name in ("even", "long")])
    even, long = chosen_rewards(specs, Tools(MathGrader(1), None, lambda name: None)).functions
    sets = {"": questions(6), "apart": questions(4), "long": questions(2)}
    pair = both(reward_funcs=[even], train_dataset=questions(16), eval_dataset=sets)
    trainer = pair.one_shot(eval_by="level", outcome_gate="even")
    trainer.rewards_of_sets = {
        "apart": Rewards([long, even], [0.5, 0.0]),
        "long": Rewards([long], [1.0]),  # without the gate
    }
    metrics = trainer.evaluate()
    parts = [metrics[f"eval_reward/level={level}"] for level in range(3)]
    assert metrics["eval_reward"] == pytest.approx(sum(parts) / 3)  # two questions of each
    assert "eval_rewards/long/mean" not in metrics
    apart = metrics["eval_apart_rewards/long/mean"]
    assert metrics["eval_apart_reward"] == pytest.approx(0.5 * apart)
    assert {f"eval_apart_reward/level={level}" for level in range(3)} <= metrics.keys()
    assert metrics["eval_long_reward"] == metrics["eval_long_rewards/long/mean"]
    assert trainer.reward_func_names == ["even"]
