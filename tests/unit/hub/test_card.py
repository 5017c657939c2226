"""What a run publishes: its card, its picture, the chosen files, and what is masked."""

import json
from pathlib import Path

import pytest
import yaml

from trl_ablate.errors import ConfigurationError
from trl_ablate.hub.card import model_card
from trl_ablate.hub.contents import FinishedRun, key_rollouts, read_run
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import append_jsonl, write_json
from trl_ablate.run.masking import MASK
from trl_ablate.run.picture import draw_curves

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2b"


def row(step: int, reward: float, **more) -> dict:
    place = {"step": step, "grpo_step": step / 2, "seconds": step, "eval_reward_stderr": 0.0123}
    return {**place, "eval_reward": reward, "eval_mean_length": 341.25, **more}


@pytest.fixture
def directory(tmp_path) -> RunDirectory:
    """A collapsing off-policy run of 1.5 B parameters on MATH, stopped by a rule."""
    run = RunDirectory(tmp_path / "run")
    for name in ("checkpoint_best", "checkpoint_last"):
        (run.path / name).mkdir(parents=True)
        (run.path / name / "model.safetensors").write_bytes(b"weights of " + name.encode())
        (run.path / name / "config.json").write_text("{}")
        (run.path / name / "training_args.bin").write_bytes(b"a pickle")
    task = {"start": "base", "starts": None, "dataset": "math", "eval_split": None}
    run.write_config(
        {
            "changes": {"learning_rate": [3e-5, 1e-4], "stop": [None, ["a|b"]]},
            "settings": {"learning_rate": 1e-4, "hub_token": "<masked>"},
            "config": {"trackio_space_id": "curves"},
            "task": {**task, "eval_size": 1024},
            "model": {"model_name_or_path": "Qwen/Qwen2.5-Math-1.5B"},
        }
    )
    command = ["/home/me/code/scripts/train.py", "recipes/lr_1e-4.yaml", "--note", "two words"]
    run.update(
        status="stopped",
        reason="gradient norm 41.2 at step 6",
        recipe="lr_1e-4.yaml",
        profile="h100",
        arm="lr_1e-4",
        seed=7,
        command=[*command, "--hub_token", TOKEN],
        git={"commit": "c" * 40, "diff": ""},
        versions={"trl": "1.16.0"},
        host="workstation",
    )
    for step, reward in ((0, 0.03), (2, 0.5), (2, 0.6), (4, 0.3), (6, 0.01)):
        run.append_metrics(row(step, reward, grad_norm=float(step), entropy=0.3))
    return run


@pytest.fixture
def finished(directory) -> FinishedRun:
    return read_run(directory)


def card_of(run: FinishedRun, licence=None) -> tuple[dict, str]:
    card = model_card(run, "me/lr", licence or {"license": "apache-2.0"}, picture=True)
    _, metadata, text = card.split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_the_result_of_a_group_stands_with_its_error_in_one_line(directory):
    by_level = {"eval_reward/level=3": 0.25, "eval_reward_stderr/level=3": 0.125}
    directory.append_metrics(row(8, 0.02, **by_level))
    _, text = card_of(read_run(directory))
    assert "| `eval_reward/level=3` | – | – | 0.250 ± 0.125 |" in text
    assert "stderr" not in text


