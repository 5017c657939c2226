"""The switches: `AblationConfig` over TRL's `GRPOConfig`.

The defaults of the new fields leave stock TRL as it is. What a switch means is said in its `help`,
the values it takes in its `Literal`, each once: the command line, the validation and the README
read them here. Deliberately not here: data and reward (`task.py`), and anything about files, layers
or profiles (`recipe.py`).
"""

import os
from dataclasses import dataclass, fields
from typing import Any, Literal

from trl import GRPOConfig

from trl_ablate.best_model import follow_the_best_metric
from trl_ablate.errors import ConfigurationError
from trl_ablate.settings import choices, setting

Baseline = Literal["group_mean", "none", "leave_one_out", "batch_mean"]
Scale = Literal["group", "batch", "none"]
Surrogate = Literal["clip", "no_clip", "reinforce"]
LengthNorm = Literal["mean", "constant", "microbatch", "token"]
LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]

RIDES_ON: dict[str, LossType] = {
    "mean": "grpo",
    "constant": "dr_grpo",
    "microbatch": "dr_grpo",
    "token": "dapo",
}
"""TRL's loss type that a length norm is built on."""

SURROGATE_LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo")
"""TRL's loss types that are `min(rA, clip(r)A)`, so that a surrogate can be chosen for them."""

COMPILED_MULTIPLE = 64
"""Widths are multiples of it under torch_compile, which compiles once per width."""

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
"""What batches are divided by."""


