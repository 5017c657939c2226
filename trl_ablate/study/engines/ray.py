"""A Ray cluster: every run is a task, on any node with free resources.

The driver has to be a member of the cluster (run it on the head node): tasks send their results as
a stream, which Ray Client does not support. If the runner is killed, its tasks end, too; if the
head is, Ray ends the runner after a minute, and the same command continues on a new head. A run
whose node is lost, or breaks, is restarted on another; this does not count as a new attempt. Ray is
an optional dependency: this module is imported only when it is chosen.
"""

import logging
import os
import shutil
import signal
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.study.engines import SECONDS_TO_END, THREAD_VARIABLES, Job, Process
from trl_ablate.study.engines.shipping import Bundle, beside, copy_code, pack, short, working
from trl_ablate.study.planned import Plan

LOST = (NodeDiedError, WorkerCrashedError, ObjectLostError, RayTaskError)
"""Errors of a node. A training has no others: it is a process of its own, with an exit code."""
LOSSES = 5
"""How often a run may lose its node before it counts as failed."""
PAUSE = 2.0
"""Seconds before a lost run is restarted, twice as many each time: more than Ray's minute in all,
so that a node that breaks with its head does not use up the queue."""
PIECE_SECONDS = 0.5
PIECE_BYTES = 16 * 2**20
CHECKED: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""For `extractall`: nothing outside the folder. Python before 3.11.4 cannot check that."""

Piece = tuple[str, bytes] | int
"""A part of a run's results: what was added to its log, metrics or archive; or the exit code."""


class RayEngine:
    """Tasks of a cluster: as many at once as `--jobs` says, or as it can hold then."""

    name, in_place = "ray", False

    def __init__(self, options: Namespace, plan: Plan):
        connect(options.ray_address)
        self._needs = {"CPU": options.cpus_per_run} | ({"GPU": 1} if plan.for_gpu else {})
        self._jobs, self._checkpoints = options.jobs, options.keep_checkpoints
        if self._jobs is None and not self._room():
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
        bundle = pack(job)
        return RayProcess(lambda: task.remote(bundle, self._checkpoints), job)


make = RayEngine


class RayProcess(Process):
    """A task, and the stream of pieces that it sends: log and metrics while they grow, then the
    whole directory, which appears complete."""

    def __init__(self, submit: Callable[[], Any], job: Job):
        self._submit, self._directory = submit, RunDirectory(job.directory)
        self._files = {
            "log": job.log,
            "metrics": self._directory.metrics_file,
            "archive": beside(job.directory, "tar"),
        }
        self._code: int | None = None
        self._losses, self._begins_at = 0, 0.0
        self._pieces: Any = None  # while it waits for its restart
        self._begin()

    def _begin(self) -> None:
        """Start with an empty directory; files of an earlier attempt are deleted."""
        self._clear()
        shutil.rmtree(self._directory.path, ignore_errors=True)
        self._directory.path.mkdir(parents=True)
        self._directory.update(status="running", reason=None)
        self._pieces = self._submit()

    def poll(self) -> int | None:
        if self._pieces is None and time.monotonic() >= self._begins_at:
            self._begin()
        while self._pieces and self._code is None and ray.wait([self._pieces], timeout=0)[0]:
            self._receive()
        return self._code

    def _receive(self) -> None:
        try:
            piece: Any = ray.get(next(self._pieces))
            self.take(piece)
        except LOST as loss:
            self._losses += 1
            if self._losses > LOSSES:
                self._give_up(1, f"lost {self._losses} times: {short(loss)}")
            else:
                self._say(f"--- node lost, restarted on another: {short(loss)}")
                self._begins_at = time.monotonic() + PAUSE * 2 ** (self._losses - 1)
                self._pieces = None
        except TaskCancelledError:
            self._give_up(-signal.SIGINT, "--- cancelled")
        except (RayError, StopIteration) as error:
            self._give_up(1, f"Ray: {short(error)}")

    def take(self, piece: Piece) -> None:
        if isinstance(piece, tuple):
            kind, data = piece
            with self._files[kind].open("ab") as file:
                file.write(data)
            return
        part = part_of(self._directory.path)
        part.mkdir(exist_ok=True)  # a run that wrote nothing has an empty archive
        with tarfile.open(self._files["archive"]) as tar:
            tar.extractall(part, **CHECKED)
        replace_folder(self._directory.path)
        self._files["archive"].unlink()
        self._code = piece

    def _give_up(self, code: int, reason: str) -> None:
        """The run ended without sending its directory back."""
        self._say(reason)
        self._clear()
        self._code = code

    def _clear(self) -> None:
        """Delete incomplete files beside the directory."""
        put_back(self._directory.path)
        self._files["archive"].unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        with self._files["log"].open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def ask_to_end(self) -> None:
        if self._code is None and self._pieces:
            ray.cancel(self._pieces)
        elif self._code is None:
            self._give_up(-signal.SIGINT, "--- cancelled")

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """Wait, then cancel the task; the training ends with the task's worker."""
        until = time.monotonic() + patience
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if self._code is None:
            if self._pieces:
                ray.cancel(self._pieces, force=True)
            self._give_up(-signal.SIGKILL, "--- cancelled")


def perform(bundle: Bundle, checkpoints: bool) -> Iterator[Piece]:
    """Do a run in a scratch folder of this machine, and send its results back."""
    with tempfile.TemporaryDirectory(prefix=f"{bundle.name}-") as scratch:
        home, code = Path(scratch), Path.cwd()
        directory = RunDirectory(home / bundle.name)
        files = {"log": home / f"{bundle.name}.log", "metrics": directory.metrics_file}
        sent = dict.fromkeys(files, 0)

        def added() -> Iterator[Piece]:
            """What the training has appended to these files."""
            for kind, path in files.items():
                data = path.read_bytes()[sent[kind] :] if path.exists() else b""
                sent[kind] += len(data)
                if data:
                    yield kind, data

        with working(bundle, home, code=code, cwd=code) as process:
            while process.poll() is None:
                time.sleep(PIECE_SECONDS)
                yield from added()
        yield from added()
        archive = home / "archive.tar"
        with tarfile.open(archive, "w") as tar:
            for path in sorted(directory.path.rglob("*")):
                name = path.relative_to(directory.path)
                if path.is_file() and (checkpoints or not name.parts[0].startswith("checkpoint")):
                    tar.add(path, str(name))
        with archive.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield "archive", data
        yield process.wait()


def connect(address: str | None) -> None:
    """Join the cluster, and send its workers this package's code."""
    own = address not in (None, "auto")  # else Ray looks at the variable
    name, meant = ("--ray_address", address) if own else ("RAY_ADDRESS", os.getenv("RAY_ADDRESS"))
    if (meant or "").startswith("ray://"):
        raise ConfigurationError(
            f"{name} {meant} is an address of Ray Client; run on the cluster's head node, with "
            "--ray_address auto and no RAY_ADDRESS"
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
