"""Settings that are reported as inert, for which no gradient is needed to show it."""

import pytest
from trl import ModelConfig

from trl_ablate import AblationConfig, TaskArguments
from trl_ablate.recipe.inert import inert_knobs


def inert(task: TaskArguments | None = None, **settings) -> dict[str, str]:
    batches = {"per_device_train_batch_size": 4, "num_generations": 4}
    config = AblationConfig(output_dir="unused", use_cpu=True, bf16=False, **batches, **settings)
    return inert_knobs(config, task or TaskArguments(), ModelConfig(), settings)


ONE_GROUP = {"steps_per_generation": 1}
"""A rollout batch of four completions to one question."""
TWO_GROUPS = {"steps_per_generation": 2}


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize(
    ("rollout", "accumulated", "silent"),
    [
        (4, 4, False),
        (2, 4, False),
        (4, 2, False),
        (4, 1, True),  # an optimizer step is one microbatch
        (1, 4, True),  # a rollout batch is one microbatch
        (6, 4, True),  # an optimizer step would sum part of a group
    ],
)
def test_regrouping_is_inert_where_there_is_nothing_to_regroup(rollout, accumulated, silent, on):
    found = inert(
        steps_per_generation=rollout,
        gradient_accumulation_steps=accumulated,
        regroup_by_length=on,
    )
    assert ("regroup_by_length" in found) is silent
    if silent:
        assert "nothing to regroup" in found["regroup_by_length"]


def test_regrouping_is_inert_where_a_row_depends_on_its_neighbours():
    found = inert(gradient_accumulation_steps=4, regroup_by_length=True, length_norm="microbatch")
    assert "depends on its microbatch" in found["regroup_by_length"]


CORRECTION = "vllm_importance_sampling_correction"
EPS, MASK = "advantage_eps", "off_policy_mask_threshold"
MASKS = {"vllm_importance_sampling_mode": "token_mask"}
UNCORRECTED = {"sampler_dtype": "int8", CORRECTION: False}
LONG = {"overlong_penalty": 0.5}
BEST = {"baseline": "best_of_others"}
GATED = {"outcome_gate": "answer"}
TWO_REWARDS = TaskArguments(template="reasoning_xml")
PENALTY = TaskArguments(eos_penalty=0.5)


