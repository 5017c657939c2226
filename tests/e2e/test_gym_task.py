"""A task of reasoning-gym in a recipe: checked, trained and evaluated with its own scorer."""

import json

import pytest

from trl_ablate.cli import check, train

pytest.importorskip(
    "reasoning_gym", reason="reasoning-gym is not installed: pip install 'trl-ablate[gym]'"
)

RECIPE = """
extends: grpo.yaml
profile: miniature
dataset: reasoning_gym/chain_sum
gym: {min_terms: 2, max_terms: 2, min_digits: 1, max_digits: 1, size: 32, seed: 3}
eval_by: num_terms
eval_size: 8
eval_sets: {longer: {dataset: reasoning_gym/gcd, size: 4}}
train_size: null
grpo_steps: 1
eval_steps: 1
generation_batch_size: 8
optimizer_batch_size: 8
num_generations: 4
per_device_train_batch_size: 8
max_completion_length: 12
report_to: none
"""


@pytest.mark.slow
def test_a_task_of_reasoning_gym_is_checked_and_trains(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    assert check.main([str(tmp_path / "recipe.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "32 questions to train on, 8 to evaluate on" in printed
    assert "0 of 32 questions (0.0%) whose own answer does not earn full reward" in printed
    words = [str(tmp_path / "recipe.yaml"), "--output_dir", str(tmp_path / "run")]
    assert train.main(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    logged = {name for row in rows for name in row}
    assert {"rewards/reasoning_gym/mean", "eval_reward/num_terms=2"} <= logged
    assert "eval_longer_rewards/reasoning_gym/mean" in logged
