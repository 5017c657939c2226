"""The parts of `trl-ablate bench gpu`, most telling first, what they are given and find, and the
page of their results. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trl_ablate.run.untrusted import for_markdown, markdown_table


@dataclass(frozen=True)
class Setup:
    """Where and at what size the parts run. `device`: cuda or cpu; `toy`: a miniature model."""

    device: str
    toy: bool


@dataclass(frozen=True)
class Part:
    """One part. Its code is the function of its name in the module `home`."""

    home: str
    shows: str
    """What it measures, for the page."""
    seconds: float
    """Its time limit."""
    card: float = 8.0
    """GiB that it needs of a card at full size."""


@dataclass
class Found:
    """What a part found."""

    rows: list[dict[str, Any]]
    checks: dict[str, bool] = field(default_factory=dict)
    """What must hold -> whether it does."""
    facts: dict[str, Any] = field(default_factory=dict)


class NotHere(Exception):
    """A part cannot run here; the message states what is missing."""


UNSAVED = 40.0
"""GiB for 1.5 B parameters trained without memory savings, beside an engine."""
_C, _W = (f"{__package__}.{name}" for name in ("comparisons", "whole_runs"))

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


def page(written: Mapping[str, Any]) -> str:
    """The page of a file of results."""
    size = "toy size" if written["toy"] else "full size"
    git = written.get("git") or {}
    commit = git.get("commit", "unknown")[:12] + " with uncommitted changes" * bool(git.get("diff"))
    found = written["parts"]
    summary = [
        {"part": name, "result": one["status"], "s": one["seconds"], "what": PARTS[name].shows,
         "why": one.get("reason", "")}
        for name, one in found.items()
    ]  # fmt: skip
    machine = f"Machine: {written['machine'] or 'unknown'}. Commit: {commit}."
    blocks = [f"# bench gpu: {written['device']}, {size}", for_markdown(machine), _table(summary)]
    for name, one in found.items():
        if one.get("rows"):
            held = {check: "yes" if holds else "NO" for check, holds in one["checks"].items()}
            facts = [f"{key}: {_cell(value)}" for key, value in (one["facts"] | held).items()]
            blocks += [f"## {name}", _table(one["rows"])]
            blocks += ["\n".join(f"- {for_markdown(fact)}" for fact in facts)] if facts else []
    return "\n\n".join(blocks) + "\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table; a row may lack columns of others."""
    header = list(dict.fromkeys(column for row in rows for column in row))
    cells = [[for_markdown(_cell(row.get(column, ""))) for column in header] for row in rows]
    return markdown_table(header, cells)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
