"""The gradient that an arm takes on a rollout batch, from a training in which no weight moves.

`GradientTaker` stands in the place of the optimizer; the training around it is the trainer's own.
There is no clipping by norm and no learning rate. A rollout batch that is used for several
optimizer steps gives the sum of their gradients. Memory: the gradient, or that sum; the optimizer's
second moments; and sketches.

A sketch is a seeded random projection to `SIZE` numbers (a count sketch): each coordinate i is
added, with a random sign, to one random place,

    sketch[place(i)] += sign(i) · gradient[i]

The inner product of two sketches is an unbiased estimate of that of the gradients. The standard
error of a cosine c is about (1 - c²) / √SIZE, at most 0.004 for gradients that are spread over many
coordinates; a cosine of 1 stays 1 up to rounding. Place and sign are a hash of the seed and of i,
so that nothing of the size of the model is stored. Left out: a dense projection, which costs `SIZE`
times the model instead of the model.

Who gets the gradient: the push of a token is |∂loss / ∂ log π(token)|, taken from the backward pass
of the arm's own loss: advantages, divisors, clipping, importance weights and KL are all in it. The
entropy bonus, which acts on the other tokens of a position, too, is not. Shares of the pushes, by

    sign        of the advantage of the row: positive, negative; rows with 0 are in neither
    length      quarter of the row's length among all rollouts of the X-ray, shortest first
    difficulty  number of passes in the row's group, 0 to G
    position    quarter of the response that the token is in

An arm's classes are those of the stored rollouts, except for the sign.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trl_ablate.trainer.batching import ROW, Batch
from trl_ablate.xray.stored_rollouts import DAMAGED, RolloutBatch, read_arrays, write_arrays

SIZE = 2**16
CHUNK = 2**22
"""Coordinates that are hashed at once."""

_GOLDEN, _FIRST, _SECOND = (
    0x9E3779B97F4A7C15 - 2**64,
    0xBF58476D1CE4E5B9 - 2**64,
    0x94D049BB133111EB - 2**64,
)
"""The constants of splitmix64 as signed integers, whose products wrap around in torch."""

KINDS = {
    "norm": r"norm|(^|\.)ln_?\w*\.",
    "embeddings": r"embed|(^|\.)wte|(^|\.)wpe",
    "head": r"lm_head|(^|\.)score\.",
    "attention": r"attn|attention",
    "MLP": r"mlp|feed_forward|ffn|experts",
}
"""Kind of a module -> what the name of its parameters contains; the first that matches."""
PUSHES = "pushes_"
"""Before the names of the arrays of pushes in a file."""
QUARTERS = 4
BY = ("sign", "length", "difficulty", "position")


def places_and_signs(
    first: int, count: int, seed: int, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Place, int64, and sign, float32, of the coordinates `first` to `first + count - 1`."""
    hashed_n = torch.arange(first + 1, first + count + 1, dtype=torch.int64, device=device)
    of_seed = (seed * _FIRST + _GOLDEN + 2**63) % 2**64 - 2**63  # wraps around, as torch does
    hashed_n = _mixed(_mixed(hashed_n * _GOLDEN) + of_seed)
    return hashed_n & (SIZE - 1), 1.0 - 2.0 * ((hashed_n >> 40) & 1).float()


def add_to(sketches_KM: torch.Tensor, gradients_Kn: torch.Tensor, first: int, seed: int) -> None:
    """Add K gradients of the same n coordinates, from number `first` of the model, to sketches."""
    for start in range(0, gradients_Kn.size(1), CHUNK):
        part_Kn = gradients_Kn[:, start : start + CHUNK]
        places_n, signs_n = places_and_signs(
            first + start, part_Kn.size(1), seed, gradients_Kn.device
        )
        sketches_KM.index_add_(1, places_n, part_Kn.float() * signs_n)


def _mixed(values_n: torch.Tensor) -> torch.Tensor:
    """The mixing steps of splitmix64."""
    values_n = (values_n ^ _right(values_n, 30)) * _FIRST
    values_n = (values_n ^ _right(values_n, 27)) * _SECOND
    return values_n ^ _right(values_n, 31)


