"""Inert knobs: settings that have no effect with the rest of the config.

An ablation over such a setting compares an arm with itself. Each rule is the condition under which
settings have no effect, their names, and the reason; only settings that a recipe's layers set are
reported.
"""

from collections.abc import Collection
from copy import copy

from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.training_args import OptimizerNames
from trl import ModelConfig

from trl_ablate.config import SURROGATE_LOSS_TYPES, AblationConfig
from trl_ablate.miniature.registry import is_miniature
from trl_ablate.prompts.templates import TEMPLATES, is_own
from trl_ablate.recipe.agreement import reward_names
from trl_ablate.reward_specs import GYM, GYM_SCORE
from trl_ablate.task import TaskArguments

Rule = tuple[bool, str, str]

ON_POLICY = "fully on-policy: every ratio is 1"
OF_EVALUATION = (
    "num_generations_eval eval_sets eval_by eval_temperature eval_top_p evaluation eval_delay "
    "eval_on_start best_metric"
)
OF_THE_ENGINE = (
    "vllm_mode vllm_model_impl vllm_gpu_memory_utilization vllm_enable_sleep_mode "
    "vllm_max_model_length vllm_tensor_parallel_size"
)
CORRECTION = "vllm_importance_sampling_correction"
HOW_IT_CORRECTS = (
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_clip_min"
)
OF_BETA = (
    "kl_estimator kl_in use_bias_correction_kl sync_ref_model ref_model_mixup_alpha "
    "ref_model_sync_steps"
)
OF_OTHER_TRAINERS = "data_seed train_sampling_strategy label_smoothing_factor"
OF_ADAM = "adam_beta1 adam_beta2 adam_epsilon"
OF_ADAPTIVE_ENTROPY = "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"
OF_SAPO = "sapo_temperature_neg sapo_temperature_pos"
OF_VESPO = "vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg"


def inert_knobs(
    config: AblationConfig, task: TaskArguments, model: ModelConfig, given: Collection[str]
) -> dict[str, str]:
    """The settings among `given` that have no effect, each with the reason."""
    adapters = " ".join(knob for knob in given if knob.startswith(("lora_", "use_rs", "use_dora")))
    rules = [
        *_objective_rules(config, task),
        *_row_rules(config),
        *_advantage_rules(config),
        *_reward_rules(config, task),
        *_schedule_rules(config),
        *_generation_rules(config),
        (not model.use_peft, adapters, "use_peft is false"),
        (True, "hub_strategy hub_always_push", "a run is published once, after it has ended"),
    ]
    return {
        knob: why for holds, knobs, why in rules if holds for knob in knobs.split() if knob in given
    }


def _schedule_rules(config: AblationConfig) -> list[Rule]:
    """Optimizer, learning rate, and how long, when and where it is evaluated and saved."""
    evaluates = IntervalStrategy(config.eval_strategy).value
    saves = SaveStrategy(config.save_strategy).value
    optimizer, asked = OptimizerNames(config.optim).value, config.optimizer_steps_asked
    no_adam = optimizer.startswith(("sgd", "adagrad", "adafactor", "rmsprop"))
    constant = "lr_scheduler_type is 'constant', without warm-up; constant_with_warmup has one"
    return [
        (evaluates == "no", OF_EVALUATION, "eval_strategy is 'no'"),
        (evaluates != "steps", "eval_steps", f"eval_strategy is '{evaluates}'"),
        (saves == "no", "save_total_limit", "save_strategy is 'no'"),
        (saves != "steps", "save_steps", f"save_strategy is '{saves}'"),
        (config.lr_scheduler_type == "constant", "warmup_steps", constant),
        (no_adam, OF_ADAM, f"optim '{optimizer}' does not read it"),
        (config.max_steps > 0, "num_train_epochs", f"the run ends after {config.max_steps} steps"),
        (asked not in (None, config.max_steps), "grpo_steps", f"max_steps is {config.max_steps}"),
        (True, OF_OTHER_TRAINERS, "GRPOTrainer never reads it"),
    ]


