"""Files and worlds that a recipe names: where they are found, and how they identify a run."""

import json
import shutil

import pytest

from trl_ablate import load_recipe
from trl_ablate.recipe.named_files import Anchor, changed_files
from trl_ablate.recipe.resolving import resolve_run
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.identity import portable
from trl_ablate.run.json_files import write_json
from trl_ablate.study.definition import load_study
from trl_ablate.study.planned import identity, save_plan, saved_plan
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
REWARD = "def score(completions, **kwargs): return [0.0]\n"


def made(folder, absolute=False):
    (folder / "data").mkdir(parents=True)
    placed = RECIPE
    for name in ("reward.py", "prompt.txt") if absolute else ():
        placed = placed.replace(name, f"{folder}/{name}")
    (folder / "recipe.yaml").write_text(placed)
    (folder / "study.yaml").write_text(STUDY)
    (folder / "prompt.txt").write_text("Q: {question}")
    (folder / "reward.py").write_text(REWARD)
    (folder / "more.jsonl").write_text("")
    return folder / "recipe.yaml"


def test_paths_are_relative_to_the_recipe(tmp_path, monkeypatch):
    recipe, folder = made(tmp_path / "task"), tmp_path / "task"
    monkeypatch.chdir(tmp_path)
    task = load_recipe(recipe).task
    assert (task.dataset, task.template) == (str(folder / "data"), str(folder / "prompt.txt"))
    other = {"path": f"{folder}/reward.py:other", "weight": 0.5}
    assert task.reward_funcs == [f"{folder}/reward.py:score", other, "answer"]
    more = {"dataset": f"{folder}/more.jsonl", "reward_funcs": [f"{folder}/reward.py:score"]}
    assert task.eval_sets == {"more": more, "gsm8k": "gsm8k"}
    (tmp_path / "own.py").write_text("")  # a word is relative to the working directory
    words = ["--reward_funcs", "own.py:f", "reward.py:score"]
    task = load_recipe(recipe, overrides=words).task
    assert task.reward_funcs == [f"{tmp_path}/own.py:f", f"{folder}/reward.py:score"]


def test_what_is_not_beside_the_recipe_is_in_the_working_directory(tmp_path, monkeypatch):
    for folder in ("recipes", "model", "reasoning_gym"):
        (tmp_path / folder).mkdir()
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "extends: grpo.yaml\nmodel_name_or_path: ./model\n"
        "reward_funcs: ['reward.py:score', reasoning_gym]\ndataset: miniature/chains\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    resolved = load_recipe("recipes/mine.yaml")
    assert resolved.task.reward_funcs == [f"{tmp_path}/reward.py:score", "reasoning_gym"]
    assert resolved.model.model_name_or_path == f"{tmp_path}/model"
    assert resolved.files[f"{tmp_path}/model"] == "./model"
    assert resolved.files[f"{tmp_path}/reward.py"].startswith("reward.py@")
    assert "profile miniature is made for a toy" in resolved.warnings[-1]


def test_own_prompts_have_no_stop_strings(tmp_path):
    recipe = made(tmp_path)
    assert load_recipe(recipe).config.stop is None
    stopped = load_recipe(recipe, overrides={"stop": ["</answer>"]})
    assert stopped.config.stop == ["</answer>"] and stopped.warnings == []
    assert load_recipe("grpo", "miniature").config.stop == ["</answer>"]
    assert load_recipe("grpo", "miniature", {"prompt_column": "prompt"}).config.stop is None


@pytest.mark.parametrize("absolute", [False, True])
def test_a_run_is_identified_by_the_content_of_its_files_and_not_by_their_place(tmp_path, absolute):
    for name in ("a", "b", "c"):
        made(tmp_path / name, absolute)
    (tmp_path / "c" / "reward.py").write_text(REWARD + "# other\n")
    first, again, other = (
        set(resolve_plan(load_study(tmp_path / name / "study.yaml")).runs()) for name in "abc"
    )
    assert len(first) == 2 and first == again and not first & other


