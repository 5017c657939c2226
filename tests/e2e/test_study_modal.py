"""Studies on Modal: the app is built, its function does runs here, and a stand-in for the service
starts it in threads that outlive the engine. Nothing is sent anywhere."""

import shutil
import threading
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.conftest import REPOSITORY
from tests.support.studies import FAKE_PROGRAM, numbers, run_here, undisturbed
from tests.support.synthetic_study import make_plan
from trl_ablate.errors import ConfigurationError
from trl_ablate.study.engines import shipping
from trl_ablate.study.engines.shipping import Bundle, DetachedEngine
from trl_ablate.study.runner import Outcome, Runner
from trl_ablate.study.runs import StudyRuns
from trl_ablate.study.store import RunStore

modal = pytest.importorskip(
    "modal", reason="modal is not installed: pip install 'trl-ablate[modal]'"
)

from trl_ablate.study.engines.modal import ModalEngine, build_app  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:The train_run function is executing locally")

FILE, FOLDER = SimpleNamespace(name="FILE"), SimpleNamespace(name="DIRECTORY")
ARMS = {"a": {"top": 0.8, "pause": 0.02}, "b": {"top": 0.5, "pause": 0.02}}


class Here(DetachedEngine):
    """A stand-in for Modal on this machine: a call is a thread, the results are a folder."""

    name = "modal"

    def __init__(self, results: Path):
        super().__init__(Namespace(keep_checkpoints=False), make_plan(ARMS))
        self.results, self.threads = results, []
        self.begin = threading.Event()
        self.begin.set()
        self._answers: dict[str, int] = {}
        results.mkdir()

    def spawn(self, bundle: Bundle, folder: str) -> str:
        _, function = build_app("H100", None)
        place = {"results": str(self.results), "code": str(REPOSITORY), "cwd": str(self.results)}

        def call() -> None:
            self.begin.wait()
            self._answers[folder] = function.local(bundle, folder, **place)

        self.threads.append(threading.Thread(target=call))
        self.threads[-1].start()
        return folder

    def answer(self, call: str) -> int | None:
        return self._answers.get(call)

    def download(self, call: str, folder: str, target: Path) -> None:
        unfinished = shutil.ignore_patterns(".*.[0-9]*")  # a volume shows whole files only
        shutil.copytree(self.results / folder, target / folder, ignore=unfinished)

    def wait(self) -> None:
        self.begin.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(shipping, "SECONDS_BETWEEN_QUESTIONS", 0.1)
    monkeypatch.setattr(shipping, "PROGRAM", FAKE_PROGRAM)
    here = Here(tmp_path / "results")
    yield here
    here.wait()


def run_there(here: Here, store: RunStore, arms: dict, **options) -> Outcome:
    return Runner(StudyRuns(make_plan(arms), store), here, **options).run()


@pytest.mark.slow
def test_started_left_and_fetched(tmp_path, here):
    store = RunStore(tmp_path / "runs")
    here.begin.clear()
    left = run_there(here, store, ARMS, stay=False).left
    assert len(left) == len(here.threads) == 6
    assert {store.state(run_id).status for run_id in left} == {"running"}
    with pytest.raises(ConfigurationError, match="is at modal; collect it with `trl-ablate study"):
        run_here(store, ARMS)
    here.begin.set()
    assert len(run_there(here, store, ARMS).done) == 6  # the same command finds the calls
    assert len(here.threads) == 6 and not list(store.path.glob("*.away"))
    assert numbers(store, ARMS) == undisturbed(tmp_path / "calm", ARMS)
    commits = {store.directory(run_id).read()["git"]["commit"] for run_id in left}
    assert len(commits) == 1


@pytest.mark.slow
def test_a_call_that_modal_ends_is_a_failure_with_its_reason(tmp_path, here, monkeypatch):
    ended = Mock(side_effect=modal.exception.FunctionTimeoutError("24 hours are over"))
    monkeypatch.setattr(here, "answer", ended)
    store = RunStore(tmp_path / "runs")
    failed = run_there(here, store, {"a": {"top": 0.8, "pause": 0.2}}, retries=0).failed
    assert "24 hours are over" in (store.state(failed[0]).reason or "")


def test_a_service_that_stumbles_is_asked_again(monkeypatch):
    stumbles = Mock(side_effect=modal.exception.InternalError("try again"))
    monkeypatch.setattr(modal.FunctionCall, "from_id", stumbles)
    assert ModalEngine.__new__(ModalEngine).answer("fc-1") is None


@pytest.mark.parametrize("asked", [False, True])
def test_checkpoints_come_along_when_asked(tmp_path, asked):
    run = "checkpoint_a/0/checkpoint_a"  # of an arm with this name
    content = {f"{run}/run.json": b"{}", f"{run}/checkpoint_last/weights": b"heavy"}
    entries = [
        *(SimpleNamespace(path=f"/{name}", type=FILE) for name in content),
        SimpleNamespace(path=f"/{run}", type=FOLDER),
    ]
    engine = ModalEngine.__new__(ModalEngine)
    engine.checkpoints = asked
    engine._results = Mock(
        listdir=Mock(return_value=entries), read_file=lambda name: [content[name.lstrip("/")]]
    )
    engine.download("", "checkpoint_a/0", tmp_path)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {name for name in content if asked or "checkpoint_last" not in name}
    engine._results.listdir.side_effect = modal.exception.NotFoundError("no such folder")
    engine.download("", "checkpoint_a/1", tmp_path)  # a call that has written nothing


def test_without_a_token_it_says_how_to_get_one(monkeypatch):
    refused = Mock(side_effect=modal.exception.AuthError("Token missing"))
    monkeypatch.setattr(modal.Client, "from_env", refused)
    with pytest.raises(ConfigurationError, match="modal: Modal has no token; run `modal token new"):
        ModalEngine(Namespace(keep_checkpoints=False), make_plan(ARMS))
