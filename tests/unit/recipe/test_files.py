"""Files that a recipe names: where they are found, and how they identify a run."""

import shutil

import pytest

from trl_ablate import ConfigurationError, load_recipe
from trl_ablate.recipe.places import suitable_profile
from trl_ablate.recipe.resolving import resolve_run
from trl_ablate.recipe.strict import read_mapping
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import write_json
from trl_ablate.study.definition import load_study
from trl_ablate.study.planned import save_plan, saved_plan
from trl_ablate.study.resolution import resolve_plan

RECIPE = """\
extends: grpo.yaml
profile: miniature
dataset: data
template: prompt.txt
reward_funcs: ["reward.py:score", {path: reward.py:other, weight: 0.5}, answer]
reward: question_only
eval_sets: {more: {dataset: more.jsonl, reward_funcs: ["reward.py:score"]}, gsm8k: gsm8k}
"""
STUDY = """\
question: Why?
profile: miniature
arms: {one: recipe.yaml, two: {recipe: recipe.yaml, overrides: {reward_timeout: 5}}}
seeds: [0]
"""


def made(folder, absolute=False):
    (folder / "data").mkdir(parents=True)
    placed = RECIPE
    for name in ("reward.py", "prompt.txt") if absolute else ():
        placed = placed.replace(name, f"{folder}/{name}")
    (folder / "recipe.yaml").write_text(placed)
    (folder / "study.yaml").write_text(STUDY)
    (folder / "prompt.txt").write_text("Q: {question}")
    (folder / "reward.py").write_text("def score(completions, **kwargs): return [0.0]\n")
    (folder / "more.jsonl").write_text("")
    return folder / "recipe.yaml"


def test_paths_are_relative_to_the_recipe(tmp_path, monkeypatch):
    recipe, folder = made(tmp_path / "task"), tmp_path / "task"
    monkeypatch.chdir(tmp_path)
    task = load_recipe(recipe).task
    assert (task.dataset, task.template) == (str(folder / "data"), str(folder / "prompt.txt"))
    assert task.reward_funcs == [
        f"{folder}/reward.py:score",
        {"path": f"{folder}/reward.py:other", "weight": 0.5},
        "answer",
    ]
    assert task.eval_sets["more"]["dataset"] == str(folder / "more.jsonl")
    assert task.eval_sets["more"]["reward_funcs"] == [f"{folder}/reward.py:score"]
    assert task.eval_sets["gsm8k"] == "gsm8k"
    (tmp_path / "own.py").write_text("")  # a word is relative to the working directory
    words = ["--reward_funcs", "own.py:f", "reward.py:score"]
    task = load_recipe(recipe, overrides=words).task
    assert task.reward_funcs == [f"{tmp_path}/own.py:f", f"{folder}/reward.py:score"]


def test_what_is_not_beside_the_recipe_is_in_the_working_directory(tmp_path, monkeypatch):
    for folder in ("recipes", "model", "reasoning_gym"):
        (tmp_path / folder).mkdir()
    (tmp_path / "reward.py").write_text("def score(completions, **kwargs): return [0.0]\n")
    recipe = tmp_path / "recipes" / "mine.yaml"
    recipe.write_text(
        "extends: grpo.yaml\nmodel_name_or_path: ./model\n"
        "reward_funcs: ['reward.py:score', reasoning_gym]\n"
        "template: reasoning_xml\ndataset: miniature/chains\n"
    )
    monkeypatch.chdir(tmp_path)
    resolved = load_recipe(recipe, "miniature")
    assert resolved.task.reward_funcs == [f"{tmp_path}/reward.py:score", "reasoning_gym"]
    assert resolved.model.model_name_or_path == f"{tmp_path}/model"
    assert resolved.files[f"{tmp_path}/model"] == "./model"
    assert resolved.files[f"{tmp_path}/reward.py"].startswith("reward.py@")
    (told,) = load_recipe(recipe).warnings if suitable_profile()[0] == "miniature" else ("",)
    assert told == "" or "profile miniature is made for a toy" in told


def test_a_template_of_a_file_has_no_stop_strings(tmp_path):
    recipe = made(tmp_path)
    assert load_recipe(recipe).config.stop is None
    stopped = load_recipe(recipe, overrides={"stop": ["</answer>"]})
    assert stopped.config.stop == ["</answer>"] and stopped.warnings == []
    assert load_recipe("grpo", "miniature").config.stop == ["</answer>"]
    column = load_recipe("grpo", "miniature", {"prompt_column": "prompt"})
    assert column.config.stop is None