@pytest.mark.parametrize("absolute", [False, True])
def test_a_saved_plan_ends_with_its_files(tmp_path, absolute):
    made(tmp_path, absolute)
    study, plans = load_study(tmp_path / "study.yaml"), tmp_path / "plans"
    save_plan(resolve_plan(study), study, plans)
    assert saved_plan(study, plans) is not None
    made(tmp_path / "moved", absolute)  # a run is started with the path of its recipe
    shutil.copy(plans / f"{study.name}.json", plans / "moved.json")
    assert saved_plan(load_study(tmp_path / "moved" / "study.yaml"), plans) is None
    (tmp_path / "reward.py").write_text(REWARD + "# other\n")
    assert saved_plan(study, plans) is None


def test_a_finished_run_finds_its_files_again(tmp_path, monkeypatch):
    resolved = load_recipe(made(tmp_path / "task"))
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    write_json(run.config_file, resolved.to_dict())
    monkeypatch.chdir(tmp_path)
    assert resolve_run(run.config_file).task.reward_funcs == resolved.task.reward_funcs
    assert run.settings()["template"].startswith("prompt.txt@")
    assert run.settings()["dataset"] == "data"


def test_data_of_one_name_are_told_apart_by_their_content(tmp_path):
    """So that two studies do not share a run, and a change makes another run."""
    known = {}
    for name, text in (("a", "1"), ("b", "2"), ("c", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.jsonl").write_text(text)
        anchor = Anchor()
        found = anchor.settings({"dataset": "data.jsonl"}, tmp_path / name)
        assert found == {"dataset": str(tmp_path / name / "data.jsonl")}
        (known[name],) = anchor.files.values()
        anywhere = Anchor()
        assert anywhere.settings(found) == found and anywhere.files == anchor.files
    assert known["a"] == known["c"] != known["b"]
    assert not changed_files(anchor.files)
    (tmp_path / "c" / "data.jsonl").write_text("3")
    assert changed_files(anchor.files)


# Worlds of the miniature


def test_a_recipe_has_the_name_of_its_world_in_full():
    sets = {"one": "miniature", "two": {"dataset": "miniature", "size": 8}}
    given = {"dataset": "miniature", "starts": {"a": "miniature/sft_mid"}, "eval_sets": sets}
    resolved = load_recipe("grpo", "miniature-sums", given)
    assert resolved.task.dataset == resolved.settings["eval_sets"]["one"] == "miniature/chains"
    assert resolved.task.starts == {"a": "miniature/chains/sft_mid"}
    assert resolved.settings["eval_sets"]["two"] == {"dataset": "miniature/chains", "size": 8}
    assert resolved.model.model_name_or_path == "miniature/sums"


def test_runs_on_sums_keep_their_ids_and_are_read_again(tmp_path):
    """Also those from before there were other worlds, when it was called `miniature`."""
    recorded = load_recipe("grpo", "miniature-sums").to_dict()
    settings = portable(json.loads(json.dumps(recorded["settings"], default=str)), {})
    assert (settings["dataset"], settings["starts"]["sft_mid"]) == (
        "miniature", "miniature/sft_mid",
    )  # fmt: skip
    assert identity(settings) == "152919170b"
    file = tmp_path / "resolved_config.json"
    file.write_text(json.dumps({**recorded, "settings": settings}, default=str))
    resolved = resolve_run(file)
    assert resolved.task.dataset == resolved.model.model_name_or_path == "miniature/sums"
    assert resolved.task.starts["sft_mid"] == "miniature/sums/sft_mid"
    assert resolve_run(file, {"dataset": "miniature"}).task.dataset == "miniature/chains"


def test_the_profile_asks_for_levels_where_there_are_some():
    own = {"dataset": "questions.jsonl"}
    for expected, *cases in (
        ("level", {}, {"dataset": "miniature/chains-hard"}, {**own, "eval_by": "level"}),
        (None, own, {"dataset": "miniature/sums"}, {"evaluation": "trl"}),
    ):
        for given in cases:
            assert load_recipe("grpo", "miniature", given).config.eval_by == expected, given
