"""TRL's metrics of the loss, computed from rows, so that they do not depend on regrouping.

TRL logs `kl`, `entropy` and the clip ratios as means over tokens, then over microbatches. So the
weight of a token depends on the other rows in its microbatch. Here each row keeps its sum, its
number of tokens and the microbatch that TRL put it into. Once all rows of the regrouped
microbatches are known, the metrics are computed for TRL's original microbatches.
"""

from collections.abc import Callable, Mapping

import torch

SMALLEST, LARGEST = ("clip_ratio/low_min",), ("clip_ratio/high_max",)
"""Metrics that are the minimum, or the maximum, of the row means in a microbatch."""


def row_sums(values_NT: torch.Tensor, mask_NT: torch.Tensor) -> torch.Tensor:
    """Sum and count of each row, `(N, 2)`, over its response tokens, or of its single value.

    Shapes: values `(N, T)`, or `(N, 1)` if a row has one value; mask `(N, T)`. Values at padding
    are ignored.
    """
    if values_NT.size(1) == 1:
        return torch.cat([values_NT, torch.ones_like(values_NT)], dim=1)
    values_NT = values_NT.masked_fill(mask_NT == 0, 0.0)
    return torch.stack([values_NT.sum(dim=1), mask_NT.sum(dim=1)], dim=1)


def metric_of_microbatches(name: str, sums_N2: torch.Tensor, drawn_N: torch.Tensor) -> list[float]:
    """The value of a metric in each of TRL's original microbatches, in order.

    It is the mean over all tokens of the microbatch (0 without tokens). For `SMALLEST` and
    `LARGEST` it is the extreme of the row means; rows without tokens are left out (NaN if there
    are no others).
    """
    parts = [sums_N2[drawn_N == place] for place in range(int(drawn_N.max()) + 1)]
    if name in SMALLEST + LARGEST:
        means = [part[part[:, 1] > 0, 0] / part[part[:, 1] > 0, 1] for part in parts]
        extreme = torch.min if name in SMALLEST else torch.max
        return [extreme(mean).item() if len(mean) else float("nan") for mean in means]
    return [(part[:, 0].sum() / part[:, 1].sum().clamp(min=1)).item() for part in parts]


class RowMetrics:
    """Collects the rows of regrouped microbatches; corrects TRL's metrics when it has all of them.

    Args:
        metrics: lists of values by name, to which TRL has added one value per microbatch.
        gather: concatenates a tensor over the processes.
    """

    def __init__(
        self,
        metrics: Mapping[str, list[float]],
        gather: Callable[[torch.Tensor], torch.Tensor],
    ):
        self._metrics = metrics
        self._gather = gather
        self._drawn: list[torch.Tensor] = []
        self._sums: list[dict[str, torch.Tensor]] = []

    def add(self, drawn_N: torch.Tensor, sums: dict[str, torch.Tensor], microbatches: int) -> None:
        """Add a microbatch; after the last one of those regrouped together, replace their
        metrics."""
        self._drawn.append(drawn_N)
        self._sums.append(sums)
        if len(self._drawn) < microbatches:
            return
        drawn_N = self._gather(torch.cat(self._drawn))
        for name in sums:
            sums_N2 = self._gather(torch.cat([one[name] for one in self._sums]))
            self._metrics[name][-microbatches:] = metric_of_microbatches(name, sums_N2, drawn_N)
        self._drawn, self._sums = [], []
