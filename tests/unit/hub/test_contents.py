"""Which files of a run are published: fixed names, no links, no secrets, whole lines."""

import json
import shlex
import shutil
from itertools import product
from pathlib import Path

import pytest
from huggingface_hub.utils import validate_repo_id

from tests.support.finished_run import MODEL, TOKEN
from trl_ablate.errors import ConfigurationError, PublishError
from trl_ablate.hub import files_of, publishing
from trl_ablate.hub.card import model_card
from trl_ablate.hub.contents import key_rollouts, read_run
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import append_jsonl, write_json

NOTES = ("notes.txt", "wandb-key.json", "tokens.model", "extra.jinja", "other.safetensors",
         "model-1-of-2.safetensors", "README.md", "training_args.bin", "trainer_state.json",
         "config.json.bak", "config (copy).json", "CONFIG.JSON", ".env.json",
         "step_x.jsonl")  # fmt: skip


def test_a_persons_file_beside_a_model_stays(directory, tmp_path):
    usual = files_of(directory)
    for folder, name in product(("checkpoint_best", "checkpoint_last", "rollouts", "."), NOTES):
        (directory.path / folder / name).write_text("a file of this machine")
    assert files_of(directory) == usual
    (tmp_path / "linked").symlink_to(directory.path)  # the run itself may be reached by a link
    assert files_of(RunDirectory(tmp_path / "linked")) == usual


LINKED = ("checkpoint_last/config.json", "checkpoint_best/model.safetensors", "metrics.jsonl",
          "rollouts/step_000002.jsonl", "run.json", "resolved_config.json", "alerts.jsonl",
          "checkpoint_best", "rollouts")  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_link_is_refused_with_what_to_do(directory, tmp_path, name):
    file, outside = directory.path / name, tmp_path / "outside.json"
    if file.exists():
        file.rename(outside)
    else:
        outside.write_text('{"step": 1}\n')
    file.symlink_to(outside)
    with pytest.raises(ConfigurationError, match="link.*replace it by a copy"):
        files_of(directory)


def test_a_best_model_whose_row_a_resume_has_dropped_keeps_its_own_number(directory):
    """Also where the step was repeated with another result."""
    best = directory.path / "checkpoint_best" / "best.json"
    for step in (8, 2):
        write_json(best, {"metric": "eval_reward", "value": 0.75, "step": step})
        card = model_card(read_run(directory), "me/lr", None, picture=False)
        assert f"| first (step 0) | best (step {step}) | last (step 6) |" in card
        assert "| 0.030 ± 0.012 | 0.750 | 0.010 ± 0.012 |" in card and "value: 0.75\n" in card
    write_json(best, {"metric": "eval_answer_reward", "value": 0.4, "step": 8})
    card = model_card(read_run(directory), "me/lr", None, picture=False)
    assert "| best (step 8) |" in card and "model-index" not in card


@pytest.mark.parametrize("public", [False, True])
def test_the_list_is_shown_before_the_upload_and_a_refused_one_gives_the_command(
    directory, monkeypatch, public
):
    happened = []

    def refuse(*given):
        happened.append(given[1])
        raise PublishError("refused")

    monkeypatch.setattr(publishing, "require_token", lambda token: "x" * 20)
    monkeypatch.setattr(publishing, "_publish", refuse)
    with pytest.raises(PublishError) as error:
        publishing.push_run(directory, "me/x", not public, revision="a b", show=happened.append)
    words = ["trl-ablate", "publish", str(directory.path), *["--public"] * public]
    assert shlex.split(str(error.value).split("`")[1]) == [
        *words, "--repo_id", "me/x", "--revision", "a b"
    ]  # fmt: skip
    shown, uploaded = happened
    assert shown.keys() == uploaded.keys() | {"README.md"}
    assert shown == files_of(directory)
    assert shown["checkpoint_last/merges.txt"] == 3
    names = {path.rpartition("/")[2] for path in shown}
    assert names >= MODEL.keys() | {"run.json", "metrics.jsonl", "step_000002.jsonl"}


def test_the_root_holds_the_best_model_that_the_run_kept_or_else_the_last(directory):
    best = directory.path / "checkpoint_best" / "best.json"
    write_json(best, {"metric": "eval_answer_reward", "value": 0.4, "step": 4})
    append_jsonl(directory.alerts_file, {"rule": "length", "said": TOKEN})
    run = read_run(directory)
    assert "best (step 4)" in model_card(run, "me/lr", None, picture=False)
    files = run.files()
    assert files["model.safetensors"] == files["checkpoint_best/model.safetensors"]
    assert "checkpoint_best/best.json" in files and "best.json" not in files
    assert files["alerts.jsonl"] == b'{"rule": "length", "said": "<masked>"}\n'
    shutil.rmtree(directory.path / "checkpoint_best")
    files = read_run(directory).files()
    assert files["model.safetensors"] == files["checkpoint_last/model.safetensors"]
    shutil.rmtree(directory.path / "checkpoint_last")
    with pytest.raises(ConfigurationError, match="neither checkpoint_best nor checkpoint_last"):
        read_run(directory)


@pytest.mark.parametrize(
    ("arm", "name"),
    [("no baseline", "no-baseline-seed0"), ("none--3e-05", "none-3e-05-seed0"),
     ("a..b_", "a-b_-seed0"), ("-" + "é" * 200, "seed0"), ("a" * 200, "a" * 90 + "-seed0")],
)  # fmt: skip
def test_the_hub_allows_the_default_name_of_a_repository(directory, arm, name):
    write_json(directory.run_file, {**directory.read(), "arm": arm, "seed": 0})
    found = read_run(directory).repository
    assert found == name
    validate_repo_id(f"me/{found}")


def test_a_half_written_last_line_and_an_empty_file_are_left_out(directory):
    directory.alerts_file.touch()
    with directory.metrics_file.open("a") as file:
        file.write('{"step": 7, "gr')
    files = read_run(directory).files()
    assert "alerts.jsonl" not in files
    content = files["metrics.jsonl"]
    assert isinstance(content, bytes)
    assert [json.loads(line)["step"] for line in content.splitlines()] == [0, 2, 2, 4, 6]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run.json", None, "run.json does not exist; give the folder"),
        ("run.json", "{", "run.json is not valid JSON"),
        ("run.json", {"status": "running"}, "is running; publish"),
        ("resolved_config.json", {"config": {}, "task": {}}, "has no model, settings; restore"),
        ("checkpoint_last/model.safetensors", None, "checkpoint_last is not a complete model"),
        ("metrics.jsonl", '{"step": 3, "eval_reward": 0.5}\n', "step 3 or its grpo_step is no n"),
        ("metrics.jsonl", '{"step": 3, "grpo_step": 3, "eval_reward": "x"}\n', "reward of step 3"),
        ("rollouts/step_000002.jsonl", b'{"response": "\xff"}\n', "is not UTF-8 .*; restore it"),
    ],
)
def test_what_cannot_be_published_is_refused_in_one_sentence(directory, file, content, said):
    path = directory.path / file
    if content is None:
        path.unlink()
    elif isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        write_json(path, content)
    with pytest.raises(ConfigurationError, match=said):
        files_of(directory)


def test_key_rollouts_are_first_last_best_and_between():
    files = [Path(f"step_{step:06d}.jsonl") for step in range(0, 100, 4)]
    chosen = [int(file.stem[5:]) for file in key_rollouts(files, {"step": 41})]
    assert chosen == [0, 32, 40, 64, 96]
