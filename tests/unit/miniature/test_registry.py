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


def test_a_models_name_is_a_world_and_a_stage_and_unknown_ones_are_refused():
    for name, world, stage in (
        ("miniature", "chains", "base"),
        ("miniature/sft_mid", "chains", "sft_mid"),
        ("miniature/sums", "sums", "base"),
        ("miniature/chains/sft_final", "chains", "sft_final"),
    ):
        assert world_of_model(name) == world_of_model(in_full(name)) == (WORLDS[world], stage)
    for name in ("miniature/cubes", "miniature/sft_late", "miniature/chains/sft"):
        with pytest.raises(ConfigurationError, match="it has the worlds sums, chains.*sft_final"):
            world_of_model(name)
    with pytest.raises(ConfigurationError, match="no model of its own; give a language model"):
        world_of_model("miniature/words")


def test_a_datasets_name_is_a_world_unless_a_folder_has_it(tmp_path, monkeypatch):
    assert world_of_data("miniature") is world_of_data("miniature/chains") is WORLDS["chains"]
    for name in ("cubes", "x" * 300):  # no file can have the second name
        with pytest.raises(ConfigurationError, match=f"'{name}' is no world of the miniature; it"):
            world_of_data(f"miniature/{name}")
        assert is_miniature(f"miniature/{name}")
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


def test_the_next_command_can_be_pasted(tmp_path, capsys):
    assert new.main(["--world", str(tmp_path / "my world")]) == 0
    assert f"trl-ablate check '{tmp_path}/my world/recipe.yaml'" in capsys.readouterr().out


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


def test_a_file_without_a_world_or_with_a_template_without_a_format_is_refused(example):
    text = Path("mine.py").read_text()
    Path("empty.py").write_text("WORLDS = 3")
    for wrong in ("last_number", "question_only"):  # no format; no share of it
        Path(f"{wrong}.py").write_text(text.replace('"r1_zero": 1.0', f'"{wrong}": 1.0'))
    for file, said in (
        ("empty", "defines no WORLD; write WORLD = World"),
        ("nowhere", "nowhere.py does not exist; create it"),
        ("~nobody/my", "my.py does not exist; create it"),
        ("last_number", "'last_number'; template_shares may name"),
        ("question_only", "'question_only'; template_shares may name"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            world_of_data(f"miniature/{file}.py")
