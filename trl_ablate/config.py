"""The switches: `AblationConfig` over TRL's `GRPOConfig`.

With the defaults of the new fields, training is that of stock TRL. The `help` of a field explains
it and its `Literal` lists its values; the command line, the validation and the README read both
from here. Data and reward are in `task.py`; files, layers and profiles are in `recipe/`.
"""

import os
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

from trl import GRPOConfig

from trl_ablate.best_model import follow_the_best_metric
from trl_ablate.contradictions import (
    check_batches,
    check_determinism,
    check_evaluation,
    check_generation,
    check_switches,
)
from trl_ablate.errors import ConfigurationError
from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.settings import check_ranges, choices, setting
from trl_ablate.switches import GroupSwitches

Baseline = Literal[
    "group_mean",
    "none",
    "leave_one_out",
    "batch_mean",
    "token_mean",
    "group_then_batch",
    "group_token_mean",
    "best_of_others",
    "half",
]
Scale = Literal["group", "batch", "none", "group_mean", "advantage_std", "token_std"]
Surrogate = Literal["clip", "no_clip", "reinforce", "geometric", "probability", "one_sided"]
LengthNorm = Literal["mean", "constant", "microbatch", "token", "nonzero", "prompt"]
LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]

RIDES_ON: dict[str, LossType] = {
    "mean": "grpo",
    "constant": "dr_grpo",
    "microbatch": "dr_grpo",
    "token": "dapo",
    "nonzero": "dapo",
    "prompt": "dapo",
}
"""Length norm -> the loss type of TRL that it is built on."""

PROMPT_LOSS_TYPES = ("dapo", "cispo", "vespo")
"""TRL's loss types with a mean over tokens, which length_norm 'prompt' can weight by group."""

SURROGATE_LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo")
"""TRL's loss types with objective `min(rA, clip(r)A)`; only these accept a surrogate."""

COMPILED_MULTIPLE = 64
"""Under torch_compile, widths are multiples of it: torch compiles once per width."""


