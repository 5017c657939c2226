"""`--engine ray`: its options, and the engine (`ray_tasks`), which is imported only when it is
chosen, because Ray is an optional dependency."""

from argparse import Namespace, _ArgumentGroup
from typing import TYPE_CHECKING

from trl_ablate.study.planned import Plan

if TYPE_CHECKING:
    from trl_ablate.study.engines.ray_tasks import RayEngine


def add_options(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--ray_address",
        metavar="ADDRESS",
        help="address of the cluster; default: this machine's, or a new one",
    )
    group.add_argument(
        "--cpus_per_run", metavar="N", type=int, default=1, help="CPUs of a run; default: 1"
    )
    group.add_argument("--keep_checkpoints", action="store_true", help="copy checkpoints back, too")


def make(options: Namespace, plan: Plan) -> "RayEngine":
    from trl_ablate.study.engines.ray_tasks import RayEngine

    return RayEngine(
        options.ray_address,
        jobs=options.jobs,
        on_gpu=plan.for_gpu,
        cpus=options.cpus_per_run,
        checkpoints=options.keep_checkpoints,
    )