def _objective_rules(config: AblationConfig, task: TaskArguments) -> list[Rule]:
    """How TRL's losses use epsilon, epsilon_high and delta, and the terms beside them.

    At ratio 1 a clip range around 1 has no effect. A delta below 1 has one, and so has the cap of
    'cispo', which is epsilon_high itself and not 1 + epsilon_high. The ratio of a sequence has one
    gradient for all tokens of a completion, which differs where tokens have weights; 'geometric' is
    such a ratio, and 'reinforce' and 'one_sided' have none. The sampler's log-probabilities are
    known of a rollout_func, too: TRL wants them.
    """
    on_policy, loss_type, surrogate = config.on_policy, config.loss_type, config.surrogate
    own_rollouts = not config.knows_sampler and task.rollout_func is None
    clips = loss_type in SURROGATE_LOSS_TYPES
    at_one = clips and on_policy and (surrogate != "probability" or own_rollouts)
    in_kl = config.beta != 0 and config.kl_in == "loss" and config.use_bias_correction_kl
    weighs_tokens = (
        in_kl
        or config.top_entropy_quantile < 1.0
        or (config.corrects_sampler and config.vllm_importance_sampling_mode.startswith("token"))
    )
    of_ratio = at_one or (on_policy and loss_type == "sapo")
    levels_agree = (of_ratio and not weighs_tokens) or (
        on_policy and loss_type == "cispo" and not in_kl
    )
    of_sequence = config.importance_sampling_level == "sequence"
    others = ("reinforce", "one_sided") if of_sequence else ("geometric",)
    spread = surrogate in others and weighs_tokens
    no_low_cap = config.delta is None or config.delta >= 1
    unclipped = clips and surrogate in ("no_clip", "reinforce", "one_sided")
    own_high = loss_type == "cispo" and config.epsilon_high is not None
    same = f"{ON_POLICY}, so clip, no_clip and reinforce have the same gradient"
    one_gradient = f"{ON_POLICY}, where the ratio of a sequence has the gradient of its tokens'"
    no_ratio = surrogate in ("reinforce", "one_sided") and not in_kl
    no_level = f"surrogate '{surrogate}' is the same at any level"
    no_level_of_vespo = "loss_type 'vespo' does not read it"
    no_clip = f"surrogate '{surrogate}' does not clip"
    own_clip = f"loss_type '{loss_type}' does not clip"
    one_bound = "loss_type 'cispo' has no lower bound, and epsilon_high is its upper one"
    other_norm = f"length_norm is '{config.length_norm}', not 'constant'"
    masked = f"{ON_POLICY}, so no rollout is off-policy"
    slope = f"{ON_POLICY}, where the slope is 1 at any temperature"
    weighted = on_policy and not config.corrects_sampler
    moved = "kl_in is 'reward': there is no KL term in the loss"
    no_log_ratio = f"{ON_POLICY}, so the log ratio of every token is 0"
    no_sync = "sync_ref_model is false"
    return [
        (at_one, "epsilon epsilon_high", same),
        (at_one and not spread, "surrogate", same),
        (levels_agree, "importance_sampling_level", one_gradient),
        (loss_type == "vespo" and not in_kl, "importance_sampling_level", no_level_of_vespo),
        (clips and (no_ratio or surrogate == "geometric"), "importance_sampling_level", no_level),
        (at_one and no_low_cap, "delta", same),
        (unclipped, "epsilon epsilon_high", no_clip),
        (unclipped and no_low_cap, "delta", no_clip),
        (loss_type in ("sapo", "vespo"), "epsilon epsilon_high delta", own_clip),
        (loss_type == "cispo", "delta", "loss_type 'cispo' does not read it"),
        (own_high, "epsilon", one_bound),
        (config.length_norm != "constant", "length_norm_constant", other_norm),
        (on_policy and own_rollouts, "off_policy_mask_threshold", masked),
        (on_policy, OF_SAPO, slope),
        (loss_type != "sapo", OF_SAPO, "no sapo loss"),
        (weighted, OF_VESPO, f"{ON_POLICY}, and so is every weight"),
        (loss_type != "vespo", OF_VESPO, "no vespo loss"),
        (not config.sync_ref_model, "ref_model_mixup_alpha ref_model_sync_steps", no_sync),
        (config.beta == 0, OF_BETA, "beta is 0: there is no KL term"),
        (config.kl_in == "reward", "use_bias_correction_kl", moved),
        (config.covariance_kl == 0, "covariance_share", "covariance_kl is 0"),
        (on_policy, "covariance_kl covariance_share", no_log_ratio),
        (not config.use_adaptive_entropy, OF_ADAPTIVE_ENTROPY, "use_adaptive_entropy is false"),
    ]


