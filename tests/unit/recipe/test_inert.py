"""Settings that are reported as inert, for which no gradient is needed to show it."""

import pytest
from trl import ModelConfig

from trl_ablate import AblationConfig, TaskArguments, load_recipe
from trl_ablate.recipe.inert import inert_knobs

ON_CPU = {"use_cpu": True, "bf16": False, "per_device_train_batch_size": 4, "num_generations": 4}


def inert(**given) -> dict[str, str]:
    def those(group) -> dict:
        return {name: value for name, value in given.items() if name in vars(group)}

    task, model = those(TaskArguments()), those(ModelConfig())
    settings = {name: given[name] for name in given.keys() - task.keys() - model.keys()}
    config = AblationConfig(output_dir="unused", **ON_CPU, **settings)
    return inert_knobs(config, TaskArguments(**task), ModelConfig(**model), given)


ONE_GROUP, TWO_GROUPS = {"steps_per_generation": 1}, {"steps_per_generation": 2}
"""A rollout batch of four completions to one question; of eight to two."""
CORRECTION = "vllm_importance_sampling_correction"
OF_TOKENS = {"vllm_importance_sampling_mode": "token_mask"}
OF_SEQUENCES = {"importance_sampling_level": "sequence"}
INT8, STALE = {"sampler_dtype": "int8"}, {"rollout_staleness": 1}
UNCORRECTED = {**INT8, CORRECTION: False}
NO_BASELINE, BEST = {"baseline": "none"}, {"baseline": "best_of_others"}
BY_ADVANTAGE = {"scale_rewards": "advantage_std"}
PLACEBO, GATE = {"placebo": "random"}, {"outcome_gate": "answer"}
TWO_REWARDS = {"template": "reasoning_xml"}
ROLLOUTS = {"rollout_func": "rollout.py:generate"}
VESPO = {"vespo_k_pos": 1.0, "loss_type": "vespo"}
PROBABILITY, GEOMETRIC = {"surrogate": "probability"}, {"surrogate": "geometric"}
BIAS_CORRECTED = {"beta": 0.1, "use_bias_correction_kl": True}
TRUNCATION, NONE_NEGATIVE = {"correct_truncation": True}, {"negative_weight": 0.0}
WORLD, MINE = {"environment_factory": "world.py:World"}, {"reward_funcs": ["mine.score"]}
MASK = {"off_policy_mask_threshold": 0.1}
DEALT = {"regroup_by_length": True, "gradient_accumulation_steps": 4}

