"""`trl-ablate new --world`: its own test, and a base that is taught, trained and evaluated."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from tests.support.warm import warm
from trl_ablate import load_recipe
from trl_ablate.cli import check, new
from trl_ablate.run.identity import portable
from trl_ablate.study.engines import Job
from trl_ablate.study.engines.shipping import pack
from trl_ablate.study.planned import identity

FEW = [
    "--grpo_steps", "2", "--eval_steps", "2", "--eval_size", "32", "--report_to", "none",
    "--generation_batch_size", "16", "--optimizer_batch_size", "16", "--train_size", "64",
    "--per_device_train_batch_size", "16",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> Path:
    assert new.main(["--world", str(tmp_path / "my_world")]) == 0
    return tmp_path / "my_world"


def test_its_own_test_passes(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    tests = runpy.run_path(str(folder / "test_world.py"))
    del sys.modules["world"]
    found = [test for name, test in tests.items() if name.startswith("test_")]
    assert len(found) == 4
    for test in found:
        test()


def test_check_shows_its_questions(folder, capsys):
    assert check.main([str(folder / "recipe.yaml")]) == 0
    printed = capsys.readouterr().out
    assert "7900 questions to train on, 1000 to evaluate on" in printed
    assert "problem" not in printed


@pytest.mark.slow
def test_a_base_is_taught_trained_and_evaluated_from_anywhere(folder, tmp_path):
    world = folder / "world.py"
    quick = world.read_text().replace("steps=80", "steps=4").replace("steps=60", "steps=2")
    world.write_text(quick)
    cache = {"TRL_ABLATE_CACHE": str(tmp_path / "cache")}
    ended = warm(
        "train", folder / "recipe.yaml", *FEW, "--output_dir", tmp_path / "run", environment=cache
    ).wait()
    assert ended.code == 0, ended.printed
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    evaluated = [row for row in rows if "eval_reward" in row]
    assert len(evaluated) == 2 and "eval_reward/level=tens" in evaluated[0]
    assert sum(evaluated[0][f"eval_style/{style}"] for style in ("direct", "compared")) == 1
    (base,) = (tmp_path / "cache" / "miniature" / "larger").glob("base-*")
    assert (base / "model.safetensors").is_file()
    ended = warm("evaluate", tmp_path / "run", "--output", tmp_path / "found.json").wait()
    assert ended.code == 0, ended.printed
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["resolved"]["task"]["dataset"] == f"miniature/{world}"


def test_a_run_is_known_by_its_world_wherever_that_is(folder, tmp_path):
    def id_of(place: Path) -> str:
        resolved = load_recipe(place / "recipe.yaml", overrides={"start": "sft_mid"})
        return identity(portable(resolved.to_dict()["settings"], resolved.files))

    shutil.copytree(folder, tmp_path / "copy")
    assert id_of(tmp_path / "copy") == id_of(folder)
    world = tmp_path / "copy" / "world.py"
    world.write_text(world.read_text().replace("steps=60", "steps=61"))
    assert id_of(tmp_path / "copy") != id_of(folder)


def test_its_file_travels_with_a_run(folder, tmp_path):
    words = [str(folder / "recipe.yaml"), *FEW]
    job = Job(words, tmp_path / "store" / "run", tmp_path / "log", 0, tmp_path / "away")
    assert "recipes/world.py" in pack(job).files