def _switched_on(config: AblationConfig, switch: str) -> AblationConfig:
    """A copy with the switch on: whether a switch has an effect does not depend on its value."""
    found = copy(config)
    setattr(found, switch, True)
    return found


def _row_rules(config: AblationConfig) -> list[Rule]:
    """How the rows of a microbatch are computed."""
    independent, trims = config.rows_are_independent, config.trim_microbatches
    alone = independent and _switched_on(config, "regroup_by_length").regrouped_together == 1
    unshared = trims and not _switched_on(config, "share_prompts").shares_prompts
    as_drawn = "a row's share of this loss depends on its microbatch, which stays as drawn"
    nothing = (
        "an optimizer step or a rollout batch is one microbatch, or neither divides the other: "
        "there is nothing to regroup"
    )
    as_trl = "trim_microbatches is off, and microbatches are computed as by TRL"
    multiples = "widths are multiples, for torch_compile or pad_to_multiple_of"
    return [
        (not independent, "regroup_by_length", as_drawn),
        (alone, "regroup_by_length", nothing),
        (not trims, "share_prompts skip_idle_rows", as_trl),
        (unshared, "share_prompts", multiples),
    ]


def _advantage_rules(config: AblationConfig) -> list[Rule]:
    baseline, scale = config.baseline, config.scale_rewards
    one_group = config.generation_batch_size == config.num_generations
    of_trl = config.multi_objective_aggregation == "normalize_then_sum"
    own_eps = "multi_objective_aggregation 'normalize_then_sum' is TRL's own, with an eps of 1e-4"
    best = baseline == "best_of_others"
    none_negative = best and config.outcome_gate is None
    centred = baseline not in ("leave_one_out", "best_of_others")
    one = "the rollout batch is one group, so "
    positive = f"baseline is '{baseline}', and no advantage is negative"
    same_std = f"{one}the std of its advantages is that of its rewards"
    return [
        (scale == "none", "advantage_eps", "scale_rewards is 'none'"),
        (of_trl, "advantage_eps", own_eps),
        (not best, "best_of", f"baseline is '{baseline}', not 'best_of_others'"),
        (none_negative, "negative_weight", positive),
        (one_group and scale == "batch", "scale_rewards", f"{one}its std is the group's"),
        (one_group and centred and scale == "advantage_std", "scale_rewards", same_std),
        (one_group and baseline == "batch_mean", "baseline", f"{one}its mean is the group's"),
    ]


