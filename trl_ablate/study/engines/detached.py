"""Runs on a service, which continue when the runner has exited; what `modal` and `hf_jobs` share.

The name of a run's call is saved beside the run's directory (`ID.away`). A runner that starts the
run again continues this call and makes no new one. When the call has ended, its files are copied.
"""

import importlib.metadata
import time
import uuid
from pathlib import Path
from typing import Protocol

from packaging.requirements import Requirement

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.study.engines import SECONDS_TO_END, Job
from trl_ablate.study.engines.shipping import Bundle, beside, is_wanted, pack

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

    def files(self, call: str, folder: str) -> list[str]:
        """Names of all files below a folder of the results."""
        ...

    def read(self, call: str, name: str, target: Path) -> None:
        """Copy a file from the results."""
        ...


class DetachedEngine:
    """Calls of a service, one for each run.

    Args:
        slots: how many calls may exist at once; the service decides how many run.
        checkpoints: whether to fetch checkpoints, too; else they stay in the results.
    """

    in_place = False

    def __init__(self, service: Service, *, slots: int, checkpoints: bool = False):
        self._service, self._slots, self._checkpoints = service, slots, checkpoints

    @property
    def slots(self) -> int:
        return self._slots

    def start(self, job: Job, slot: int) -> "DetachedProcess":
        """Continue the run's existing call, or make one."""
        if not job.away.exists():
            folder = f"{job.directory.name}/{uuid.uuid4().hex[:8]}"  # calls never share one
            call = self._service.spawn(pack(job), folder)
            note = {"engine": self._service.name, "call": call, "folder": folder}
            write_json(job.away, note)
        return DetachedProcess(job, self._service, self._checkpoints)


class DetachedProcess:
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
            answer = self._answer()
            if answer is not None:
                self._fetch()
                self._job.away.unlink()
                self._code = answer
        return self._code

    def _answer(self) -> int | None:
        """A call that failed on the service's side has ended, too: its files are fetched."""
        try:
            return self._service.answer(self._call)
        except Exception as error:
            with self._job.log.open("a", encoding="utf-8") as log:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                log.write(f"{self._service.name}: {reason}\n")
            return 1

    def _fetch(self) -> None:
        """Download the log, then the directory, which appears complete."""
        directory, log = self._job.directory, beside(self._job.directory, "log")
        put_back(directory)
        part, name = part_of(directory), directory.name
        part.mkdir(parents=True)
        for file in self._service.files(self._call, self._folder):
            path = Path(file).relative_to(self._folder)
            if path.parts[0] == name and is_wanted(path.relative_to(name), self._checkpoints):
                target = part / path.relative_to(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self._service.read(self._call, file, target)
            elif path.name == f"{name}.log":
                self._service.read(self._call, file, log)
                with self._job.log.open("ab") as ours:
                    ours.write(log.read_bytes())
                log.unlink()
        replace_folder(directory)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.5)
        return code

    def ask_to_end(self) -> None:
        """The call continues without the runner."""

    ask_to_save = ask_to_end

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """The call continues; its result is fetched later."""
