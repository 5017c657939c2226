"""What scripts/study.py makes of its engines, without starting any."""

import sys
from collections.abc import Callable
from functools import partial

import pytest

from tests.support.warm import Ended, warm

pytestmark = pytest.mark.xdist_group("study_cli")


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> list[str]:
    """A study of one arm and two seeds, and where its runs go."""
    folder = tmp_path_factory.mktemp("study")
    study = folder / "study.yaml"
    study.write_text("question: q\narms: [grpo.yaml]\nseeds: [0, 1]\nprofile: miniature\n")
    return [str(study), "--runs", str(folder / "runs")]


@pytest.fixture(scope="module")
def command(places):
    """`command(*words)`: scripts/study.py over the study."""

    def command(name: str, *words: str, sabotage: Callable[[], None] | None = None) -> Ended:
        return warm("study", name, *places, *words, sabotage=sabotage).wait()

    return command


@pytest.fixture(scope="module")
def printed(command) -> Ended:
    """An array job as it is printed; from then on the plan is kept, and `--only` resolves none."""
    return command("run", "--engine", "slurm", "--cpus_per_run", "4", "--retries", "2")


def runs_of(printed: Ended) -> list[str]:
    return printed.stdout.partition("runs=(")[2].partition(")")[0].split()


def test_a_slurm_job_is_printed_and_its_runs_are_the_studys(printed, places):
    assert printed.code == 0, printed.stderr
    assert "nothing was submitted" in printed.stderr
    assert "#SBATCH --array=0-1\n" in printed.stdout and "--cpus-per-task=4" in printed.stdout
    assert [run.partition("-")[2] for run in runs_of(printed)] == ["seed0", "seed1"]
    assert f"run {' '.join(places)} --retries 2 --only" in printed.stdout


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
    assert (done.code, done.stderr) == (2, f"error: {complaint.format(run=run)}\n")


@pytest.mark.parametrize("extra", ["ray", "modal"])
def test_a_missing_extra_is_named_with_its_command(command, printed, extra):
    words = ("--only", runs_of(printed)[0], "--engine", extra)
    done = command("run", *words, sabotage=partial(take_away, extra))
    assert (done.code, done.stderr) == (
        2,
        f"error: --engine {extra}: there is no module '{extra}'; pip install "
        f"'trl-ablate[{extra}]'\n",
    )


def take_away(module: str) -> None:
    sys.modules[module] = None  # pyright: ignore[reportArgumentType]


def test_fetching_where_nothing_is_away(command, printed):
    done = command("fetch")
    assert done.code == 0 and "nothing is away" in done.stdout
