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


def classes_of(batches: Sequence[RolloutBatch], group: int) -> dict[str, np.ndarray]:
    """The class of every row by length and by difficulty, each `(B, N)`."""
    lengths_BN = np.stack([batch.lengths_N for batch in batches])
    edges = np.quantile(lengths_BN, [0.25, 0.5, 0.75], method="inverted_cdf")
    passed_BN = np.stack([batch.passed_N for batch in batches])
    counts_BPG = passed_BN.reshape(len(batches), -1, group)
    counts_BN = np.repeat(counts_BPG.sum(axis=2), group, axis=1)
    return {"length": np.searchsorted(edges, lengths_BN), "difficulty": counts_BN}


class Pushes:
    """Sums the pushes of each rollout batch by class, on one process.

    There are G+1 classes of difficulty.
    """

    def __init__(self, stored: Sequence[RolloutBatch], group: int):
        classes, batches = classes_of(stored, group), len(stored)
        self._classes = {name: torch.as_tensor(rows) for name, rows in classes.items()}
        sizes = {"sign": 2, "length": QUARTERS, "difficulty": group + 1, "position": QUARTERS}
        self.sums = {name: torch.zeros(batches, size).double() for name, size in sizes.items()}

    def __call__(self, number: int, batch: Batch, gradient_NT: torch.Tensor) -> None:
        mask_NT = batch["mask"].cpu()
        push_NT = gradient_NT.abs().double().cpu() * mask_NT
        push_N, rows_N = push_NT.sum(dim=1), batch[ROW].cpu()
        advantages = batch["advantages"].cpu()
        sign_N = advantages if advantages.dim() == 1 else advantages.sum(dim=1)
        sums = {name: table[number] for name, table in self.sums.items()}
        sums["sign"] += torch.stack([push_N[sign_N > 0].sum(), push_N[sign_N < 0].sum()])
        for name, rows in self._classes.items():
            sums[name].index_add_(0, rows[number][rows_N], push_N)
        lengths_N1 = mask_NT.sum(dim=1, keepdim=True).clamp(min=1)
        quarters_NT = (torch.arange(push_NT.size(1)) * QUARTERS // lengths_N1).clamp(max=3)
        sums["position"].index_add_(0, quarters_NT.flatten(), push_NT.flatten())