ALONE = {
    "length_norm_constant": 12.0, "use_bias_correction_kl": False, "entropy_target": 1.0,
    "eval_steps": 4.0, "vllm_mode": "server", CORRECTION: False, "max_resample_rounds": 5,
    "outcome_gate": "r1_zero", "surrogate": "probability", "sampler_gap_limit": 0.001,
    "covariance_kl": 1.0, "best_of": 2, "overlong_share": 0.5, "correct_truncation": True,
    "reward_timeout": 1.0, "chat_template_kwargs": {"enable_thinking": False}, "use_dora": True,
    "data_seed": 5,
}  # fmt: skip
INERT = [  # the setting comes first
    *({name: value} for name, value in ALONE.items()),
    {"epsilon": 0.3, **PROBABILITY},
    {"scale_rewards": "batch", **ONE_GROUP},
    {**BY_ADVANTAGE, **ONE_GROUP},
    {"baseline": "batch_mean", **ONE_GROUP},
    {"save_steps": 4.0, "save_strategy": "no"},
    {"save_steps": 4.0, "save_strategy": "epoch"},
    {"eval_steps": 4.0, "eval_strategy": "epoch"},
    {"eval_delay": 4.0, "eval_strategy": "no"},
    {"warmup_steps": 10, "lr_scheduler_type": "constant"},
    {"adam_beta2": 0.9, "optim": "rmsprop"},
    {"num_train_epochs": 2.0, "grpo_steps": 4},
    {"grpo_steps": 4, "max_steps": 8},
    {"ref_model_mixup_alpha": 0.5, "beta": 0.1},
    {"on_timeout": "zero", **MINE},
    {"gym": {"size": 5}, "dataset": "miniature/words"},
    {"question_column": "q", "dataset": "miniature/words"},
    {"answer_column": "a", "dataset": "reasoning_gym/gcd"},
    {"skip_bad_rows": True, "dataset": "miniature/words", "eval_sets": {"a": "miniature"}},
    {"skip_idle_rows": True, "trim_microbatches": False},
    {"share_prompts": False, "pad_to_multiple_of": 8},
    {**DEALT, "steps_per_generation": 4, "gradient_accumulation_steps": 1},  # steps of one each
    {**DEALT, "steps_per_generation": 1},  # a rollout batch of one
    {**DEALT, "steps_per_generation": 6},  # a step would sum part of a group
    {**DEALT, "length_norm": "microbatch"},
    {"reuse_forward": False, **INT8},
    {**OF_TOKENS, **UNCORRECTED},
    {"max_resample_rounds": 5, "group_filter": "drop"},
    {"reward_noise": 0.1, **PLACEBO},
    {"hub_strategy": "every_save", "push_to_hub": True},
    {**GATE, **PLACEBO, **TWO_REWARDS},
    {**NONE_NEGATIVE, **NO_BASELINE},
    {**NONE_NEGATIVE, **BEST},
    {"advantage_eps": 0.1, "scale_rewards": "none"},
    {"advantage_eps": 0.1, "multi_objective_aggregation": "normalize_then_sum"},
    {**MASK, "num_iterations": 1},
    {"covariance_share": 0.5, "num_iterations": 2},
    {**VESPO, **UNCORRECTED},
    {**GEOMETRIC, **INT8},  # a ratio of whole completions
    {**GEOMETRIC, **INT8, **BIAS_CORRECTED, "kl_in": "reward"},
    {**GEOMETRIC, **UNCORRECTED, **OF_TOKENS},
    {"surrogate": "reinforce", "top_entropy_quantile": 0.5},
    {"reward_workers": 3, **MINE},
    {"reward": "r1_zero", **MINE},
    {"prompt_style": "full", "prompt_column": "p", "eval_sets": {"a": {"filter": "level > 3"}}},
]
EFFECTIVE = [
    {"share_prompts": False},
    {"advantage_eps": 0.1},
    DEALT,
    {**DEALT, "regroup_by_length": False},
    {"length_norm_constant": 12.0, "length_norm": "constant"},
    {"scale_rewards": "batch", **TWO_GROUPS},
    {**BY_ADVANTAGE, **TWO_GROUPS},
    {**BY_ADVANTAGE, **BEST, **ONE_GROUP},
    {"kl_estimator": "k1", "beta": 0.1},
    {"ref_model_mixup_alpha": 0.5, "beta": 0.1, "sync_ref_model": True},
    {"eval_steps": 4.0, "eval_strategy": "steps"},
    {"warmup_steps": 10, "lr_scheduler_type": "linear"},
    {"adam_beta2": 0.9, "optim": "adamw_torch"},
    {"num_train_epochs": 2.0},
    {"grpo_steps": 4, "max_steps": -1},
    {"use_dora": True, "use_peft": True},
    {"chat_template_kwargs": {}, "template": "think_xml"},
    {"chat_template_kwargs": {}, "system_prompt": ""},
    {"chat_template_kwargs": {}, "prompt_column": "p"},
    {"gym": {"min_words": 4}, "dataset": "reasoning_gym/letter_counting"},
    {"question_column": "q", "dataset": "gsm8k"},
    {"skip_bad_rows": True, "dataset": "miniature/words", "eval_sets": {"a": "gsm8k"}},
    {"on_timeout": "zero", **MINE, "eval_sets": {"a": {"reward": "r1_zero"}}},
    {"reward_timeout": 1.0, "eval_sets": {"a": MINE}},
    {"reward_workers": 3, "eval_sets": {"a": "reasoning_gym/gcd"}},
    {CORRECTION: False, **STALE},
    {CORRECTION: False, "min_p": 0.1, **TRUNCATION},
    {**OF_TOKENS, **INT8},
    {"max_resample_rounds": 5, "group_filter": "resample"},
    {**GATE, **TWO_REWARDS},
    {"outcome_gate": "r1_zero", "eos_penalty": 0.5},
    NONE_NEGATIVE,
    {**NONE_NEGATIVE, **NO_BASELINE, "eos_penalty": 0.5},
    {**NONE_NEGATIVE, **NO_BASELINE, "overlong_penalty": 0.5},
    {**NONE_NEGATIVE, **NO_BASELINE, "reward_weights": [1.0, -1.0], **TWO_REWARDS},
    {**NONE_NEGATIVE, **BEST, **GATE, **TWO_REWARDS},
    {"reuse_forward": False, "use_vllm": True},
    {**MASK, "num_iterations": 2},
    {**MASK, **ROLLOUTS},
    {**PROBABILITY, **INT8},
    {**PROBABILITY, **ROLLOUTS},
    {"sampler_gap_limit": 0.001, **UNCORRECTED},
    {"covariance_kl": 1.0, "num_iterations": 2},
    {"best_of": 2, **BEST},
    {"overlong_share": 0.5, "overlong_penalty": 0.5},
    {**TRUNCATION, "top_k": 5},
    {**VESPO, "rollout_staleness": 2},
    {**GEOMETRIC, **BIAS_CORRECTED},
    {**GEOMETRIC, **INT8, **OF_TOKENS},
    {"surrogate": "one_sided", "top_entropy_quantile": 0.5, **OF_SEQUENCES},
    {**NONE_NEGATIVE, **NO_BASELINE, **WORLD},
    {"outcome_gate": "score", **MINE, **WORLD},
    {"reward": "r1_zero", "reward_funcs": ["reasoning_gym"]},
    {"reward": "r1_zero", **MINE, "eval_sets": {"a": {"reward_funcs": ["answer"]}}},
    {"reward_workers": 3, "dataset": "reasoning_gym/gcd"},  # its scorer always runs in workers
    {"prompt_style": "full", "prompt_column": "p", "eval_sets": {"a": "gsm8k"}},
]


@pytest.mark.parametrize(
    ("settings", "silent"),
    [*((case, True) for case in INERT), *((case, False) for case in EFFECTIVE)],
)
def test_a_setting_is_inert_with_some_others(settings, silent):
    assert (next(iter(settings)) in inert(**settings)) is silent


def test_a_recipe_reports_them_with_a_reason():
    found = load_recipe("grpo", "miniature", {"reward_timeout": 1.0}).inert
    assert found["reward_timeout"] == "reward_funcs names no function"