@dataclass
class AblationConfig(GRPOConfig):
    """`GRPOConfig` with the choices that README lists as switches; `help` explains each field."""

    baseline: Baseline = setting("group_mean", "What is subtracted from the reward.")
    advantage_eps: float = setting(
        1e-4, "Added to the standard deviation that the advantage is divided by."
    )
    surrogate: Surrogate | None = setting(
        None,
        "Policy objective per token: min(rA, clip(r)A), rA, or A log pi. Null: the loss type's "
        "own.",
    )
    length_norm: LengthNorm | None = setting(
        None,
        "What the summed token loss is divided by: the sequence's own length, a constant, the "
        "longest completion in the microbatch, or all tokens of the optimizer step. Null: the "
        "loss type's own.",
    )
    length_norm_constant: float | None = setting(
        None, "Divisor of length_norm 'constant'. Null: max_completion_length."
    )
    grpo_steps: int | None = setting(
        None,
        "Rollout batches to train on. Sets max_steps (optimizer steps) where that is not given.",
    )
    optimizer_batch_size: int | None = setting(
        None,
        "Completions per optimizer step, over all processes. Sets gradient_accumulation_steps.",
    )
    trim_microbatches: bool = setting(
        True, "Cut each microbatch to its own longest prompt and completion; same gradient."
    )
    regroup_by_length: bool = setting(
        True,
        "Deal the rows of an optimizer step to its microbatches by length; same gradient, and "
        "off where a row's share of the loss depends on its neighbours.",
    )
    reuse_forward: bool = setting(
        True,
        "With vLLM and one optimizer step per rollout batch, take the importance correction's "
        "log-probabilities from the training's forward pass instead of one of their own; same "
        "gradient.",
    )
    stop: list[str] | None = setting(
        None, "Strings that end a completion and stay in it, on every generation backend."
    )
    min_tokens: int = setting(
        0, "Tokens a completion has before it may end, on every generation backend."
    )
    evaluation: Literal["one_shot", "trl"] = setting(
        "one_shot",
        "Generate and grade in large batches, without a loss; or evaluate as TRL does, in batches "
        "of per_device_eval_batch_size, with a loss, which moves the training's random state.",
    )
    eval_temperature: float | None = setting(
        None, "Sampling temperature of evaluation; 0 is greedy. Null: as in training."
    )
    eval_top_p: float | None = setting(
        None, "Top-p of evaluation's sampling, 1 for none. Null: as in training."
    )
    num_rollouts_saved: int = setting(16, "Rollouts written to disk at every evaluation.")
    best_metric: str = setting(
        "eval_reward",
        "Metric whose best evaluation is kept as a checkpoint; the default of "
        "metric_for_best_model.",
    )
    log_memory: bool = setting(
        True, "Log the peak of memory after the rollout and after the update of every step."
    )
    arm: str | None = setting(None, "Name of the arm: a key to group runs by.")
    study: str | None = setting(None, "Name of the study: a key to group runs by.")

    # TRL's own fields, redeclared where it takes any text although only some has a meaning.
    loss_type: LossType | None = setting(
        None,
        "TRL's loss type. Null: the one the length norm rides on, or else TRL's default, dapo.",
    )
    scale_rewards: Scale = setting(
        "group", "What the advantage is divided by: the group's or the batch's unbiased std, or 1."
    )
    importance_sampling_level: Literal["token", "sequence"] = setting(
        "token", "One importance ratio per token, or one per sequence (GSPO)."
    )
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = setting(
        "sum_then_normalize", "Sum the reward functions, then normalise; or the other way (GDPO)."
    )
    vllm_mode: Literal["colocate", "server"] = setting(
        "colocate", "vLLM inside the training process, or behind a server."
    )
    vllm_model_impl: Literal["vllm", "transformers", "auto"] = setting(
        "vllm", "Which implementation of the model vLLM runs."
    )
    vllm_importance_sampling_mode: Literal[
        "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = setting(
        "sequence_mask",
        "How the mismatch between vLLM's and the trainer's probabilities is corrected.",
    )
    eval_steps: float | None = setting(
        None, "GRPO steps (rollout batches) between evaluations; below 1 a share of all of them."
    )
    save_steps: float = setting(
        500, "GRPO steps (rollout batches) between checkpoints; below 1 a share of all of them."
    )

    def __post_init__(self):
        if isinstance(self.scale_rewards, bool):  # TRL's older way to say it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        self._check_choices()
        self._check_switches()
        self._derive_loss_type()
        self._derive_accumulation()
        follow_the_best_metric(self)
        super().__post_init__()
        self._check_batches()
        self._check_generation()
        self._check_evaluation()
        if self.grpo_steps is not None and self.max_steps <= 0:
            self.max_steps = round(self.grpo_steps / self.grpo_steps_per_optimizer_step)

    @property
    def optimizer_steps_per_rollout(self) -> int:
        """Optimizer steps taken on one rollout batch: epochs × rollout batch / optimizer batch.

        1 when on-policy, where several rollout batches share an optimizer step, and where one
        does not have a whole number of them.
        """
        microbatches = self.steps_per_generation * self.num_iterations
        whole, rest = divmod(microbatches, self.gradient_accumulation_steps)
        return 1 if rest else whole

    @property
    def grpo_steps_per_optimizer_step(self) -> float:
        """Rollout batches that an optimizer step takes its completions from."""
        microbatches = self.steps_per_generation * self.num_iterations
        return self.gradient_accumulation_steps / microbatches

    @property
    def trimmed_to_multiple_of(self) -> int:
        """Widths of microbatches are multiples of it: as padded, and few when compiled."""
        padded_to: Any = self.pad_to_multiple_of
        return padded_to or (COMPILED_MULTIPLE if self.torch_compile else 1)

    @property
    def on_policy(self) -> bool:
        """Whether every update is made by the policy that sampled, so that all ratios are 1."""
        return (
            self.gradient_accumulation_steps % (self.steps_per_generation * self.num_iterations)
            == 0
        )

    @property
    def saves_a_forward(self) -> bool:
        """Whether the importance correction is made from the training's own forward pass.

        It can be where the policy that is updated is the one that sampled: one optimizer step per
        rollout batch.
        """
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        return self.reuse_forward and corrected and self.on_policy

    @property
    def regrouped_together(self) -> int:
        """How many consecutive microbatches have their rows dealt by length; 1 if none.

        An optimizer step has to sum all of them, so that its gradient stays. Where neither a
        rollout batch nor an optimizer step divides the other, some step takes a part of any group.
        """
        steps: Any = self.steps_per_generation
        smaller, larger = sorted((steps, self.gradient_accumulation_steps))
        whole = larger % smaller == 0
        return smaller if self.regroup_by_length and self.rows_are_independent and whole else 1

    @property
    def rows_are_independent(self) -> bool:
        """Whether a row's share of the gradient is the same in any microbatch of its step."""
        over_the_microbatch = (
            self.length_norm == "microbatch"
            or self.loss_type == "bnpo"
            or self.top_entropy_quantile < 1.0
            or self.entropy_coef != 0.0
            or self.use_adaptive_entropy
        )
        return not over_the_microbatch

    def _check_choices(self):
        for switch in fields(self):
            allowed = choices(AblationConfig.__annotations__.get(switch.name))
            value = getattr(self, switch.name)
            if allowed and value not in allowed:
                raise ConfigurationError(
                    f"{switch.name} is {value!r}; allowed: {', '.join(map(str, allowed))}"
                )

    def _check_switches(self):
        for count in COUNTS:
            value = getattr(self, count)
            if value is not None and value < 1:
                raise ConfigurationError(f"{count} is {value}; it has to be 1 or more")
        if self.baseline == "leave_one_out" and (self.num_generations or 0) < 2:
            raise ConfigurationError(
                "baseline 'leave_one_out' needs others in the group, but num_generations is "
                f"{self.num_generations}; set num_generations to 2 or more, or another baseline"
            )
        if self.advantage_eps < 0:
            raise ConfigurationError(
                f"advantage_eps is {self.advantage_eps}; it has to be 0 or more (TRL's is 1e-4)"
            )
        if self.length_norm_constant is not None and self.length_norm_constant <= 0:
            raise ConfigurationError(
                f"length_norm_constant is {self.length_norm_constant}; it divides the loss, so "
                "make it positive, or null for max_completion_length"
            )
        if self.surrogate == "no_clip" and self.delta is not None:
            raise ConfigurationError(
                f"surrogate 'no_clip' leaves the ratio alone, but delta {self.delta} caps it; "
                "remove delta, or use surrogate 'clip'"
            )
        if self.multi_objective_aggregation == "normalize_then_sum" and (
            self.baseline != "group_mean" or self.scale_rewards != "group"
        ):
            raise ConfigurationError(
                "multi_objective_aggregation 'normalize_then_sum' brings its own baseline and "
                f"scale; baseline '{self.baseline}' with scale_rewards '{self.scale_rewards}' "
                "needs 'sum_then_normalize'"
            )

    def _derive_loss_type(self):
        derived = RIDES_ON[self.length_norm] if self.length_norm else None
        if derived and self.loss_type not in (None, derived):
            raise ConfigurationError(
                f"length_norm '{self.length_norm}' is built on loss_type '{derived}', but "
                f"loss_type is '{self.loss_type}'; remove one of the two"
            )
        self.loss_type = self.loss_type or derived or "dapo"
        if self.surrogate and self.loss_type not in SURROGATE_LOSS_TYPES:
            raise ConfigurationError(
                f"loss_type '{self.loss_type}' brings its own objective, so surrogate "
                f"'{self.surrogate}' has no meaning; remove the surrogate, or use one of: "
                f"{', '.join(SURROGATE_LOSS_TYPES)}"
            )

    def _derive_accumulation(self):
        if self.optimizer_batch_size is None:
            return
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        at_once = self.per_device_train_batch_size * processes
        if self.optimizer_batch_size < 1 or self.optimizer_batch_size % at_once:
            raise ConfigurationError(
                f"optimizer_batch_size {self.optimizer_batch_size} is not a multiple of the "
                f"{at_once} completions that {processes} process(es) with "
                f"per_device_train_batch_size {self.per_device_train_batch_size} take at once; "
                "lower per_device_train_batch_size"
            )
        self.gradient_accumulation_steps = self.optimizer_batch_size // at_once

    def _check_batches(self):
        """What counts in GRPO steps, or in completions, needs whole optimizer steps."""
        microbatches = self.steps_per_generation * self.num_iterations
        accumulated = self.gradient_accumulation_steps
        counted = [
            f"{name} {getattr(self, name)}"
            for name in ("grpo_steps", "optimizer_batch_size")
            if getattr(self, name) is not None
        ]
        if counted and microbatches % accumulated and accumulated % microbatches:
            raise ConfigurationError(
                f"{' and '.join(counted)} needs whole optimizer steps, but {microbatches} "
                f"microbatches per rollout batch do not divide into optimizer steps of "
                f"{accumulated}; make generation_batch_size × num_iterations a multiple of the "
                "completions per optimizer step"
            )
        if self.grpo_steps is not None and self.grpo_steps * microbatches % accumulated:
            raise ConfigurationError(
                f"grpo_steps {self.grpo_steps} does not fill its last optimizer step, which takes "
                f"{accumulated // microbatches} rollout batches; make it a multiple of them"
            )

    def _check_generation(self):
        if self.min_tokens > (self.max_completion_length or self.min_tokens):
            raise ConfigurationError(
                f"min_tokens {self.min_tokens} is more than max_completion_length "
                f"{self.max_completion_length}; lower it"
            )
        if self.min_tokens and self.use_transformers_continuous_batching:
            raise ConfigurationError(
                f"min_tokens is {self.min_tokens}, which transformers' continuous batching "
                "cannot hold; set min_tokens to 0, or use_transformers_continuous_batching to "
                "false"
            )
        engine = self.vllm_max_model_length if self.use_vllm else None
        if engine is not None and (self.max_completion_length or 0) >= engine:
            raise ConfigurationError(
                f"max_completion_length {self.max_completion_length} leaves no room for a prompt "
                f"in vllm_max_model_length {engine}, where the engine cuts off; lower "
                "max_completion_length, or raise vllm_max_model_length"
            )
        if "seed" in (self.generation_kwargs or {}):
            raise ConfigurationError(
                "a seed in generation_kwargs would give every completion of a group the same "
                "tokens; remove it and use --seed"
            )
        truncated = [
            f"{name} {getattr(self, name)}"
            for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", None))
            if getattr(self, name) != off
        ]
        if truncated and self.use_vllm and self.vllm_importance_sampling_correction:
            raise ConfigurationError(
                f"{' and '.join(truncated)} cuts the sampling distribution, which the importance "
                "correction compares with the whole one; remove it, or set "
                "vllm_importance_sampling_correction to false"
            )

    def _check_evaluation(self):
        temperature, top_p = self.eval_temperature, self.eval_top_p
        if temperature is not None and temperature < 0:
            raise ConfigurationError(
                f"eval_temperature is {temperature}; make it 0 (greedy) or more, or null for "
                "the training's"
            )
        if top_p is not None and not 0 < top_p <= 1:
            raise ConfigurationError(
                f"eval_top_p is {top_p}; make it more than 0 and at most 1, or null for the "
                "training's"
            )
        samples = self.num_generations_eval or self.num_generations or 1
        if temperature == 0 and samples > 1:
            raise ConfigurationError(
                f"eval_temperature 0 is greedy, so that the {samples} samples of a prompt would be "
                "the same; set num_generations_eval to 1, or a higher eval_temperature"
            )
