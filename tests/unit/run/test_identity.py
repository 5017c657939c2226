"""Which settings may change when a run is resumed, and which make it another run."""

from contextlib import nullcontext
from typing import get_args

import pytest
from rich.console import Console

from trl_ablate import load_recipe
from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.fields import known_fields
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.identity import changed_batches, changed_settings, check_same_run, portable
from trl_ablate.run.termination import Termination
from trl_ablate.settings import Role
from trl_ablate.switches import OF_TRL, Switches, named
from trl_ablate.task import TaskArguments
from trl_ablate.training.lifecycle import Start, to_resume


def test_every_difference_is_found_and_none_is_made_up():
    before = {"beta": 0.0, "seed": 1, "stop": "a", "levels": [1, 2]}
    now = {"beta": 0.04, "seed": 1, "levels": (1, 2), "top_k": None}
    assert changed_settings(before, now) == {"beta": [0.0, 0.04], "stop": ["a", None]}


def test_a_run_from_before_evaluation_was_written_is_one_with_one_shot():
    assert portable({"evaluation": "one_shot", "beta": 0.1}, {}) == {"beta": 0.1}
    assert portable({"evaluation": "trl"}, {}) == {"evaluation": "trl"}


def test_every_setting_of_the_task_has_a_role_and_the_table_names_settings_of_trl_alone():
    """What is left has an effect on results: on grading, or on which prompts are left."""
    own = {*vars(Switches()), *vars(TaskArguments())}
    listed = [name for names in OF_TRL.values() for name in names]
    assert set(listed) <= known_fields().keys() - own
    assert [name for name in set(listed) if listed.count(name) > 1] == ["model_name_or_path"]
    assert all(named(role) for role in get_args(Role))
    assert vars(TaskArguments()).keys() - {*named(*get_args(Role))} == {
        *("learning_rate_scale", "eval_size", "max_prompt_length", "skip_bad_rows"),
        *("reward_timeout", "grader_timeout", "on_timeout"),
    }


@pytest.mark.parametrize("key", ["learning_rate", "seed", "start", "eval_size", "best_metric"])
def test_place_record_and_machine_may_change_and_what_a_run_computes_may_not(key):
    free = ("save_steps", "grader_workers", "output_dir", "guard_reward")
    check_same_run("runs/x", dict.fromkeys(free, [1, 2]), "linear")
    with pytest.raises(ConfigurationError, match=f"runs/x.*{key} 1 -> 2.*another run.*settings"):
        check_same_run("runs/x", {key: [1, 2], "save_steps": [1, 2]}, "constant")


def test_a_run_can_be_made_longer_where_no_schedule_depends_on_it():
    changed = {"grpo_steps": [10, 20]}
    check_same_run("runs/x", changed, "constant")
    with pytest.raises(ConfigurationError, match="grpo_steps 10 -> 20"):
        check_same_run("runs/x", changed, "cosine")


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        ((64, 4, 4), {}),
        ((64, 8, 8), {}),  # half as many rows at once
        ((128, 4, 4), {"generation_batch_size": [64, 128], "optimizer_batch_size": [64, 128]}),
        ((64, 4, 8), {"optimizer_batch_size": [64, 128]}),
        ((128, 8, 4), {"generation_batch_size": [64, 128]}),
    ],
)
def test_batches_may_be_divided_otherwise_but_not_have_another_size(now, changed):
    names = ("generation_batch_size", "steps_per_generation", "gradient_accumulation_steps")
    before, after = (dict(zip(names, sizes, strict=True)) for sizes in ((64, 4, 4), now))
    assert changed_batches(before, after) == changed
    assert changed_batches({}, after) == {}


@pytest.mark.parametrize(("rows", "changed"), [(16, "32 -> 64"), (8, None)])
def test_a_run_is_not_resumed_with_another_batch(tmp_path, rows, changed):
    given = {"output_dir": str(tmp_path), "optimizer_batch_size": None}
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    resolved = load_recipe("grpo", "miniature", given | sizes)
    run = RunDirectory(tmp_path)
    run.write_config(resolved.to_dict())
    run.update(status="stopped")
    again = load_recipe("grpo", "miniature", given | sizes | {"per_device_train_batch_size": rows})
    start = Start(again, "resume", Console(quiet=True), Termination(), [])
    refused = pytest.raises(ConfigurationError, match=f"optimizer_batch_size {changed}")
    with refused if changed else nullcontext():
        to_resume(start, portable(again.settings, again.files))
