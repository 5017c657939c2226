"""Inert knobs: settings that have no effect with the rest of the config.

An ablation over such a setting compares an arm with itself. Each rule is the condition under which
settings have no effect, their names, and the reason; only settings that a recipe's layers set are
reported.
"""

from collections.abc import Collection
from copy import copy

from trl import ModelConfig

from trl_ablate.config import SURROGATE_LOSS_TYPES, AblationConfig
from trl_ablate.recipe.agreement import reward_names
from trl_ablate.reward_specs import GYM_SCORE
from trl_ablate.task import TaskArguments

Rule = tuple[bool, str, str]

ON_POLICY = "fully on-policy: every ratio is 1"
OF_EVALUATION = (
    "num_generations_eval eval_sets eval_by eval_temperature eval_top_p evaluation eval_steps "
    "eval_on_start best_metric"
)
OF_THE_ENGINE = (
    "vllm_mode vllm_model_impl vllm_gpu_memory_utilization vllm_enable_sleep_mode "
    "vllm_max_model_length vllm_tensor_parallel_size"
)
HOW_IT_CORRECTS = (
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_clip_min"
)


def inert_knobs(
    config: AblationConfig, task: TaskArguments, model: ModelConfig, given: Collection[str]
) -> dict[str, str]:
    """The settings among `given` that have no effect, each with the reason."""
    adapters = " ".join(knob for knob in given if knob.startswith("lora_"))
    rules = [
        *_clip_rules(config, task),
        *_objective_rules(config, task),
        *_row_rules(config),
        *_advantage_rules(config),
        *_reward_rules(config, task),
        *_term_rules(config),
        *_generation_rules(config),
        (not model.use_peft, adapters, "use_peft is false"),
        (True, "hub_strategy hub_always_push", "a run is published once, after it has ended"),
    ]
    return {
        knob: why for holds, knobs, why in rules if holds for knob in knobs.split() if knob in given
    }


def _has_sampling_logps(config: AblationConfig, task: TaskArguments) -> bool:
    """Whether the loss has the sampler's log-probabilities: TRL wants them of a rollout_func."""
    return config.knows_sampler or task.rollout_func is not None


def _clip_rules(config: AblationConfig, task: TaskArguments) -> list[Rule]:
    """How TRL's losses use epsilon, epsilon_high and delta.

    At ratio 1 a clip range around 1 has no effect. A delta below 1 has one, and so has the cap of
    'cispo', which is epsilon_high itself and not 1 + epsilon_high. A geometric ratio has one
    gradient for all tokens of a completion, which differs where tokens have weights.
    """
    clips, loss_type = config.loss_type in SURROGATE_LOSS_TYPES, config.loss_type
    moved = config.surrogate == "probability" and _has_sampling_logps(config, task)
    at_one = clips and config.on_policy and not moved
    weighs_tokens = (
        config.top_entropy_quantile < 1.0
        or (config.corrects_sampler and config.vllm_importance_sampling_mode.startswith("token"))
        or (config.beta != 0 and config.kl_in == "loss" and config.use_bias_correction_kl)
    )
    spread = config.surrogate == "geometric" and weighs_tokens
    capped_at_one = config.delta is not None and config.delta < 1
    unclipped = clips and config.surrogate in ("no_clip", "reinforce", "one_sided")
    same = f"{ON_POLICY}, so clip, no_clip and reinforce have the same gradient"
    no_clip = f"surrogate '{config.surrogate}' does not clip"
    own_clip = f"loss_type '{loss_type}' does not clip"
    one_bound = "loss_type 'cispo' has no lower bound, and epsilon_high is its upper one"
    return [
        (at_one, "epsilon epsilon_high", same),
        (at_one and not spread, "surrogate", same),
        (at_one and not capped_at_one, "delta", same),
        (unclipped, "epsilon epsilon_high", no_clip),
        (unclipped and not capped_at_one, "delta", no_clip),
        (loss_type in ("sapo", "vespo"), "epsilon epsilon_high delta", own_clip),
        (loss_type == "cispo", "delta", "loss_type 'cispo' does not read it"),
        (loss_type == "cispo" and config.epsilon_high is not None, "epsilon", one_bound),
    ]


