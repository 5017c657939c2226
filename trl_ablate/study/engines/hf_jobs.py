"""`--engine hf_jobs`: its options, and the engine (`hf_calls`), which is imported when chosen."""

import os
import re
import sys
from argparse import Namespace, _ArgumentGroup
from typing import TYPE_CHECKING

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.planned import Plan

if TYPE_CHECKING:
    from trl_ablate.study.engines.detached import DetachedEngine

ON_GPU, ON_CPU = "a10g-large", "cpu-upgrade"
TIMEOUT = "12h"
IMAGE = f"python:3.{sys.version_info.minor}"


def add_options(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--flavor", help=f"hardware of a run; default: {ON_GPU}, or {ON_CPU} for runs on the CPU"
    )
    group.add_argument(
        "--timeout", default=TIMEOUT, help=f"longest time of a run, such as 90m; default: {TIMEOUT}"
    )
    group.add_argument(
        "--secrets", metavar="NAME", nargs="+", default=[],
        help="environment variables to send as secrets; HF_TOKEN is always sent",
    )  # fmt: skip
    group.add_argument("--namespace", help="user or organisation that pays; default: your own")
    group.add_argument("--image", default=IMAGE, help=f"Docker image; default: {IMAGE}")
    group.add_argument("--keep_checkpoints", action="store_true", help="download checkpoints, too")
    group.add_argument(
        "--detach", action="store_true", help="exit when all runs have started; collect with fetch"
    )


def make(options: Namespace, plan: Plan) -> "DetachedEngine":
    from trl_ablate.study.engines.hf_calls import Asked, JobsService

    if not re.fullmatch(r"\d+(\.\d+)?[smhd]?", options.timeout):
        raise ConfigurationError(
            f"--timeout is '{options.timeout[:80]}'; give a number and s, m, h or d, such as 90m"
        )
    flavor = options.flavor or (ON_GPU if plan.for_gpu else ON_CPU)
    asked = Asked(
        flavor, options.timeout, secrets_of(options.secrets), options.namespace, options.image
    )
    return _engine(plan, JobsService(asked), options.keep_checkpoints)


def fetching(plan: Plan, *, checkpoints: bool) -> "DetachedEngine":
    """An engine that downloads finished runs and starts none."""
    from trl_ablate.study.engines.hf_calls import JobsService

    return _engine(plan, JobsService(None), checkpoints)


def _engine(plan: Plan, service, checkpoints: bool) -> "DetachedEngine":
    from trl_ablate.study.engines.detached import DetachedEngine

    return DetachedEngine(service, slots=len(plan.runs()), checkpoints=checkpoints)


def secrets_of(names: list[str]) -> dict[str, str]:
    """The values of the named environment variables."""
    for name in names:
        if name not in os.environ:
            raise ConfigurationError(
                f"--secrets {name[:80]}: there is no such environment variable; set it, or leave "
                "it out"
            )
    return {name: os.environ[name] for name in names}
