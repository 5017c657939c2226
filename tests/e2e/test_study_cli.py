"""What scripts/study.py makes of its engines, without starting any."""

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """`command(*words)`: scripts/study.py over a study of one arm and two seeds."""
    folder = tmp_path_factory.mktemp("study")
    study = folder / "study.yaml"
    study.write_text("question: q\narms: [grpo.yaml]\nseeds: [0, 1]\nprofile: miniature\n")

    def command(name: str, *words: str, before: str = "") -> subprocess.CompletedProcess:
        script = str(REPOSITORY / "scripts" / "study.py")
        code = f"{before}\nimport runpy, sys; sys.argv = sys.argv[1:]\n"
        code += "runpy.run_path(sys.argv[0], run_name='__main__')"
        where = [str(study), "--runs", str(folder / "runs")]
        return subprocess.run(
            [sys.executable, "-c", code, script, name, *where, *words],
            capture_output=True, text=True, timeout=120, cwd=REPOSITORY,
        )  # fmt: skip

    return command


@pytest.fixture(scope="module")
def printed(command):
    """An array job as it is printed; from then on the plan is kept, and `--only` needs no torch."""
    return command("run", "--engine", "slurm", "--cpus_per_run", "4", "--retries", "2")


def runs_of(printed) -> list[str]:
    return printed.stdout.partition("runs=(")[2].partition(")")[0].split()


def test_a_slurm_job_is_printed_and_its_runs_are_the_studys(printed):
    assert printed.returncode == 0, printed.stderr
    assert "nothing was submitted" in printed.stderr
    assert "#SBATCH --array=0-1\n" in printed.stdout and "--cpus-per-task=4" in printed.stdout
    assert [run.partition("-")[2] for run in runs_of(printed)] == ["seed0", "seed1"]
    study, _, runs = printed.args[5:8]
    assert f"run {study} --runs {runs} --retries 2 --only" in printed.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--only", "{run}9"), "--only {run}9: the study has no such run; did you mean '{run}'?"),
        (("--submit",), "--submit is nothing to --engine local; it goes with --engine slurm"),
        (("--only", "{run}", "--engine", "ray", "--ray_address", "ray://there:1"),
         "--ray_address ray://there:1 is one of Ray Client; run on the cluster's head node, with "
         "--ray_address auto"),
    ],
    ids=["unknown run", "option of another engine", "ray client"],
)  # fmt: skip
def test_what_is_refused(command, printed, words, complaint):
    run = runs_of(printed)[0]
    done = command("run", *(word.format(run=run) for word in words))
    assert (done.returncode, done.stderr) == (2, f"error: {complaint.format(run=run)}\n")


@pytest.mark.parametrize("extra", ["ray", "modal"])
def test_a_missing_extra_is_named_with_its_command(command, printed, extra):
    away = f"import sys; sys.modules['{extra}'] = None"
    done = command("run", "--only", runs_of(printed)[0], "--engine", extra, before=away)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: --engine {extra}: there is no module '{extra}'; pip install "
        f"'trl-ablate[{extra}]'\n",
    )


def test_fetching_where_nothing_is_away(command, printed):
    done = command("fetch")
    assert done.returncode == 0 and "nothing is away" in done.stdout
