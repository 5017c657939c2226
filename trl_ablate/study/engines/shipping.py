"""A run that travels: what it needs, how it is done far away, and its way back into the store.

A machine far away shares no file system with this one. So a bundle carries the recipe's folder (its
YAML files, profiles included) beside the arguments, the run is done in a scratch folder there, and
what it wrote comes back. Models and data do not travel: name them as every machine finds them.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trl_ablate.recipe.places import PACKAGE, SHIPPED
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.run.provenance import git_state
from trl_ablate.study.engines import PROGRAM, Job
from trl_ablate.study.engines.local import LocalProcess

CODE = {PACKAGE: PACKAGE.name, SHIPPED: f"{PACKAGE.name}/shipped"}
"""What a machine needs to train: folders here, and their names there. From a checkout as from an
installed package, they arrive as an installed package has them."""
PIECE_SECONDS = 2.0
PIECE_BYTES = 16 * 2**20
DIES_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Linux: PR_SET_PDEATHSIG, SIGKILL; set by the child itself, before it becomes the training."""


Kind = Literal["log", "metrics", "archive", "ended"]


@dataclass(frozen=True)
class Bundle:
    """A run that can travel."""

    name: str
    words: tuple[str, ...]
    """Arguments of the training; the files of the bundle by their names in it."""
    files: Mapping[str, bytes]
    git: Mapping[str, str] | None
    """Of the code that travels, which is no checkout where it arrives."""
    program: tuple[str, ...]
    """What the Python there is to run."""


@dataclass(frozen=True)
class Piece:
    """A part of what a run sends home: what was added to a file, or how it ended."""

    kind: Kind
    data: bytes = b""
    code: int = 0


def copy_code(folder: Path) -> None:
    """Put what a machine needs to train into a folder; pictures and caches stay here."""
    for source, name in CODE.items():
        for file in [*source.rglob("*.py"), *source.rglob("*.txt"), *source.rglob("*.yaml")]:
            target = folder / name / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def pack(job: Job) -> Bundle:
    recipe, *rest = job.words
    folder = Path(recipe).parent
    found = [*folder.glob("*.yaml"), *(folder / "profiles").glob("*.yaml")]
    files = {f"recipes/{path.relative_to(folder)}": path.read_bytes() for path in found}
    words = [f"recipes/{Path(recipe).name}"]
    for word in rest:
        if words[-1] == "--profile" and word.endswith((".yaml", ".yml")):
            files["profile.yaml"] = Path(word).read_bytes()
            word = "profile.yaml"
        words.append(word)
    git = Masker(known_secrets([], words, None)).value(git_state(PACKAGE))
    return Bundle(job.directory.name, tuple(words), files, git, PROGRAM)


def begin(bundle: Bundle, home: Path, *, code: Path, cwd: Path) -> LocalProcess:
    """Start the training of a bundle: into `home/NAME`, printing into `home/NAME.log`.

    Args:
        code: folder of the package that travelled, which wins over an installed one.
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


def sign(bundle: Bundle, directory: RunDirectory) -> None:
    """Have the run say which code it was."""
    if directory.run_file.exists() and not directory.read().get("git"):
        directory.update(git=bundle.git)


def perform(bundle: Bundle, checkpoints: bool) -> Iterator[Piece]:
    """Do a run in a scratch folder of this machine, and send home what comes of it."""
    with tempfile.TemporaryDirectory(prefix=f"{bundle.name}-") as scratch:
        home, code = Path(scratch), Path.cwd()
        directory = RunDirectory(home / bundle.name)
        growing: dict[Kind, Growing] = {"log": Growing(home / f"{bundle.name}.log"),
                   "metrics": Growing(directory.metrics_file)}  # fmt: skip
        process = begin(bundle, home, code=code, cwd=code)
        try:
            while process.poll() is None:
                _wait(process, PIECE_SECONDS)
                for kind, file in growing.items():
                    if data := file.added():
                        yield Piece(kind, data)
        finally:
            process.ask_to_end()
            process.end()
        for kind, file in growing.items():
            yield Piece(kind, file.added())
        sign(bundle, directory)
        yield from _archived(directory, home / "archive.tar", checkpoints)
        yield Piece("ended", code=process.wait())


class Growing:
    """A file that others append to."""

    def __init__(self, path: Path):
        self._path, self._read = path, 0

    def added(self) -> bytes:
        """What was added since the last time."""
        if not self._path.exists():
            return b""
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        return data


def _wait(process: LocalProcess, seconds: float) -> None:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def is_wanted(path: Path, checkpoints: bool) -> bool:
    """Whether a file of a run, named from its directory, is to come home."""
    return checkpoints or not path.parts[0].startswith("checkpoint")


def _archived(directory: RunDirectory, archive: Path, checkpoints: bool) -> Iterator[Piece]:
    with tarfile.open(archive, "w") as tar:
        for path in sorted(directory.path.rglob("*")):
            name = path.relative_to(directory.path)
            if path.is_file() and is_wanted(name, checkpoints):
                tar.add(path, str(name))
    with archive.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield Piece("archive", data)


class Landing:
    """The other end of `perform`: log and metrics as they come, then the directory as it ended."""

    def __init__(self, job: Job):
        self.code: int | None = None
        self._log, self._directory = job.log, RunDirectory(job.directory)
        self._archive = beside(job.directory, "tar")

    def begin(self) -> None:
        """An empty directory, whatever an earlier attempt left there."""
        self._clear()
        shutil.rmtree(self._directory.path, ignore_errors=True)
        self._directory.path.mkdir(parents=True)
        self._directory.update(status="running", reason=None)

    def take(self, piece: Piece) -> None:
        if piece.kind == "ended":
            with tarfile.open(self._archive) as tar:
                tar.extractall(part_of(self._directory.path), filter="data")
            replace_folder(self._directory.path)
            self._archive.unlink()
            self.code = piece.code
            return
        paths = {"log": self._log, "metrics": self._directory.metrics_file}
        with paths.get(piece.kind, self._archive).open("ab") as file:
            file.write(piece.data)

    def give_up(self, code: int, reason: str) -> None:
        """It ended without coming home."""
        self.say(reason)
        self._clear()
        self.code = code

    def _clear(self) -> None:
        """Nothing half made is left beside the directory."""
        put_back(self._directory.path)
        self._archive.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")


def beside(directory: Path, kind: str) -> Path:
    """A file that is there while a run is on its way; of no meaning without the run's lock."""
    return directory.with_name(f".{directory.name}.{kind}")
