"""Random legal configurations, trained by stock TRL and by `AblationTrainer`.

With TRL's padding and microbatches, weights and all logged metrics are bit-equal. With our default
speed-ups, they are equal up to rounding. `TRL_ABLATE_CONFIGS=500` tests 500 configurations in one
process, and a third as many with two processes.
"""

import math
import os

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.contract.alike import Pair, measure

CONFIGURATIONS = int(os.environ.get("TRL_ABLATE_CONFIGS", "16"))
WEIGHTS = 1e-5
METRICS = 1e-4
NEARLY_ZERO = 2e-6
"""Absolute: a KL of two policies that are the same is rounding."""

STEADY = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "phases": [Phase.generate],  # a failing example is not shrunk: this would take many trainings
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}


@st.composite
def configurations(draw, processes: int = 1):
    """A random configuration that TRL accepts, with the properties of its rollouts."""
    group = draw(st.sampled_from([2, 3, 4]))
    rows = draw(st.integers(1, 4)) * group * (1 if group % processes == 0 else processes)
    at_once = draw(st.sampled_from([b for b in range(1, rows + 1) if rows % (b * processes) == 0]))
    groups = rows // group
    rollouts = draw(st.sampled_from(["engine", "engine", "function", "function", "model"]))
    optimizer = draw(st.sampled_from(["sgd", "sgd", "adamw_torch"]))
    chosen = {
        "seed": draw(st.integers(0, 99)),
        "questions": draw(st.integers(groups, min(39, 4 * groups))),
        "rewards": draw(st.integers(1, 2)),
        "rollouts": rollouts,
        "tool": rollouts == "function" and draw(st.booleans()),
        "lora": draw(st.sampled_from([False, False, True])),
        "num_generations": group,
        "per_device_train_batch_size": at_once,
        "generation_batch_size": rows,
        "gradient_accumulation_steps": draw(st.integers(1, 6)),
        "num_iterations": draw(st.integers(1, 3)),
        "max_steps": draw(st.integers(2, 4)),
        "logging_steps": draw(st.integers(1, 2)),
        "loss_type": draw(
            st.sampled_from(["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
        ),
        "importance_sampling_level": draw(st.sampled_from(["token", "token", "sequence"])),
        "epsilon": draw(st.sampled_from([0.2, 0.02])),
        "epsilon_high": draw(st.sampled_from([None, 0.3, 1.01])),
        "delta": draw(st.sampled_from([None, None, 1.1])),
        "beta": draw(st.sampled_from([0.0, 0.1])),
        "use_bias_correction_kl": draw(st.booleans()),
        "scale_rewards": draw(st.sampled_from(["group", "batch", "none"])),
        "multi_objective_aggregation": draw(
            st.sampled_from(["sum_then_normalize", "sum_then_normalize", "normalize_then_sum"])
        ),
        "mask_truncated_completions": draw(st.booleans()),
        "shuffle_dataset": draw(st.booleans()),
        "off_policy_mask_threshold": draw(st.sampled_from([None, None, 0.01])),
        "pad_to_multiple_of": draw(st.sampled_from([None, None, 8])),
        "optim": optimizer,
        "learning_rate": 0.3 if optimizer == "sgd" else 1e-3,
        "adam_epsilon": 1e-4,  # or Adam takes full steps on rounding errors
        "max_grad_norm": draw(st.sampled_from([1.0, 0.0])),
        **draw(entropy_terms()),
    }
    if chosen["multi_objective_aggregation"] == "normalize_then_sum":
        chosen["scale_rewards"] = "group"  # TRL ignores it here; ours refuses any other value
    if not chosen["lora"]:  # with an adapter, TRL looks for the embeddings in the wrong place
        chosen["cast_lm_head_to_fp32"] = draw(st.sampled_from([False, False, True]))
    if chosen["rewards"] == 2:
        chosen["reward_weights"] = draw(st.sampled_from([None, [1.0, 0.5]]))
    if rollouts == "engine" and draw(st.booleans()):
        chosen |= draw(engine_corrections(chosen["loss_type"]))
    return chosen


@st.composite
def entropy_terms(draw):
    kind = draw(st.sampled_from(["none", "none", "none", "bonus", "adaptive", "quantile"]))
    return {
        "none": {},
        "bonus": {"entropy_coef": 0.01},
        "adaptive": {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 5.0},
        "quantile": {"top_entropy_quantile": 0.5},
    }[kind]


@st.composite
def engine_corrections(draw, loss_type: str):
    modes = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
    low, high = draw(st.sampled_from([(None, 1.5), (0.5, 2.0), (0.9, None)]))
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_importance_sampling_correction": draw(st.booleans()),
        "vllm_importance_sampling_mode": draw(
            st.sampled_from(modes[:2] if loss_type == "vespo" else modes)
        ),
        "vllm_importance_sampling_clip_min": low,
        "vllm_importance_sampling_clip_max": high,
    }


def taken_by_stock(run, configuration: dict) -> dict:
    try:
        return run("stock", configuration)
    except ValueError as error:
        assume(f"stock refuses: {error}" == "")
        raise AssertionError from error


def check(run, configuration: dict) -> None:
    stock = taken_by_stock(run, configuration)
    plain = run("plain", configuration)
    assert plain["weights"] == stock["weights"]
    assert plain["steps"] == stock["steps"]
    for ours, theirs in zip(plain["rows"], stock["rows"], strict=True):
        for name, value in theirs.items():
            assert same(ours[name], value), (name, ours[name], value)
    shipped = run("shipped", configuration)
    for name, weights in stock["weights"].items():
        assert shipped["weights"][name] == pytest.approx(weights, abs=WEIGHTS, rel=0), name
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


@pytest.mark.slow
@settings(max_examples=CONFIGURATIONS, **STEADY)
@given(configuration=configurations())
def test_one_process(tiny_model, configuration):
    check(lambda *request: measure(tiny_model, *request), configuration)


@pytest.fixture(scope="module")
def pair(tiny_model):
    """Two processes that train the configurations they receive."""
    processes = Pair(tiny_model)
    yield processes
    processes.close()


@pytest.mark.slow
@settings(max_examples=max(1, CONFIGURATIONS // 3), **STEADY)
@given(configuration=configurations(processes=2))
def test_two_processes(pair, configuration):
    check(pair.measure, configuration)