def _objective_rules(config: AblationConfig, task: TaskArguments) -> list[Rule]:
    own_rollouts = not _has_sampling_logps(config, task)
    temperatures = "sapo_temperature_neg sapo_temperature_pos"
    weights = "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg"
    slope = f"{ON_POLICY}, where the slope is 1 at any temperature"
    other_norm = f"length_norm is '{config.length_norm}', not 'constant'"
    masked = f"{ON_POLICY}, so no rollout is off-policy"
    return [
        (config.length_norm != "constant", "length_norm_constant", other_norm),
        (config.on_policy and own_rollouts, "off_policy_mask_threshold", masked),
        (config.on_policy, temperatures, slope),
        (config.loss_type != "sapo", temperatures, "no sapo loss"),
        (
            config.on_policy and not config.corrects_sampler,
            weights,
            f"{ON_POLICY}, and so is every weight",
        ),
        (config.loss_type != "vespo", weights, "no vespo loss"),
    ]


def _switched_on(config: AblationConfig, switch: str) -> AblationConfig:
    """A copy with the switch on: whether a switch has an effect does not depend on its value."""
    found = copy(config)
    setattr(found, switch, True)
    return found


def _row_rules(config: AblationConfig) -> list[Rule]:
    """How the rows of a microbatch are computed."""
    together = _switched_on(config, "regroup_by_length").regrouped_together
    nothing_to_regroup = config.rows_are_independent and together == 1
    trims = config.trim_microbatches
    return [
        (
            not config.rows_are_independent,
            "regroup_by_length",
            "a row's share of this loss depends on its microbatch, which stays as drawn",
        ),
        (
            nothing_to_regroup,
            "regroup_by_length",
            "an optimizer step or a rollout batch is one microbatch, or neither divides the other: "
            "there is nothing to regroup",
        ),
        (
            not trims,
            "share_prompts skip_idle_rows",
            "trim_microbatches is off, and microbatches are computed as by TRL",
        ),
        (
            trims and not _switched_on(config, "share_prompts").shares_prompts,
            "share_prompts",
            "widths are multiples, for torch_compile or pad_to_multiple_of",
        ),
    ]


def _advantage_rules(config: AblationConfig) -> list[Rule]:
    one_group = config.generation_batch_size == config.num_generations
    own_normalisation = config.multi_objective_aggregation == "normalize_then_sum"
    best_of_others = config.baseline == "best_of_others"
    not_centred = config.baseline in ("leave_one_out", "best_of_others")
    advantage_std = config.scale_rewards == "advantage_std" and not not_centred
    one = "the rollout batch is one group, so "
    return [
        (config.scale_rewards == "none", "advantage_eps", "scale_rewards is 'none'"),
        (
            own_normalisation,
            "advantage_eps",
            "multi_objective_aggregation 'normalize_then_sum' is TRL's own, with an eps of 1e-4",
        ),
        (not best_of_others, "best_of", f"baseline is '{config.baseline}', not 'best_of_others'"),
        (
            best_of_others and config.outcome_gate is None,
            "negative_weight",
            "baseline is 'best_of_others', and no advantage is negative",
        ),
        (
            one_group and config.scale_rewards == "batch",
            "scale_rewards",
            f"{one}its std is the group's",
        ),
        (
            one_group and advantage_std,
            "scale_rewards",
            f"{one}the std of its advantages is that of its rewards",
        ),
        (
            one_group and config.baseline == "batch_mean",
            "baseline",
            f"{one}its mean is the group's",
        ),
    ]