def test_the_metadata_names_base_data_licence_and_result(finished):
    metadata, _ = card_of(finished)
    assert metadata["base_model"] == "Qwen/Qwen2.5-Math-1.5B"
    assert metadata["base_model_relation"] == "finetune"
    assert metadata["datasets"] == ["DigitalLearningGmbH/MATH-lighteval"]
    assert (metadata["license"], metadata["library_name"]) == ("apache-2.0", "transformers")
    assert {"trl", "grpo", "trl-ablate"} <= set(metadata["tags"])
    [result] = metadata["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 0.6  # of the best model, which is at the root


def test_the_card_says_what_changed_what_came_out_and_how_to_do_it_again(finished):
    _, text = card_of(finished)
    for said in (
        "# lr_1e-4-seed7",
        "**The run stopped before its end: gradient norm 41.2 at step 6.**",
        "| `learning_rate` | `3e-05` | `0.0001` |",
        r"| `stop` | `None` | `['a\|b']` |",
        "| metric | first (step 0) | best (step 2) | last (step 6) |",
        "| `eval_reward` | 0.030 ± 0.012 | 0.600 ± 0.012 | 0.010 ± 0.012 |",
        "| `eval_mean_length` | 341.2 | 341.2 | 341.2 |",
        "one standard error over the 1024 questions of this one run",
        "chosen from 4 evaluations",  # a step that occurs twice counts once
        "accelerate launch scripts/train.py recipes/lr_1e-4.yaml --note 'two words' "
        f"--hub_token '{MASK}'",
        f"At commit `{'c' * 40}`:",
        "| trl | 1.16.0 |",
        "](curves.png)",
        "https://huggingface.co/spaces/me/curves",
        'subfolder="checkpoint_last"',
    ):
        assert said in text, said
    assert TOKEN not in text


@pytest.mark.parametrize(
    "program", ["/venv/lib/python3.11/site-packages/trl_ablate/__main__.py", "/venv/bin/trl-ablate"]
)
def test_the_card_gives_the_command_without_its_folder(finished, program):
    finished.record["command"] = [program, "train", "lr_1e-4", "--seed", "7"]
    _, text = card_of(finished)
    assert "```bash\ntrl-ablate train lr_1e-4 --seed 7\n```" in text


def test_a_card_is_the_same_each_time(finished, directory):
    again = read_run(directory)
    assert card_of(finished) == card_of(again)
    assert draw_curves(finished.rows) == draw_curves(again.rows)


def test_the_miniature_and_local_folders_are_no_ids_of_the_hub(finished):
    finished.config["model"]["model_name_or_path"] = "miniature"
    finished.config["task"] |= {"dataset": "miniature", "start": "sft_mid"}
    finished.config["task"]["starts"] = {"sft_mid": "miniature/sft_mid"}
    metadata, text = card_of(finished)
    assert not {"base_model", "datasets", "model-index"} & set(metadata)
    assert "a model for studying the method" in text
    finished.config["task"] |= {"start": "base", "dataset": "./rows.jsonl"}
    finished.config["model"]["model_name_or_path"] = "/data/model"
    metadata, _ = card_of(finished)
    assert not {"base_model", "datasets"} & set(metadata)


def test_without_evaluation_and_licence_the_card_says_so(finished):
    finished.rows.clear()
    text = model_card(finished, "me/lr", None, picture=False)
    assert "The run was never evaluated." in text
    assert "it could not be looked up" in text
    assert "curves.png" not in text
    assert draw_curves(finished.rows) is None


def test_an_adapter_is_called_one(directory):
    for name in ("checkpoint_best", "checkpoint_last"):
        (directory.path / name / "model.safetensors").rename(
            directory.path / name / "adapter_model.safetensors"
        )
        (directory.path / name / "adapter_config.json").write_text("{}")
    metadata, text = card_of(read_run(directory))
    assert (metadata["library_name"], metadata["base_model_relation"]) == ("peft", "adapter")
    assert "LoRA adapter on [Qwen" in text


def test_the_root_holds_the_best_model_or_else_the_last(directory):
    import shutil

    files = read_run(directory).files()
    assert files["model.safetensors"] == files["checkpoint_best/model.safetensors"]
    assert not any(path.endswith(".bin") for path in files)
    shutil.rmtree(directory.path / "checkpoint_best")
    files = read_run(directory).files()
    assert files["model.safetensors"] == files["checkpoint_last/model.safetensors"]
    shutil.rmtree(directory.path / "checkpoint_last")
    with pytest.raises(ConfigurationError, match="neither checkpoint_best nor checkpoint_last"):
        read_run(directory)


def test_what_the_run_kept_as_its_best_is_the_best(directory):
    best = directory.path / "checkpoint_best" / "best.json"
    write_json(best, {"metric": "eval_answer_reward", "value": 0.4, "step": 4})
    append_jsonl(directory.path / "alerts.jsonl", {"rule": "length", "said": TOKEN})
    run = read_run(directory)
    assert "best (step 4)" in card_of(run)[1]
    files = run.files()
    assert "checkpoint_best/best.json" in files and "best.json" not in files
    assert files["alerts.jsonl"] == b'{"rule": "length", "said": "<masked>"}\n'


def test_a_half_written_last_line_is_left_out(directory):
    with directory.metrics_file.open("a") as file:
        file.write('{"step": 7, "gr')
    content = read_run(directory).files()["metrics.jsonl"]
    assert isinstance(content, bytes)
    assert [json.loads(line)["step"] for line in content.splitlines()] == [0, 2, 2, 4, 6]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: (path / "run.json").unlink(), "run.json does not exist; give the folder"),
        (lambda path: (path / "run.json").write_text("{"), "run.json is not valid JSON"),
        (lambda path: write_json(path / "run.json", {"status": "running"}), "is running; publish"),
        (
            lambda path: (path / "checkpoint_last" / "model.safetensors").unlink(),
            "checkpoint_last is not a complete model: a .safetensors file is missing",
        ),
        (
            lambda path: write_json(
                path / "checkpoint_best" / "model.safetensors.index.json",
                {"weight_map": {"a": "model-00001-of-00002.safetensors"}},
            ),
            "checkpoint_best is not a complete model: model-00001-of-00002.safetensors is missing",
        ),
        (
            lambda path: write_json(
                path / "checkpoint_last" / "model.safetensors.index.json", {"weight_map": 5}
            ),
            "has no weight_map; save the model again",
        ),
    ],
)
def test_what_cannot_be_published_is_refused_in_one_sentence(directory, spoil, said):
    spoil(directory.path)
    with pytest.raises(ConfigurationError, match=said):
        read_run(directory)


def test_key_rollouts_are_first_last_best_and_between():
    files = [Path(f"step_{step:06d}.jsonl") for step in range(0, 100, 4)]
    chosen = [int(file.stem[5:]) for file in key_rollouts(files, {"step": 41})]
    assert chosen == [0, 32, 40, 64, 96]
