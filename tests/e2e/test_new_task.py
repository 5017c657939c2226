"""`trl-ablate new`, then `check`, `train` and `study` in the folder that it writes."""

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.warm import warm
from trl_ablate.cli import check, new
from trl_ablate.study.engines import Job
from trl_ablate.study.engines.shipping import pack, working

FEW = [
    "--grpo_steps", "2", "--eval_steps", "2", "--report_to", "none",
    "--generation_batch_size", "16", "--optimizer_batch_size", "16",
    "--per_device_train_batch_size", "16",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    assert new.main([str(tmp_path / "my_task")]) == 0
    return tmp_path / "my_task"


def test_the_folder_holds_a_whole_task(folder, capsys):
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "README.md", "recipe.yaml", "study.yaml", "reward.py", "prompt.txt", "data/train.jsonl",
        "data/validation.jsonl",
    }  # fmt: skip
    lines = [path.read_text().splitlines() for path in sorted((folder / "data").iterdir())]
    assert [len(one) for one in lines] == [160, 40]
    assert len({line for one in lines for line in one}) == 200
    assert new.main([str(folder)]) == 2
    assert f"{folder} exists already" in capsys.readouterr().err


def test_check_shows_prompts_and_rewards(folder, capsys):
    assert check.main([str(folder / "recipe.yaml")]) == 0
    printed = capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "data/train.jsonl").read_text().splitlines()]
    for row in rows[:3]:
        assert f"User: {row['question']}\nAssistant: <think>" in printed
    for part in (
        "160 questions to train on, 40 to evaluate on",
        "columns: question, answer, level, prompt",
        "rewards: correct, brief",
        "reference answer",
        "wrong answer",
        "ms a row",
        "0 of 160 questions (0.0%) whose own answer does not earn full reward",
        f"<answer> {rows[0]['answer']} </answer>",
    ):
        assert part in printed
    assert "occur more than once" not in printed and "problem" not in printed


def test_check_finds_a_reward_that_cannot_tell_right_from_wrong(folder, capsys):
    code = folder / "reward.py"
    code.write_text(code.read_text().replace("given(text) == wanted", "wanted in text + wanted"))
    assert check.main([str(folder / "recipe.yaml"), "--reward_weights", "[1.0, 0.0]"]) == 1
    assert "earns no more (1) than a wrong one (1)" in capsys.readouterr().out


def test_check_finds_repeated_and_shared_questions(folder, capsys):
    data = folder / "data"
    text = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(text + 2 * (text.splitlines()[0] + "\n"))
    shutil.copy(data / "train.jsonl", data / "validation.jsonl")
    assert check.main([str(folder / "recipe.yaml"), "--questions", "5"]) == 0
    printed = capsys.readouterr().out
    assert "1 questions occur more than once" in printed
    assert "160 questions are both trained on and evaluated on" in printed


@pytest.mark.slow
def test_it_trains_in_miniature(folder, tmp_path):
    output = tmp_path / "run"
    done = warm("train", folder / "recipe.yaml", *FEW, "--output_dir", output).wait()
    assert done.code == 0, done.printed
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    trained = next(row for row in rows if "grad_norm" in row)
    assert {"rewards/correct/mean", "rewards/brief/mean", "grader/correct/errors"} <= trained.keys()
    evaluated = [row for row in rows if "eval_reward" in row]
    assert len(evaluated) == 2
    assert {f"eval_reward/level={level}" for level in (0, 1, 2)} <= evaluated[0].keys()
    kept = json.loads((output / "resolved_config.json").read_text())
    assert set(kept["files"].values()) >= {"data"}
    file = folder / "reward.py"
    file.write_text(file.read_text() + "\n# changed\n")
    again = warm("train", folder / "recipe.yaml", *FEW, "--output_dir", output, "--resume").wait()
    assert again.code == 2 and "resumed with other settings (reward_funcs" in again.printed


@pytest.mark.slow
def test_its_runs_train_where_only_their_bundle_is(folder, tmp_path):
    """Own reward, prompt and data travel with a run of another machine's engine."""
    words = [str(folder / "recipe.yaml"), "--profile", "miniature", *FEW]
    job = Job(words, tmp_path / "store" / "run", tmp_path / "log", 0, tmp_path / "away")
    bundle = pack(job)
    shutil.rmtree(folder)
    home = tmp_path / "there"
    (home / "empty").mkdir(parents=True)
    with working(bundle, home, code=REPOSITORY, cwd=home / "empty") as process:
        assert process.wait() == 0
    rows = [json.loads(line) for line in (home / "run" / "metrics.jsonl").open()]
    assert "rewards/correct/mean" in rows[-1] or "rewards/correct/mean" in rows[-2]
