"""The model of these tests, and one X-ray of it that many of them read."""

import pytest

from tests.support.tiny_models import save_tiny_qwen2
from tests.support.xray_cases import small_xray
from trl_ablate.xray import xray

BATCHES = 3
ARMS = [
    "grpo", "grpo", "grpo+surrogate=no_clip", "grpo+positive_weight=3", "length_norm_constant",
    "grpo+num_generations=8",
]  # fmt: skip


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Of two layers: with one, an arm's gradient differs in more than its weight of lengths."""
    folder = tmp_path_factory.mktemp("tiny")
    return save_tiny_qwen2(folder, max_position_embeddings=256, num_hidden_layers=2)


@pytest.fixture(scope="session")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("xray")


@pytest.fixture(scope="session")
def on_policy(tiny_model, output):
    return xray(ARMS, (), BATCHES, overrides=small_xray(tiny_model), output=output)


@pytest.fixture
def rollouts(on_policy, output):
    return output / "rollouts" / "base"
