"""Rollouts that a run has saved."""

import pytest

from tests.support.xray_cases import small_xray
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.run.json_files import write_jsonl
from trl_ablate.xray import xray
from trl_ablate.xray.drawing import training_set
from trl_ablate.xray.stored_rollouts import RolloutFolder

ARMS = ["grpo", "length_norm_constant"]


@pytest.fixture(scope="module")
def rows(tiny_model):
    """A rollout batch of 16 in groups of 4, as `RolloutWriter` saves it."""
    resolved = load_recipe("grpo", overrides=small_xray(tiny_model))
    prompts = training_set(resolved)[0]["prompt"][:4]
    responses = ["+", "-7", "==a", "*" * 12]  # ends by itself, by stop strings, at the limit
    return [{"prompt": prompt, "response": text} for prompt in prompts for text in responses]


def test_they_are_scored_and_compared(tiny_model, rows, tmp_path):
    write_jsonl(tmp_path / "20.jsonl", rows)
    settings = small_xray(tiny_model)
    result = xray(
        ARMS, (), 1, overrides=settings, output=tmp_path / "x", rollouts=tmp_path / "20.jsonl"
    )
    assert result.to_dict()["arms"]["length_norm_constant"][0]["cosine_mean"] < 1
    stored = RolloutFolder(tmp_path / "x" / "rollouts" / "base").batch(0)
    assert stored is not None
    assert stored.lengths_N.tolist() == [2, 2, 3, 12] * 4
    assert [ids[-1] for ids in stored.completion_ids[:2]] == [1, 27]  # <|end|> and "7"
    assert stored.rewards_NF[:4, 0].tolist() == [0, 0.5, 0, 0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rows: rows[:12], "has 12 rollouts, and 1 rollout batches take 16"),
        (lambda rows: rows[1:] + rows[:1], "has no whole groups of 4"),
        (lambda rows: [{**row, "prompt": "1+1="} for row in rows], "does not ask"),
    ],
)
def test_what_does_not_do(tiny_model, rows, tmp_path, change, why):
    write_jsonl(tmp_path / "20.jsonl", change(rows))
    with pytest.raises(ConfigurationError, match=why):
        xray(ARMS, (), 1, overrides=small_xray(tiny_model), rollouts=tmp_path / "20.jsonl")
