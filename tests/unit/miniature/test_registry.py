"""Worlds and stages by name."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from trl_ablate import miniature
from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import (
    WORLDS,
    has_levels,
    in_full,
    is_miniature,
    millions_of_parameters,
    world_named,
    world_of_data,
    world_of_model,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("miniature", ("chains", "base")),
        ("miniature/sft_mid", ("chains", "sft_mid")),
        ("miniature/sums", ("sums", "base")),
        ("miniature/chains", ("chains", "base")),
        ("miniature/chains/sft_final", ("chains", "sft_final")),
    ],
)
def test_a_models_name_is_a_world_and_a_stage(name, expected):
    world, stage = world_of_model(name)
    assert (world.name, stage) == expected


@pytest.mark.parametrize("name", ["miniature/cubes", "miniature/sft_late", "miniature/chains/sft"])
def test_an_unknown_world_or_stage_is_refused_with_those_there_are(name):
    with pytest.raises(ConfigurationError, match="it has the worlds sums, chains.*sft_final"):
        world_of_model(name)


def test_a_datasets_name_is_a_world():
    assert world_of_data("miniature") is world_of_data("miniature/chains") is WORLDS["chains"]
    assert world_of_data("miniature/sums") is WORLDS["sums"]
    with pytest.raises(ConfigurationError, match="'cubes' is no world of the miniature; it has"):
        world_of_data("miniature/cubes")


def test_a_folder_of_that_name_is_no_miniature(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_miniature("miniature/chains") and not is_miniature("miniatures/chains")
    (tmp_path / "miniature").mkdir()
    assert not is_miniature("miniature")


def test_rows_have_a_level_where_the_world_has_levels():
    assert set(miniature.problems("train", 3)[0]) == {"question", "answer", "level"}
    assert set(miniature.problems("train", 3, world="sums")[0]) == {"question", "answer"}


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_is_whole(name):
    if name.startswith("gym-"):
        pytest.importorskip("reasoning_gym", reason="pip install 'trl-ablate[gym]'")
    world = world_named(name)
    train, held_out = (
        {question.question for question in world.task.questions(split)}
        for split in ("train", "validation")
    )
    assert not train & held_out
    assert len(held_out) >= 1000
    assert set(world.lessons()) == {"base", "sft_early", "sft_mid", "sft_final"}
    assert world.task.style_of("") in {None, *world.task.styles}


def test_worlds_have_keys_and_folders_of_their_own():
    assert miniature.cache_key("sums") != miniature.cache_key("chains")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("miniature", "miniature/chains"),
        ("miniature/sft_mid", "miniature/chains/sft_mid"),
        ("miniature/sums", "miniature/sums"),
        ("miniature/mine.py", "miniature/mine.py"),
        ("math", "math"),
        ("miniatures", "miniatures"),
    ],
)
def test_a_name_in_full_names_its_world(name, expected):
    assert in_full(name) == expected


def test_which_datasets_have_levels():
    assert has_levels("miniature") and has_levels("miniature/formats")
    assert not has_levels("miniature/sums") and not has_levels("questions.jsonl")
    assert not has_levels("miniature/mine.py")


@pytest.mark.parametrize("world", ["chains", "sums"])
def test_the_number_of_parameters_is_that_of_the_weights(world):
    weights = load_file(Path(miniature.build(world=world)) / "model.safetensors")
    counted = sum(value.numel() for value in weights.values()) / 1e6
    assert millions_of_parameters(f"miniature/{world}") == pytest.approx(counted, rel=2e-3)
