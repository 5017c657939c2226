"""Studies on Modal: the app is built, and its function does a run here. What all services share is
in `test_study_hf_jobs`. Nothing is sent anywhere."""

from argparse import Namespace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.conftest import REPOSITORY
from tests.support.studies import FAKE_PROGRAM
from tests.support.synthetic_study import make_plan
from trl_ablate.errors import ConfigurationError
from trl_ablate.run.directory import RunDirectory
from trl_ablate.study.engines.shipping import Bundle

modal = pytest.importorskip(
    "modal", reason="modal is not installed: pip install 'trl-ablate[modal]'"
)

from trl_ablate.study.engines import modal as engine  # noqa: E402
from trl_ablate.study.engines.modal import ModalEngine, build_app  # noqa: E402


@pytest.mark.filterwarnings("ignore:The train_run function is executing locally")
def test_the_function_does_a_run_anew_and_says_of_which_code(tmp_path, monkeypatch):
    (run,) = make_plan({"a": {"top": 0.8}}, seeds=[0]).runs().values()
    bundle = Bundle("name", run.words, {}, {"commit": "c0ffee"}, FAKE_PROGRAM)
    (tmp_path / "call" / "name").mkdir(parents=True)
    (tmp_path / "call" / "name" / "checkpoint-5").write_text("of a call that Modal has stopped")
    _, function = build_app("H100", None)
    for name, folder in {"RESULTS": tmp_path, "CODE_FOLDER": REPOSITORY, "DATA": tmp_path}.items():
        monkeypatch.setattr(engine, name, folder)
    assert function.local(bundle, "call") == 0
    record = RunDirectory(tmp_path / "call" / "name").read()
    assert record["status"] == "finished" and record["git"] == {"commit": "c0ffee"}


def test_a_service_that_stumbles_is_asked_again(monkeypatch):
    stumbles = Mock(side_effect=modal.exception.InternalError("try again"))
    monkeypatch.setattr(modal.FunctionCall, "from_id", stumbles)
    one = ModalEngine.__new__(ModalEngine)
    assert one.answer("fc-1") is None and one.is_passing(stumbles.side_effect)


@pytest.mark.parametrize("asked", [False, True])
def test_checkpoints_come_along_when_asked(tmp_path, asked):
    run = "checkpoint_a/0/checkpoint_a"  # of an arm with this name
    content = {f"{run}/run.json": b"{}", f"{run}/checkpoint_last/weights": b"heavy"}
    kinds = {**dict.fromkeys(content, "FILE"), run: "DIRECTORY"}
    entries = [SimpleNamespace(path=f"/{name}", type=SimpleNamespace(name=kind))
               for name, kind in kinds.items()]  # fmt: skip
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
        ModalEngine(Namespace(keep_checkpoints=False), make_plan({"a": {}}))
