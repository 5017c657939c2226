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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trl_ablate.recipe.places import PACKAGE, SHIPPED
from trl_ablate.run.directory import RunDirectory
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


@contextmanager
def working(bundle: Bundle, home: Path, *, code: Path, cwd: Path) -> Iterator[LocalProcess]:
    """The training of a bundle, which ends with the block; its record then says which code was
    used. It writes to `home/NAME` and prints to `home/NAME.log`.

    Args:
        code: folder of the package that was sent; it takes precedence over an installed one.
    """
    directory, unpacked = RunDirectory(home / bundle.name), home / f"{bundle.name}.bundle"
    for name, content in bundle.files.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(content)
    words = [str(unpacked / word) if word in bundle.files else word for word in bundle.words]
    home.mkdir(parents=True, exist_ok=True)
    tie = ["-c", DIES_WITH_ITS_PARENT] if sys.platform == "linux" else []
    with (home / f"{bundle.name}.log").open("ab") as log:
        popen = subprocess.Popen(
            [sys.executable, *tie, *bundle.program, *words, "--output_dir", str(directory.path)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            cwd=cwd, env={**os.environ, "PYTHONPATH": str(code)}, start_new_session=True,
        )  # fmt: skip
    process = LocalProcess(popen)
    try:
        yield process
    finally:
        process.ask_to_end()
        process.end()
    if directory.run_file.exists() and not directory.read().get("git"):
        directory.update(git=bundle.git)


def beside(directory: Path, kind: str) -> Path:
    """A temporary path while a run is copied back; valid only while the run's lock is held."""
    return directory.with_name(f".{directory.name}.{kind}")


def short(error: BaseException) -> str:
    """An error of a service or cluster, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
