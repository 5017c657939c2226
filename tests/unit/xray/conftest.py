"""X-rays start a grader, which the rewards of these tests do not need."""

from collections.abc import Iterator

import pytest

from tests.support.graders import start_when_needed
from tests.support.tiny_models import save_tiny_qwen2
from trl_ablate.rewards import MathGrader


@pytest.fixture(autouse=True, scope="module")
def no_grader_processes() -> Iterator[None]:
    """For a whole module, as its fixtures take X-rays, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MathGrader, "__enter__", start_when_needed)
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Of two layers: with one, an arm's gradient differs in more than its weight of lengths."""
    folder = tmp_path_factory.mktemp("tiny")
    return save_tiny_qwen2(folder, max_position_embeddings=256, num_hidden_layers=2)
