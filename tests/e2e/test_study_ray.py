"""Studies over a real Ray cluster of two nodes, with a node, runs and runners killed."""

import signal
import sys
import tempfile
import time

import pytest

from tests.support.studies import (
    FAILING,
    SECONDS,
    check_failures,
    children,
    drive,
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

ARMS = {"a": {"top": 0.8, "pause": 0.4}, "b": {"top": 0.5, "pause": 0.4, "collapse": 8}}


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


class Nodes:
    """Two nodes of two CPUs each beside a head without any."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self.cluster.add_node(num_cpus=2) for _ in range(2)]

    def kill(self) -> None:
        self.cluster.remove_node(self._nodes.pop(0), allow_graceful=False)

    def replace(self) -> None:
        self._nodes.append(self.cluster.add_node(num_cpus=2))

    def drive(self, store: RunStore, arms: dict):
        return drive(store, arms, "--ray_address", self.cluster.address)


@pytest.fixture(scope="module")
def nodes(scratch):
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The numbers of the study when processes of this machine do it."""
    return undisturbed(tmp_path_factory.mktemp("calm"), ARMS)


def test_a_runner_is_killed_and_then_a_node(tmp_path, nodes, scratch, calm):
    """What runs meanwhile on the other node is not done again."""
    store, killed = RunStore(tmp_path / "runs"), tmp_path / "killed"
    arms = {name: {**arm, "pause": 0.0, "waits_for": str(killed)} for name, arm in ARMS.items()}
    runner = nodes.drive(store, arms)
    wait_for(lambda: len(children(scratch)) == 4, SECONDS)
    runner.kill()
    runner.wait()
    runner = nodes.drive(store, arms)
    logs = list(store.path.glob("*.log"))
    wait_for(lambda: "".join(log.read_text() for log in logs).count("--- attempt") == 8, SECONDS)
    time.sleep(1)  # until it follows the workers
    wait_for(lambda: len(list(store.path.glob("*/metrics.jsonl"))) == 4, SECONDS)
    nodes.kill()
    wait_for(lambda: len(children(scratch)) < 3)  # its runs end with it, if not at once
    killed.touch()
    assert runner.wait(SECONDS) == 0
    nodes.replace()
    assert numbers(store, arms) == calm
    logs = {path.stem: path.read_text() for path in store.path.glob("*.log")}
    lost = {run_id for run_id, log in logs.items() if "restarted on" in log}
    # a worker may also be lost before its training starts: both nodes unpack into one folder here
    started = starts(scratch)
    again = {run_id for run_id in make_plan(arms).runs() if started[run_id] != 1}
    assert 1 <= len(again) <= 2 and again <= lost, logs
    assert {started[run_id] for run_id in again} == {2}
    assert not children(scratch) and not list(store.path.glob(".*"))


@pytest.mark.long
def test_ctrl_c_ends_the_runs_and_the_study_goes_on_later(tmp_path, nodes, scratch, calm):
    store = RunStore(tmp_path / "runs")
    runner = nodes.drive(store, ARMS)
    wait_for(lambda: len(list(store.path.glob("*/metrics.jsonl"))) > 2, SECONDS)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(SECONDS) == 130
    assert not children(scratch)
    states = {store.state(run_id).status for run_id in make_plan(ARMS).runs()}
    assert states <= {"interrupted", "to do", "finished"} and "interrupted" in states
    assert nodes.drive(store, ARMS).wait(SECONDS) == 0
    assert numbers(store, ARMS) == calm


@pytest.mark.long
def test_failures_come_home_with_their_reason(tmp_path, nodes):
    store = RunStore(tmp_path / "runs")
    assert nodes.drive(store, FAILING).wait(SECONDS) == 1
    check_failures(store, FAILING)
