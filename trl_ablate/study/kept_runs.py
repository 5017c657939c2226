"""Finished runs of a study in one file beside it, without weights. No torch.

`runs.tar.xz` holds of each run its settings, its record and its metrics, which is all that a report
reads. With it a study continues on another machine, and its numbers can be computed again.
"""

import io
import json
import lzma
import tarfile
from collections.abc import Iterable
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.folders import part_of, replace_folder
from trl_ablate.run.json_files import read_object
from trl_ablate.study.store import RunStore

OF_THE_MACHINE = ("command", "host")
"""Entries of a run's record that name a machine's folders, or the machine."""

Files = dict[str, bytes]
"""The files of a run, by their names."""


def beside(study: Path) -> Path:
    """Where the runs of a study.yaml are kept."""
    return study.with_name("runs.tar.xz")


def keep(store: RunStore, run_ids: Iterable[str], file: Path) -> int:
    """Write the finished runs to a file, and those of them that it has already and the store does
    not; returns their number. The same runs make the same bytes."""
    wanted = set(run_ids)
    runs = {run_id: files for run_id, files in kept(file).items() if run_id in wanted}
    runs |= {run_id: _files(store, run_id) for run_id in wanted if store.state(run_id).done}
    part = part_of(file)
    with tarfile.open(part, "w:xz") as archive:
        for run_id, files in sorted(runs.items()):
            for name, content in files.items():
                member = tarfile.TarInfo(f"{run_id}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    part.replace(file)
    return len(runs)


def kept(file: Path) -> dict[str, Files]:
    """The runs in a file, by id; none if there is no such file."""
    if not file.is_file():
        return {}
    runs: dict[str, Files] = {}
    try:
        with tarfile.open(file, "r:xz") as archive:
            for member in archive:
                run_id, _, name = member.name.partition("/")
                content = archive.extractfile(member)
                if content is not None:
                    runs.setdefault(run_id, {})[name] = content.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise ConfigurationError(f"{file} is damaged ({error}); take it from git again") from error
    return runs


def restore(file: Path, store: RunStore, run_ids: Iterable[str]) -> list[str]:
    """Put the runs of a file that are not done into the store, if they are among `run_ids`;
    returns their ids. A run that a process works on is left alone."""
    runs, restored = kept(file), []
    for run_id in sorted(set(run_ids) & runs.keys()):
        lock = store.lock(run_id)
        if store.state(run_id).done or not lock.acquire():
            continue
        try:
            _put(runs[run_id], store.directory(run_id))
            restored.append(run_id)
        finally:
            lock.release()
    return restored


def _put(files: Files, run: RunDirectory) -> None:
    part = part_of(run.path)
    part.mkdir(parents=True, exist_ok=True)
    for place in _places(run):
        (part / place.name).write_bytes(files[place.name])
    replace_folder(run.path)


def _files(store: RunStore, run_id: str) -> Files:
    """What is kept of a run; the folder of the runs is named `runs` in it."""
    run = store.directory(run_id)
    record = read_object(run.run_file)
    record = {key: value for key, value in record.items() if key not in OF_THE_MACHINE}
    here = json.dumps(str(store.path.resolve()))[1:-1]
    texts = {place.name: place.read_text(encoding="utf-8") for place in _places(run)}
    texts[run.run_file.name] = json.dumps(record, indent=2)
    return {name: text.replace(here, "runs").encode() for name, text in texts.items()}


def _places(run: RunDirectory) -> list[Path]:
    return [run.config_file, run.run_file, run.metrics_file]
