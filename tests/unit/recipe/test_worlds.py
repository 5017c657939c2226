"""Which world of the miniature a recipe and a run's record mean, and what follows from it."""

import json

import pytest

from trl_ablate import load_recipe
from trl_ablate.recipe.resolving import resolve_run
from trl_ablate.run.identity import portable
from trl_ablate.study.planned import identity

RECORDED = "152919170b"
"""The id of `grpo` on the profile of sums, when its world was called `miniature`."""


def test_a_recipe_has_the_name_of_its_world_in_full():
    sets = {"one": "miniature", "two": {"dataset": "miniature", "size": 8}}
    given = {"dataset": "miniature", "starts": {"a": "miniature/sft_mid"}, "eval_sets": sets}
    resolved = load_recipe("grpo", "miniature-sums", given)
    assert resolved.task.dataset == resolved.settings["eval_sets"]["one"] == "miniature/chains"
    assert resolved.task.starts == {"a": "miniature/chains/sft_mid"}
    assert resolved.settings["eval_sets"]["two"] == {"dataset": "miniature/chains", "size": 8}
    assert resolved.model.model_name_or_path == "miniature/sums"


def test_runs_on_sums_keep_their_ids():
    settings = json.loads(
        json.dumps(load_recipe("grpo", "miniature-sums").to_dict()["settings"], default=str)
    )
    now = portable(settings, {})
    assert (now["dataset"], now["starts"]["sft_mid"]) == ("miniature", "miniature/sft_mid")
    assert identity(now) == RECORDED


def test_a_record_from_before_there_were_other_worlds_means_sums(tmp_path):
    recorded = load_recipe("grpo", "miniature-sums").to_dict()
    recorded["settings"] = portable(recorded["settings"], {})
    file = tmp_path / "resolved_config.json"
    file.write_text(json.dumps(recorded, default=str))
    resolved = resolve_run(file)
    assert resolved.task.dataset == resolved.model.model_name_or_path == "miniature/sums"
    assert resolved.task.starts["sft_mid"] == "miniature/sums/sft_mid"
    assert resolve_run(file, {"dataset": "miniature"}).task.dataset == "miniature/chains"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "level"),
        ({"dataset": "miniature/chains-hard"}, "level"),
        ({"dataset": "miniature/sums"}, None),
        ({"dataset": "questions.jsonl"}, None),
        ({"dataset": "questions.jsonl", "eval_by": "level"}, "level"),
        ({"evaluation": "trl"}, None),
    ],
)
def test_the_profile_asks_for_levels_where_there_are_some(given, expected):
    assert load_recipe("grpo", "miniature", given).config.eval_by == expected
