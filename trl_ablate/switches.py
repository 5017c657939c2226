"""The switches for groups, signs, the KL term and control rewards, which `AblationConfig`
inherits."""

from dataclasses import dataclass
from typing import Literal

from trl_ablate.settings import setting

GroupFilter = Literal["none", "drop", "resample"]
Placebo = Literal["random", "length", "constant"]
SamplerDtype = Literal["bfloat16", "float16", "float8_e4m3fn", "int8"]
KLEstimator = Literal["k1", "k2", "k3"]


@dataclass
class GroupSwitches:
    """Which groups and signs get gradient, by which reward, where the KL goes, and who samples."""

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
        "ones); that many copies of the trained weights are kept in CPU memory.",
        least=0,
        most=1024,
    )
    sampler_dtype: SamplerDtype | None = setting(
        None,
        "Rollouts are drawn by weights that are rounded to this type; training keeps its own. "
        "Null: no rounding.",
    )
    sampler_gap_limit: float | None = setting(
        None,
        "Completions leave the loss if the mean over their tokens of log pi - log mu, the policy's "
        "before the update and the sampler's, is further from 0 than this. Null: none does.",
        above=0,
    )
    correct_truncation: bool = setting(
        False,
        "top_p, top_k and min_p make a sampler that differs from the policy: the log-probabilities "
        "of the truncated distribution are kept, and the importance correction applies. With vLLM "
        "it always does.",
    )