@pytest.mark.parametrize(
    ("knob", "settings", "task", "silent"),
    [
        ("length_norm_constant", {"length_norm_constant": 12.0}, None, True),
        (
            "length_norm_constant",
            {"length_norm_constant": 12.0, "length_norm": "constant"},
            None,
            False,
        ),
        ("epsilon", {"epsilon": 0.3}, None, True),
        ("epsilon", {"epsilon": 0.3, "num_iterations": 2}, None, False),
        ("epsilon", {"epsilon": 0.3, "num_iterations": 2, "surrogate": "no_clip"}, None, True),
        ("delta", {"delta": 0.5}, None, False),
        ("delta", {"delta": 1.5}, None, True),
        ("delta", {"delta": 1.5, "loss_type": "cispo"}, None, True),
        ("vespo_k_pos", {"vespo_k_pos": 1.0}, None, True),
        ("scale_rewards", {"scale_rewards": "batch", **ONE_GROUP}, None, True),
        ("scale_rewards", {"scale_rewards": "batch", **TWO_GROUPS}, None, False),
        ("baseline", {"baseline": "batch_mean", **ONE_GROUP}, None, True),
        ("use_bias_correction_kl", {"use_bias_correction_kl": False}, None, True),
        ("use_bias_correction_kl", {"use_bias_correction_kl": False, "beta": 0.1}, None, False),
        ("entropy_target", {"entropy_target": 1.0}, None, True),
        ("eval_steps", {"eval_steps": 4.0}, None, True),
        ("save_steps", {"save_steps": 4.0, "save_strategy": "no"}, None, True),
        ("vllm_mode", {"vllm_mode": "server"}, None, True),
        ("skip_idle_rows", {"skip_idle_rows": True, "trim_microbatches": False}, None, True),
        ("share_prompts", {"share_prompts": True, "pad_to_multiple_of": 8}, None, True),
        (CORRECTION, {CORRECTION: False}, None, True),
        (CORRECTION, {CORRECTION: False, "rollout_staleness": 1}, None, False),
        ("vllm_importance_sampling_mode", {**MASKS, "sampler_dtype": "int8"}, None, False),
        ("vllm_importance_sampling_mode", {**MASKS, **UNCORRECTED}, None, True),
        ("kl_in", {"kl_in": "reward"}, None, True),
        ("kl_in", {"kl_in": "reward", "beta": 0.1}, None, False),
        ("kl_estimator", {"kl_estimator": "k1"}, None, True),
        ("kl_estimator", {"kl_estimator": "k1", "beta": 0.1}, None, False),
        ("max_resample_rounds", {"max_resample_rounds": 5}, None, True),
        ("max_resample_rounds", {"max_resample_rounds": 5, "group_filter": "drop"}, None, True),
        (
            "max_resample_rounds",
            {"max_resample_rounds": 5, "group_filter": "resample"},
            None,
            False,
        ),
        ("reward_noise", {"reward_noise": 0.1, "placebo": "random"}, None, True),
        ("reward_noise", {"reward_noise": 0.1}, None, False),
        ("outcome_gate", {"outcome_gate": "answer", "placebo": "random"}, TWO_REWARDS, True),
        ("outcome_gate", {"outcome_gate": "answer"}, TWO_REWARDS, False),
        ("outcome_gate", {"outcome_gate": "r1_zero"}, None, True),
        ("outcome_gate", {"outcome_gate": "r1_zero"}, PENALTY, False),
        ("negative_weight", {"negative_weight": 0.0, "baseline": "none"}, None, True),
        ("negative_weight", {"negative_weight": 0.0, "baseline": "none"}, PENALTY, False),
        ("negative_weight", {"negative_weight": 0.0}, None, False),
        ("negative_weight", {"negative_weight": 0.0, "baseline": "none", **LONG}, None, False),
        (EPS, {EPS: 0.1}, None, False),
        (EPS, {EPS: 0.1, "scale_rewards": "none"}, None, True),
        (EPS, {EPS: 0.1, "multi_objective_aggregation": "normalize_then_sum"}, None, True),
        (MASK, {MASK: 0.1, "num_iterations": 1}, None, True),
        (MASK, {MASK: 0.1, "num_iterations": 2}, None, False),
        (MASK, {MASK: 0.1, "rollout_staleness": 1}, None, False),
        ("surrogate", {"surrogate": "probability"}, None, True),
        ("epsilon", {"surrogate": "probability", "epsilon": 0.3}, None, True),
        ("surrogate", {"surrogate": "probability", "sampler_dtype": "int8"}, None, False),
        ("surrogate", {"surrogate": "clip", "sampler_dtype": "int8"}, None, True),
        ("sampler_gap_limit", {"sampler_gap_limit": 0.001}, None, True),
        ("sampler_gap_limit", {"sampler_gap_limit": 0.001, **UNCORRECTED}, None, False),
        ("covariance_kl", {"covariance_kl": 1.0}, None, True),  # on-policy
        ("covariance_kl", {"covariance_kl": 1.0, "num_iterations": 2}, None, False),
        ("covariance_share", {"covariance_share": 0.5, "num_iterations": 2}, None, True),
        ("best_of", {"best_of": 2}, None, True),
        ("best_of", {"best_of": 2, **BEST}, None, False),
        ("negative_weight", {"negative_weight": 0.0, **BEST}, None, True),
        ("negative_weight", {"negative_weight": 0.0, **BEST, **GATED}, TWO_REWARDS, False),
        ("scale_rewards", {"scale_rewards": "advantage_std", **BEST, **ONE_GROUP}, None, False),
        ("overlong_share", {"overlong_share": 0.5}, None, True),
        ("overlong_share", {"overlong_share": 0.5, **LONG}, None, False),
        ("correct_truncation", {"correct_truncation": True}, None, True),
        ("correct_truncation", {"correct_truncation": True, "top_k": 5}, None, False),
        (
            "correct_truncation",
            {"correct_truncation": True, "top_k": 5, "rollout_staleness": 1},
            None,
            False,
        ),
        (CORRECTION, {CORRECTION: False, "min_p": 0.1, "correct_truncation": True}, None, False),
        ("scale_rewards", {"scale_rewards": "advantage_std", **ONE_GROUP}, None, True),
        ("scale_rewards", {"scale_rewards": "advantage_std", **TWO_GROUPS}, None, False),
        (
            "scale_rewards",
            {"scale_rewards": "advantage_std", "baseline": "leave_one_out", **ONE_GROUP},
            None,
            False,
        ),
    ],
)
def test_switches_of_groups_and_rewards(knob, settings, task, silent):
    assert (knob in inert(task, **settings)) is silent
