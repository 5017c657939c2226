"""Refuses values of switches that contradict each other, each with a one-sentence message."""

from typing import TYPE_CHECKING, Any

from trl_ablate.errors import ConfigurationError

if TYPE_CHECKING:
    from trl_ablate.config import AblationConfig

COUNTS = (
    "num_generations",
    "num_generations_eval",
    "num_iterations",
    "generation_batch_size",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
)
"""Settings that have to be positive: batches are divided by them."""

CHANGE_THE_DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Arguments of generation that change how tokens are sampled."""

OF_THE_SUM = {
    "group_filter": "none",
    "outcome_gate": None,
    "hard_group_exponent": 0.0,
    "reward_noise": 0.0,
    "placebo": None,
    "overlong_penalty": 0.0,
    "kl_in": "loss",
}
"""Switches that act on the sum of the rewards, and their values that change nothing."""


ONE_SEQUENCE = {"num_return_sequences": 1, "n": 1, "return_dict_in_generate": False}
"""What `generation_kwargs` may not change: TRL repeats each prompt itself, and expects tokens."""


def check_switches(config: "AblationConfig") -> None:
    for count in COUNTS:
        value = getattr(config, count)
        if value is not None and value < 1:
            raise ConfigurationError(f"{count} is {value}; it has to be 1 or more")
    _check_others(config)
    if config.length_norm_constant is not None and config.length_norm_constant <= 0:
        raise ConfigurationError(
            f"length_norm_constant is {config.length_norm_constant}; it divides the loss and has "
            "to be positive, or null for max_completion_length"
        )
    if config.surrogate in ("no_clip", "probability") and config.delta is not None:
        raise ConfigurationError(
            f"surrogate '{config.surrogate}' does not limit the ratio, but delta {config.delta} "
            "does; remove delta, or use surrogate 'clip'"
        )
    if config.positive_weight == 0 and config.negative_weight == 0:
        raise ConfigurationError(
            "positive_weight and negative_weight are both 0, so no completion has a gradient; "
            "raise one of them"
        )
    if config.multi_objective_aggregation == "normalize_then_sum":
        _check_own_normalisation(config)


def _check_others(config: "AblationConfig") -> None:
    """Baselines that compare a completion with the others of its group need some."""
    group = config.num_generations or 0
    if config.baseline in ("leave_one_out", "best_of_others") and group < 2:
        raise ConfigurationError(
            f"baseline '{config.baseline}' needs two or more completions per prompt, but "
            f"num_generations is {config.num_generations}; set num_generations to 2 or more, or "
            "use another baseline"
        )
    if config.baseline == "best_of_others" and (config.best_of or 0) > group:
        raise ConfigurationError(
            f"best_of is {config.best_of}, but a group has {group} completions; lower best_of, or "
            "raise num_generations"
        )


def _check_own_normalisation(config: "AblationConfig") -> None:
    """`normalize_then_sum` is TRL's own way from rewards to advantages."""
    if config.baseline != "group_mean" or config.scale_rewards != "group":
        raise ConfigurationError(
            "multi_objective_aggregation 'normalize_then_sum' has its own baseline and scale; for "
            f"baseline '{config.baseline}' with scale_rewards '{config.scale_rewards}', use "
            "'sum_then_normalize'"
        )
    given = [
        f"{name} {getattr(config, name)}"
        for name, off in OF_THE_SUM.items()
        if getattr(config, name) != off
    ]
    if given:
        raise ConfigurationError(
            f"{' and '.join(given)} acts on the sum of the rewards, but "
            "multi_objective_aggregation 'normalize_then_sum' normalises each of them; use "
            "'sum_then_normalize'"
        )


def check_batches(config: "AblationConfig") -> None:
    """Settings in GRPO steps or in completions have to give whole optimizer steps."""
    microbatches = config.steps_per_generation * config.num_iterations
    accumulated = config.gradient_accumulation_steps
    counted = [
        f"{name} {getattr(config, name)}"
        for name in ("grpo_steps", "optimizer_batch_size")
        if getattr(config, name) is not None
    ]
    if counted and microbatches % accumulated and accumulated % microbatches:
        raise ConfigurationError(
            f"{' and '.join(counted)} needs whole optimizer steps, but {microbatches} "
            f"microbatches per rollout batch cannot be divided into optimizer steps of "
            f"{accumulated}; make generation_batch_size × num_iterations a multiple of the "
            "completions per optimizer step"
        )
    if config.grpo_steps is not None and config.grpo_steps * microbatches % accumulated:
        raise ConfigurationError(
            f"grpo_steps {config.grpo_steps} does not fill its last optimizer step, which takes "
            f"{accumulated // microbatches} rollout batches; make it a multiple of them"
        )