@dataclass
class AblationConfig(GroupSwitches, GRPOConfig):
    """`GRPOConfig` with the choices that README lists as switches; `help` explains each field.

    Two of TRL's own arguments have another unit: `eval_steps` and `save_steps` count rollout
    batches, not optimizer steps. It is the same if each batch is used for one optimizer step.
    """

    baseline: Baseline = setting("group_mean", "What is subtracted from the reward.")
    best_of: int | None = setting(
        None,
        "k of baseline 'best_of_others': the credit of a completion is how much it raises the best "
        "reward of k completions of its group. Null: of all of them.",
        least=2,
    )
    advantage_eps: float = setting(1e-4, "Added to what the advantage is divided by.", least=0)
    surrogate: Surrogate | None = setting(
        None,
        "Policy objective per token: min(rA, clip(r)A), rA, or A log pi; per sequence, with the "
        "geometric mean of the tokens' clipped ratios; rA of the tokens whose probability has not "
        "moved by more than epsilon in the direction of A; or A log pi, times the ratio of the "
        "response, at most 1, where A is negative. Null: the loss type's own.",
    )
    length_norm: LengthNorm | None = setting(
        None,
        "What the summed token loss is divided by: the sequence's own length, a constant, the "
        "longest completion in the microbatch, the tokens of the rollout batch, those of its "
        "completions whose advantage is not 0 (nonzero; the others leave the loss), or those of "
        "the group, times the number of groups (prompt); the last three times the share of the "
        "rollout batch that an optimizer step takes. Null: the loss type's own.",
    )
    length_norm_constant: float | None = setting(
        None, "Divisor of length_norm 'constant'. Null: max_completion_length."
    )
    grpo_steps: int | None = setting(
        None,
        "Rollout batches to train on. Sets max_steps (optimizer steps) if that is not given.",
        least=1,
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
        "Group the rows of an optimizer step into microbatches by length; same gradient. Has no "
        "effect if a row's share of the loss depends on the other rows of its microbatch.",
    )
    share_prompts: bool = setting(
        True,
        "Compute the prompt of several rows once in a forward pass; same gradient. Needs "
        "trim_microbatches and a model with `sdpa` attention on which it was tested; not with "
        "torch_compile or pad_to_multiple_of.",
    )
    skip_idle_rows: bool = setting(
        True,
        "No backward pass for rows whose advantage is 0, unless a term of the loss needs one; same "
        "gradient. Needs trim_microbatches.",
    )
    padding_free: bool = setting(
        False,
        "Train each microbatch as one row without padding; same gradient. For flash attention on a "
        "GPU; other attention masks the whole row, which was slower on a CPU.",
    )
    reuse_forward: bool = setting(
        True,
        "With vLLM and one optimizer step per rollout batch, take the importance correction's "
        "log-probabilities from the training's forward pass instead of an extra one; same "
        "gradient.",
    )
    drop_ended_rows: bool = setting(
        True,
        "With transformers' generation, take a row out of the batch and the cache once it has "
        "ended, and read a prompt once for all its completions; same tokens, up to rounding. Has "
        "no effect with a cache_implementation, FSDP or DeepSpeed.",
    )
    deterministic: bool = setting(
        False,
        "Two equal runs on one machine end in the same bits, on a GPU, too: deterministic kernels "
        "(full_determinism), and vLLM's batch-invariant mode. Slower. Another size or order of "
        "microbatches still rounds differently.",
    )
    stop: list[str] | None = setting(
        None, "Strings that end a completion and stay in it, on every generation backend."
    )
    min_tokens: int = setting(
        0, "Tokens of a completion before it may end, on every generation backend.", least=0
    )
    evaluation: Literal["one_shot", "trl"] = setting(
        "trl",
        "trl: evaluate as TRL does, in batches of per_device_eval_batch_size, with a loss; this "
        "changes the training's random state. one_shot, as in the shipped recipes: generate and "
        "grade in large batches, without a loss.",
    )
    eval_temperature: float | None = setting(
        None, "Sampling temperature of evaluation; 0 is greedy. Null: as in training."
    )
    eval_top_p: float | None = setting(
        None, "Top-p of evaluation's sampling, 1 for none. Null: as in training."
    )
    eval_by: str | None = setting(
        None,
        "Column of the data, such as level: the rewards of an evaluation are also logged for each "
        "of its values, as eval_reward/level=3.",
    )
    num_rollouts_saved: int = setting(16, "Rollouts written to disk at every evaluation.", least=0)
    best_metric: str = setting(
        EVAL_REWARD,
        "Metric whose best evaluation is kept as a checkpoint; the default of "
        "metric_for_best_model.",
    )
    log_memory: bool = setting(
        True, "Log the peak of memory after the rollout and after the update of every step."
    )
    arm: str | None = setting(None, "Name of the arm: a key to group runs by.")
    study: str | None = setting(None, "Name of the study: a key to group runs by.")

    # TRL's own fields, redeclared if TRL accepts any text although only some texts have a meaning.
    loss_type: LossType | None = setting(
        None,
        "TRL's loss type. Null: the one that length_norm is built on, or else TRL's default, dapo.",
    )
    scale_rewards: Scale = setting(
        "group",
        "What the advantage is divided by: the unbiased std of the rewards in the group or batch, "
        "1, the group's mean reward, or the std of the batch's centred advantages, over "
        "completions or over tokens.",
    )
    importance_sampling_level: Literal["token", "sequence"] = setting(
        "token", "One importance ratio per token, or one per sequence (GSPO)."
    )
    multi_objective_aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = setting(
        "sum_then_normalize", "Sum the reward functions, then normalise; or the reverse (GDPO)."
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
        None,
        "GRPO steps (rollout batches; TRL counts optimizer steps) between evaluations; below 1 a "
        "share of all of them.",
    )
    save_steps: float = setting(
        500,
        "GRPO steps (rollout batches; TRL counts optimizer steps) between checkpoints; below 1 a "
        "share of all of them.",
    )

    def __post_init__(self):
        if isinstance(self.scale_rewards, bool):  # TRL's older type of it
            self.scale_rewards = "group" if self.scale_rewards else "none"
        self._check_choices()
        check_ranges(self)
        check_switches(self)
        self._derive_loss_type()
        self._derive_accumulation()
        follow_the_best_metric(self)
        self.full_determinism = self.full_determinism or self.deterministic
        super().__post_init__()
        check_batches(self)
        check_generation(self)
        check_determinism(self)
        check_evaluation(self)
        if self.grpo_steps is not None and self.max_steps <= 0:
            self.max_steps = int(self.grpo_steps / self.grpo_steps_per_optimizer_step)

    @property
    def optimizer_steps_per_rollout(self) -> int:
        """Optimizer steps on one rollout batch: iterations × rollout batch / optimizer batch.

        1 when on-policy, if several rollout batches share an optimizer step, and if the quotient
        is not a whole number.
        """
        microbatches = self.steps_per_generation * self.num_iterations
        whole, rest = divmod(microbatches, self.gradient_accumulation_steps)
        return 1 if rest else whole

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
        return (
            self.gradient_accumulation_steps % (self.steps_per_generation * self.num_iterations)
            == 0
        )

    @property
    def saves_a_forward(self) -> bool:
        """Whether the importance correction uses the training's own forward pass.

        This needs one optimizer step per rollout batch, so that the updated policy is the one that
        sampled.
        """
        corrected = self.use_vllm and self.vllm_importance_sampling_correction
        if self.corrects_without_engine:
            return self.on_policy
        return self.reuse_forward and corrected and self.on_policy

    @property
    def exchanges_weights(self) -> bool:
        """Whether rollouts are drawn by other weights than the policy's, on purpose."""
        return self.rollout_staleness > 0 or self.sampler_dtype is not None

    @property
    def truncates(self) -> bool:
        """Whether the sampler leaves out some tokens."""
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
    def corrects_without_engine(self) -> bool:
        """Whether a sampler that differs is corrected as TRL corrects an engine."""
        differs = self.sampler_differs and not self.use_vllm
        return differs and self.vllm_importance_sampling_correction

    @property
    def regrouped_together(self) -> int:
        """How many consecutive microbatches are regrouped by length together; 1 if none.

        To keep its gradient, an optimizer step has to include the whole group. If neither the
        rollout batch nor the optimizer step divides the other, some step has only part of a group.
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
            or self.covariance_kl != 0.0
        )
        return not over_the_microbatch

    def _check_choices(self):
        own = GroupSwitches.__annotations__ | AblationConfig.__annotations__
        for switch in fields(self):
            allowed = choices(own.get(switch.name))
            value = getattr(self, switch.name)
            if allowed and value not in allowed:
                raise ConfigurationError(
                    f"{switch.name} is {value!r}; allowed: {', '.join(map(str, allowed))}"
                )

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
    """`args`, or without them an `AblationConfig` with the output_dir of TRL's default.

    A `GRPOConfig` is refused, not converted: it does not record which of its values were given and
    which were derived, and it counts `eval_steps` and `save_steps` in optimizer steps.
    """
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
