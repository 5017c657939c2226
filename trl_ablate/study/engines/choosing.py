"""From the name of an engine, and what was asked of it, to the engine."""

from dataclasses import dataclass

from trl_ablate.study.engines import Engine
from trl_ablate.study.plan import Plan

GPU_OF_MODAL = "H100"


@dataclass(frozen=True)
class Wishes:
    """What was asked of an engine; None where nothing was."""

    jobs: int | None = None
    ray_address: str | None = None
    cpus_per_run: int | None = None
    gpu: str | None = None
    checkpoints: bool | None = None


def choose(name: str, plan: Plan, wishes: Wishes) -> Engine:
    """Engines are imported when they are chosen: Ray and Modal are extras."""
    checkpoints = bool(wishes.checkpoints)
    if name == "ray":
        from trl_ablate.study.engines.ray import RayEngine

        return RayEngine(
            wishes.ray_address, jobs=wishes.jobs, on_gpu=plan.for_gpu,
            cpus=wishes.cpus_per_run or 1, checkpoints=checkpoints,
        )  # fmt: skip
    if name == "modal":
        from trl_ablate.study.engines.modal import ModalEngine, ModalService

        gpu = wishes.gpu or GPU_OF_MODAL if plan.for_gpu else None
        service = ModalService(gpu, wishes.jobs)
        return ModalEngine(service, slots=len(plan.runs()), checkpoints=checkpoints)
    from trl_ablate.study.engines.local import LocalEngine

    return LocalEngine(wishes.jobs, on_gpu=plan.for_gpu)
