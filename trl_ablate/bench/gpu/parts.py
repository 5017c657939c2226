"""The parts of `trl-ablate bench gpu`, most telling first, and what they are given. No torch."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Setup:
    """Where and at what size the parts run. `device`: cuda or cpu; `toy`: a miniature model."""

    device: str
    toy: bool


@dataclass(frozen=True)
class Part:
    """One part. Its code is the function of its name in the module `trl_ablate.bench.gpu.HOME`.

    Args:
        shows: what it measures, for the page.
        seconds: its time limit.
        card: GiB that it needs of a card at full size.
    """

    home: str
    shows: str
    seconds: float
    card: float = 8.0


@dataclass
class Found:
    """What a part found.

    Attributes:
        rows: its table.
        checks: what must hold -> whether it does.
        facts: single numbers and words.
    """

    rows: list[dict[str, Any]]
    checks: dict[str, bool] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


class NotHere(Exception):
    """A part cannot run here; the message states what is missing."""


UNSAVED = 40.0
"""GiB for 1.5 B parameters trained without memory savings, beside an engine."""
_C, _W = "comparisons", "whole_runs"

PARTS = {
    "gradients": Part(
        _C, "gradients of stock TRL and of trl_ablate, in float32 and bfloat16", 120, UNSAVED
    ),
    "step": Part(
        _W, "a step of 256 rollouts: rollout, reward, training, against stock TRL", 240, UNSAVED
    ),
    "engine": Part(
        _W, "vLLM in the process: log-probability gap over ten steps, sleep mode", 180, UNSAVED
    ),
    "memory_cap": Part(_C, "the 24 GiB profile under a cap on the card's memory", 90, 23.0),
    "resume": Part(_W, "a run that is stopped and resumed ends in the same bits", 90),
    "sigterm": Part(_W, "SIGTERM ends a training after its step, with a whole checkpoint", 180),
    "microbatches": Part(_C, "microbatches of 1 to 16 rows: time and memory", 150, UNSAVED),
    "optimizers": Part(_C, "AdamW with 32 and with 8 bits: time and memory", 60, UNSAVED),
    "checkpointing": Part(
        _C, "gradient checkpointing: time, memory, the same gradients", 60, UNSAVED
    ),
    "head": Part(_C, "a vocabulary of 151,936: the positions that the LM head computes", 90),
    "packing": Part(_C, "microbatches packed into one row, against regrouped ones", 120, UNSAVED),
}
