"""Tools, environments and rollout functions by path: they reach TRL's trainer as they are."""

from typing import Any

import pytest
from transformers import TrainerCallback

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.rewards import grader_of
from trl_ablate.rewards.own.chosen import Rewards
from trl_ablate.run.masking import MASK
from trl_ablate.training import building
from trl_ablate.training.building import environment_of, explained
from trl_ablate.training.checking import check_recipe
from trl_ablate.training.dashboard import Tolerated

FILE = '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b

class World:
    def reset(self, **kwargs):
        return "hello"

def roll(prompts, trainer):
    return {}

number = 3

def by_state(completions, trainer_state, log_metric):
    log_metric("progress", trainer_state.global_step / trainer_state.max_steps)
    return [len(text) + trainer_state.epoch for text in completions]

def of_world(completions, environments):
    return [1.0] * len(completions)
'''


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "world.py").write_text(FILE)
    (tmp_path / "recipe.yaml").write_text("extends: grpo.yaml\nprofile: miniature\n")
    return tmp_path / "recipe.yaml"


def test_they_are_imported_from_files_beside_the_recipe(recipe):
    settings = {
        "tools": ["world.py:add"],
        "environment_factory": {"one": "world.py:World"},
        "rollout_func": "world.py:roll",
    }
    resolved = load_recipe(recipe, overrides=settings)
    assert list(resolved.files.values())[0].startswith("world.py@")
    world = environment_of(resolved.task)
    assert world["tools"][0](2, 3) == 5
    assert world["environment_factory"]["one"]().reset() == "hello"
    assert world["rollout_func"].__name__ == "roll"
    single = load_recipe(recipe, overrides=["--environment_factory", "world.py:World"])
    assert environment_of(single.task)["environment_factory"]().reset() == "hello"
    assert environment_of(load_recipe("grpo", "miniature").task) == {}


def test_they_and_the_callbacks_reach_the_trainer(recipe, monkeypatch):
    """It adds none of the integrations of `report_to` itself."""
    given, mine = {}, TrainerCallback()

    def refuse(**arguments):
        given.update(arguments, reports_to=arguments["args"].report_to)
        raise ValueError("tools need\na chat template")

    monkeypatch.setattr(building, "task_rewards", lambda *parts: Rewards([], []))
    monkeypatch.setattr(building, "check_columns", lambda *parts: None)
    settings = {"tools": ["world.py:add"], "report_to": "trackio"}
    resolved, parts = load_recipe(recipe, overrides=settings), (None, "m", None, None, {}, [mine])
    with pytest.raises(ConfigurationError, match="TRL refuses tools of this recipe: ValueError: t"):
        building.put_together(resolved, *parts, kind=refuse)  # type: ignore
    with pytest.raises(ValueError, match="^other$"), explained({}):
        raise ValueError("other")
    assert given["tools"][0](2, 3) == 5 and "rollout_func" not in given
    first, second = given["callbacks"]
    assert isinstance(first, Tolerated) and first.name == "trackio" and second is mine
    assert given["reports_to"] == [] and resolved.config.report_to == ["trackio"]


def test_a_trainer_keeps_no_token_and_its_adapter_the_revision_of_the_base(tiny_model, tmp_path):
    given = {"model_name_or_path": str(tiny_model), "output_dir": str(tmp_path), "eval_size": 8,
             "use_peft": True, "model_revision": "v2", "report_to": "none",
             "model_init_kwargs": {"token": "not-of-a-shape"}}  # fmt: skip
    resolved = load_recipe("grpo", "miniature", given)
    with grader_of(resolved.task) as grader:
        trainer = building.build_trainer(resolved, grader)
    model: Any = trainer.model
    assert model.peft_config["default"].revision == "v2"
    assert trainer.args.to_dict()["model_init_kwargs"]["token"] == MASK


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tools": ["add"]}, "tools has 'add'; give FILE.py:FUNCTION"),
        ({"rollout_func": "none.py:f"}, "rollout_func: there is no file none.py"),
        ({"environment_factory": "world.py:Wrld"}, "has no 'Wrld'; .* did you mean 'World'"),
        ({"environment_factory": "world.py:number"}, "is a int, which cannot be called"),
    ],
)
def test_a_wrong_path_is_refused(recipe, settings, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        environment_of(load_recipe(recipe, overrides=settings).task)


def test_the_eos_penalty_is_its_own_weight(recipe):
    made = Rewards([str] * 3, [1.0, 1.0, 0.3])

    def used(weights):
        settings = {"reward_funcs": ["answer", "format"], "eos_penalty": 0.3}
        resolved = load_recipe(recipe, overrides={**settings, "reward_weights": weights})
        return building.reward_weights(resolved, made)

    assert used(None) == made.weights
    assert used([1.0, 0.2]) == used([1.0, 0.2, 0.3]) == [1.0, 0.2, 0.3]
    for wrong in ([1.0], [1.0, 0.2, 1.0], [1.0, 0.2, 0.3, 0.3]):
        with pytest.raises(ConfigurationError, match="2 reward functions besides eos_penalty, w"):
            used(wrong)


def test_check_calls_a_reward_with_what_trl_gives(recipe, tiny_model):
    data = {"model_name_or_path": tiny_model, "dataset": "miniature", "train_size": 8}
    grades = {"reward_funcs": ["world.py:by_state"], "eval_size": 4}
    found = check_recipe(load_recipe(recipe, overrides=data | grades), None, 4)  # pyright: ignore
    assert found.full and found.empty.mean == 0
    grades = {"reward_funcs": ["world.py:of_world"], "environment_factory": "world.py:World"}
    with pytest.raises(ConfigurationError, match="an environment, which check does not run, try"):
        check_recipe(load_recipe(recipe, overrides=data | grades), None, 4)  # pyright: ignore


def test_check_refuses_what_only_an_environment_grades(recipe):
    alone = {"environment_factory": "world.py:World", "reward_funcs": []}
    with pytest.raises(ConfigurationError, match="only the environment grades, which check does"):
        check_recipe(load_recipe(recipe, overrides=alone), None, 4)  # pyright: ignore
