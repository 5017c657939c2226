"""Runs on a service, which continue when the runner has exited; what `modal` and `hf_jobs` share.

The name of a run's call is saved beside the run's directory (`ID.away`). A runner that starts the
run again continues this call and makes no new one. When the call has ended, its files are copied.
"""

import importlib.metadata
import shutil
import time
import uuid
from pathlib import Path
from typing import Protocol

from packaging.requirements import Requirement

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.study.engines import SECONDS_TO_END, Job, Process
from trl_ablate.study.engines.shipping import Bundle, beside, pack, short
from trl_ablate.study.planned import Plan

SECONDS_BETWEEN_QUESTIONS = 10.0


def requirements(extra: str) -> list[str]:
    """The requirements of this package and of one of its extras, from its metadata."""
    found = [Requirement(line) for line in importlib.metadata.requires("trl-ablate") or []]
    wanted = [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
    for one in wanted:
        one.marker = None
    return [str(one) for one in wanted]


class Service(Protocol):
    """The functions of a service that the engine uses."""

    name: str
    """Of the engine, as in `--engine`."""

    def spawn(self, bundle: Bundle, folder: str) -> str:
        """Start a run; returns the name of the call."""
        ...

    def answer(self, call: str) -> int | None:
        """The run's exit code, or None while it runs; raises if the call failed."""
        ...

    def download(self, call: str, folder: str, target: Path, checkpoints: bool) -> None:
        """Copy a folder of the results to `target/folder`; one that is not there is empty."""
        ...


class DetachedEngine:
    """Calls of a service, one for each run of a plan; the service decides how many run at once.

    Args:
        checkpoints: whether to fetch checkpoints, too; else they stay in the results.
    """

    in_place = False

    def __init__(self, service: Service, plan: Plan, *, checkpoints: bool = False):
        self.slots = len(plan.runs())
        self._service, self._checkpoints = service, checkpoints

    def start(self, job: Job, slot: int) -> "DetachedProcess":
        """Continue the run's existing call, or make one."""
        if not job.away.exists():
            folder = f"{job.directory.name}/{uuid.uuid4().hex[:8]}"  # calls never share one
            call = self._service.spawn(pack(job), folder)
            note = {"engine": self._service.name, "call": call, "folder": folder}
            write_json(job.away, note)
        return DetachedProcess(job, self._service, self._checkpoints)


class DetachedProcess(Process):
    """A call, found by its note."""

    def __init__(self, job: Job, service: Service, checkpoints: bool):
        note = read_object(job.away)
        if not {"call", "folder"} <= note.keys():
            raise ConfigurationError(f"{job.away} names no call; remove it to start the run anew")
        self._call, self._folder = note["call"], note["folder"]
        self._job, self._service, self._checkpoints = job, service, checkpoints
        self._code: int | None = None
        self._ask_at = 0.0

    def poll(self) -> int | None:
        if self._code is None and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
            try:
                answer = self._service.answer(self._call)
            except Exception as error:  # the call failed, so it has ended, too
                with self._job.log.open("a", encoding="utf-8") as log:
                    log.write(f"{self._service.name}: {short(error)}\n")
                answer = 1
            if answer is not None:
                self._fetch()
                self._job.away.unlink()
                self._code = answer
        return self._code

    def _fetch(self) -> None:
        """Download the log, then the directory, which appears complete."""
        directory, scratch = self._job.directory, beside(self._job.directory, "call")
        put_back(directory)
        shutil.rmtree(scratch, ignore_errors=True)
        self._service.download(self._call, self._folder, scratch, self._checkpoints)
        found = scratch / self._folder
        (found / directory.name).mkdir(parents=True, exist_ok=True)
        log = found / f"{directory.name}.log"
        if log.exists():
            with self._job.log.open("ab") as ours:
                ours.write(log.read_bytes())
        (found / directory.name).rename(part_of(directory))
        replace_folder(directory)
        shutil.rmtree(scratch)

    def ask_to_end(self) -> None:
        """The call continues without the runner."""

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """The call continues; its result is fetched later."""
