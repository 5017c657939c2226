"""`--engine modal`: its options, and the engine (`modal_calls`), which is imported only when it is
chosen, because Modal is an optional dependency."""

from argparse import Namespace, _ArgumentGroup
from typing import TYPE_CHECKING

from trl_ablate.study.planned import Plan

if TYPE_CHECKING:
    from trl_ablate.study.engines.detached import DetachedEngine

GPU = "H100"


def add_options(group: _ArgumentGroup) -> None:
    group.add_argument("--gpu", default=GPU, help=f"Modal's name of a run's GPU; default: {GPU}")
    group.add_argument("--keep_checkpoints", action="store_true", help="download checkpoints, too")
    group.add_argument(
        "--detach", action="store_true", help="exit when all runs have started; collect with fetch"
    )


def make(options: Namespace, plan: Plan) -> "DetachedEngine":
    return _engine(plan, options.gpu, options.jobs, options.keep_checkpoints)


def fetching(plan: Plan, *, checkpoints: bool) -> "DetachedEngine":
    """An engine that downloads finished runs and starts none."""
    return _engine(plan, GPU, None, checkpoints)


def _engine(plan: Plan, gpu: str, jobs: int | None, checkpoints: bool) -> "DetachedEngine":
    from trl_ablate.study.engines.detached import DetachedEngine
    from trl_ablate.study.engines.modal_calls import ModalService

    service = ModalService(gpu if plan.for_gpu else None, jobs)
    return DetachedEngine(service, slots=len(plan.runs()), checkpoints=checkpoints)
