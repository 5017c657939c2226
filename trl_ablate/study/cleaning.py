"""Remove the leftovers of a study and, only on request, its checkpoints and results.

A run is never removed if another study's plan contains it, or while a process uses it.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import MARK, RunDirectory
from trl_ablate.study.expected_hours import probe_name
from trl_ablate.study.planned import plan_file
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore, State, bytes_in


@dataclass(frozen=True)
class Rubbish:
    """Paths to remove, and the run whose lock must be held meanwhile; whether it was done when
    they were listed."""

    run_id: str
    paths: tuple[Path, ...]
    bytes: int
    is_done: bool


def find_rubbish(
    runs: StudyRuns, *, checkpoints: bool = False, results: bool = False
) -> list[Rubbish]:
    """The paths for `clean` to remove: probes, and folders and logs of failed or interrupted runs.
    With `checkpoints`, also numbered checkpoints of finished runs; with `results`, also finished
    runs, those with other settings too, and those whose files cannot be read. Files of the user in
    the folder of a run stay."""
    store, found = runs.store, []
    shared = _named_elsewhere(runs)

    def add(run_id: str, paths: list[Path], state: State) -> None:
        there = tuple(filter(Path.exists, paths))
        if there and state.status != "running":
            found.append(Rubbish(run_id, there, sum(map(bytes_in, there)), state.done))

    for run in runs.plan.runs().values():
        probe = probe_name(run)
        add(probe, [store.directory(probe).path, store.log(probe)], store.state(probe))
        state, directory = runs.states[run.id], store.directory(run.id)
        has_result = state.done or state.damaged or state.is_another
        leftover = state.status in ("interrupted", "failed", "to do") and not has_result
        if (leftover or (results and has_result)) and run.id not in shared:
            add(run.id, [*written_by(directory), store.log(run.id)], state)
        elif checkpoints and state.done:
            add(run.id, sorted(directory.checkpoints()), state)
    return found


def remove(rubbish: Rubbish, store: RunStore) -> bool:
    """Remove the paths; False if a process has started to use the run, or has finished it, in the
    meantime."""
    lock = store.lock(rubbish.run_id)
    if not lock.acquire():
        return False
    if store.state_unlocked(rubbish.run_id).done and not rubbish.is_done:
        lock.release()
        return False
    for path in rubbish.paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    lock.remove()
    return True


def _named_elsewhere(runs: StudyRuns) -> set[str]:
    """Ids of the runs in the saved plans of all other studies."""
    named, plan, folder = set[str](), runs.plan, runs.store.plans
    for file in {*folder.glob("*.json")} - {plan_file(folder, plan.study, plan.path)}:
        try:
            arms = json.loads(file.read_bytes())["arms"]
            named |= {run["id"] for arm in arms for run in arm["runs"]}
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(
                f"{file} cannot be read, so that the runs it shares with {plan.study} are not "
                "known; make it anew with `trl-ablate study plan` of its study, or remove it"
            ) from error
    return named


def written_by(run: RunDirectory) -> list[Path]:
    """Its folder; or, where files of the user are in it, what the run has written there."""
    if all(at.is_dir() for at in run.others()):
        return [run.path]
    return sorted(filter(os.path.lexists, [*run.entries(), run.path / MARK]))
