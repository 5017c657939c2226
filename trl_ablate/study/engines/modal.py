"""Modal: every run is a call of one function, in a container with a GPU.

The function is deployed, so its calls continue when the runner has exited (see `shipping`). A run
writes to a volume, from which its files are downloaded when the call has ended. Models and data
stay in separate volumes. Modal is an optional dependency: this module is imported only on demand.
"""

import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import modal

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.engines import shipping
from trl_ablate.study.engines.shipping import CODE, NOT_CODE, Bundle, DetachedEngine
from trl_ablate.study.planned import Plan

APP = "trl-ablate"
IMAGE = "nvidia/cuda:12.8.1-devel-ubuntu22.04"
"""It has compilers, which vLLM's kernels need; PyTorch includes its own CUDA."""
CODE_FOLDER, WEIGHTS, DATA, RESULTS = "/code", "/weights", "/data", "/results"
PASSING = tuple(
    getattr(modal.exception, name)
    for name in ("ConnectionError", "InternalError", "ResourceExhaustedError", "ServiceError")
    if hasattr(modal.exception, name)  # 1.0 has only the first
)
"""Errors of the service, not of a call."""
LONGEST = 24 * 3600
"""Modal's limit for the seconds of a call."""


def train_run(bundle: Bundle, folder: str) -> int:
    """Do a run in the container, anew if Modal has stopped an earlier one, and write to a folder of
    the results; returns the exit code."""
    home = Path(RESULTS, folder)
    shutil.rmtree(home, ignore_errors=True)
    with shipping.working(bundle, home, code=Path(CODE_FOLDER), cwd=Path(DATA)) as process:
        exit_code = process.wait()
    if not modal.is_local():
        modal.Volume.from_name(f"{APP}-results").commit()
    return exit_code


def build_app(gpu: str | None, at_once: int | None) -> tuple[modal.App, modal.Function]:
    """The app and its function, with at most `at_once` containers; nothing is sent to Modal yet."""
    image = (
        modal.Image.from_registry(IMAGE, add_python=f"3.{sys.version_info.minor}")
        .entrypoint([])
        .apt_install("git")
        .pip_install(*shipping.requirements("vllm"))
        .env({"PYTHONPATH": CODE_FOLDER, "HF_HOME": WEIGHTS})
    )
    ignored = [f"**/{pattern}" for pattern in NOT_CODE]
    for folder, name in CODE.items():
        image = image.add_local_dir(folder, f"{CODE_FOLDER}/{name}", ignore=ignored)
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


class ModalEngine(DetachedEngine):
    """Modal itself. The app is deployed before the first call, so not for fetching."""

    name = "modal"

    def __init__(self, options: Namespace, plan: Plan):
        super().__init__(options, plan)
        try:
            modal.Client.from_env()
        except modal.exception.AuthError as error:
            raise ConfigurationError(
                "--engine modal: Modal has no token; run `modal token new`, or set MODAL_TOKEN_ID "
                "and MODAL_TOKEN_SECRET"
            ) from error
        gpu = options.gpu if plan.for_gpu else None
        self._app, self._function = build_app(gpu, options.jobs)
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
        except (TimeoutError, *PASSING):
            return None

    def is_passing(self, error: Exception) -> bool:
        return isinstance(error, PASSING) or super().is_passing(error)

    def download(self, call: str, folder: str, target: Path) -> None:
        try:
            entries = self._results.listdir(folder, recursive=True)
        except modal.exception.NotFoundError:
            return
        for entry in entries:
            name = Path(entry.path.lstrip("/"))
            below = name.relative_to(folder).parts[1:]  # after the run's own name
            weights = any(part.startswith("checkpoint") for part in below)
            if entry.type.name == "FILE" and (self.checkpoints or not weights):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                with (target / name).open("wb") as file:
                    file.writelines(self._results.read_file(entry.path))


make = ModalEngine
