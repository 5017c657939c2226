"""Studies over a real Ray cluster of two nodes, with nodes, runs and runners killed.

`TRL_ABLATE_KILLS=20` kills twenty times.
"""

import os
import random
import signal
import sys
import tempfile

import pytest

from tests.support.studies import (
    FAILING,
    SECONDS,
    check_failures,
    children,
    drive,
    kill_at_random,
    numbers,
    starts,
    undisturbed,
    wait_for,
)
from tests.support.synthetic_study import make_plan
from trl_ablate.study.store import RunStore

pytest.importorskip("ray", reason="ray is not installed: pip install 'trl-ablate[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc"),
]

KILLS = int(os.environ.get("TRL_ABLATE_KILLS", "6"))

ARMS = {"a": {"top": 0.8, "pause": 0.4}, "b": {"top": 0.5, "pause": 0.4, "collapse": 8}}


class Nodes:
    """Two nodes of two CPUs each beside a head without any; one that is killed can be replaced."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._cluster.add_node(num_cpus=2) for _ in range(2)]

    @property
    def address(self) -> str:
        return self._cluster.address

    def kill(self, number: int) -> None:
        self._cluster.remove_node(self._nodes.pop(number), allow_graceful=False)

    def replace(self) -> None:
        self._nodes.append(self._cluster.add_node(num_cpus=2))

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """Where the nodes do the runs."""
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", tempfile.gettempdir())  # the paths of its sockets are short
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("FAKE_STARTS", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield folder


@pytest.fixture(scope="module")
def nodes(scratch):
    nodes = Nodes()
    yield nodes
    nodes.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The numbers of the study when processes of this machine do it."""
    return undisturbed(tmp_path_factory.mktemp("calm"), ARMS)


def test_a_node_is_killed_in_the_middle(tmp_path, nodes, scratch, calm):
    store, killed = RunStore(tmp_path / "runs"), tmp_path / "killed"
    arms = {name: {**arm, "pause": 0.0, "waits_for": str(killed)} for name, arm in ARMS.items()}
    runner = drive(store, arms, "--ray_address", nodes.address)
    wait_for(lambda: len(children(scratch)) > 2, SECONDS)  # a node has two at most: both have one
    nodes.kill(0)
    wait_for(lambda: len(children(scratch)) < 3)  # its runs end with it, if not at once
    killed.touch()
    assert runner.wait(SECONDS) == 0
    nodes.replace()
    assert numbers(store, arms) == calm
    lost = [path.stem for path in store.path.glob("*.log") if "restarted on" in path.read_text()]
    assert lost
    assert not children(scratch) and not list(store.path.glob(".*"))


def test_what_runs_when_the_runner_is_killed_is_not_done_again(tmp_path, nodes, scratch, calm):
    store, killed = RunStore(tmp_path / "runs"), tmp_path / "killed"
    arms = {name: {**arm, "pause": 0.0, "waits_for": str(killed)} for name, arm in ARMS.items()}
    runner = drive(store, arms, "--ray_address", nodes.address)
    wait_for(lambda: len(children(scratch)) == 4, SECONDS)
    runner.kill()
    runner.wait()
    killed.touch()
    wait_for(lambda: not children(scratch))
    assert drive(store, arms, "--ray_address", nodes.address).wait(SECONDS) == 0
    assert numbers(store, arms) == calm
    started = starts(scratch)
    assert {started[run_id] for run_id in make_plan(arms).runs()} == {1}


@pytest.mark.long
def test_kills_of_runners_runs_and_nodes(tmp_path, nodes, scratch, calm):
    store, rng = RunStore(tmp_path / "runs"), random.Random(KILLS)

    def kill_a_node() -> None:
        nodes.kill(rng.randrange(2))
        nodes.replace()

    killed = kill_at_random(
        KILLS, store, lambda: drive(store, ARMS, "--ray_address", nodes.address), scratch,
        kill_a_node, (0.5, 3.0),
    )  # fmt: skip
    assert set(killed) == {"runner", "run", "node"} and killed.total() == KILLS
    assert numbers(store, ARMS) == calm
    assert not children(scratch) and not list(store.path.glob(".*"))


@pytest.mark.long
def test_ctrl_c_ends_the_runs_and_the_study_goes_on_later(tmp_path, nodes, scratch, calm):
    store = RunStore(tmp_path / "runs")
    runner = drive(store, ARMS, "--ray_address", nodes.address)
    wait_for(lambda: len(list(store.path.glob("*/metrics.jsonl"))) > 2, SECONDS)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(SECONDS) == 130
    assert not children(scratch)
    states = {store.state(run_id).status for run_id in make_plan(ARMS).runs()}
    assert states <= {"interrupted", "to do", "finished"} and "interrupted" in states
    assert drive(store, ARMS, "--ray_address", nodes.address).wait(SECONDS) == 0
    assert numbers(store, ARMS) == calm


@pytest.mark.long
def test_failures_come_home_with_their_reason(tmp_path, nodes):
    store = RunStore(tmp_path / "runs")
    assert drive(store, FAILING, "--ray_address", nodes.address).wait(SECONDS) == 1
    check_failures(store, FAILING)
