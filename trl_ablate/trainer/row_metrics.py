"""TRL's metrics of the loss, computed from rows, so that they do not depend on regrouping.

TRL logs `kl`, `entropy` and the clip ratios as means over microbatches of means over tokens. So
the weight of a token depends on the rows that share its microbatch. Here every row keeps its sum,
its number of tokens and the microbatch that TRL drew it into; once all rows of the regrouped
microbatches are known, the metrics are those of the microbatches as drawn.
"""

from collections.abc import Callable, Mapping

import torch

SMALLEST, LARGEST = ("clip_ratio/low_min",), ("clip_ratio/high_max",)
"""Metrics that are the smallest, or the largest, of the means of the rows of a microbatch."""


def row_sums(values_NT: torch.Tensor, mask_NT: torch.Tensor) -> torch.Tensor:
    """Sum and count of each row, `(N, 2)`: over its response tokens, or of its one value.

    Shapes: values `(N, T)`, or `(N, 1)` where a row has one value; mask `(N, T)`. Whatever stands
    in the padding takes no part.
    """
    if values_NT.size(1) == 1:
        return torch.cat([values_NT, torch.ones_like(values_NT)], dim=1)
    values_NT = values_NT.masked_fill(mask_NT == 0, 0.0)
    return torch.stack([values_NT.sum(dim=1), mask_NT.sum(dim=1)], dim=1)


def metric_of_microbatches(name: str, sums_N2: torch.Tensor, drawn_N: torch.Tensor) -> list[float]:
    """The value of a metric in each microbatch as drawn, in order.

    A mean over all tokens of the microbatch (0 without any); for `SMALLEST` and `LARGEST` the
    extreme of the rows' own means, rows without tokens left out (NaN if all are).
    """
    parts = [sums_N2[drawn_N == place] for place in range(int(drawn_N.max()) + 1)]
    if name in SMALLEST + LARGEST:
        means = [part[part[:, 1] > 0, 0] / part[part[:, 1] > 0, 1] for part in parts]
        extreme = torch.min if name in SMALLEST else torch.max
        return [extreme(mean).item() if len(mean) else float("nan") for mean in means]
    return [(part[:, 0].sum() / part[:, 1].sum().clamp(min=1)).item() for part in parts]


class RowMetrics:
    """Collects the rows of regrouped microbatches and puts TRL's metrics right once all are there.

    Args:
        metrics: lists of values by name, in which TRL has put one value per microbatch.
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
        """Note a microbatch; with the last of those regrouped together, replace their metrics."""
        self._drawn.append(drawn_N)
        self._sums.append(sums)
        if len(self._drawn) < microbatches:
            return
        drawn_N = self._gather(torch.cat(self._drawn))
        for name in sums:
            sums_N2 = self._gather(torch.cat([one[name] for one in self._sums]))
            self._metrics[name][-microbatches:] = metric_of_microbatches(name, sums_N2, drawn_N)
        self._drawn, self._sums = [], []