def _reward_rules(config: AblationConfig, task: TaskArguments) -> list[Rule]:
    of_kl = config.beta != 0 and config.kl_in == "reward"
    named = [one.path for one in task.own_rewards]
    weights = config.reward_weights or []
    may_be_negative = (
        config.overlong_penalty or of_kl or task.eos_penalty or named
        or config.outcome_gate or any(weight < 0 for weight in weights)
    )  # fmt: skip
    others = bool(named) and not {"answer", "format"} & set(named)
    sets = [task, *map(task.evaluation_task, task.eval_sets or {})]
    return [
        (
            config.group_filter != "resample",
            "max_resample_rounds",
            f"group_filter is '{config.group_filter}', not 'resample'",
        ),
        (
            config.placebo is not None,
            "reward_noise outcome_gate",
            f"placebo '{config.placebo}' takes the place of all rewards",
        ),
        (
            len(reward_names(task)) == 1,
            "outcome_gate",
            "there is one reward function, so nothing is left to act within its outcome",
        ),
        (
            config.baseline == "none" and not may_be_negative,
            "negative_weight",
            "baseline is 'none' and no reward is negative, so no advantage is",
        ),
        (config.overlong_penalty == 0, "overlong_share", "overlong_penalty is 0"),
        (
            task.reward_funcs is None and GYM_SCORE not in named,
            "reward_timeout reward_workers",
            "reward_funcs names no function",
        ),
        (
            task.reward_timeout is None and GYM_SCORE not in named,
            "reward_workers",
            "reward_timeout is null: functions run in this process",
        ),
        (others, "reward", "reward_funcs names no reward that reads a template's format"),
        (
            all(one.prompt_column is not None for one in sets),
            "system_prompt prompt_style",
            "prompt_column gives the whole prompt",
        ),
    ]


def _term_rules(config: AblationConfig) -> list[Rule]:
    of_beta = (
        "kl_estimator kl_in use_bias_correction_kl sync_ref_model ref_model_mixup_alpha "
        "ref_model_sync_steps"
    )
    adaptive = "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"
    no_log_ratio = f"{ON_POLICY}, so the log ratio of every token is 0"
    moved = "kl_in is 'reward': there is no KL term in the loss"
    return [
        (config.beta == 0, of_beta, "beta is 0: there is no KL term"),
        (config.kl_in == "reward", "use_bias_correction_kl", moved),
        (config.covariance_kl == 0, "covariance_share", "covariance_kl is 0"),
        (config.on_policy, "covariance_kl covariance_share", no_log_ratio),
        (not config.use_adaptive_entropy, adaptive, "use_adaptive_entropy is false"),
        (config.eval_strategy == "no", OF_EVALUATION, "eval_strategy is 'no'"),
        (config.save_strategy == "no", "save_steps save_total_limit", "save_strategy is 'no'"),
    ]


def _generation_rules(config: AblationConfig) -> list[Rule]:
    correction = config.vllm_importance_sampling_correction
    saves_a_forward = _switched_on(config, "reuse_forward").saves_a_forward
    continuous = config.use_transformers_continuous_batching
    cached = config.cache_implementation is not None
    return [
        (not config.truncates, "correct_truncation", "top_p, top_k and min_p keep all tokens"),
        (
            config.use_vllm,
            "correct_truncation",
            "vLLM reports the log-probabilities of the truncated distribution anyway",
        ),
        (not config.use_vllm, OF_THE_ENGINE, "use_vllm is false"),
        (
            not config.knows_sampler,
            f"vllm_importance_sampling_correction {HOW_IT_CORRECTS} sampler_gap_limit",
            "use_vllm is false, and the sampler does not differ from the policy",
        ),
        (
            config.knows_sampler and not correction,
            HOW_IT_CORRECTS,
            "vllm_importance_sampling_correction is false",
        ),
        (
            not saves_a_forward or config.corrects_without_engine,
            "reuse_forward",
            "no importance correction of an on-policy update: there is no forward pass to save",
        ),
        (config.use_vllm, "cache_implementation", "use_vllm is true"),
        (
            config.use_vllm or continuous or cached,
            "drop_ended_rows",
            "use_vllm or use_transformers_continuous_batching is true, or a cache_implementation "
            "is set",
        ),
        (config.eval_temperature == 0, "eval_top_p", "eval_temperature is 0: greedy"),
    ]