def _reward_rules(config: AblationConfig, task: TaskArguments) -> list[Rule]:
    of_kl = config.beta != 0 and config.kl_in == "reward"
    named = [one.path for one in task.own_rewards]
    own = task.environment_factory is not None  # with a reward of its own
    may_be_negative = any((
        config.overlong_penalty, of_kl, task.eos_penalty, named, own, config.outcome_gate,
        any(weight < 0 for weight in config.reward_weights or []),
    ))  # fmt: skip
    none_negative = config.baseline == "none" and not may_be_negative
    sets = [task, *map(task.evaluation_task, task.eval_sets or {})]
    paths = [{reward.path for reward in one.own_rewards} for one in sets]
    in_workers = any(GYM_SCORE in of for of in paths)
    not_read = all(of and not {"answer", "format", GYM_SCORE} & of for of in paths)
    own_prompts = all(one.prompt_column is not None for one in sets)
    of_gym = task.dataset.startswith(GYM)
    makes = [one.dataset.startswith(GYM) or is_miniature(one.dataset) for one in sets]
    makes_its_own = f"{task.dataset} makes its questions"
    of_messages = not is_own(task.template) and TEMPLATES[task.template].conversational
    texts = not of_messages and task.system_prompt is None
    texts = texts and all(one.prompt_column is None for one in sets)
    compared = any(one.needs_answers for one in sets)
    no_resampling = f"group_filter is '{config.group_filter}', not 'resample'"
    placebo = f"placebo '{config.placebo}' takes the place of all rewards"
    one_reward = "there is one reward function, so nothing is left to act within its outcome"
    no_negative = "baseline is 'none' and no reward is negative, so no advantage is"
    no_code = not in_workers and all(one.reward_funcs is None for one in sets)
    here = task.reward_timeout is None and not in_workers
    no_timeout = "reward_timeout is null: functions run in this process"
    no_form = "reward_funcs names no reward that reads a template's format"
    return [
        (config.group_filter != "resample", "max_resample_rounds", no_resampling),
        (config.placebo is not None, "reward_noise outcome_gate", placebo),
        (len(reward_names(task)) == 1 and not own, "outcome_gate", one_reward),
        (none_negative, "negative_weight", no_negative),
        (config.overlong_penalty == 0, "overlong_share", "overlong_penalty is 0"),
        (no_code, "reward_timeout reward_workers", "reward_funcs names no function"),
        (here, "reward_workers", no_timeout),
        (not_read, "reward", no_form),
        (not compared, "grader_timeout on_timeout", "reward_funcs names no reward that compares"),
        (texts, "chat_template chat_template_kwargs", "prompts are texts, not messages"),
        (own_prompts, "system_prompt prompt_style", "prompt_column gives the whole prompt"),
        (not of_gym, "gym", "dataset is no task of reasoning-gym"),
        (makes[0], "dataset_config question_column answer_column", makes_its_own),
        (all(makes), "skip_bad_rows", makes_its_own),
    ]


def _generation_rules(config: AblationConfig) -> list[Rule]:
    engine, knows_sampler = config.use_vllm, config.knows_sampler
    uncorrected = knows_sampler and not config.vllm_importance_sampling_correction
    saves = _switched_on(config, "reuse_forward").saves_a_forward
    no_pass = not saves or config.corrects_without_engine
    continuous = config.use_transformers_continuous_batching
    own_loop = engine or continuous or config.cache_implementation is not None
    of_engine = "vLLM reports the log-probabilities of the truncated distribution anyway"
    same_sampler = "use_vllm is false, and the sampler does not differ from the policy"
    none_to_save = (
        "no importance correction of an on-policy update: there is no forward pass to save"
    )
    not_ours = (
        "use_vllm or use_transformers_continuous_batching is true, or a cache_implementation is set"
    )
    return [
        (not config.truncates, "correct_truncation", "top_p, top_k and min_p keep all tokens"),
        (engine, "correct_truncation", of_engine),
        (not engine, OF_THE_ENGINE, "use_vllm is false"),
        (not knows_sampler, f"{CORRECTION} {HOW_IT_CORRECTS} sampler_gap_limit", same_sampler),
        (uncorrected, HOW_IT_CORRECTS, f"{CORRECTION} is false"),
        (no_pass, "reuse_forward", none_to_save),
        (engine, "cache_implementation", "use_vllm is true"),
        (own_loop, "drop_ended_rows", not_ours),
        (config.eval_temperature == 0, "eval_top_p", "eval_temperature is 0: greedy"),
    ]
