"""The model of these tests."""

import pytest

from tests.support.tiny_models import save_tiny_qwen2


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Of two layers: with one, an arm's gradient differs in more than its weight of lengths."""
    folder = tmp_path_factory.mktemp("tiny")
    return save_tiny_qwen2(folder, max_position_embeddings=256, num_hidden_layers=2)
