"""A Ray cluster: every run has a worker, a detached actor on any node with free resources.

The driver has to be a member of the cluster (run it on the head node): workers send their results
as a stream, which Ray Client does not support. If the runner is killed, the workers go on, and the
next runner follows them, so nothing that they finish is done again. If the head is killed, its
workers end, and Ray ends the runner after a minute; the same command continues on a new head. A run
whose node is lost, or breaks, is restarted on another; this does not count as a new attempt. Ray is
an optional dependency: this module is imported only when it is chosen.
"""

import hashlib
import logging
import os
import signal
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.exceptions import RayError

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import one_line
from trl_ablate.run.directory import RunDirectory, delete
from trl_ablate.run.folders import part_of, put_back
from trl_ablate.study.engines import SECONDS_TO_END, Job, Process, threads_of_run
from trl_ablate.study.engines.shipping import Bundle, copy_code, pack, replace_run, working
from trl_ablate.study.planned import Plan

LOST = (
    *(exceptions.NodeDiedError, exceptions.WorkerCrashedError, exceptions.RayActorError),
    *(exceptions.ObjectLostError, exceptions.RayTaskError),
)
"""Errors of a node. A training has no others: it is a process of its own, with an exit code."""
LOSSES = 5
"""How often a run may lose its node before it counts as failed."""
PAUSE = 2.0
"""Seconds before a lost run is restarted, twice as many each time: more than Ray's minute in all,
so that a node that breaks with its head does not use up the queue."""
PIECE_SECONDS = 0.5
SECONDS_TO_LEAVE = 5.0
HOURS_KEPT = 1.0
"""How long a worker keeps results that no runner fetches; then it frees its CPUs."""
FOLLOWERS = 16
"""Calls that a worker can answer at once: one for each runner that followed it and was killed."""
PIECE_BYTES = 16 * 2**20
LOG, METRICS = "log", "metrics"

Piece = tuple[str, bytes] | int
"""A part of a run's results: what was added to its log or metrics while it ran, or then to a file
of its directory (`./NAME`); at last the exit code."""


class RayEngine:
    """Workers of a cluster: as many at once as `--jobs` says, or as it can hold then."""

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
        worker = ray.remote(Worker).options(
            name=hashlib.sha256(str(job.log.resolve()).encode()).hexdigest(),  # not of the arm
            namespace="trl-ablate",
            get_if_exists=True,
            lifetime="detached",
            max_concurrency=FOLLOWERS,
            num_cpus=self._needs["CPU"],
            num_gpus=self._needs.get("GPU"),
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": threads_of_run(self._needs["CPU"])},
        )
        bundle = pack(job)
        return RayProcess(lambda: worker.remote(bundle, self._checkpoints), job)


make = RayEngine


class RayProcess(Process):
    """A worker, and a thread that takes what it sends. The runner may wait for a head that is lost;
    what workers finish meanwhile still arrives. `hire` returns the worker of the run: the one that
    an earlier runner left, or a new one."""

    def __init__(self, hire: Callable[[], Any], job: Job):
        self._hire, self._results = hire, Results(job)
        self._worker: Any = None
        self._code: futures.Future[int] = futures.Future()
        self._is_to_end = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def poll(self) -> int | None:
        return self._code.result() if self._code.done() else None

    def ask_to_end(self) -> None:
        self._is_to_end.set()
        if self._worker:
            self._worker.ask_to_end.remote()

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """Wait, then kill the worker; the training ends with it."""
        futures.wait([self._code], patience)
        if not self._code.done() and self._worker:
            ray.kill(self._worker)
            futures.wait([self._code], SECONDS_TO_LEAVE)

    def _follow(self) -> None:
        try:
            self._code.set_result(self._perform())
        except BaseException as error:
            self._code.set_exception(error)

    def _perform(self) -> int:
        """The exit code of the run, which lost nodes do not end."""
        losses = 0
        while not self._is_to_end.wait(PAUSE * 2 ** (losses - 1) if losses else 0):
            try:
                return self._of_one_worker()
            except LOST as loss:
                losses += 1
                if losses > LOSSES:
                    return self._give_up(1, f"lost {losses} times: {one_line(loss)}")
                self._results.say(f"--- node lost, restarted on another: {one_line(loss)}")
            except RayError as error:
                return self._give_up(1, f"Ray: {one_line(error)}")
        return self._give_up(-signal.SIGKILL, "--- cancelled")

    def _of_one_worker(self) -> int:
        self._results.begin()
        self._worker = self._hire()
        pieces = self._worker.follow.options(num_returns="streaming").remote()
        if self._is_to_end.is_set():
            self._worker.ask_to_end.remote()
        codes = (self._results.take(ray.get(piece)) for piece in pieces)
        code = next(code for code in codes if code is not None)
        self._dismiss()
        return code

    def _dismiss(self) -> None:
        """The next attempt's worker has the same name, so that this one has to be gone."""
        if self._worker:
            with suppress(RayError):  # it is lost, or waits for a node
                ray.get(self._worker.leave.remote(), timeout=SECONDS_TO_LEAVE)
            ray.kill(self._worker)

    def _give_up(self, code: int, reason: str) -> int:
        """The run ended without sending its directory back."""
        self._dismiss()
        self._results.say(reason)
        self._results.clear()
        return code


