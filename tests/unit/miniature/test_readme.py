"""The miniature's page: its example of a world, its tables and its commands."""

import re
import shutil
from itertools import islice
from pathlib import Path

import pytest

from trl_ablate import miniature
from trl_ablate.cli import new
from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.corpus import corpus
from trl_ablate.miniature.registry import WORLDS, world_of_data, world_of_model
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.recipe.resolving import load_recipe

PAGE = (Path(miniature.__file__).parent / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(new.STARTER / "world" / "world.py", "mine.py")
    return world_of_data("miniature/mine.py")


def test_the_example_is_a_world(example):
    assert world_of_model("miniature/mine.py/sft_mid") == (example, "sft_mid")
    assert len(example.problems("validation")) == 2000
    texts = list(islice(corpus(example, seed=0), 400))
    styles = [example.task.style_of(text.completion) for text in texts]
    assert 0.6 < styles.count("direct") / len(styles) < 0.8
    rows = miniature.problems("train", 3, world=example)
    assert set(rows[0]) == {"question", "answer", "level"}


def test_a_changed_world_has_another_key(example):
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


def test_the_page_lists_every_world():
    listed = set(re.findall(r"`miniature/([\w.-]+)`", PAGE.partition("## Chains")[0]))
    assert listed - {"WORLD"} == set(WORLDS)


def optimizer_steps(recipe: str, profile: str) -> int:
    config = load_recipe(SHIPPED / f"{recipe}.yaml", profile).config
    assert config.generation_batch_size % config.optimizer_batch_size == 0
    return config.num_iterations * config.generation_batch_size // config.optimizer_batch_size


def test_what_off_policy_recipes_mean_with_128_rollouts():
    rows = re.findall(r"^\| `(off_policy_\w+)` \| (\d+) \| (\d+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 6
    for recipe, elsewhere, here in rows:
        assert optimizer_steps(recipe, "miniature-sums") == int(elsewhere)
        assert optimizer_steps(recipe, "miniature") == int(here)
    for recipe in ("dapo", "gspo", "cispo"):
        assert optimizer_steps(recipe, "miniature") == 2
