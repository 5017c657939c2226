"""`study run --until decided` with processes: killed, out of time, and to the same verdicts."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.test_study_slurm import sbatch  # noqa: F401
from tests.support.drive_study import plan_of
from tests.support.studies import DRIVER, SECONDS, children, drive, starts, wait_for
from trl_ablate.study.engines.slurm import array_job, submit
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")

LOOKS = ("--looks", "[3, 5]")
ARMS = {"grpo": {"top": 0.8}, "worse": {"top": 0.4}, "alike": {"top": 0.8, "collapse": 99}}


def paused(seconds: float) -> dict:
    return {name: {**settings, "pause": seconds} for name, settings in ARMS.items()}


def verdicts(folder: Path, arms: dict) -> dict:
    found = StudyRuns(plan_of(arms, [3, 5]), RunStore(folder)).analysis.decisive
    return {name: (c.verdict, c.difference) for name, c in found.items()}


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> dict:
    """The verdicts of a study that nothing interrupts."""
    store, arms = RunStore(tmp_path_factory.mktemp("calm")), paused(0.0)
    assert drive(store, arms, *LOOKS).wait(SECONDS) == 0
    done = starts(store.path)
    assert set(done.values()) == {1}
    plan = plan_of(arms, [3, 5])
    seeds = {arm.name: sum(run.id in done for run in arm.runs) for arm in plan.arms}
    assert seeds == {"grpo": 5, "worse": 3, "alike": 5}
    return verdicts(store.path, arms)


@pytest.mark.slow
def test_killed_between_looks_it_reaches_the_same_verdicts(tmp_path, calm):
    store, arms = RunStore(tmp_path), paused(0.02)
    runner = drive(store, arms, *LOOKS)
    plan = plan_of(arms, [3, 5])
    fourth = plan.arms[0].runs[3].id  # of the second look
    wait_for(lambda: fourth in starts(store.path), SECONDS)
    runner.kill()
    runner.wait()
    wait_for(lambda: not children(store.path) or drive(store, arms, *LOOKS).wait(SECONDS) == 0,
             SECONDS)  # fmt: skip
    assert drive(store, arms, *LOOKS).wait(SECONDS) == 0
    assert verdicts(store.path, arms) == calm
    assert not (tmp_path / "twice").exists()


@pytest.mark.slow
def test_moved_to_another_engine_between_looks_it_reaches_the_same_verdicts(
    tmp_path,
    calm,
    sbatch,  # noqa: F811
):
    """The first look as an array job, the others by processes of this machine."""
    store, arms = RunStore(tmp_path / "runs"), paused(0.0)
    store.path.mkdir()
    study = StudyRuns(plan_of(arms, [3, 5]), store)
    first = study.of_pass(True)
    command = [sys.executable, str(DRIVER), str(store.path), json.dumps(arms)]
    submit(array_job(study, first, command, cpus=1, at_once=2))
    assert len(first) == 9 and set(starts(store.path)) == set(first)
    assert drive(store, arms, *LOOKS).wait(SECONDS) == 0
    assert set(starts(store.path).values()) == {1}
    assert verdicts(store.path, arms) == calm


@pytest.mark.slow
def test_a_run_that_fails_holds_only_its_own_comparison(tmp_path):
    arms = paused(0.0) | {"ill": {"top": 0.5, "fails": 99}}
    store = RunStore(tmp_path)
    assert drive(store, arms, *LOOKS).wait(SECONDS) == 1
    found = StudyRuns(plan_of(arms, [3, 5]), store).analysis.decisive
    assert found["worse"].verdict == "worse" and found["alike"].verdict == "not decided"
    assert (found["ill"].verdict, found["ill"].difference.n) == ("undecided", 0)
