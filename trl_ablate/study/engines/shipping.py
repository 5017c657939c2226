"""Send a run to another machine, do it there, and copy its results back into the store.

The other machine shares no file system with this one. So a bundle contains the recipe's folder (its
YAML files, with the profiles) and the files that the recipe names (`own_files`) beside the
arguments, the run works in a scratch folder there, and its files are copied back. Models are not
sent: use names that every machine can resolve.

On a service a run continues when the runner has exited. The name of its call is saved beside the
run's directory (`ID.away`): a runner that starts the run again continues this call and makes no
new one. When the call has ended, its files are copied.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
import uuid
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import one_line
from trl_ablate.recipe.named_files import profile_file
from trl_ablate.recipe.places import PACKAGE, SHIPPED
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, put_back, replace_folder
from trl_ablate.run.identity import git_state
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.run.masking import Masker, known_secrets
from trl_ablate.study.engines import PROGRAM, SECONDS_TO_END, Job, Process
from trl_ablate.study.engines.local import LocalProcess
from trl_ablate.study.engines.own_files import own_files, profile_asked
from trl_ablate.study.planned import Plan

CODE = {PACKAGE: PACKAGE.name, SHIPPED: f"{PACKAGE.name}/shipped"}
"""The folders that a machine needs to train, and their names there: those of an installed package,
even if they are sent from a checkout."""
NOT_CODE = (
    *("__pycache__", "*.md", "*.png", "*.html", "*.csv"),
    *("report.json", "xray.json", "runs.parquet"),
)
"""What is not sent: caches, pages, pictures, and results of studies."""
TEXTS = (".yaml", ".yml", ".py")
"""Files that are sent only without secrets. Data may be large, and is sent as it is."""
SECONDS_BETWEEN_QUESTIONS = 10.0
DIES_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
"""Linux: PR_SET_PDEATHSIG, SIGKILL; the child sets it before it becomes the training."""


@dataclass(frozen=True)
class Bundle:
    """A run that can be sent: `program` and `words` are the arguments for the Python there, `git`
    the state of the code, which is not a checkout there."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, bytes]
    git: Mapping[str, str] | None
    program: tuple[str, ...]


def copy_code(folder: Path) -> None:
    """Copy the code that a machine needs to train into a folder."""
    for source, name in CODE.items():
        ignored = shutil.ignore_patterns(*NOT_CODE)
        shutil.copytree(
            source, folder / name, ignore=ignored, dirs_exist_ok=True, ignore_dangling_symlinks=True
        )


def pack(job: Job) -> Bundle:
    recipe, *rest = job.words
    own = own_files(Path(recipe), rest)
    files = {f"recipes/{name}": path.read_bytes() for name, path in own.items()}
    words = [f"recipes/{Path(recipe).name}", *rest]
    if profile := profile_file(Path(recipe), profile_asked(rest)):
        names = (f"recipes/{name}" for name, path in own.items() if path.samefile(profile))
        sent = next(names, "profile.yaml")
        files[sent] = profile.read_bytes()
        words[words.index("--profile") + 1] = sent
    masker = Masker(known_secrets([], words, None))
    for name, content in {**files, "the command line": "\n".join(rest).encode()}.items():
        if name.endswith((*TEXTS, "the command line")) and not masker.is_clean(content):
            raise ConfigurationError(
                f"{name} holds a secret, and would be sent to another machine; remove it, and give "
                "it to that machine as an environment variable"
            )
    git = masker.value(git_state(PACKAGE))
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


def replace_run(run: RunDirectory) -> None:
    """Replace an earlier run by what came of the new one, if it wrote anything. Files of the user
    stay."""
    part = part_of(run.path)
    if not part.exists():
        return
    for file in run.others():
        to = part / file.relative_to(run.path)
        if (file.is_symlink() or file.is_file()) and not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, to, follow_symlinks=False)
    replace_folder(run.path)


