"""From a recipe to a trainer: code by path, callbacks, weights of rewards and tokens; what `check`
tries out before; and the memory and the threads that a training on a CPU takes."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.rewards import grader_of
from trl_ablate.rewards.own.chosen import Rewards
from trl_ablate.run.masking import MASK
from trl_ablate.training import building
from trl_ablate.training.building import (
    environment_of,
    evaluation_sets,
    explained,
    task_dataset,
)
from trl_ablate.training.checking import check_recipe
from trl_ablate.training.dashboard import Tolerated
from trl_ablate.training.models import load_tokenizer

FILE = """
from operator import add
number = 3

class World:
    def reset(self, **kwargs):
        return "hello"

def by_state(completions, trainer_state, log_metric):
    log_metric("progress", trainer_state.global_step / trainer_state.max_steps)
    return [len(text) + trainer_state.epoch for text in completions]

def of_world(completions, environments):
    return [1.0] * len(completions)
"""
SUMS = [json.dumps({"question": f"{n}+1?", "answer": n + 1}) for n in range(200)]


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "world.py").write_text(FILE)
    (tmp_path / "recipe.yaml").write_text("extends: grpo.yaml\nprofile: miniature\n")
    return tmp_path / "recipe.yaml"


def small(tiny_model, **settings):
    return load_recipe("grpo", "miniature", {"model_name_or_path": str(tiny_model), **settings})


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


def test_code_beside_the_recipe_and_integrations_reach_the_trainer(recipe, monkeypatch):
    """It adds none of the integrations of `report_to` itself."""
    given = {}

    def refuse(**arguments):
        given.update(arguments, reports_to=arguments["args"].report_to)
        raise ValueError("tools need\na chat template")

    monkeypatch.setattr(building, "task_rewards", lambda *parts: Rewards([], []))
    monkeypatch.setattr(building, "check_columns", lambda *parts: None)
    settings = {"tools": ["world.py:add"], "environment_factory": {"one": "world.py:World"}}
    resolved = load_recipe(recipe, overrides={**settings, "report_to": "trackio"})
    assert list(resolved.files.values())[0].startswith("world.py@")
    parts = (None, "m", None, None, {})
    refused = "TRL refuses tools and environment_factory of this recipe: ValueError: tools need"
    with pytest.raises(ConfigurationError, match=refused):
        building.put_together(resolved, *parts, kind=refuse)  # type: ignore
    with pytest.raises(ValueError, match="^other$"), explained({}):
        raise ValueError("other")
    assert given["tools"][0](2, 3) == 5 and "rollout_func" not in given
    assert given["environment_factory"]["one"]().reset() == "hello"
    (only,) = given["callbacks"]
    assert isinstance(only, Tolerated) and only.name == "trackio"
    assert given["reports_to"] == [] and resolved.config.report_to == ["trackio"]


@pytest.fixture
def two_threads(monkeypatch):
    """As torch itself chooses them on two cores."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(building, "THREADS", 2)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_trainer_keeps_no_token_its_adapter_the_revision_and_a_small_model_takes_one_thread(
    tiny_model, tmp_path, two_threads
):
    resolved = small(
        tiny_model, output_dir=str(tmp_path), eval_size=8, report_to="none", use_peft=True,
        model_revision="v2", model_init_kwargs={"token": "not-of-a-shape"},
    )  # fmt: skip
    with grader_of(resolved.task) as grader:
        trainer = building.build_trainer(resolved, grader)
    model: Any = trainer.model
    assert model.peft_config["default"].revision == "v2"
    assert trainer.args.to_dict()["model_init_kwargs"]["token"] == MASK
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("width", "environment", "chosen", "threads"),
    [(64, {}, 2, 1), (4000, {}, 2, 2), (64, {"MKL_NUM_THREADS": "2"}, 2, 2), (64, {}, 3, 3)],
    ids=["small", "16 million", "the environment's", "the person's"],
)
def test_a_small_model_takes_one_thread_unless_a_number_was_chosen(
    monkeypatch, two_threads, width, environment, chosen, threads
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    torch.set_num_threads(chosen)
    building.use_one_thread_if_small(torch.nn.Linear(width, width, device="meta"))
    assert torch.get_num_threads() == threads


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


def test_held_out_questions_that_are_trained_on_are_counted_once(
    tiny_model, tmp_path, monkeypatch, caplog
):
    """A file is read for every split."""
    monkeypatch.setattr(building, "put_together", lambda *_: None)
    (tmp_path / "mine.jsonl").write_text("\n".join(SUMS))
    (tmp_path / "more.jsonl").write_text("\n".join([*SUMS[:3], SUMS[2]]).replace("0+", "500+"))
    given = {"dataset": str(tmp_path / "mine.jsonl"), "eval_size": 50, "eval_by": None}
    sets = {"more": str(tmp_path / "more.jsonl"), "other": "miniature/sums"}
    building.build_trainer(small(tiny_model, **given, eval_sets=sets), None)  # type: ignore
    (said,) = [text for text in caplog.messages if "also trained on" in text]
    assert said.startswith("50 of 50 eval questions, 3 of 4 eval questions of 'more' are also")


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"


@pytest.mark.parametrize(
    ("chat_template", "settings", "said"),
    [
        (None, {"system_prompt": ""}, "cannot write messages of user .*chat_template is not set"),
        (NO_SYSTEM, {"template": "think_xml"}, "messages of system and user .no system.; set chat"),
        (NO_SYSTEM, {"template": "think_xml", "system_prompt": ""}, None),
        (None, {"template": "r1_zero"}, None),
    ],
)
def test_messages_that_the_chat_template_cannot_write_are_refused_before_the_model_is_loaded(
    tiny_model, chat_template, settings, said
):
    resolved = small(tiny_model, dataset="miniature/sums", max_prompt_length=400, **settings)
    tokenizer = load_tokenizer(str(tiny_model), resolved)
    tokenizer.chat_template = chat_template
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        task_dataset(resolved.task, "train", tokenizer)
    with pytest.raises(ConfigurationError, match=said) if said else nullcontext():
        evaluation_sets(resolved.task, tokenizer)


def test_check_needs_no_evaluation_set_where_none_is_evaluated(tiny_model, tmp_path):
    """As training, which reads none."""
    (tmp_path / "train.jsonl").write_text("\n".join(SUMS[:9]))
    resolved = small(tiny_model, dataset=str(tmp_path), eval_split="test", eval_strategy="no")
    with grader_of(resolved.task) as grader:
        assert check_recipe(resolved, grader, 4).sizes == {"train": 9, "eval": 0}


def test_check_calls_a_reward_with_what_trl_gives_but_runs_no_environment(recipe, tiny_model):
    data = {"model_name_or_path": tiny_model, "train_size": 8, "eval_size": 4}

    def checked(*rewards, **more):
        settings = {"reward_funcs": [*rewards], **data, **more}
        return check_recipe(load_recipe(recipe, overrides=settings), None, 4)  # type: ignore

    found = checked("world.py:by_state")
    assert found.full and found.empty.mean == 0
    world = {"environment_factory": "world.py:World"}
    with pytest.raises(ConfigurationError, match="an environment, which check does not run, try"):
        checked("world.py:of_world", **world)
    with pytest.raises(ConfigurationError, match="only the environment grades, which check does"):
        checked(**world)