class Results:
    """The files of a run: log and metrics grow, the whole directory appears complete. An earlier
    run stays until the new one has logged a row or sends its files."""

    def __init__(self, job: Job):
        self._directory = RunDirectory(job.directory)
        self._growing = {LOG: job.log, METRICS: self._directory.metrics_file}
        self._has_rows = False

    def begin(self) -> None:
        """Expect the pieces of a worker, from the first one on."""
        self.clear()
        self._has_rows = False

    def take(self, piece: Piece) -> int | None:
        """The exit code, if that is the piece: then all files are there."""
        if isinstance(piece, int):
            replace_run(self._directory)
            return piece
        name, data = piece
        if name == METRICS and not self._has_rows:
            delete(self._directory)
            self._directory.path.mkdir(parents=True, exist_ok=True)
            self._directory.update(status="running", reason=None)
            self._has_rows = True
        path = self._growing.get(name, part_of(self._directory.path) / name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data)
        return None

    def clear(self) -> None:
        """Delete incomplete files beside the directory."""
        put_back(self._directory.path)

    def say(self, text: str) -> None:
        with self._growing[LOG].open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")


class Worker:
    """Does a run in a scratch folder of its machine, and keeps the results until they are sent."""

    def __init__(self, bundle: Bundle, checkpoints: bool):
        self._scratch = tempfile.TemporaryDirectory(prefix=f"{bundle.name}-")
        home, code, self._checkpoints = Path(self._scratch.name), Path.cwd(), checkpoints
        self._directory = RunDirectory(home / bundle.name)
        self._log = home / f"{bundle.name}.log"
        self._work, self._complete = ExitStack(), threading.Event()
        # Ray blocks Ctrl-C while it creates an actor; the training would inherit that
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        self._process = self._work.enter_context(working(bundle, home, code=code, cwd=code))
        threading.Thread(target=self._stay, daemon=True).start()

    def follow(self) -> Iterator[Piece]:
        """Everything that the run has written and writes; its exit code when that is complete."""
        growing = {LOG: self._log, METRICS: self._directory.metrics_file}
        sent, complete = dict.fromkeys(growing, 0), False
        while not complete:
            complete = self._complete.wait(PIECE_SECONDS)
            for kind, path in growing.items():
                data = path.read_bytes()[sent[kind] :] if path.exists() else b""
                sent[kind] += len(data)
                if data:
                    yield kind, data
        for path in filter(Path.is_file, sorted(self._directory.path.rglob("*"))):
            name = path.relative_to(self._directory.path)
            if self._checkpoints or not name.parts[0].startswith("checkpoint"):
                yield f"./{name}", b""  # for a file that is empty
                with path.open("rb") as file:
                    while data := file.read(PIECE_BYTES):
                        yield f"./{name}", data
        yield self._process.wait()

    def ask_to_end(self) -> None:
        self._process.ask_to_end()

    def leave(self) -> None:
        """End the run if it still runs, and delete the scratch folder."""
        if not self._complete.is_set():
            self._process.end(patience=0)
            self._complete.wait()
        self._scratch.cleanup()

    def _stay(self) -> None:
        """Wait for the training, then for a runner."""
        try:
            self._process.wait()
            self._work.close()
        finally:
            self._complete.set()
        time.sleep(HOURS_KEPT * 3600)
        self.leave()
        os._exit(0)


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
