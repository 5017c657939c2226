"""`AblationConfig`: TRL's `GRPOConfig` with the switches, what follows from them, and checks.

With the defaults of the switches, training is that of stock TRL. Data and reward are in `task.py`;
files, layers and profiles are in `recipe/`.
"""

import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trl import GRPOConfig

from trl_ablate.checks import (
    check_batches,
    check_evaluation,
    check_generation,
    check_switches,
    follow_the_best_metric,
)
from trl_ablate.errors import ConfigurationError
from trl_ablate.settings import check_choices, check_ranges
from trl_ablate.switches import LossType, Switches

RIDES_ON: dict[str, LossType] = {
    "mean": "grpo", "constant": "dr_grpo", "microbatch": "dr_grpo",
    "token": "dapo", "nonzero": "dapo", "prompt": "dapo",
}  # fmt: skip
"""Length norm -> the loss type of TRL that it is built on."""

PROMPT_LOSS_TYPES = ("dapo", "cispo", "vespo")
"""TRL's loss types with a mean over tokens, which length_norm 'prompt' can weight by group."""

SURROGATE_LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo")
"""TRL's loss types with objective `min(rA, clip(r)A)`; only these accept a surrogate."""

COMPILED_MULTIPLE = 64
"""Under torch_compile, widths are multiples of it: torch compiles once per width."""


@dataclass
class AblationConfig(Switches, GRPOConfig):
    """`GRPOConfig` with the choices that README lists as switches; `help` explains each field.
    `eval_steps` and `save_steps` count rollout batches; in TRL they count optimizer steps."""

    def __post_init__(self):
        if isinstance(self.scale_rewards, bool):  # TRL's older type of it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        check_choices(self, Switches)
        check_ranges(self)
        check_switches(self)
        self._derive_loss_type()
        self._derive_accumulation()
        follow_the_best_metric(self)
        self.full_determinism = self.full_determinism or self.deterministic
        super().__post_init__()
        check_batches(self)
        check_generation(self)
        check_evaluation(self)
        if self.max_steps <= 0 and self.optimizer_steps_asked is not None:
            self.max_steps = self.optimizer_steps_asked

    @property
    def optimizer_steps_asked(self) -> int | None:
        """The optimizer steps that make `grpo_steps`, if those are given."""
        steps = self.grpo_steps
        return None if steps is None else int(steps / self.grpo_steps_per_optimizer_step)

    @property
    def optimizer_steps_per_rollout(self) -> int:
        """Optimizer steps on one rollout batch: iterations × rollout batch / optimizer batch; 1 if
        several rollout batches share an optimizer step, or the quotient is not a whole number."""
        batches = self.grpo_steps_per_optimizer_step
        return batches.denominator if batches.numerator == 1 else 1

    @property
    def grpo_steps_per_optimizer_step(self) -> Fraction:
        """Rollout batches per optimizer step; below 1 if one batch is used for several steps."""
        microbatches: Any = self.steps_per_generation * self.num_iterations
        return Fraction(self.gradient_accumulation_steps, microbatches)

    @property
    def trimmed_to_multiple_of(self) -> int:
        """Widths of microbatches are multiples of it, for padding or for torch.compile."""
        padded_to: Any = self.pad_to_multiple_of
        return padded_to or (COMPILED_MULTIPLE if self.torch_compile else 1)

    @property
    def shares_prompts(self) -> bool:
        """Whether prompts may be computed once: the length of such a pass is no multiple."""
        return self.share_prompts and self.trimmed_to_multiple_of == 1

    @property
    def on_policy(self) -> bool:
        """Whether the policy that is updated is always the one that sampled: all ratios are 1."""
        return self.grpo_steps_per_optimizer_step.denominator == 1

    @property
    def saves_a_forward(self) -> bool:
        """Whether the importance correction uses the training's own forward pass, which needs that
        the updated policy is the one that sampled."""
        wanted = self.corrects_sampler and (self.reuse_forward or not self.use_vllm)
        return wanted and self.on_policy

    @property
    def exchanges_weights(self) -> bool:
        """Whether rollouts are drawn by other weights than the policy's, on purpose."""
        return self.rollout_staleness > 0 or self.sampler_dtype is not None

    @property
    def truncates(self) -> bool:
        return self.top_p < 1 or (self.top_k or 0) > 0 or (self.min_p or 0) > 0

    @property
    def sampler_differs(self) -> bool:
        """Whether rollouts are drawn by another distribution than the policy's, on purpose."""
        return self.exchanges_weights or (self.correct_truncation and self.truncates)

    @property
    def knows_sampler(self) -> bool:
        """Whether the sampler reports log-probabilities of its own."""
        return self.use_vllm or self.sampler_differs

    @property
    def corrects_sampler(self) -> bool:
        """Whether the loss weighs what the sampler has drawn."""
        return self.knows_sampler and self.vllm_importance_sampling_correction

    @property
    def corrects_without_engine(self) -> bool:
        """Whether a sampler that differs is corrected as TRL corrects an engine."""
        return self.corrects_sampler and not self.use_vllm

    @property
    def regrouped_together(self) -> int:
        """How many consecutive microbatches are regrouped by length together; 1 if none. To keep
        its gradient, an optimizer step has to include the whole group."""
        steps: Any = self.steps_per_generation
        smaller, larger = sorted((steps, self.gradient_accumulation_steps))
        whole = larger % smaller == 0
        return smaller if self.regroup_by_length and self.rows_are_independent and whole else 1

    @property
    def rows_are_independent(self) -> bool:
        """Whether a row's share of the gradient is the same in any microbatch of its step."""
        return not (
            self.length_norm == "microbatch"
            or self.loss_type == "bnpo"
            or self.top_entropy_quantile < 1.0
            or self.entropy_coef != 0.0
            or self.use_adaptive_entropy
            or self.covariance_kl != 0.0
        )

    @property
    def leaves_rows_out(self) -> bool:
        """Whether rows of a rollout batch may take no part in the loss."""
        return self.group_filter != "none" or self.length_norm == "nonzero"

    def _derive_loss_type(self):
        derived = RIDES_ON[self.length_norm] if self.length_norm else None
        if self.length_norm == "prompt" and self.loss_type in PROMPT_LOSS_TYPES:
            derived = self.loss_type
        if derived and self.loss_type not in (None, derived):
            raise ConfigurationError(
                f"length_norm '{self.length_norm}' is built on loss_type '{derived}', but "
                f"loss_type is '{self.loss_type}'; remove one of the two"
            )
        self.loss_type = self.loss_type or derived or "dapo"
        if self.surrogate and self.loss_type not in SURROGATE_LOSS_TYPES:
            raise ConfigurationError(
                f"loss_type '{self.loss_type}' has its own objective, so surrogate "
                f"'{self.surrogate}' has no effect; remove the surrogate, or use one of: "
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


def own_config(args: Any, model: Any) -> AblationConfig:
    """`args`, or without them an `AblationConfig` with the output_dir of TRL's default. A
    `GRPOConfig` is refused: it does not record which of its values were given and which derived."""
    if args is None:
        from trl.trainer.utils import get_config_model_id  # slow to import

        name = model if isinstance(model, str) else get_config_model_id(model.config)
        return AblationConfig(output_dir=f"{name.split('/')[-1]}-GRPO")
    if not isinstance(args, AblationConfig):
        raise ConfigurationError(
            f"args is a {type(args).__name__}, which lacks the switches of AblationTrainer; use an "
            "AblationConfig, which takes the same arguments"
        )
    return args
