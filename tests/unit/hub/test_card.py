"""The card of a published run: its metadata, what changed, what came out, how to repeat it."""

import json
from pathlib import Path
from typing import cast

import pytest
import yaml

from tests.support.finished_run import TOKEN, row
from trl_ablate.hub.card import model_card
from trl_ablate.hub.contents import FinishedRun, read_run
from trl_ablate.run.json_files import read_object, write_json
from trl_ablate.run.masking import MASK
from trl_ablate.run.picture import draw_curves


def card_of(run: FinishedRun, licence=None) -> tuple[dict, str]:
    card = model_card(run, "me/lr", licence or {"license": "apache-2.0"}, picture=True)
    _, metadata, text = card.split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_the_metadata_names_base_data_licence_and_result(finished):
    metadata, _ = card_of(finished)
    assert metadata["base_model"] == "Qwen/Qwen2.5-Math-1.5B"
    assert metadata["base_model_relation"] == "finetune"
    assert metadata["datasets"] == ["DigitalLearningGmbH/MATH-lighteval"]
    assert (metadata["license"], metadata["library_name"]) == ("apache-2.0", "transformers")
    assert {"trl", "grpo", "trl-ablate"} <= set(metadata["tags"])
    [result] = metadata["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 0.6  # of the best model, which is at the root
    assert "split" not in result["dataset"]  # the data may have no `validation`, only a `test`


def test_a_base_with_several_licences_hands_on_each(finished):
    metadata, text = card_of(finished, {"license": ["mit", "apache-2.0"]})
    assert metadata["license"] == ["mit", "apache-2.0"]
    assert "mit, apache-2.0, the same as the model it was trained from" in text
    assert card_of(finished, {"license": ["mit"]})[0]["license"] == "mit"


def test_the_card_says_what_changed_what_came_out_and_how_to_do_it_again(directory):
    finished = read_run(directory)
    _, text = card_of(finished)
    for said in (
        "# lr_1e-4-seed7",
        "**The run stopped before its end: gradient norm 41.2 at step 6.**",
        "| `learning_rate` | `3e-05` | `0.0001` | `0.0002` |",
        r"| `stop` | `None` | `['a\|b']` | `None` |",
        "learning_rate: 0.0002\nlearning_rate_scale: 1.0",
        "| metric | first (step 0) | best (step 2) | last (step 6) |",
        "| `eval_reward` | 0.030 ± 0.012 | 0.600 ± 0.012 | 0.010 ± 0.012 |",
        "| `eval_mean_length` | 341.2 | 341.2 | 341.2 |",
        "one standard error over the evaluation questions of this one run",
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
    again = read_run(directory)
    assert card_of(finished) == card_of(again)
    assert draw_curves(finished.rows) == draw_curves(again.rows)
    by_level = {"eval_reward/level=3": 0.25, "eval_reward_stderr/level=3": 0.125}
    directory.append_metrics(row(8, 0.02, **by_level))
    _, text = card_of(read_run(directory))
    assert "| `eval_reward/level=3` | – | – | 0.250 ± 0.125 |" in text
    assert "stderr" not in text


@pytest.mark.parametrize(
    "program", ["/venv/lib/python3.11/site-packages/trl_ablate/__main__.py", "/venv/bin/trl-ablate"]
)
def test_the_card_gives_the_command_without_its_folder(finished, program):
    finished.record["command"] = [program, "train", "lr_1e-4", "--seed", "7"]
    _, text = card_of(finished)
    assert "```bash\ntrl-ablate train lr_1e-4 --seed 7\n```" in text


HERE = ("./rows.jsonl", "/data/model", "models/mine", "models/a--b", "data/rows.jsonl")


@pytest.mark.parametrize("name", ["miniature/chains", *HERE])
def test_the_miniature_and_local_folders_are_no_ids_of_the_hub(
    finished, name, tmp_path, monkeypatch
):
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    finished.config["task"] |= {"start": "early", "starts": {"early": name}, "dataset": name}
    metadata, text = card_of(finished)
    assert not {"base_model", "datasets", "model-index"} & set(metadata)
    assert ("a model for studying the method" in text) is name.startswith("miniature/")
    assert "huggingface.co/models" not in text and "huggingface.co/datasets" not in text


def test_the_card_of_a_branch_loads_from_it(finished):
    text = model_card(finished, "me/lr", None, picture=False, branch="seed3")
    assert text.count('from_pretrained("me/lr", revision="seed3")') == 2
    assert '`subfolder="checkpoint_last", revision="seed3"`' in text


def test_without_evaluation_and_licence_the_card_says_so(finished):
    del finished.evaluations[1:]
    text = model_card(finished, "me/lr", None, picture=False)
    assert "does not cover other seeds.\n" in text and "too optimistic" not in text
    finished.evaluations.clear()
    finished.rows.clear()
    text = model_card(finished, "me/lr", None, picture=False)
    assert "The run was never evaluated." in text
    assert "it could not be looked up" in text
    assert "curves.png" not in text
    assert draw_curves(finished.rows) is None


HUB_BASE = "Qwen/Qwen2.5-Math-1.5B"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("base", "published", "code"),
    [
        (HUB_BASE, HUB_BASE, f'"{HUB_BASE}", revision="v2"'),
        (f"{Path.home()}/models/x", "~/models/x", "BASE_FOLDER"),
        ("miniature/chains", "miniature/chains", "BASE_FOLDER"),
    ],
)
def test_an_adapter_is_called_one_and_names_its_base(directory, base, published, code):
    for name in ("checkpoint_best", "checkpoint_last"):
        folder = directory.path / name
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        write_json(folder / "adapter_config.json", {"base_model_name_or_path": "/a/folder", "r": 4})
    model = {"model_name_or_path": base, "model_revision": "v2"}
    directory.write_config({**read_object(directory.config_file), "model": model})
    run = read_run(directory)
    for name in ("", "checkpoint_last/"):
        config = json.loads(cast(bytes, run.files()[f"{name}adapter_config.json"]))
        assert config == {"base_model_name_or_path": published, "r": 4, "revision": "v2"}
    metadata, text = card_of(run)
    assert metadata["library_name"] == "peft" and "LoRA adapter on" in text
    assert (metadata.get("base_model_relation") == "adapter") is (base == HUB_BASE)
    assert f"from_pretrained({code})\nmodel = PeftModel.from_pretrained(base, " in text
