"""Modal: every run is a call of one function, in a container with a GPU.

The function is deployed, so its calls continue when the runner has exited. The name of a run's call
is saved beside the run's directory (`ID.away`); a runner that starts the run again continues this
call and makes no new one. A run writes to a volume, from which its files are downloaded when the
call has ended. Models and datasets stay in separate volumes.
"""

import importlib.metadata
import os
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from packaging.requirements import Requirement

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.files import read_object, write_json
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.study.engines import SECONDS_TO_END, Job
from trl_ablate.study.engines.shipping import (
    CODE,
    Bundle,
    begin,
    beside,
    is_wanted,
    pack,
    sign,
)

try:
    import modal
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"--engine modal: there is no module '{error.name}'; pip install 'trl-ablate[modal]'"
    ) from error

APP = "trl-ablate"
IMAGE = "nvidia/cuda:12.8.1-devel-ubuntu22.04"
"""It has compilers, which vLLM's kernels need; PyTorch includes its own CUDA."""
CODE_FOLDER, WEIGHTS, DATA, RESULTS = "/code", "/weights", "/data", "/results"
NOT_CODE = ["**/__pycache__", "**/*.md", "**/*.png", "**/*.html", "**/*.csv"]
LONGEST = 24 * 3600
"""Modal's limit for the seconds of a call."""
SECONDS_BETWEEN_QUESTIONS = 10.0


def train_run(
    bundle: Bundle,
    folder: str,
    results: str = RESULTS,
    code: str = CODE_FOLDER,
    cwd: str = DATA,
) -> int:
    """Do a run in the container and write to `results/folder`; if Modal stops the container, the
    run starts over. Returns the exit code."""
    home = Path(results, folder)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    process = begin(bundle, home, code=Path(code), cwd=Path(cwd))
    try:
        exit_code = process.wait()
    finally:
        process.ask_to_end()
        process.end()
    sign(bundle, RunDirectory(home / bundle.name))
    if not modal.is_local():
        modal.Volume.from_name(f"{APP}-results").commit()
    return exit_code


def build_app(gpu: str | None, at_once: int | None) -> tuple[modal.App, modal.Function]:
    """The app and its function; nothing is sent to Modal yet.

    Args:
        gpu: Modal's name of each run's GPU; None: no GPU.
        at_once: the maximum number of containers; None: as many as the account allows.
    """
    image = (
        modal.Image.from_registry(IMAGE, add_python=f"3.{sys.version_info.minor}")
        .entrypoint([])
        .apt_install("git")
        .pip_install(*requirements("vllm"))
        .env({"PYTHONPATH": CODE_FOLDER, "HF_HOME": WEIGHTS})
    )
    for folder, name in CODE.items():
        image = image.add_local_dir(folder, f"{CODE_FOLDER}/{name}", ignore=NOT_CODE)
    volumes: dict[Any, Any] = {
        place: modal.Volume.from_name(f"{APP}{place.replace('/', '-')}", create_if_missing=True)
        for place in (WEIGHTS, DATA, RESULTS)
    }
    token = [modal.Secret.from_local_environ(["HF_TOKEN"])] if "HF_TOKEN" in os.environ else []
    app = modal.App(APP, include_source=False)
    function = app.function(
        image=image, gpu=gpu, volumes=volumes, secrets=token, timeout=LONGEST,
        max_containers=at_once, serialized=True, name=train_run.__name__,
    )(train_run)  # fmt: skip
    return app, function


def requirements(extra: str) -> list[str]:
    """The requirements of this package and of one of its extras, from its metadata."""
    found = [Requirement(line) for line in importlib.metadata.requires("trl-ablate") or []]
    wanted = [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
    for one in wanted:
        one.marker = None
    return [str(one) for one in wanted]


class Service(Protocol):
    """The functions of Modal that the engine uses."""

    def spawn(self, bundle: Bundle, folder: str) -> str:
        """Call the function; returns the name of the call."""
        ...

    def answer(self, call: str) -> int | None:
        """What the function returned, or None while it runs; raises if the call failed."""
        ...

    def files(self, folder: str) -> list[str]:
        """Names of all files below a folder of the results."""
        ...

    def read(self, name: str, target: Path) -> None:
        """Copy a file from the results."""
        ...


class ModalService:
    """Modal itself. The app is deployed before the first call, so not for fetching."""

    def __init__(self, gpu: str | None, at_once: int | None):
        check_token()
        self._app, self._function = build_app(gpu, at_once)
        self._deployed = False
        self._results = modal.Volume.from_name(f"{APP}-results", create_if_missing=True)

    def spawn(self, bundle: Bundle, folder: str) -> str:
        if not self._deployed:
            self._app.deploy()
            self._deployed = True
        return self._function.spawn(bundle, folder).object_id

    def answer(self, call: str) -> int | None:
        try:
            return modal.FunctionCall.from_id(call).get(timeout=0)
        except (TimeoutError, modal.exception.ConnectionError):
            return None

    def files(self, folder: str) -> list[str]:
        try:
            entries = self._results.listdir(folder, recursive=True)
        except modal.exception.NotFoundError:
            return []
        return [entry.path.lstrip("/") for entry in entries if entry.type.name == "FILE"]

    def read(self, name: str, target: Path) -> None:
        with target.open("wb") as file:
            for chunk in self._results.read_file(name):
                file.write(chunk)


class ModalEngine:
    """Calls of the function.

    Args:
        slots: how many calls may exist at once; Modal decides how many run.
        checkpoints: whether to fetch checkpoints, too; else they stay in the results.
    """

    in_place = False

    def __init__(self, service: Service, *, slots: int, checkpoints: bool = False):
        self._service, self._slots, self._checkpoints = service, slots, checkpoints

    @property
    def slots(self) -> int:
        return self._slots

    def start(self, job: Job, slot: int) -> "ModalProcess":
        """Continue the run's existing call, or make one."""
        if not job.away.exists():
            folder = f"{job.directory.name}/{uuid.uuid4().hex[:8]}"  # calls never share one
            call = self._service.spawn(pack(job), folder)
            write_json(job.away, {"call": call, "folder": folder})
        return ModalProcess(job, self._service, self._checkpoints)


class ModalProcess:
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
        """A call that failed on Modal's side has ended, too: its files are fetched."""
        try:
            return self._service.answer(self._call)
        except Exception as error:
            with self._job.log.open("a", encoding="utf-8") as log:
                log.write(f"Modal: {type(error).__name__}: {' '.join(str(error).split())[:300]}\n")
            return 1

    def _fetch(self) -> None:
        """Download the log, then the directory, which appears complete."""
        directory, log = self._job.directory, beside(self._job.directory, "log")
        put_back(directory)
        part, name = part_of(directory), directory.name
        part.mkdir(parents=True)
        for file in self._service.files(self._folder):
            path = Path(file).relative_to(self._folder)
            if path.parts[0] == name and is_wanted(path.relative_to(name), self._checkpoints):
                target = part / path.relative_to(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self._service.read(file, target)
            elif path.name == f"{name}.log":
                self._service.read(file, log)
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


def check_token() -> None:
    try:
        modal.Client.from_env()
    except modal.exception.AuthError as error:
        raise ConfigurationError(
            "--engine modal: Modal has no token; run `modal token new`, or set MODAL_TOKEN_ID "
            "and MODAL_TOKEN_SECRET"
        ) from error
