"""The whole answer: memory and time of both phases, what fits, and which single change would."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from trl_ablate.plan import memory, times
from trl_ablate.plan.gpus import GIB, GPUS, Gpu
from trl_ablate.plan.setup import Setup, check
from trl_ablate.plan.shapes import Shape, shape_of

ROOM = 0.95
"""Of a card's memory: the rest is lost to fragmentation."""


@dataclass(frozen=True)
class Answer:
    """What a setup needs. Times are infinite where the engine's weights do not fit.

    Attributes:
        problems: why it does not fit, one sentence each; empty if it fits.
        changes: single changes with which it would fit.
    """

    setup: Setup
    shape: Shape
    gpu: Gpu
    training: memory.Phase
    rollout: memory.Phase
    cache_tokens: float
    seconds: dict[str, dict[str, float]]
    evaluation: float
    problems: list[str]
    changes: list[str]

    @property
    def step(self) -> float:
        return sum(sum(parts.values()) for parts in self.seconds.values())

    @property
    def run(self) -> float:
        """Seconds of the whole run."""
        steps = self.setup.steps * self.step
        return self.setup.start_s + steps + self.setup.evaluations * self.evaluation

    def to_dict(self) -> dict[str, Any]:
        return {
            "assumptions": asdict(self.setup),
            "gpu": asdict(self.gpu),
            "parameters": self.shape.parameters,
            "trained_parameters": memory.trained(self.shape, self.setup),
            "bytes_training": self.training.parts,
            "bytes_rollout": self.rollout.parts,
            "cache_tokens": self.cache_tokens,
            "seconds": self.seconds,
            "seconds_per_step": self.step if not self.problems else None,
            "seconds_per_evaluation": self.evaluation if not self.problems else None,
            "seconds_of_the_run": self.run if not self.problems else None,
            "fits": not self.problems,
            "problems": self.problems,
            "changes": self.changes,
        }


def plan(setup: Setup) -> Answer:
    """The answer to one question; raises a `ConfigurationError` for values that cannot be."""
    check(setup)
    found = _answer(setup)
    changes = [name for name, changed in _alternatives(setup) if not _answer(changed).problems]
    return replace(found, changes=changes) if found.problems else found


def _answer(setup: Setup) -> Answer:
    shape, gpu = shape_of(setup.model), GPUS[setup.gpu]
    training, rollout = memory.training(shape, setup, gpu), memory.rollout(shape, setup, gpu)
    room = memory.cache(shape, setup, gpu) / shape.kv_bytes if setup.engine == "vllm" else 0.0
    problems = [
        f"{name} needs {phase.total / GIB:.1f} GiB on a card, of which {ROOM:.0%} of "
        f"{gpu.memory / GIB:.1f} GiB can be used"
        for name, phase in (("training", training), ("the rollout", rollout))
        if phase.total > ROOM * gpu.memory
    ]
    longest = setup.prompt_tokens + setup.max_length
    if setup.engine == "vllm" and room < longest:
        problems.append(
            f"the engine's share of {setup.engine_share * gpu.memory / GIB:.1f} GiB holds its "
            f"weights and {max(0.0, room):.0f} tokens, not one row of {longest}"
        )
    seconds = {
        "rollout": times.generation(shape, setup, gpu),
        "training": times.training(shape, setup, gpu),
        "rest": {"rewards, text, sleep": setup.other_s},
    }
    evaluation = times.evaluation(shape, setup, gpu)
    return Answer(
        setup, shape, gpu, training, rollout, room, seconds, evaluation, problems, changes=[]
    )


def _alternatives(setup: Setup) -> list[tuple[str, Setup]]:
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
    found = []
    for change in changes:
        changed = replace(setup, **change)
        if changed != setup:
            found.append(
                (" ".join(f"--{key} {_word(value)}" for key, value in change.items()), changed)
            )
    return found


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
