"""The switches: our settings of training, and TRL's own where only some values have a meaning.

The `help` of a field explains it and its `Literal` lists its values; the command line, the
validation and the README read both from here. Below them: which settings have which role, those of
the task, of the switches and of TRL. The settings of the guard watch a run, or stop it; they are
known by their prefix, `guard_`. No torch.
"""

from dataclasses import dataclass
from typing import Literal

from trl_ablate.metrics import EVAL_REWARD
from trl_ablate.settings import Role, names_with, setting
from trl_ablate.task import TaskArguments

Baseline = Literal[
    "group_mean", "none", "leave_one_out", "batch_mean", "token_mean", "group_then_batch",
    "group_token_mean", "best_of_others", "half",
]  # fmt: skip
Scale = Literal["group", "batch", "none", "group_mean", "advantage_std", "token_std"]
Surrogate = Literal["clip", "no_clip", "reinforce", "geometric", "probability", "one_sided"]
LengthNorm = Literal["mean", "constant", "microbatch", "token", "nonzero", "prompt"]
LossType = Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
GroupFilter = Literal["none", "drop", "resample"]
Placebo = Literal["random", "length", "constant"]
SamplerDtype = Literal["bfloat16", "float16", "float8_e4m3fn", "int8"]
KLEstimator = Literal["k1", "k2", "k3"]


@dataclass
class Switches:
    """The fields that `AblationConfig` has beside those of TRL, or in place of them."""

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
        None, "Divisor of length_norm 'constant'. Null: max_completion_length.", above=0
    )
    grpo_steps: int | None = setting(
        None,
        "Rollout batches to train on. Sets max_steps (optimizer steps) if that is not given.",
        least=1,
        role="length",
    )
    optimizer_batch_size: int | None = setting(
        None,
        "Completions per optimizer step, over all processes. Sets gradient_accumulation_steps.",
    )
    trim_microbatches: bool = setting(
        True,
        "Cut each microbatch to its own longest prompt and completion; same gradient, up to "
        "dropout.",
    )
    regroup_by_length: bool = setting(
        True,
        "Group the rows of an optimizer step into microbatches by length; same gradient, up to "
        "dropout. No effect if a row's share of the loss depends on the rest of its microbatch.",
    )
    share_prompts: bool = setting(
        True,
        "Compute the prompt of several rows once in a forward pass; same gradient, up to dropout. "
        "Needs trim_microbatches and a model with `sdpa` attention on which it was tested; not "
        "with torch_compile or pad_to_multiple_of.",
    )
    skip_idle_rows: bool = setting(
        True,
        "No backward pass for rows whose advantage is 0, unless a term of the loss needs one; same "
        "gradient, up to dropout. Needs trim_microbatches. Not where weights are sharded, or while "
        "several processes sum their gradients.",
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
        "ended, and read a prompt once for all its completions; same tokens, up to rounding and "
        "dropout (TRL's lora_dropout is 0.05). Has no effect with a cache_implementation, "
        "continuous batching, FSDP or DeepSpeed.",
    )
    deterministic: bool = setting(
        False,
        "Two equal runs on one machine end in the same bits, on a GPU, too: deterministic kernels "
        "(full_determinism), and vLLM's batch-invariant mode. Slower. Another size or order of "
        "microbatches still rounds differently.",
    )
    stop: list[str] | None = setting(
        None,
        "Strings that end a completion and stay in it, on every generation backend.",
        role="generation",
    )
    min_tokens: int = setting(
        0,
        "Tokens of a completion before it may end; not with transformers' continuous batching.",
        least=0,
        role="generation",
    )
    evaluation: Literal["one_shot", "trl"] = setting(
        "trl",
        "trl: evaluate as TRL does, in batches of per_device_eval_batch_size, with a loss; this "
        "changes the training's random state. one_shot, as in the shipped recipes: generate and "
        "grade without a loss, in such batches, with vLLM usually all at once.",
    )
    eval_temperature: float | None = setting(
        None, "Sampling temperature of evaluation; 0 is greedy. Null: as in training.", least=0
    )
    eval_top_p: float | None = setting(
        None,
        "Top-p of evaluation's sampling, 1 for none. Null: as in training.",
        above=0,
        most=1,
    )
    eval_by: str | None = setting(
        None,
        "Column of the data, such as level: the rewards of an evaluation are also logged for each "
        "of its values, as eval_reward/level=3.",
    )
    num_rollouts_saved: int = setting(
        16,
        "Rollouts of the last training batch, written at every evaluation.",
        least=0,
        role="record",
    )
    best_metric: str = setting(
        EVAL_REWARD,
        "Metric whose highest evaluation is kept as a checkpoint; the default of "
        "metric_for_best_model.",
    )
    log_memory: bool = setting(
        True, "Log the peak of memory after the rollout and after the update of every step."
    )
    arm: str | None = setting(None, "Name of the arm: a key to group runs by.", role="place")
    study: str | None = setting(None, "Name of the study: a key to group runs by.", role="place")
    group_filter: GroupFilter = setting(
        "none",
        "Groups whose graded rewards are all equal: keep them, leave them out of the loss and of "
        "its divisor, or replace them by groups of fresh prompts (and leave out what stays).",
    )
    max_resample_rounds: int = setting(
        3,
        "Rounds of generation in which group_filter 'resample' looks for groups to replace.",
        least=1,
        most=1000,
    )
    positive_weight: float = setting(1.0, "Factor of positive advantages.", least=0)
    negative_weight: float = setting(1.0, "Factor of negative advantages.", least=0)
    advantage_clip: float | None = setting(
        None, "Largest absolute advantage, before the sign weights. Null: no limit.", above=0
    )
    outcome_gate: str | None = setting(
        None,
        "Name of the reward function that baseline, scale and group_filter look at. The others "
        "only move advantage between completions of a group with the same value of it. Null: the "
        "sum of all.",
    )
    hard_group_exponent: float = setting(
        0.0,
        "Advantages of a group are multiplied by (1 - p) to this power, p the mean of its rewards "
        "(those that baseline looks at, without penalties), at least 0 and at most 1. 0: by 1.",
        least=0,
    )
    reward_noise: float = setting(
        0.0,
        "Control: probability that a completion's rewards of 0 and 1 are exchanged for the "
        "advantages of training (of the outcome_gate's reward only, if there is one). Logged "
        "rewards stay the true ones.",
        least=0,
        most=1,
    )
    placebo: Placebo | None = setting(
        None,
        "Control: take the advantages of training from a reward that does not depend on the "
        "answer: 0 or 1 at random, the completion's length, or a constant. Logged rewards stay the "
        "true ones.",
    )
    overlong_penalty: float = setting(
        0.0,
        "Subtracted from the reward of a completion of max_completion_length tokens, for the "
        "advantages of training: 0 before the last overlong_share of that length, then in "
        "proportion. group_filter does not look at it. Logged rewards stay the true ones.",
        least=0,
    )
    overlong_share: float = setting(
        0.2,
        "Share of max_completion_length, at its end, over which overlong_penalty grows.",
        above=0,
        most=1,
    )
    kl_estimator: KLEstimator = setting(
        "k3",
        "Estimate of the KL to the reference at each token: log(pi/ref), half its square, or "
        "ref/pi - 1 - log(ref/pi).",
    )
    kl_in: Literal["loss", "reward"] = setting(
        "loss",
        "Where the KL goes, times beta: added to the loss of each token, or its sum over a "
        "completion's tokens subtracted from the reward.",
    )
    covariance_kl: float = setting(
        0.0,
        "Coefficient of |log pi - log pi_old|, added to the loss of the tokens where advantage and "
        "log-probability vary together most. 0: none.",
        least=0,
    )
    covariance_share: float = setting(
        0.0002,
        "Share of a microbatch's response tokens, at least one, that covariance_kl acts on.",
        above=0,
        most=1,
    )
    rollout_staleness: int = setting(
        0,
        "Rollouts are drawn by the weights of this many GRPO steps ago (at the start, by the first "
        "ones); that many copies of the trained weights, and one more, are kept in CPU memory.",
        least=0,
        most=1024,
        role="generation",
    )
    sampler_dtype: SamplerDtype | None = setting(
        None,
        "Rollouts are drawn by weights that are rounded to this type; training keeps its own. "
        "Null: no rounding.",
        role="generation",
    )
    sampler_gap_limit: float | None = setting(
        None,
        "Completions get advantage 0 if the mean over their tokens of log pi - log mu, the "
        "policy's before the update and the sampler's, is further from 0 than this. Null: none "
        "does.",
        above=0,
    )
    correct_truncation: bool = setting(
        False,
        "top_p, top_k and min_p make a sampler that differs from the policy: the log-probabilities "
        "of the truncated distribution are kept, and the importance correction applies. With vLLM "
        "it always does.",
        role="generation",
    )

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
        "colocate", "vLLM inside the training process, or behind a server.", role="machine"
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
    eval_delay: float = setting(
        0,
        "Optimizer steps (epochs with eval_strategy epoch) before the first evaluation, as in TRL.",
    )
    save_steps: float = setting(
        500,
        "GRPO steps (rollout batches; TRL counts optimizer steps) between checkpoints; below 1 a "
        "share of all of them.",
        role="record",
    )