def _right(values_n: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that fills with zeros; torch's own copies the sign."""
    return (values_n >> bits) & ((1 << (64 - bits)) - 1)


@dataclass
class TakenGradients:
    """The gradients of one arm at one point, B rollout batches; arrays of numpy."""

    norms_BK: np.ndarray
    """Of the whole gradient and, if the optimizer scales each coordinate, of the scaled one."""
    sketches_BKM: np.ndarray
    cells: list[str]
    """Layer and kind of module, such as `3 attention`; without a layer, the kind alone."""
    cell_sketches_CM: np.ndarray
    """Of the mean gradient."""
    seconds_B: np.ndarray = field(default_factory=lambda: np.zeros(0))
    pushes: dict[str, np.ndarray] = field(default_factory=dict)
    """By class: `(B, classes)`."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Shares of the stored tokens that are clipped, masked and dropped."""

    def write(self, file: Path, key: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: one for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        arrays |= {PUSHES + name: one for name, one in self.pushes.items()}
        about = json.dumps({"key": key, "cells": self.cells, "tokens": self.tokens})
        write_arrays(file, {**arrays, "about": np.array(about)})

    @classmethod
    def read(cls, file: Path, key: str) -> "TakenGradients | None":
        """What was written; None if there is nothing, something else, or a damaged file."""
        try:
            arrays = read_arrays(file)
            about = json.loads(str(arrays.pop("about")))
            if about.pop("key") != key:
                return None
            pushes = {name: arrays.pop(PUSHES + name) for name in BY}
        except DAMAGED:
            return None
        return cls(**arrays, **about, pushes=pushes)


def key_of(values: Mapping[str, Any]) -> str:
    """A digest of everything that the gradients depend on."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def divisors_of(
    optimizer: Any, named: Mapping[str, torch.nn.Parameter]
) -> dict[str, torch.Tensor] | None:
    """What a loaded Adam divides each coordinate by, √(second moment) + eps, by parameter; None if
    its state has no plain second moments."""
    divisors = {}
    groups = {id(one): group for group in optimizer.param_groups for one in group["params"]}
    for name, parameter in named.items():
        state, group = optimizer.state.get(parameter, {}), groups.get(id(parameter), {})
        if "exp_avg_sq" not in state or "betas" not in group:
            return None
        steps = float(state["step"])
        corrected = state["exp_avg_sq"].float() / (1 - group["betas"][1] ** max(1.0, steps))
        divisors[name] = corrected.sqrt() + group["eps"]
    return divisors


class GradientTaker(torch.optim.Optimizer):
    """An optimizer that moves nothing and takes the gradients.

    Args:
        steps_per_batch: optimizer steps of a rollout batch.
        divisors: of the optimizer, to scale the gradients by.
        estimates: also sum the squared gradients, from which divisors can be estimated.
    """

    def __init__(
        self,
        named: Mapping[str, torch.nn.Parameter],
        steps_per_batch: int,
        seed: int,
        divisors: Mapping[str, torch.Tensor] | None = None,
        estimates: bool = False,
    ):
        super().__init__(list(named.values()), {"lr": 0.0})
        self._named, self._seed, self._divisors = named, seed, divisors
        self._steps, self._steps_per_batch, self._estimates = 0, steps_per_batch, estimates
        self._sums: dict[str, torch.Tensor] = {}
        self._squares: dict[str, torch.Tensor] = {}
        self._cells = list(dict.fromkeys(map(cell_of, named)))
        self._cell_sums_CM = np.zeros((len(self._cells), SIZE), np.float32)
        self._norms: list[list[float]] = []
        self._sketches: list[np.ndarray] = []
        self._seconds: list[float] = []
        self.start_clock()

    def start_clock(self) -> None:
        self._began = time.perf_counter()

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        for name, one in self._named.items():
            if one.grad is not None:  # which the next step replaces, and does not change
                _add(self._sums, name, one.grad)
        self._steps += 1
        if self._steps % self._steps_per_batch == 0:
            self._take()

    def _take(self) -> None:
        """Take the norm and the sketch of the gradient of a batch, plain and scaled."""
        both = 2 if self._divisors else 1
        device = next(iter(self._named.values())).device
        sketches_CKM = torch.zeros(len(self._cells), both, SIZE, device=device)
        squares_K = torch.zeros(both, dtype=torch.float64)
        first = 0
        for name, one in self._named.items():
            if name in self._sums:
                plain = self._sums.pop(name).float()
                scaled = [plain / self._divisors[name].to(device)] if self._divisors else []
                given_Kn = torch.stack([plain, *scaled]).flatten(1)
                add_to(sketches_CKM[self._cells.index(cell_of(name))], given_Kn, first, self._seed)
                squares_K += given_Kn.square().sum(dim=1).double().cpu()
                if self._estimates:
                    _add(self._squares, name, plain.square())
            first += one.numel()
        self._norms.append(squares_K.sqrt().tolist())
        self._sketches.append(sketches_CKM.sum(dim=0).cpu().numpy())
        self._cell_sums_CM += sketches_CKM[:, 0].cpu().numpy()
        self._seconds.append(time.perf_counter() - self._began)
        self.start_clock()

    def estimated(self, eps: float) -> dict[str, torch.Tensor]:
        """Divisors from the mean of the squared gradients so far; eps without a gradient."""
        zeros = {name: torch.zeros_like(one).float() for name, one in self._named.items()}
        squares = {**zeros, **self._squares}
        return {name: (one / len(self._norms)).sqrt() + eps for name, one in squares.items()}

    def taken(self) -> TakenGradients:
        return TakenGradients(
            norms_BK=np.array(self._norms),
            sketches_BKM=np.stack(self._sketches),
            cells=self._cells,
            cell_sketches_CM=self._cell_sums_CM / len(self._norms),
            seconds_B=np.array(self._seconds),
        )


def cell_of(name: str) -> str:
    """Layer and kind of module of a parameter."""
    kind = next((kind for kind, known in KINDS.items() if re.search(known, name)), "other")
    layer = re.search(r"\.(\d+)\.", name)
    return f"{layer.group(1)} {kind}" if layer else kind


def _add(sums: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value


class Pushes:
    """Sums the pushes of each rollout batch by class, on one process."""

    def __init__(self, stored: Sequence[RolloutBatch], group: int):
        lengths_BN = np.stack([batch.lengths_N for batch in stored])
        edges = np.quantile(lengths_BN, [0.25, 0.5, 0.75], method="inverted_cdf")
        passed_BPG = np.stack([batch.passed_N.reshape(-1, group) for batch in stored])
        self._lengths_BN = torch.as_tensor(np.searchsorted(edges, lengths_BN))
        self._passes_BN = torch.as_tensor(np.repeat(passed_BPG.sum(axis=2), group, axis=1))
        sizes = dict(zip(BY, (2, QUARTERS, group + 1, QUARTERS), strict=True))
        self.sums = {name: torch.zeros(len(stored), n).double() for name, n in sizes.items()}

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
