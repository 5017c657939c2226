"""`trl-ablate publish`: what it refuses before anything is sent."""

import pytest

from trl_ablate.cli.publish import main
from trl_ablate.run.directory import RunDirectory


def test_what_is_no_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "TokenOfTheTester012345")
    assert main([str(tmp_path / "absent")]) == 2
    said = capsys.readouterr().err
    assert "does not exist; give the folder of a run" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--pubic"], "unknown option '--pubic'; did you mean '--public'?"),
        ([], "the following arguments are required: RUN_DIR"),
    ],
)
def test_a_wrong_word(capsys, words, sentence):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_trouble_with_the_hub_is_a_failure(tmp_path, capsys, monkeypatch):
    import trl_ablate.hub
    from trl_ablate.hub import PublishError

    def push_run(run: RunDirectory, **how) -> str:
        raise PublishError(f"the Hub refused {run.path.name}")

    monkeypatch.setattr(trl_ablate.hub, "push_run", push_run)
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: the Hub refused {tmp_path.name}\n"
