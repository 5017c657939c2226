import pytest

from tests.support.finished_run import drawn_once, finished_run
from trl_ablate.hub import contents
from trl_ablate.hub.contents import FinishedRun, read_run
from trl_ablate.run.directory import RunDirectory


@pytest.fixture
def directory(tmp_path, monkeypatch) -> RunDirectory:
    monkeypatch.setattr(contents, "draw_curves", drawn_once)
    return finished_run(tmp_path / "run")


@pytest.fixture
def finished(directory) -> FinishedRun:
    return read_run(directory)
