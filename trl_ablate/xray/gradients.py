"""The gradient that an arm takes on a rollout batch, from a training in which no weight moves.

`GradientTaker` stands in the place of the optimizer. The training around it is the trainer's own:
microbatches, accumulation, the sum over processes, mixed precision. There is no clipping by norm
and no learning rate. A rollout batch that is used for several optimizer steps gives the sum of
their gradients.

Memory: the gradient of the backward pass and, if a batch has several optimizer steps, their sum;
the optimizer's second moments; and sketches.

What was taken is stored, so that an X-ray that was interrupted continues. No pickles.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from trl_ablate.xray.sketch import SIZE, add_to

KINDS = {
    "norm": r"norm|(^|\.)ln_?\w*\.",
    "embeddings": r"embed|(^|\.)wte|(^|\.)wpe",
    "head": r"lm_head|(^|\.)score\.",
    "attention": r"attn|attention",
    "MLP": r"mlp|feed_forward|ffn|experts",
}
"""Kind of a module -> what the name of its parameters contains; the first that matches."""


@dataclass
class TakenGradients:
    """The gradients of one arm at one point, B rollout batches; arrays of numpy."""

    norms_B: np.ndarray
    sketches_BM: np.ndarray
    adam_norms_B: np.ndarray | None
    """After the optimizer's own scaling of each coordinate; None if it has none."""
    adam_sketches_BM: np.ndarray | None
    cells: list[str]
    """Layer and kind of module, such as `3 attention`; without a layer, the kind alone."""
    cell_sketches_CM: np.ndarray
    """Of the mean gradient."""
    pushes: dict[str, np.ndarray] = field(default_factory=dict)
    """See `pushes.py`, by class: `(B, classes)`."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Shares of the stored tokens that are clipped, masked and dropped."""
    seconds_B: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def write(self, file: Path, key: str) -> None:
        """Write atomically."""
        file.parent.mkdir(parents=True, exist_ok=True)
        values = {name: one for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        values |= {PUSHES + name: one for name, one in self.pushes.items()}
        about = json.dumps({"key": key, "cells": self.cells, "tokens": self.tokens})
        part = file.with_suffix(".part.npz")
        np.savez(part, allow_pickle=False, **values, about=np.array(about))
        part.replace(file)

    @classmethod
    def read(cls, file: Path, key: str) -> "TakenGradients | None":
        """What was written; None if there is nothing, something else, or a damaged file."""
        try:
            with np.load(file, allow_pickle=False) as stored:
                values: dict[str, Any] = {name: stored[name] for name in stored.files}
            about = json.loads(str(values.pop("about")))
            if about.pop("key") != key:
                return None
        except (OSError, ValueError, KeyError, BadZipFile):
            return None
        pushes = {name: values.pop(name) for name in list(values) if name.startswith(PUSHES)}
        named = {name.removeprefix(PUSHES): one for name, one in pushes.items()}
        empty = {"adam_norms_B": None, "adam_sketches_BM": None}
        return cls(**empty | values | about, pushes=named)


PUSHES = "pushes_"


def key_of(values: Mapping[str, Any]) -> str:
    """A digest of everything that the gradients depend on."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Moments:
    """What the optimizer divides each coordinate by: √(second moment) + eps."""

    def __init__(self, divisors: Mapping[str, torch.Tensor]):
        self._divisors = divisors

    def applied(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self._divisors[name].to(gradient.device)

    @classmethod
    def of_optimizer(cls, optimizer: Any, named: Mapping[str, torch.nn.Parameter]):
        """Those of a loaded Adam; None if its state has no plain second moments."""
        divisors = {}
        groups = {id(one): group for group in optimizer.param_groups for one in group["params"]}
        for name, parameter in named.items():
            state, group = optimizer.state.get(parameter, {}), groups.get(id(parameter), {})
            if "exp_avg_sq" not in state or "betas" not in group:
                return None
            steps = float(state["step"])
            corrected = state["exp_avg_sq"].float() / (1 - group["betas"][1] ** max(1.0, steps))
            divisors[name] = corrected.sqrt() + group["eps"]
        return cls(divisors)

    @classmethod
    def of_squares(cls, squares: Mapping[str, torch.Tensor], batches: int, eps: float):
        """An estimate: the mean of the squared gradients of some batches."""
        return cls({name: (one / batches).sqrt() + eps for name, one in squares.items()})


class GradientTaker(torch.optim.Optimizer):
    """An optimizer that moves nothing and takes the gradients.

    Args:
        steps_per_batch: optimizer steps of a rollout batch.
        moments: of the optimizer, to scale the gradients by.
        estimates: also sum the squared gradients, from which moments can be estimated.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.nn.Parameter]],
        steps_per_batch: int,
        seed: int,
        moments: Moments | None = None,
        estimates: bool = False,
    ):
        self._named = [(name, one) for name, one in named if one.requires_grad]
        super().__init__([one for _, one in self._named], {"lr": 0.0})
        self._steps_per_batch, self._seed = steps_per_batch, seed
        self._moments = moments
        self._sums: dict[str, torch.Tensor] = {}
        self._steps = 0
        self.cells = list(dict.fromkeys(cell_of(name) for name, _ in self._named))
        self.squares: dict[str, torch.Tensor] | None = {} if estimates else None
        self.norms: list[list[float]] = []
        self.sketches: list[np.ndarray] = []
        self.seconds: list[float] = []
        self._cells: dict[str, torch.Tensor] = {}
        self._began = time.perf_counter()

    def start_clock(self) -> None:
        self._began = time.perf_counter()

    @torch.no_grad()
    def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
        self._steps += 1
        if self._steps_per_batch > 1:
            for name, one in self._named:
                if one.grad is not None:
                    add(self._sums, name, one.grad)
        if self._steps % self._steps_per_batch == 0:
            self._take()
            self._sums = {}

    def _take(self) -> None:
        """Take the norm and the sketch of the gradient of a batch, plain and scaled."""
        both = 1 + (self._moments is not None)
        device = self._named[0][1].device
        sketches_CKM = torch.zeros(len(self.cells), both, SIZE, device=device)
        squares_K = torch.zeros(both, dtype=torch.float64)
        first = 0
        for name, one in self._named:
            gradient = self._sums.get(name) if self._steps_per_batch > 1 else one.grad
            if gradient is not None:
                plain = gradient.float()
                scaled = [self._moments.applied(name, plain)] if self._moments else []
                given_Kn = torch.stack([plain, *scaled]).flatten(1)
                add_to(sketches_CKM[self.cells.index(cell_of(name))], given_Kn, first, self._seed)
                squares_K += given_Kn.square().sum(dim=1).double().cpu()
                if self.squares is not None:
                    add(self.squares, name, plain.square())
            first += one.numel()
        self.norms.append(squares_K.sqrt().tolist())
        self.sketches.append(sketches_CKM.sum(dim=0).cpu().numpy())
        add(self._cells, "sketches_CM", sketches_CKM[:, 0])
        now = time.perf_counter()
        self.seconds.append(now - self._began)
        self._began = now

    def estimate(self, eps: float) -> Moments | None:
        """Moments estimated from the batches so far; None if they were not summed."""
        if self.squares is None:
            return None
        for name, one in self._named:  # a parameter without a gradient
            self.squares.setdefault(name, torch.zeros_like(one, dtype=torch.float32))
        return Moments.of_squares(self.squares, len(self.norms), eps)

    def taken(self) -> TakenGradients:
        """What was taken of all batches so far."""
        norms_BK, sketches_BKM = np.array(self.norms), np.stack(self.sketches)
        scaled = self._moments is not None
        return TakenGradients(
            norms_B=norms_BK[:, 0],
            sketches_BM=sketches_BKM[:, 0],
            adam_norms_B=norms_BK[:, 1] if scaled else None,
            adam_sketches_BM=sketches_BKM[:, 1] if scaled else None,
            cells=self.cells,
            cell_sketches_CM=self._cells["sketches_CM"].cpu().numpy() / len(self.norms),
            seconds_B=np.array(self.seconds),
        )


def cell_of(name: str) -> str:
    """Layer and kind of module of a parameter."""
    kind = next((kind for kind, known in KINDS.items() if re.search(known, name)), "other")
    layer = re.search(r"\.(\d+)\.", name)
    return f"{layer.group(1)} {kind}" if layer else kind


def add(sums: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value.clone()