def check_generation(config: "AblationConfig") -> None:
    if config.min_tokens > (config.max_completion_length or config.min_tokens):
        raise ConfigurationError(
            f"min_tokens {config.min_tokens} is more than max_completion_length "
            f"{config.max_completion_length}; lower it"
        )
    if config.min_tokens and config.use_transformers_continuous_batching:
        raise ConfigurationError(
            f"min_tokens is {config.min_tokens}, but transformers' continuous batching has no "
            "minimum length; set min_tokens to 0, or use_transformers_continuous_batching to "
            "false"
        )
    engine = config.vllm_max_model_length if config.use_vllm else None
    if engine is not None and (config.max_completion_length or 0) >= engine:
        raise ConfigurationError(
            f"max_completion_length {config.max_completion_length} leaves no tokens for a prompt "
            f"in vllm_max_model_length {engine}; lower max_completion_length, or raise "
            "vllm_max_model_length"
        )
    given: Any = config.generation_kwargs or {}
    for name, only in ONE_SEQUENCE.items():
        if given.get(name, only) != only:
            raise ConfigurationError(
                f"generation_kwargs has {name} {given[name]}, but a rollout is one sequence of "
                "tokens a row; leave it out, and set num_generations for larger groups"
            )
    if "seed" in given:
        raise ConfigurationError(
            "a seed in generation_kwargs would give every completion of a group the same "
            "tokens; remove it and use --seed"
        )
    _check_known_sampler(config)


def check_determinism(config: "AblationConfig") -> None:
    """A server reads its own environment."""
    if config.deterministic and config.use_vllm and config.vllm_mode == "server":
        raise ConfigurationError(
            "deterministic does not reach a vLLM server, which is another process; use vllm_mode "
            "'colocate', or start the server with VLLM_BATCH_INVARIANT=1 and set full_determinism"
        )


def _check_known_sampler(config: "AblationConfig") -> None:
    """Without vLLM, the log-probabilities of a sampler that differs are computed from its weights,
    temperature, top_p, top_k and min_p alone."""
    if config.use_vllm or not config.sampler_differs:
        return
    given = [f"{name} in generation_kwargs" for name in CHANGE_THE_DISTRIBUTION
             if name in (config.generation_kwargs or {})]  # fmt: skip
    if config.repetition_penalty != 1.0:
        given.append(f"repetition_penalty {config.repetition_penalty}")
    if given:
        raise ConfigurationError(
            f"{' and '.join(given)} changes the sampling distribution, whose log-probabilities "
            "rollout_staleness, sampler_dtype and correct_truncation need; remove it, or use the "
            "settings temperature, top_p, top_k and min_p"
        )


def check_evaluation(config: "AblationConfig") -> None:
    if config.evaluation == "trl" and config.eval_by is not None:
        raise ConfigurationError(
            f"eval_by '{config.eval_by}' needs evaluation 'one_shot', but evaluation is 'trl'; "
            "change one of the two"
        )
    temperature, top_p = config.eval_temperature, config.eval_top_p
    if temperature is not None and temperature < 0:
        raise ConfigurationError(
            f"eval_temperature is {temperature}; set it to 0 (greedy) or more, or to null for the "
            "training's value"
        )
    if top_p is not None and not 0 < top_p <= 1:
        raise ConfigurationError(
            f"eval_top_p is {top_p}; set it to more than 0 and at most 1, or to null for the "
            "training's value"
        )
    samples = config.num_generations_eval or config.num_generations or 1
    if temperature == 0 and samples > 1:
        raise ConfigurationError(
            f"eval_temperature 0 is greedy, so the {samples} samples of a prompt would be the "
            "same; set num_generations_eval to 1, or eval_temperature to more than 0"
        )
