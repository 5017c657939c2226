"""Random legal configurations, trained by stock TRL and by `AblationTrainer`.

With TRL's padding and microbatches, weights and all logged metrics are bit-equal. With our default
speed-ups, they are equal up to rounding. The number of a case determines its configuration;
`TRL_ABLATE_CONFIGS=500` tests 500 in one process, and a third as many with two processes.
"""

import json
import math
import os
import random
from typing import Any

import pytest

from tests.contract.alike import draw_settings, measure, measure_all
from tests.support.two_processes import in_two_processes

CONFIGURATIONS = int(os.environ.get("TRL_ABLATE_CONFIGS", "18"))
WEIGHTS = 1e-5
METRICS = 1e-4
NEARLY_ZERO = 2e-6
"""Absolute: a KL of two policies that are the same is rounding."""


def drawn(number: int, processes: int = 1) -> dict[str, Any]:
    """The configuration with this number, with the properties of its rollouts."""
    one = random.Random(number)
    group = one.choice([2, 3, 4])
    rows = one.randint(1, 4) * group * (1 if group % processes == 0 else processes)
    groups = rows // group
    rollouts = one.choice(["engine", "engine", "function", "function", "model"])
    chosen = {
        **draw_settings(one),
        "seed": number,
        "questions": one.randint(groups, 4 * groups),
        "rewards": one.randint(1, 2),
        "rollouts": rollouts,
        "tool": rollouts == "function" and one.random() < 0.5,
        "lora": one.choice([False, False, True]),
        "num_generations": group,
        "per_device_train_batch_size": one.choice(
            [size for size in range(1, rows + 1) if rows % (size * processes) == 0]
        ),
        "generation_batch_size": rows,
        "max_steps": one.randint(2, 4),
        "epsilon": one.choice([0.2, 0.02]),
        "epsilon_high": one.choice([None, 0.3, 1.01]),
        "delta": one.choice([None, None, 1.1]),
        "use_bias_correction_kl": one.random() < 0.5,
        "pad_to_multiple_of": one.choice([None, None, 8]),
        "adam_epsilon": 1e-4,  # or Adam takes full steps on rounding errors
        "max_grad_norm": one.choice([1.0, 0.0]),
    }
    chosen["learning_rate"] = 0.3 if chosen["optim"] == "sgd" else 1e-3
    if one.random() < 0.3:
        chosen["multi_objective_aggregation"] = "normalize_then_sum"
        chosen["scale_rewards"] = "group"  # TRL ignores it here; ours refuses any other value
    if not chosen["lora"]:  # with an adapter, TRL looks for the embeddings in the wrong place
        chosen["cast_lm_head_to_fp32"] = one.random() < 0.3
    if chosen["rewards"] == 2:
        chosen["reward_weights"] = one.choice([None, [1.0, 0.5]])
    if rollouts == "engine" and one.random() < 0.5:
        low, high = one.choice([(None, 1.5), (0.5, 2.0), (0.9, None)])
        chosen |= {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_importance_sampling_correction": one.random() < 0.5,
            "vllm_importance_sampling_clip_min": low,
            "vllm_importance_sampling_clip_max": high,
        }
    return chosen


def check(run, configuration: dict) -> None:
    stock = run("stock", configuration)
    plain = run("plain", configuration)
    assert plain["weights"] == stock["weights"]
    assert plain["steps"] == stock["steps"]
    for ours, theirs in zip(plain["rows"], stock["rows"], strict=True):
        for name, value in theirs.items():
            assert same(ours[name], value), (name, ours[name], value)
    shipped = run("shipped", configuration)
    assert shipped["weights"] == pytest.approx(stock["weights"], abs=WEIGHTS, rel=0)
    for ours, theirs in zip(shipped["rows"], stock["rows"], strict=True):
        for name, value in theirs.items():
            assert near(ours[name], value), (name, ours[name], value)


def same(one, other) -> bool:
    both_missing = one is not None and other is not None and one != one and other != other
    return one == other or both_missing


def near(one, other) -> bool:
    if one is None or other is None or math.isnan(one) or math.isnan(other):
        return same(one, other)
    return math.isclose(one, other, rel_tol=METRICS, abs_tol=NEARLY_ZERO)


@pytest.mark.sample(5)
@pytest.mark.parametrize("number", range(CONFIGURATIONS))
def test_one_process(tiny_model, number):
    check(lambda *request: measure(tiny_model, *request), drawn(number))


OF_TWO = range(max(1, CONFIGURATIONS // 3))


@pytest.fixture(scope="module")
def by_two(tiny_model, tmp_path_factory):
    """What two processes measured, which train all configurations in turn."""
    asked = [(kind, number) for number in OF_TWO for kind in ("stock", "plain", "shipped")]
    answers = tmp_path_factory.mktemp("two") / "answers.json"
    requests = [(tiny_model, kind, drawn(number, processes=2)) for kind, number in asked]
    in_two_processes(measure_all, requests, str(answers))
    return dict(zip(asked, json.loads(answers.read_text()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("number", OF_TWO)
def test_two_processes(by_two, number):
    check(lambda kind, _: by_two[kind, number], drawn(number, processes=2))