def requirements(extra: str) -> list[str]:
    """The requirements of this package and of one of its extras, from its metadata."""
    found = [Requirement(line) for line in importlib.metadata.requires("trl-ablate") or []]
    wanted = [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
    for one in wanted:
        one.marker = None
    return [str(one) for one in wanted]


class DetachedEngine(ABC):
    """A service, with a call for each run of a plan; it decides how many run at once."""

    name: str
    in_place = False

    def __init__(self, options: Namespace, plan: Plan):
        self.slots, self.checkpoints = len(plan.runs()), options.keep_checkpoints

    @abstractmethod
    def spawn(self, bundle: Bundle, folder: str) -> str:
        """Start a run; returns the name of the call."""

    @abstractmethod
    def answer(self, call: str) -> int | None:
        """The run's exit code, or None while it runs; raises if the call failed."""

    @abstractmethod
    def download(self, call: str, folder: str, target: Path) -> None:
        """Copy a folder of the results to `target/folder`; one that is not there is empty."""

    def is_passing(self, error: Exception) -> bool:
        """Whether the service could not be asked now, so that the call is to be asked again."""
        return isinstance(error, ConnectionError | TimeoutError)

    def start(self, job: Job, slot: int) -> "DetachedProcess":
        """Continue the run's existing call, or make one."""
        if not job.away.exists():
            folder = f"{job.directory.name}/{uuid.uuid4().hex[:8]}"  # calls never share one
            bundle, note = pack(job), {"engine": self.name, "folder": folder}
            write_json(job.away, note)  # first, so that no call is made that nobody knows
            try:
                note["call"] = self.spawn(bundle, folder)
            except Exception:
                job.away.unlink()
                raise
            write_json(job.away, note)
        return DetachedProcess(job, self)


class DetachedProcess(Process):
    """A call, found by its note."""

    def __init__(self, job: Job, engine: DetachedEngine):
        note = read_object(job.away)
        if not {"call", "folder"} <= note.keys():
            raise ConfigurationError(
                f"{job.away} names no call; see whether {engine.name} does the run, and remove the "
                "file to start it anew"
            )
        self._call, self._folder = note["call"], note["folder"]
        self._job, self._engine = job, engine
        self._code: int | None = None
        self._ask_at = 0.0

    def poll(self) -> int | None:
        if self._code is None and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + SECONDS_BETWEEN_QUESTIONS
            reason = ""
            try:
                answer = self._engine.answer(self._call)
            except ConfigurationError:
                raise
            except Exception as error:  # the call failed, so it has ended, too
                answer, reason = 1, f"{self._engine.name}: {one_line(error)}\n"
            if answer is not None:
                try:
                    self._fetch()
                except Exception as error:
                    if self._engine.is_passing(error):
                        return None  # the call is asked again later
                    raise
                with self._job.log.open("a", encoding="utf-8") as log:
                    log.write(reason)  # below what the run printed: the last line tells why
                self._job.away.unlink()
                self._code = answer
        return self._code

    def _fetch(self) -> None:
        """Download the log, then the directory, which appears complete. The run has the name there
        under which it was sent; its arm may have been renamed here since then."""
        directory, name = self._job.directory, self._folder.partition("/")[0]
        scratch = directory.with_name(f".{directory.name}.call")
        put_back(directory)
        shutil.rmtree(scratch, ignore_errors=True)
        self._engine.download(self._call, self._folder, scratch)
        found = scratch / self._folder
        log = found / f"{name}.log"
        if log.exists():
            with self._job.log.open("ab") as ours:
                ours.write(log.read_bytes())
        if (found / name).exists():
            (found / name).rename(part_of(directory))
        replace_run(RunDirectory(directory))
        shutil.rmtree(scratch, ignore_errors=True)

    def ask_to_end(self) -> None:
        """The call continues without the runner."""

    def end(self, patience: float = SECONDS_TO_END) -> None:
        """The call continues; its result is fetched later."""