def ids(folder):
    return list(resolve_plan(load_study(folder / "study.yaml")).runs())


@pytest.mark.parametrize("absolute", [False, True])
def test_a_run_is_identified_by_the_content_of_its_files_and_not_by_their_place(tmp_path, absolute):
    for name in ("a", "b", "c"):
        made(tmp_path / name, absolute)
    code = tmp_path / "c" / "reward.py"
    code.write_text(code.read_text() + "# other\n")
    first = ids(tmp_path / "a")
    assert len(set(first)) == 2
    assert ids(tmp_path / "b") == first
    assert not set(ids(tmp_path / "c")) & set(first)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_saved_plan_ends_with_its_files(tmp_path, absolute):
    made(tmp_path, absolute)
    study = load_study(tmp_path / "study.yaml")
    save_plan(resolve_plan(study), study, tmp_path / "plans")
    assert saved_plan(study, tmp_path / "plans") is not None
    made(tmp_path / "moved", absolute)  # a run is started with the path of its recipe
    moved = load_study(tmp_path / "moved" / "study.yaml")
    shutil.copy(tmp_path / "plans" / f"{study.name}.json", tmp_path / "plans" / "moved.json")
    assert saved_plan(moved, tmp_path / "plans") is None
    (tmp_path / "reward.py").write_text("def score(completions, **kwargs): return [1.0]\n")
    assert saved_plan(study, tmp_path / "plans") is None


def test_a_finished_run_finds_its_files_again(tmp_path, monkeypatch):
    resolved = load_recipe(made(tmp_path / "task"))
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    write_json(run.config_file, resolved.to_dict())
    monkeypatch.chdir(tmp_path)
    assert resolve_run(run.config_file).task.reward_funcs == resolved.task.reward_funcs
    assert run.settings()["template"].startswith("prompt.txt@")
    assert run.settings()["dataset"] == "data"


def test_old_recipes_name_no_files():
    resolved = load_recipe("grpo", "miniature")
    assert resolved.files == {} and "files" not in resolved.to_dict()
    assert read_mapping(resolved.recipe, "recipe")["template"] == resolved.task.template


OF_THE_WORLD = {"reward_funcs": [], "environment_factory": "world.py:World", "eos_penalty": 0.5}
REWARDED_SET = {"evaluation": "trl", "eval_sets": {"a": {"dataset": "gsm8k", "reward": "r1_zero"}}}
WEIGHTED_TWICE = {"reward_funcs": [{"path": "answer", "weight": 2}], "reward_weights": [1]}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"template": "r1zero"}, "template='r1zero' is unknown"),
        ({"template": "mine.txt"}, "is a file, which implies no reward; set reward_funcs, or"),
        ({"template": "mine.txt", "reward_funcs": ["answer"]}, "'answer', which reads the format"),
        ({"reward_funcs": "answer"}, "it takes a list .text or a mapping each. or null"),
        ({"reward_funcs": []}, "reward_funcs is an empty list"),
        (OF_THE_WORLD, "eos_penalty is 0.5, but reward_funcs is .*set eos_penalty to 0"),
        (REWARDED_SET, "the reward of 'a' needs evaluation 'one_shot'"),
        (WEIGHTED_TWICE, "reward_funcs gives answer a weight of its own; remove one"),
    ],
)
def test_contradictions_are_refused(settings, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        load_recipe("grpo", "miniature", settings)


def test_what_has_no_effect_is_listed():
    inert = load_recipe("grpo", "miniature", {"reward_timeout": 1.0}).inert
    assert inert["reward_timeout"] == "reward_funcs names no function"
    settings = {"reward_funcs": ["mine.score"], "reward": "r1_zero", "reward_workers": 3}
    inert = load_recipe("grpo", "miniature", settings).inert
    assert {"reward", "reward_workers"} <= inert.keys()


def test_the_best_metric_can_be_that_of_a_group():
    settings = {"eval_by": "level", "best_metric": "eval_reward/level=3"}
    assert load_recipe("grpo", "miniature", settings).config.best_metric == "eval_reward/level=3"
    with pytest.raises(ConfigurationError, match="is not a metric of this evaluation"):
        load_recipe("grpo", "miniature-sums", {"best_metric": "eval_reward/level=3"})
