"""Refuses settings of an `AblationConfig` that contradict each other, each with one sentence.

And the metric that decides which model is the best, where transformers takes the loss: for
`load_best_model_at_end`, `save_strategy` 'best', and learning rates that wait for a plateau.
"""

from collections.abc import Mapping
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.estimates import MAIN
from trl_ablate.settings import Range, check_range

COUNTS = (
    "num_generations", "num_generations_eval", "num_iterations", "generation_batch_size",
    "steps_per_generation", "gradient_accumulation_steps", "per_device_train_batch_size",
    "per_device_eval_batch_size",
)  # fmt: skip
"""Settings that have to be positive: batches are divided by them."""

CHANGE_THE_DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Arguments of generation that change how tokens are sampled."""

OF_THE_SUM = (
    "group_filter", "outcome_gate", "hard_group_exponent", "reward_noise", "placebo",
    "overlong_penalty", "kl_in",
)  # fmt: skip
"""Switches that act on the sum of the rewards, but for their defaults."""

ONE_SEQUENCE = {"num_return_sequences": 1, "n": 1, "return_dict_in_generate": False}
"""What `generation_kwargs` may not change: TRL repeats each prompt itself, and expects tokens."""

METRIC_SCHEDULERS = ("reduce_lr_on_plateau", "greedy")
"""Learning rate schedulers that follow a metric."""


def _refuse_if(holds: Any, sentence: str) -> None:
    if holds:
        raise ConfigurationError(sentence)


def check_switches(config: Any) -> None:
    for name in COUNTS:
        check_range(name, getattr(config, name), Range(least=1))
    group = config.num_generations or 0
    best_of_others = config.baseline == "best_of_others"
    _refuse_if(
        (config.baseline == "leave_one_out" or best_of_others) and group < 2,
        f"baseline '{config.baseline}' needs two or more completions per prompt, but "
        f"num_generations is {config.num_generations}; set num_generations to 2 or more, or use "
        "another baseline",
    )
    _refuse_if(
        best_of_others and (config.best_of or 0) > group,
        f"best_of is {config.best_of}, but a group has {group} completions; lower best_of, or "
        "raise num_generations",
    )
    _refuse_if(
        config.surrogate in ("no_clip", "probability", "geometric") and config.delta is not None,
        f"surrogate '{config.surrogate}' does not limit the ratio by delta, but delta is "
        f"{config.delta}; remove delta, or use surrogate 'clip'",
    )
    _refuse_if(
        config.positive_weight == 0 and config.negative_weight == 0,
        "positive_weight and negative_weight are both 0, so no completion has a gradient; raise "
        "one of them",
    )
    _refuse_if(
        best_of_others and config.positive_weight == 0 and not config.outcome_gate,
        "positive_weight is 0, and baseline 'best_of_others' makes no advantage negative, so no "
        "completion has a gradient; raise positive_weight",
    )
    _refuse_if(
        config.placebo == "constant" and _ends_equal(config),
        f"placebo 'constant' gives no gradient with baseline '{config.baseline}', scale_rewards "
        f"'{config.scale_rewards}', group_filter '{config.group_filter}' and hard_group_exponent "
        f"{config.hard_group_exponent}, as all rewards are 1; use those of placebo_constant.yaml",
    )
    if config.multi_objective_aggregation != "normalize_then_sum":
        return
    _refuse_if(
        config.baseline != "group_mean" or config.scale_rewards != "group",
        "multi_objective_aggregation 'normalize_then_sum' has its own baseline and scale; for "
        f"baseline '{config.baseline}' with scale_rewards '{config.scale_rewards}', use "
        "'sum_then_normalize'",
    )
    changed = [name for name in OF_THE_SUM if getattr(config, name) != getattr(type(config), name)]
    given = " and ".join(f"{name} {getattr(config, name)}" for name in changed)
    _refuse_if(
        given,
        f"{given} acts on the sum of the rewards, but multi_objective_aggregation "
        "'normalize_then_sum' normalises each of them; use 'sum_then_normalize'",
    )


def _ends_equal(config: Any) -> bool:
    """Whether all advantages are 0 if all rewards are 1."""
    if config.group_filter != "none" or config.hard_group_exponent:
        return True
    kept = config.baseline in ("none", "half") and config.scale_rewards in ("none", "group_mean")
    return not (kept or config.overlong_penalty or (config.kl_in == "reward" and config.beta))


def check_batches(config: Any) -> None:
    """Settings in GRPO steps or in completions have to give whole optimizer steps."""
    microbatches = config.steps_per_generation * config.num_iterations
    accumulated = config.gradient_accumulation_steps
    values = {name: getattr(config, name) for name in ("grpo_steps", "optimizer_batch_size")}
    counted = [f"{name} {value}" for name, value in values.items() if value is not None]
    _refuse_if(
        counted and microbatches % accumulated and accumulated % microbatches,
        f"{' and '.join(counted)} needs whole optimizer steps, but {microbatches} microbatches per "
        f"rollout batch cannot be divided into optimizer steps of {accumulated}; make "
        "generation_batch_size × num_iterations a multiple of the completions per optimizer step",
    )
    _refuse_if(
        (config.grpo_steps or 0) * microbatches % accumulated,
        f"grpo_steps {config.grpo_steps} does not fill its last optimizer step, which takes "
        f"{accumulated // microbatches} rollout batches; make it a multiple of them",
    )


def check_generation(config: Any) -> None:
    longest = config.max_completion_length
    engine = config.vllm_max_model_length if config.use_vllm else None
    given: Any = config.generation_kwargs or {}
    _refuse_if(
        isinstance(config.stop, str) or "" in (config.stop or ()),
        f"stop is {config.stop!r}; give a list of texts such as ['</answer>'], none of them empty",
    )
    _refuse_if(
        config.min_tokens > (longest or config.min_tokens),
        f"min_tokens {config.min_tokens} is more than max_completion_length {longest}; lower it",
    )
    _refuse_if(
        config.min_tokens and config.use_transformers_continuous_batching,
        f"min_tokens is {config.min_tokens}, but transformers' continuous batching has no minimum "
        "length; set min_tokens to 0, or use_transformers_continuous_batching to false",
    )
    _refuse_if(
        engine is not None and (longest or 0) >= engine,
        f"max_completion_length {longest} leaves no tokens for a prompt in vllm_max_model_length "
        f"{engine}; lower max_completion_length, or raise vllm_max_model_length",
    )
    for name, only in ONE_SEQUENCE.items():
        _refuse_if(
            given.get(name, only) != only,
            f"generation_kwargs has {name} {given.get(name)}, but a rollout is one sequence of "
            "tokens a row; leave it out, and set num_generations for larger groups",
        )
    _refuse_if(
        config.deterministic and config.use_vllm and config.vllm_mode == "server",
        "deterministic does not reach a vLLM server, which reads its own environment; use "
        "vllm_mode 'colocate', or start the server with VLLM_BATCH_INVARIANT=1 and set "
        "full_determinism",
    )
    _refuse_if(
        "seed" in given,
        "a seed in generation_kwargs would give every completion of a group the same tokens; "
        "remove it and use --seed",
    )
    changed = [f"{name} in generation_kwargs" for name in CHANGE_THE_DISTRIBUTION if name in given]
    if config.repetition_penalty != 1.0:
        changed.append(f"repetition_penalty {config.repetition_penalty}")
    _refuse_if(
        # Without vLLM, the log-probabilities of a sampler that differs come from its weights
        (config.sampler_differs or config.correct_truncation) and not config.use_vllm and changed,
        f"{' and '.join(changed)} changes the sampling distribution, whose log-probabilities "
        "rollout_staleness, sampler_dtype and correct_truncation need; remove it, or use the "
        "settings temperature, top_p, top_k and min_p",
    )


def check_evaluation(config: Any) -> None:
    samples = config.num_generations_eval or config.num_generations
    _refuse_if(
        config.evaluation == "trl" and config.eval_by is not None,
        f"eval_by '{config.eval_by}' needs evaluation 'one_shot', but evaluation is 'trl'; change "
        "one of the two",
    )
    _refuse_if(
        config.eval_temperature == 0 and samples > 1,
        f"eval_temperature 0 is greedy, so the {samples} samples of a prompt would be the same; "
        "set num_generations_eval to 1, or eval_temperature to more than 0",
    )


def follow_the_best_metric(config: Any) -> None:
    """Make `best_metric` the default of `metric_for_best_model`; higher is better."""
    scheduled = config.lr_scheduler_type in METRIC_SCHEDULERS
    followed = config.load_best_model_at_end or config.save_strategy == "best" or scheduled
    if config.evaluation == "trl" or not followed:
        return
    metric = config.metric_for_best_model or config.best_metric
    _refuse_if(
        metric.endswith("loss"),
        f"metric_for_best_model is '{metric}', but evaluation 'one_shot' computes no loss; use a "
        "metric such as eval_reward, or evaluation 'trl'",
    )
    config.metric_for_best_model = metric
    if config.greater_is_better is None:
        config.greater_is_better = True
    given = config.lr_scheduler_kwargs
    if scheduled and (given is None or isinstance(given, dict)):  # JSON text is read later
        direction = "max" if config.greater_is_better else "min"  # torch's default is down
        config.lr_scheduler_kwargs = {"mode": direction, **(given or {})}


def check_best_metric(config: Any, sets: Mapping[str, Any]) -> None:
    """Refuse, before training, a metric that no evaluation set has."""
    metric = config.metric_for_best_model
    if config.evaluation == "trl" or metric is None or MAIN in sets:
        return
    name = metric.removeprefix("eval_")
    if not any(name.startswith(f"{key}_") for key in sets):
        raise ConfigurationError(
            f"metric_for_best_model is '{metric}', but every evaluation set has a name "
            f"({', '.join(sets)}), and its metrics begin with this name; use one of these metrics, "
            f"such as 'eval_{next(iter(sets))}_reward'"
        )
