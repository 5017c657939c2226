"""Worlds and stages by name, and the worlds that files of a user define."""

import shutil
from itertools import islice
from pathlib import Path

import pytest
from safetensors.torch import load_file

from trl_ablate import miniature
from trl_ablate.cli import new
from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.corpus import corpus
from trl_ablate.miniature.registry import (
    WORLDS,
    has_levels,
    in_full,
    is_miniature,
    millions_of_parameters,
    world_of_data,
    world_of_model,
)


@pytest.mark.parametrize(
    ("name", "world", "stage"),
    [
        ("miniature", "chains", "base"),
        ("miniature/sft_mid", "chains", "sft_mid"),
        ("miniature/sums", "sums", "base"),
        ("miniature/chains/sft_final", "chains", "sft_final"),
    ],
)
def test_a_models_name_is_a_world_and_a_stage(name, world, stage):
    found = world_of_model(name)
    assert (found[0].name, found[1]) == (world, stage)
    assert world_of_model(in_full(name)) == found


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("miniature/cubes", "it has the worlds sums, chains.*sft_final"),
        ("miniature/sft_late", "it has the worlds sums, chains.*sft_final"),
        ("miniature/chains/sft", "it has the worlds sums, chains.*sft_final"),
        ("miniature/words", "no model of its own; give a language model"),
    ],
)
def test_an_unknown_world_or_stage_is_refused_with_those_there_are(name, refusal):
    with pytest.raises(ConfigurationError, match=refusal):
        world_of_model(name)


def test_a_datasets_name_is_a_world_unless_a_folder_has_it(tmp_path, monkeypatch):
    assert world_of_data("miniature") is world_of_data("miniature/chains") is WORLDS["chains"]
    with pytest.raises(ConfigurationError, match="'cubes' is no world of the miniature; it has"):
        world_of_data("miniature/cubes")
    monkeypatch.chdir(tmp_path)
    assert is_miniature("miniature/chains") and not is_miniature("miniatures/chains")
    (tmp_path / "miniature").mkdir()
    assert not is_miniature("miniature")


def test_names_in_full_levels_and_sizes():
    names = ("miniature", "miniature/sft_mid", "miniature/sums", "miniature/mine.py", "math")
    full = ("miniature/chains", "miniature/chains/sft_mid", *names[2:])
    assert tuple(map(in_full, names)) == full
    assert has_levels("miniature") and has_levels("miniature/words")
    assert not any(map(has_levels, ("miniature/sums", "questions.jsonl", "miniature/mine.py")))
    assert set(miniature.problems("train", 3)[0]) == {"question", "answer", "level"}
    assert set(miniature.problems("train", 3, world="sums")[0]) == {"question", "answer"}
    for world in ("chains", "sums"):
        weights = load_file(Path(miniature.build(world=world)) / "model.safetensors")
        counted = sum(value.numel() for value in weights.values()) / 1e6
        assert millions_of_parameters(f"miniature/{world}") == pytest.approx(counted, rel=2e-3)
    assert millions_of_parameters("miniature/chains-3m") == pytest.approx(3.49, rel=2e-2)


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The world that `trl-ablate new --world` writes."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(new.STARTER / "world" / "world.py", "mine.py")
    return world_of_data("miniature/mine.py")


def test_a_file_of_a_user_is_a_world_with_a_key_of_its_own(example):
    assert world_of_model("miniature/mine.py/sft_mid") == (example, "sft_mid")
    assert len(example.problems("validation")) == 2000
    texts = list(islice(corpus(example, seed=0), 400))
    styles = [example.task.style_of(text.completion) for text in texts]
    assert 0.6 < styles.count("direct") / len(styles) < 0.8
    before = miniature.cache_key(example)
    file = Path(example.files[0])
    file.write_text(file.read_text().replace("steps=60", "steps=61"))
    assert miniature.cache_key(example) != before


def test_a_file_without_a_world_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("WORLDS = 3")
    with pytest.raises(ConfigurationError, match="defines no WORLD; write WORLD = World"):
        world_of_data(f"miniature/{tmp_path}/empty.py")
    with pytest.raises(ConfigurationError, match="nowhere.py does not exist; create it"):
        world_of_data(f"miniature/{tmp_path}/nowhere.py")


def test_a_world_is_taught_with_templates_that_have_a_format(example):
    text = Path("mine.py").read_text()
    for wrong in ("last_number", "question_only"):  # no format; no share of it
        Path(f"{wrong}.py").write_text(text.replace('"r1_zero": 1.0', f'"{wrong}": 1.0'))
        with pytest.raises(ConfigurationError, match=f"'{wrong}'; template_shares may name"):
            world_of_data(f"miniature/{wrong}.py")
