"""Which files of a run are published: fixed names, no links, and the list before the upload."""

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.hub import files_of
from trl_ablate.run.directory import RunDirectory

SECRET = "a file of this machine"
MODEL = {"model.safetensors": b"w", "config.json": b"{}", "tokenizer.json": b"{}",
         "merges.txt": b"a b", "chat_template.jinja": b"x",
         "best.json": b'{"step": 2}'}  # fmt: skip


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    for name in ("checkpoint_best", "checkpoint_last"):
        (directory.path / name).mkdir(parents=True)
        for file, content in MODEL.items():
            (directory.path / name / file).write_bytes(content)
    task = {"start": "base", "starts": None, "dataset": "math", "eval_split": None}
    directory.write_config(
        {"settings": {}, "config": {}, "task": task, "model": {"model_name_or_path": "a/b"}}
    )
    directory.update(status="finished", arm="a", seed=0)
    for step in range(3):
        directory.append_metrics({"step": step, "grpo_step": step, "seconds": 1.0 * step})
        directory.write_rollouts(step, [{"prompt": "p", "response": "r"}])
    (tmp_path / "outside.txt").write_text(SECRET)
    return directory


NOTES = ("notes.txt", "wandb-key.json", "tokens.model", "extra.jinja", "other.safetensors",
         "model-1-of-2.safetensors", "README.md", "training_args.bin", "trainer_state.json",
         "config.json.bak", "config (copy).json", "CONFIG.JSON", ".env.json",
         "step_x.jsonl")  # fmt: skip


@pytest.mark.parametrize("name", NOTES)
def test_a_persons_file_beside_a_model_stays(run, name):
    usual = files_of(run)
    for folder in ("checkpoint_best", "checkpoint_last", "rollouts", "."):
        if not (run.path / folder / name).exists():
            (run.path / folder / name).write_text(SECRET)
    assert files_of(run) == usual


LINKED = ("checkpoint_last/config.json", "checkpoint_best/model.safetensors", "metrics.jsonl",
          "rollouts/step_000002.jsonl", "run.json", "resolved_config.json",
          "alerts.jsonl")  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_is_refused_with_what_to_do(run, tmp_path, name):
    file, outside = run.path / name, tmp_path / "outside.json"
    if file.exists():
        file.rename(outside)
    else:
        outside.write_text('{"step": 1}\n')
    file.symlink_to(outside)
    with pytest.raises(ConfigurationError, match="link.*replace it by a copy"):
        files_of(run)


@pytest.mark.parametrize("name", ["checkpoint_best", "rollouts"])
def test_a_linked_folder_is_refused(run, tmp_path, name):
    (run.path / name).rename(tmp_path / name)
    (run.path / name).symlink_to(tmp_path / name)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        files_of(run)


def test_a_run_may_itself_be_reached_by_a_link(run, tmp_path):
    (tmp_path / "linked").symlink_to(run.path)
    assert files_of(RunDirectory(tmp_path / "linked")) == files_of(run)


def test_the_list_holds_every_file_and_is_shown_before_the_upload(run, monkeypatch):
    from trl_ablate.hub import publishing

    happened = []
    monkeypatch.setattr(publishing, "require_token", lambda token: "x" * 20)
    monkeypatch.setattr(publishing, "_publish", lambda *given: happened.append(given[1]) or "url")
    publishing.push_run(run, show=lambda files: happened.append(dict(files)))
    shown, uploaded = happened
    assert shown.keys() == uploaded.keys() | {"README.md"}
    assert shown == files_of(run)
    assert shown["checkpoint_last/merges.txt"] == 3
    names = {path.rpartition("/")[2] for path in shown}
    assert names >= MODEL.keys() | {"run.json", "metrics.jsonl", "step_000002.jsonl"}
