"""Control experiments on the reward: what is learned from a reward that is wrong, or is none?

All functions are pure; their random numbers are arguments. Rewards are `(N,)` or `(N, F)` for F
reward functions, NaN where a completion is ungraded.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def flipped(rewards_NF: Tensor, draws_N: Sequence[float], probability: float) -> Tensor:
    """Rewards in which 0 and 1 are exchanged in the completions whose draw is below `probability`.

    `draws_N` are uniform in [0, 1). One draw decides for all reward functions of a completion.
    Values other than 0 and 1, and NaN, stay as they are. With 0/1 rewards and a pass rate q, the
    rate of rewarded completions becomes q + p(1 - 2q): at p = 1/2 the reward is independent of the
    answer.
    """
    drawn_N = torch.tensor([draw < probability for draw in draws_N], device=rewards_NF.device)
    binary_NF = (rewards_NF == 0) | (rewards_NF == 1)
    return torch.where(drawn_N.unsqueeze(1) & binary_NF, 1 - rewards_NF, rewards_NF)


def placebo_reward(kind: str, draws_N: Sequence[float], lengths_N: Tensor, longest: int) -> Tensor:
    """A reward `(N,)` that does not depend on the answer. No completion is ungraded.

    `random`: 1 with probability 1/2, otherwise 0. `length`: the completion's length as a share of
    `longest`. `constant`: 1.
    """
    if kind == "random":
        return torch.tensor([float(draw < 0.5) for draw in draws_N], device=lengths_N.device)
    if kind == "length":
        return lengths_N.float() / longest
    if kind == "constant":
        return torch.ones_like(lengths_N, dtype=torch.float32)
    raise ValueError(f"placebo is '{kind}'; allowed: random, length, constant")
