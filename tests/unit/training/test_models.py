"""What is wrong with a model's folder is one sentence, before anything is built on it."""

import os
import shutil
from pathlib import Path

import pytest

from trl_ablate import miniature
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.resolving import load_recipe
from trl_ablate.training.models import check_model, explained_by, load_tokenizer, one_sentence


@pytest.fixture(scope="module")
def resolved():
    return load_recipe(SHIPPED / "grpo.yaml", "miniature")


@pytest.fixture
def folder(tiny_model, tmp_path) -> Path:
    return shutil.copytree(tiny_model, tmp_path / "model")


def test_a_whole_model_is_let_through(folder, resolved):
    check_model(str(folder), resolved)
    assert len(load_tokenizer(str(folder), resolved)) == len(miniature.tokenizer())


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "tokenizer_config.json").unlink(), "has no tokenizer_config.json; put"),
        (lambda f: (f / "tokenizer.json").unlink(), "does not know '1'"),
        (lambda f: (f / "config.json").write_text("{"), "model at hand could not be loaded"),
        (lambda f: os.truncate(f / "model.safetensors", 999), "at hand could not be loaded (Error"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickled ones are"),
    ],
    ids=["no tokenizer", "no vocabulary", "config", "cut off", "pickled"],
)
def test_damage_is_one_sentence(folder, resolved, damage, said):
    damage(folder)
    with (
        pytest.raises(ConfigurationError) as raised,
        one_sentence("model at hand", "mend its files"),
    ):
        check_model(str(folder), resolved)
        load_tokenizer(str(folder), resolved)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_goes_wrong_with_a_damaged_model_is_told_as_its_damage(folder, resolved):
    def look():
        with one_sentence("model at hand", "mend it"):
            check_model(str(folder), resolved)

    with pytest.raises(KeyError, match="ours"), explained_by(look):
        raise KeyError("ours")
    with pytest.raises(ConfigurationError, match="model at hand could not"), explained_by(look):
        os.truncate(folder / "model.safetensors", 999)
        raise KeyError("of some library")


def test_a_shard_that_the_index_names_is_missed(folder, resolved):
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    with pytest.raises(ConfigurationError, match="00001"), one_sentence("it", "mend it"):
        check_model(str(folder), resolved)
