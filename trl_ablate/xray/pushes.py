"""Who gets the gradient: how hard the loss of an arm pushes each token, summed by classes.

The push of a token is |∂loss / ∂ log π(token)|, taken from the backward pass of the arm's own loss:
advantages, divisors, clipping, importance weights and KL are all in it. The entropy bonus, which
acts on the other tokens of a position, too, is not. Shares of the pushes, by

    sign        of the advantage of the row: positive, negative; rows with 0 are in neither
    length      quarter of the row's length among all rollouts of the X-ray, shortest first
    difficulty  number of passes in the row's group, 0 to G
    position    quarter of the response that the token is in

An arm's classes are those of the stored rollouts, except for the sign.
"""

from collections.abc import Sequence

import numpy as np
import torch

from trl_ablate.trainer.batching import ROW, Batch
from trl_ablate.xray.stored_rollouts import RolloutBatch

QUARTERS = 4
BY = ("sign", "length", "difficulty", "position")


class Pushes:
    """Sums the pushes of each rollout batch by class, on one process."""

    def __init__(self, stored: Sequence[RolloutBatch], group: int):
        lengths_BN = np.stack([batch.lengths_N for batch in stored])
        edges = np.quantile(lengths_BN, [0.25, 0.5, 0.75], method="inverted_cdf")
        passed_BPG = np.stack([batch.passed_N.reshape(-1, group) for batch in stored])
        self._lengths_BN = torch.as_tensor(np.searchsorted(edges, lengths_BN))
        self._passes_BN = torch.as_tensor(np.repeat(passed_BPG.sum(axis=2), group, axis=1))
        sizes = (2, QUARTERS, group + 1, QUARTERS)
        self.sums = {
            name: torch.zeros(len(stored), size).double()
            for name, size in zip(BY, sizes, strict=True)
        }

    def __call__(self, number: int, batch: Batch, gradient_NT: torch.Tensor) -> None:
        mask_NT, rows_N = batch["mask"].cpu(), batch[ROW].cpu()
        push_NT = gradient_NT.abs().double().cpu() * mask_NT
        push_N, advantages = push_NT.sum(dim=1), batch["advantages"].cpu()
        sign_N = advantages if advantages.dim() == 1 else advantages.sum(dim=1)
        lengths_N1 = mask_NT.sum(dim=1, keepdim=True).clamp(min=1)
        quarters_NT = (torch.arange(push_NT.size(1)) * QUARTERS // lengths_N1).clamp(max=3)
        sums = {name: table[number] for name, table in self.sums.items()}
        sums["sign"] += torch.stack([push_N[sign_N > 0].sum(), push_N[sign_N < 0].sum()])
        sums["length"].index_add_(0, self._lengths_BN[number, rows_N], push_N)
        sums["difficulty"].index_add_(0, self._passes_BN[number, rows_N], push_N)
        sums["position"].index_add_(0, quarters_NT.flatten(), push_NT.flatten())
