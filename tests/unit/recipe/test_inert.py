"""Settings that are reported as inert, for which no gradient is needed to show it."""

import pytest
from trl import ModelConfig

from trl_ablate import AblationConfig, TaskArguments
from trl_ablate.recipe.inert import inert_knobs


def inert(task: TaskArguments | None = None, **settings) -> dict[str, str]:
    batches = {"per_device_train_batch_size": 4, "num_generations": 4}
    config = AblationConfig(output_dir="unused", use_cpu=True, bf16=False, **batches, **settings)
    return inert_knobs(config, task or TaskArguments(), ModelConfig(), settings)


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
    batches = {"steps_per_generation": rollout, "gradient_accumulation_steps": accumulated}
    found = inert(**batches, regroup_by_length=on)
    assert ("nothing to regroup" in found.get("regroup_by_length", "")) is silent


def test_regrouping_is_inert_where_a_row_depends_on_its_neighbours():
    found = inert(gradient_accumulation_steps=4, regroup_by_length=True, length_norm="microbatch")
    assert "depends on its microbatch" in found["regroup_by_length"]


ONE_GROUP = {"steps_per_generation": 1}
"""A rollout batch of four completions to one question."""
TWO_GROUPS = {"steps_per_generation": 2}
CORRECTION = "vllm_importance_sampling_correction"
MASKS = {"vllm_importance_sampling_mode": "token_mask"}
UNCORRECTED = {"sampler_dtype": "int8", CORRECTION: False}
LONG = {"overlong_penalty": 0.5}
BEST = {"baseline": "best_of_others"}
BY_ADVANTAGE = {"scale_rewards": "advantage_std"}
PLACEBO = {"placebo": "random"}
TWO_REWARDS = TaskArguments(template="reasoning_xml")
PENALTY = TaskArguments(eos_penalty=0.5)
ROLLOUTS = TaskArguments(rollout_func="rollout.py:generate")
VESPO = {"loss_type": "vespo"}
GEOMETRIC = {"surrogate": "geometric"}
BIAS_CORRECTED = {"beta": 0.1, "use_bias_correction_kl": True}

