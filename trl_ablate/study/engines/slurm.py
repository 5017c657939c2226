"""Slurm: an array job with a task for every run that is not done yet.

Every task is `trl-ablate study run STUDY --only RUN` in the same store and with the same locks, so
submitting again does only the missing runs. The store has to be on a file system that the nodes
share and that supports flock. Set partition, account and time limit with sbatch's variables
SBATCH_PARTITION, SBATCH_ACCOUNT and SBATCH_TIMELIMIT.

Before the time limit, Slurm sends SIGTERM to the task's own process; SBATCH_SIGNAL changes the
time. This process is the study, which makes its run save and stop. It does the same when the task
is preempted or cancelled, in the seconds that the cluster allows.
"""

import shlex
import subprocess
import sys
from argparse import Namespace, _ArgumentGroup
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.planned import Plan
from trl_ablate.study.store import RunStore

SECONDS_AHEAD = 300
"""Seconds before the time limit; enough for an optimizer step and a checkpoint."""


def add_options(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--cpus_per_run", metavar="N", type=int, default=1, help="CPUs of a run; default: 1"
    )
    group.add_argument(
        "--submit", action="store_true", help="submit the array job to Slurm instead of printing it"
    )


def make(options: Namespace, plan: Plan) -> "ArrayJob":
    return ArrayJob(plan, options.cpus_per_run, options.jobs)


@dataclass(frozen=True)
class ArrayJob:
    """Not an engine that a runner uses: Slurm starts a runner for each run."""

    plan: Plan
    cpus: int
    at_once: int | None

    def script(self, runs: Sequence[str], store: RunStore, command: Sequence[str]) -> str:
        return array_job(self.plan, runs, store, command, cpus=self.cpus, at_once=self.at_once)


def study_command(study: Path, store: RunStore, *options: str) -> list[str]:
    words = [sys.executable, "-m", "trl_ablate", "study", "run", str(study.resolve()), "--runs"]
    return [*words, str(store.path.resolve()), *options]


def array_job(
    plan: Plan,
    runs: Sequence[str],
    store: RunStore,
    command: Sequence[str],
    *,
    cpus: int = 1,
    at_once: int | None = None,
) -> str:
    """The batch script.

    Args:
        runs: ids, in the order of the array's indices.
        command: the command of a task, without `--only RUN`.
        cpus: the number for each run.
        at_once: how many tasks may run at the same time; None: Slurm decides.
    """
    limit = f"%{at_once}" if at_once else ""
    folder = store.path.resolve()
    head = [
        "#!/bin/bash",
        f"#SBATCH --job-name={plan.study}",
        f"#SBATCH --array=0-{len(runs) - 1}{limit}",
        "#SBATCH --ntasks=1",
        f"#SBATCH --cpus-per-task={cpus}",
        *(["#SBATCH --gres=gpu:1"] if plan.for_gpu else []),
        f"#SBATCH --signal=B:TERM@{SECONDS_AHEAD}",
        f"#SBATCH --output={folder}/slurm-%A_%a.out",
    ]
    body = [
        "set -eu",
        f"runs=({' '.join(runs)})",
        "run=${runs[$SLURM_ARRAY_TASK_ID]}",
        f'exec >> {shlex.quote(str(folder))}/"$run".slurm 2>&1',
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'exec {shlex.join(command)} --only "$run"',
    ]
    return "\n".join([*head, "", *body, ""])


def submit(script: str) -> str:
    """Pass it to sbatch; returns the id of the array job."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            "--submit: sbatch is not installed here; run this on a login node, or omit --submit "
            "and copy the script there"
        ) from error
    if done.returncode != 0:
        raise ConfigurationError(
            f"--submit: sbatch refused the job: {done.stderr.strip()}; set SBATCH_PARTITION, "
            "SBATCH_ACCOUNT or SBATCH_TIMELIMIT as the cluster requires"
        )
    return done.stdout.strip().partition(";")[0]
