"""A Ray cluster: every run is a task, on any node with free resources.

The driver has to be a member of the cluster (run it on the head node): tasks send their results as
a stream, which Ray Client does not support. If the runner is killed, its tasks end, too; if the
head is, Ray ends the runner after a minute, and the same command continues on a new head. A run
whose node is lost, or breaks, is restarted on another; this does not count as a new attempt. Ray is
an optional dependency: this module is imported only when it is chosen.
"""

import logging
import os
import signal
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.engines import SECONDS_TO_END, THREAD_VARIABLES, Job, Process
from trl_ablate.study.engines.shipping import Bundle, Landing, copy_code, pack, perform, short
from trl_ablate.study.planned import Plan

try:
    import ray
    from ray.exceptions import (
        NodeDiedError,
        ObjectLostError,
        RayError,
        RayTaskError,
        TaskCancelledError,
        WorkerCrashedError,
    )
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"--engine ray: there is no module '{error.name}'; pip install 'trl-ablate[ray]'"
    ) from error

LOST = (NodeDiedError, WorkerCrashedError, ObjectLostError, RayTaskError)
"""Errors of a node. A training has no others: it is a process of its own, with an exit code."""
LOSSES = 5
"""How often a run may lose its node before it counts as failed."""
PAUSE = 2.0
"""Seconds before a lost run is restarted, twice as many each time: more than Ray's minute in all,
so that a node that breaks with its head does not use up the queue."""


def make(options: Namespace, plan: Plan) -> "RayEngine":
    return RayEngine(
        options.ray_address, jobs=options.jobs, on_gpu=plan.for_gpu, cpus=options.cpus_per_run,
        checkpoints=options.keep_checkpoints,
    )  # fmt: skip


class RayEngine:
    """Tasks of a cluster.

    Args:
        address: of the cluster; None: this machine's cluster, or else a new one on it alone.
        jobs: how many at once; None: as many as the cluster can hold then.
        on_gpu: whether each run needs a GPU.
        cpus: CPUs for each run.
        checkpoints: whether to copy checkpoints back, too.
    """

    in_place = False

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        on_gpu: bool = False,
        cpus: int = 1,
        checkpoints: bool = False,
    ):
        connect(address)
        self._needs = {"CPU": cpus, "GPU": 1} if on_gpu else {"CPU": cpus}
        self._jobs, self._checkpoints = jobs, checkpoints
        if jobs is None and not self._room():
            raise ConfigurationError(
                f"no node of the Ray cluster has {self._needs}, which a run needs; add one, "
                "or, for a cluster that grows by itself, give --jobs, the number of runs at once"
            )

    @property
    def slots(self) -> int:
        return self._jobs or max(1, self._room())

    def _room(self) -> int:
        """How many runs the living nodes could hold if nothing else used them."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(
            int(min(node.get(kind, 0) // count for kind, count in self._needs.items()))
            for node in nodes
        )

    def start(self, job: Job, slot: int) -> "RayProcess":
        cores = str(self._needs["CPU"])
        threads = {name: os.environ.get(name, cores) for name in THREAD_VARIABLES}
        task = ray.remote(perform).options(
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs.get("GPU"),
            num_returns="streaming",
            max_retries=0,  # a stream cannot be resumed: RayProcess starts a new one
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": threads},
        )
        return RayProcess(task, pack(job), Landing(job), self._checkpoints)


class RayProcess(Process):
    """A task, and the stream of pieces that it sends."""

    def __init__(self, task: Any, bundle: Bundle, landing: Landing, checkpoints: bool):
        self._submit = lambda: task.remote(bundle, checkpoints)
        self._landing, self._losses, self._begins_at = landing, 0, 0.0
        self._pieces: Any = None  # while it waits for its restart
        self._begin()

    def _begin(self) -> None:
        self._landing.begin()
        self._pieces = self._submit()

    def poll(self) -> int | None:
        if self._pieces is None and time.monotonic() >= self._begins_at:
            self._begin()
        while (
            self._pieces and self._landing.code is None and ray.wait([self._pieces], timeout=0)[0]
        ):
            self._take()
        return self._landing.code

    def _take(self) -> None:
        try:
            piece: Any = ray.get(next(self._pieces))
            self._landing.take(piece)
        except LOST as loss:
            self._losses += 1
            if self._losses > LOSSES:
                self._landing.give_up(1, f"lost {self._losses} times: {short(loss)}")
            else:
                self._landing.say(f"--- node lost, restarted on another: {short(loss)}")
                self._begins_at = time.monotonic() + PAUSE * 2 ** (self._losses - 1)
                self._pieces = None
        except TaskCancelledError:
            self._landing.give_up(-signal.SIGINT, "--- cancelled")
        except (RayError, StopIteration) as error:
            self._landing.give_up(1, f"Ray: {short(error)}")

    def ask_to_end(self) -> None:
        if self._landing.code is None and self._pieces:
            ray.cancel(self._pieces)
        elif self._landing.code is None:
            self._landing.give_up(-signal.SIGINT, "--- cancelled")

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """Wait, then cancel the task; the training ends with the task's worker."""
        until = time.monotonic() + patience
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if self._landing.code is None:
            if self._pieces:
                ray.cancel(self._pieces, force=True)
            self._landing.give_up(-signal.SIGKILL, "--- cancelled")


def connect(address: str | None) -> None:
    """Join the cluster, and send its workers this package's code."""
    if (address or "").startswith("ray://"):
        raise ConfigurationError(
            f"--ray_address {address} is an address of Ray Client; run on the cluster's head node, "
            "with --ray_address auto"
        )
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        with tempfile.TemporaryDirectory(prefix="trl-ablate-") as code:  # uploaded while joining
            copy_code(Path(code))
            ray.init(
                address,
                runtime_env={"working_dir": code},
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=None if address else False,
            )
    except ConnectionError as error:
        raise ConfigurationError(
            f"--ray_address {address}: there is no Ray cluster; start one with `ray start --head`"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray replaces the runner's handler
