"""The whole answer: memory and time of both phases, what fits, and which single change would."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from trl_ablate.plan.estimate import Estimate
from trl_ablate.plan.gpus import GIB, GPUS
from trl_ablate.plan.setup import Setup, check
from trl_ablate.plan.shapes import shape_of

ROOM = 0.95
"""Of a card's memory: the rest is lost to fragmentation."""


@dataclass(frozen=True)
class Answer(Estimate):
    problems: list[str]
    """Why it does not fit, one sentence each; empty if it fits."""
    changes: list[str]
    """Single changes with which it would fit."""

    def to_dict(self) -> dict[str, Any]:
        fits = not self.problems
        return {
            "assumptions": asdict(self.setup),
            "gpu": asdict(self.gpu),
            "parameters": self.shape.parameters,
            "trained_parameters": self.trained,
            "bytes_training": self.bytes_training,
            "bytes_rollout": self.bytes_rollout,
            "cache_tokens": self.cache_tokens,
            "seconds": self.seconds,
            "seconds_per_step": self.step if fits else None,
            "seconds_per_evaluation": self.evaluation if fits else None,
            "seconds_of_the_run": self.run if fits else None,
            "fits": fits,
            "problems": self.problems,
            "changes": self.changes,
        }


def plan(setup: Setup) -> Answer:
    """The answer to one question; raises a `ConfigurationError` for values that cannot be."""
    check(setup)
    found, problems = _estimated(setup)
    changes = _changes(setup) if problems else []
    helpful = [change for change in changes if not _estimated(replace(setup, **change))[1]]
    named = [" ".join(f"--{key} {word(one)}" for key, one in each.items()) for each in helpful]
    return Answer(setup, found.shape, found.gpu, problems, named)


def _estimated(setup: Setup) -> tuple[Estimate, list[str]]:
    """With what does not fit."""
    found = Estimate(setup, shape_of(setup.model), GPUS[setup.gpu])
    memory, longest = found.gpu.memory, found.longest
    problems = []
    for name, parts in (("training", found.bytes_training), ("the rollout", found.bytes_rollout)):
        if (total := sum(parts.values())) > ROOM * memory:
            problems.append(
                f"{name} needs {total / GIB:.1f} GiB on a card, of which {ROOM:.0%} of "
                f"{memory / GIB:.1f} GiB can be used"
            )
    if found.by_vllm and found.cache_tokens < longest:
        problems.append(
            f"the engine's share of {setup.engine_share * memory / GIB:.1f} GiB holds its "
            f"weights and {max(0.0, found.cache_tokens):.0f} tokens, not one row of {longest}"
        )
    return found, problems


def _changes(setup: Setup) -> list[dict[str, Any]]:
    """Single changes that save memory, the cheapest first."""
    changes: list[dict[str, Any]] = [
        {"sleep": True},
        {"microbatch": 1},
        {"checkpointing": True},
        {"engine_share": min(0.9, setup.engine_share + 0.2)},
        {"optimizer": "adamw_8bit"},
        {"lora_rank": 16},
        {"microbatch": 1, "checkpointing": True, "optimizer": "adamw_8bit"},
    ]
    if setup.gpus > 1:
        changes += [{"sharding": "zero3"}]
        changes += [{"microbatch": 1, "checkpointing": True, "sharding": "zero3"}]
    elif setup.rollouts % (8 * setup.microbatch) == 0:
        changes += [{"gpus": 8, "sharding": "zero3"}]
    return [change for change in changes if replace(setup, **change) != setup]


def word(value: object) -> str:
    """A value as its option has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
