"""Send a run to another machine, do it there, and copy its results back into the store.

The other machine shares no file system with this one. So a bundle contains the recipe's folder (its
YAML files, with the profiles) and the files that the recipe names (`own_files`) beside the
arguments, the run works in a scratch folder there, and its files are copied back. Models are not
sent: use names that every machine can resolve.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trl_ablate.recipe.places import PACKAGE, SHIPPED
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.run.identity import git_state
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.study.engines import PROGRAM, Job
from trl_ablate.study.engines.local import LocalProcess
from trl_ablate.study.engines.own_files import own_files

CODE = {PACKAGE: PACKAGE.name, SHIPPED: f"{PACKAGE.name}/shipped"}
"""The folders that a machine needs to train, and their names there: those of an installed package,
even if they are sent from a checkout."""
NOT_CODE = (
    *("__pycache__", "*.md", "*.png", "*.html", "*.csv"),
    *("report.json", "xray.json", "runs.parquet"),
)
"""What is not sent: caches, pages, pictures, and results of studies."""
CHECKED: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""For `extractall`: nothing outside the folder. Python before 3.11.4 cannot check that."""
PIECE_SECONDS = 0.5
PIECE_BYTES = 16 * 2**20
DIES_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Linux: PR_SET_PDEATHSIG, SIGKILL; the child sets it before it becomes the training."""


@dataclass(frozen=True)
class Bundle:
    """A run that can be sent."""

    name: str
    words: tuple[str, ...]
    """Arguments of the training; files of the bundle have their names in it."""
    files: Mapping[str, bytes]
    git: Mapping[str, str] | None
    """The git state of the code, which is not a checkout on the other machine."""
    program: tuple[str, ...]
    """Arguments for the Python there."""


Growing = Literal["log", "metrics"]


class Piece(NamedTuple):
    """A part of a run's results: what was added to a file, or the exit code."""

    kind: Growing | Literal["archive", "ended"]
    data: bytes = b""
    code: int = 0


def copy_code(folder: Path) -> None:
    """Copy the code that a machine needs to train into a folder."""
    for source, name in CODE.items():
        ignored = shutil.ignore_patterns(*NOT_CODE)
        shutil.copytree(source, folder / name, ignore=ignored, dirs_exist_ok=True)


def pack(job: Job) -> Bundle:
    recipe, *rest = job.words
    folder = Path(recipe).parent
    found = [*folder.glob("*.yaml"), *(folder / "profiles").glob("*.yaml")]
    files = {f"recipes/{path.relative_to(folder)}": path.read_bytes() for path in found}
    for name, path in own_files(Path(recipe), rest).items():
        files[f"recipes/{name}"] = path.read_bytes()
    words = [f"recipes/{Path(recipe).name}"]
    for word in rest:
        if words[-1] == "--profile" and word.endswith((".yaml", ".yml")):
            files["profile.yaml"] = Path(word).read_bytes()
            word = "profile.yaml"
        words.append(word)
    git = Masker(known_secrets([], words, None)).value(git_state(PACKAGE))
    return Bundle(job.directory.name, tuple(words), files, git, PROGRAM)