INERT_ALONE = {
    "length_norm_constant": 12.0, "use_bias_correction_kl": False, "kl_in": "reward",
    "kl_estimator": "k1", "entropy_target": 1.0, "eval_steps": 4.0, "vllm_mode": "server",
    CORRECTION: False, "max_resample_rounds": 5, "outcome_gate": "r1_zero",
    "surrogate": "probability", "sampler_gap_limit": 0.001, "covariance_kl": 1.0, "best_of": 2,
    "overlong_share": 0.5, "correct_truncation": True,
}  # fmt: skip
EFFECTIVE_ALONE = {
    "reward_noise": 0.1, "negative_weight": 0.0, "share_prompts": False, "advantage_eps": 0.1,
}  # fmt: skip
INERT = [  # the setting, the others, the task
    *(({name: value}, {}, None) for name, value in INERT_ALONE.items()),
    ({"epsilon": 0.3}, {"surrogate": "probability"}, None),
    ({"scale_rewards": "batch"}, ONE_GROUP, None),
    (BY_ADVANTAGE, ONE_GROUP, None),
    ({"baseline": "batch_mean"}, ONE_GROUP, None),
    ({"save_steps": 4.0}, {"save_strategy": "no"}, None),
    ({"skip_idle_rows": True}, {"trim_microbatches": False}, None),
    ({"share_prompts": True}, {"pad_to_multiple_of": 8}, None),
    ({"share_prompts": False}, {"pad_to_multiple_of": 8}, None),
    ({"reuse_forward": False}, {"sampler_dtype": "int8"}, None),
    (MASKS, UNCORRECTED, None),
    ({"max_resample_rounds": 5}, {"group_filter": "drop"}, None),
    ({"reward_noise": 0.1}, PLACEBO, None),
    ({"hub_strategy": "every_save"}, {"push_to_hub": True}, None),
    ({"hub_always_push": True}, {"push_to_hub": True}, None),
    ({"outcome_gate": "answer"}, PLACEBO, TWO_REWARDS),
    ({"negative_weight": 0.0}, {"baseline": "none"}, None),
    ({"negative_weight": 0.0}, BEST, None),
    ({"advantage_eps": 0.1}, {"scale_rewards": "none"}, None),
    ({"advantage_eps": 0.1}, {"multi_objective_aggregation": "normalize_then_sum"}, None),
    ({"off_policy_mask_threshold": 0.1}, {"num_iterations": 1}, None),
    ({"surrogate": "clip"}, {"sampler_dtype": "int8"}, None),
    ({"covariance_share": 0.5}, {"num_iterations": 2}, None),
    ({"vespo_k_pos": 1.0}, {**VESPO, **UNCORRECTED}, None),
    (GEOMETRIC, {"sampler_dtype": "int8"}, None),  # a ratio of whole completions
    (GEOMETRIC, {"sampler_dtype": "int8", **BIAS_CORRECTED, "kl_in": "reward"}, None),
    (GEOMETRIC, {**UNCORRECTED, **MASKS}, None),
]
EFFECTIVE = [
    *(({name: value}, {}, None) for name, value in EFFECTIVE_ALONE.items()),
    ({"length_norm_constant": 12.0}, {"length_norm": "constant"}, None),
    ({"scale_rewards": "batch"}, TWO_GROUPS, None),
    (BY_ADVANTAGE, TWO_GROUPS, None),
    (BY_ADVANTAGE, {**BEST, **ONE_GROUP}, None),
    (BY_ADVANTAGE, {"baseline": "leave_one_out", **ONE_GROUP}, None),
    ({"use_bias_correction_kl": False}, {"beta": 0.1}, None),
    ({"kl_in": "reward"}, {"beta": 0.1}, None),
    ({"kl_estimator": "k1"}, {"beta": 0.1}, None),
    ({CORRECTION: False}, {"rollout_staleness": 1}, None),
    ({CORRECTION: False}, {"min_p": 0.1, "correct_truncation": True}, None),
    (MASKS, {"sampler_dtype": "int8"}, None),
    ({"max_resample_rounds": 5}, {"group_filter": "resample"}, None),
    ({"outcome_gate": "answer"}, {}, TWO_REWARDS),
    ({"outcome_gate": "r1_zero"}, {}, PENALTY),
    ({"negative_weight": 0.0}, {"baseline": "none"}, PENALTY),
    ({"negative_weight": 0.0}, {"baseline": "none", **LONG}, None),
    ({"negative_weight": 0.0}, {**BEST, "outcome_gate": "answer"}, TWO_REWARDS),
    ({"negative_weight": 0.0}, {"baseline": "none", "outcome_gate": "answer"}, TWO_REWARDS),
    ({"negative_weight": 0.0}, {"baseline": "none", "reward_weights": [1.0, -1.0]}, TWO_REWARDS),
    ({"reuse_forward": False}, {"use_vllm": True}, None),
    ({"off_policy_mask_threshold": 0.1}, {"num_iterations": 2}, None),
    ({"off_policy_mask_threshold": 0.1}, {"rollout_staleness": 1}, None),
    ({"surrogate": "probability"}, {"sampler_dtype": "int8"}, None),
    ({"sampler_gap_limit": 0.001}, UNCORRECTED, None),
    ({"covariance_kl": 1.0}, {"num_iterations": 2}, None),
    ({"best_of": 2}, BEST, None),
    ({"overlong_share": 0.5}, LONG, None),
    ({"correct_truncation": True}, {"top_k": 5}, None),
    ({"correct_truncation": True}, {"top_k": 5, "rollout_staleness": 1}, None),
    ({"vespo_k_pos": 1.0}, {**VESPO, "rollout_staleness": 2}, None),
    (GEOMETRIC, {"top_entropy_quantile": 0.2}, None),
    (GEOMETRIC, BIAS_CORRECTED, None),
    (GEOMETRIC, {"sampler_dtype": "int8", **MASKS}, None),
    ({"off_policy_mask_threshold": 0.1}, {}, ROLLOUTS),
    ({"surrogate": "probability"}, {}, ROLLOUTS),
]


@pytest.mark.parametrize(
    ("setting", "others", "task", "silent"),
    [*((*case, True) for case in INERT), *((*case, False) for case in EFFECTIVE)],
)
def test_a_setting_is_inert_with_some_others(setting, others, task, silent):
    (name,) = setting
    assert (name in inert(task, **setting, **others)) is silent


WORKERS = ("reward_timeout", "reward_workers")
PROMPT = ("system_prompt", "prompt_style")


@pytest.mark.parametrize(
    ("task", "named", "inert_ones"),
    [
        ({"dataset": "math"}, WORKERS, 2),
        ({"dataset": "reasoning_gym/gcd"}, WORKERS, 0),  # its scorer always runs in workers
        ({}, PROMPT, 0),
        ({"prompt_column": "prompt", "eval_sets": {"hard": {"filter": "level > 3"}}}, PROMPT, 2),
        ({"prompt_column": "prompt", "eval_sets": {"other": "gsm8k"}}, PROMPT, 0),
    ],
)
def test_settings_of_the_task_that_are_inert(task, named, inert_ones):
    config = AblationConfig(output_dir="unused", use_cpu=True, bf16=False)
    assert len(inert_knobs(config, TaskArguments(**task), ModelConfig(), named)) == inert_ones