OF_TRL: dict[Role, tuple[str, ...]] = {
    "place": (
        "output_dir", "project", "report_to", "run_name", "use_cpu", "push_to_hub", "hub_model_id",
        "hub_private_repo", "hub_revision", "hub_strategy", "hub_token", "trackio_space_id",
        "trackio_static_space_id", "trackio_bucket_id",
    ),
    "record": (
        "save_strategy", "save_total_limit", "save_on_each_node", "save_only_model",
        "logging_steps", "logging_strategy", "logging_first_step", "log_completions",
        "num_completions_to_print", "disable_tqdm",
    ),
    "machine": (
        "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps",
        "gradient_checkpointing", "gradient_checkpointing_kwargs", "attn_implementation",
        "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
        "dataloader_prefetch_factor", "ddp_backend", "ddp_timeout", "deepspeed", "fsdp",
        "fsdp_config", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size",
        "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port",
        "vllm_server_timeout", "vllm_group_port",
    ),
    "length": ("max_steps", "num_train_epochs"),
    "weights": ("model_name_or_path", "model_revision", "load_in_4bit", "load_in_8bit"),
    "world": ("model_name_or_path",),
    "model": ("use_peft", "lora_r", "lora_target_modules", "cast_lm_head_to_fp32"),
    "generation": (
        "generation_batch_size", "num_generations", "temperature", "top_p", "top_k", "min_p",
        "repetition_penalty", "max_completion_length", "generation_kwargs", "use_vllm",
    ),
}  # fmt: skip


def named(*roles: Role) -> tuple[str, ...]:
    ours = (*names_with(TaskArguments, *roles), *names_with(Switches, *roles))
    return (*ours, *(name for role in roles for name in OF_TRL.get(role, ())))