def begin(bundle: Bundle, home: Path, *, code: Path, cwd: Path) -> LocalProcess:
    """Start the training of a bundle; it writes to `home/NAME` and prints to `home/NAME.log`.

    Args:
        code: folder of the package that was sent; it takes precedence over an installed one.
    """
    unpacked = home / f"{bundle.name}.bundle"
    for name, content in bundle.files.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(content)
    words = [str(unpacked / word) if word in bundle.files else word for word in bundle.words]
    tie = ["-c", DIES_WITH_ITS_PARENT] if sys.platform == "linux" else []
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{bundle.name}.log").open("ab") as log:
        popen = subprocess.Popen(
            [sys.executable, *tie, *bundle.program, *words,
             "--output_dir", str(home / bundle.name)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            cwd=cwd, env={**os.environ, "PYTHONPATH": str(code)}, start_new_session=True,
        )  # fmt: skip
    return LocalProcess(popen)


@contextmanager
def working(bundle: Bundle, home: Path, *, code: Path, cwd: Path) -> Iterator[LocalProcess]:
    """The training of a bundle, which ends with the block; its record then says which code was
    used."""
    process = begin(bundle, home, code=code, cwd=cwd)
    try:
        yield process
    finally:
        process.ask_to_end()
        process.end()
    directory = RunDirectory(home / bundle.name)
    if directory.run_file.exists() and not directory.read().get("git"):
        directory.update(git=bundle.git)


def perform(bundle: Bundle, checkpoints: bool) -> Iterator[Piece]:
    """Do a run in a scratch folder of this machine, and send its results back."""
    with tempfile.TemporaryDirectory(prefix=f"{bundle.name}-") as scratch:
        home, code = Path(scratch), Path.cwd()
        directory = RunDirectory(home / bundle.name)
        files: dict[Growing, Path] = {
            "log": home / f"{bundle.name}.log", "metrics": directory.metrics_file,
        }  # fmt: skip
        read = dict.fromkeys(files, 0)
        with working(bundle, home, code=code, cwd=code) as process:
            while process.poll() is None:
                time.sleep(PIECE_SECONDS)
                yield from _added(files, read)
        yield from _added(files, read)
        archive = home / "archive.tar"
        with tarfile.open(archive, "w") as tar:
            for path in sorted(directory.path.rglob("*")):
                name = path.relative_to(directory.path)
                if path.is_file() and (checkpoints or not name.parts[0].startswith("checkpoint")):
                    tar.add(path, str(name))
        with archive.open("rb") as file:
            while data := file.read(PIECE_BYTES):
                yield Piece("archive", data)
        yield Piece("ended", code=process.wait())


def _added(files: Mapping[Growing, Path], read: dict[Growing, int]) -> Iterator[Piece]:
    """What another process has appended to files since so many bytes were read."""
    for kind, path in files.items():
        data = path.read_bytes()[read[kind] :] if path.exists() else b""
        read[kind] += len(data)
        if data:
            yield Piece(kind, data)


class Landing:
    """The receiver of `perform`: log and metrics as they arrive, then the final directory."""

    def __init__(self, job: Job):
        self.code: int | None = None
        self._log, self._directory = job.log, RunDirectory(job.directory)
        self._archive = beside(job.directory, "tar")

    def begin(self) -> None:
        """Start with an empty directory; files of an earlier attempt are deleted."""
        self._clear()
        shutil.rmtree(self._directory.path, ignore_errors=True)
        self._directory.path.mkdir(parents=True)
        self._directory.update(status="running", reason=None)

    def take(self, piece: Piece) -> None:
        if piece.kind == "ended":
            part = part_of(self._directory.path)
            part.mkdir(exist_ok=True)  # a run that wrote nothing has an empty archive
            with tarfile.open(self._archive) as tar:
                tar.extractall(part, **CHECKED)
            replace_folder(self._directory.path)
            self._archive.unlink()
            self.code = piece.code
            return
        paths = {"log": self._log, "metrics": self._directory.metrics_file}
        with paths.get(piece.kind, self._archive).open("ab") as file:
            file.write(piece.data)

    def give_up(self, code: int, reason: str) -> None:
        """The run ended without sending its directory back."""
        self.say(reason)
        self._clear()
        self.code = code

    def _clear(self) -> None:
        """Delete incomplete files beside the directory."""
        put_back(self._directory.path)
        self._archive.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")


def beside(directory: Path, kind: str) -> Path:
    """A temporary path while a run is copied back; valid only while the run's lock is held."""
    return directory.with_name(f".{directory.name}.{kind}")


def short(error: BaseException) -> str:
    """An error of a service or cluster, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
