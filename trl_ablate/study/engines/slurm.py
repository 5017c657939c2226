"""Slurm: an array job with a task for every run that is not done yet.

Every task is `trl-ablate study run STUDY --only RUN` in the same store and with the same locks, so
submitting again does only the missing runs. The store has to be on a file system that the nodes
share and that supports flock. Set partition, account and time limit with sbatch's variables
SBATCH_PARTITION, SBATCH_ACCOUNT and SBATCH_TIMELIMIT.

Before the time limit, Slurm sends SIGTERM to the task's own process; SBATCH_SIGNAL changes the
time. This process is the study, which makes its run save and stop. It does the same when the task
is preempted or cancelled, in the seconds that the cluster allows.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from jinja2 import StrictUndefined, Template

from trl_ablate.errors import ConfigurationError
from trl_ablate.study.runs import StudyRuns

SECONDS_AHEAD = 300
"""Seconds before the time limit; enough for an optimizer step and a checkpoint."""

SCRIPT = Template(
    Path(__file__).with_name("sbatch.j2").read_text(encoding="utf-8"),
    undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True,
)  # fmt: skip


def array_job(
    study: StudyRuns,
    chosen: Sequence[str],
    command: Sequence[str],
    *,
    cpus: int = 1,
    at_once: int | None = None,
) -> str:
    """The batch script: one of the `chosen` ids of runs for each index of the array.

    Args:
        command: the command of a task, without `--only RUN`.
        cpus: the number for each run.
        at_once: how many tasks may run at the same time; None: Slurm decides.
    """
    folder = str(study.store.path.resolve())
    for name in (study.plan.study, folder):
        if re.search(r'["\\\n]', name):
            raise ConfigurationError(
                f"{name!r} has a quote, a backslash or a line break, which no #SBATCH line can "
                "hold; rename it"
            )
    return SCRIPT.render(
        plan=study.plan, runs=chosen, cpus=cpus, at_once=at_once, seconds_ahead=SECONDS_AHEAD,
        folder=folder, quoted_folder=shlex.quote(folder), here=shlex.quote(str(Path.cwd())),
        command=shlex.join(command),
    )  # fmt: skip


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
