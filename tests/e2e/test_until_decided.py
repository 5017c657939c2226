"""`study run --until decided` with processes: killed, it comes to the same verdicts."""

import sys
from pathlib import Path

import pytest

from tests.support.drive_study import plan_of
from tests.support.studies import SECONDS, children, drive, starts, wait_for
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
