"""Which settings may change when a run is resumed, and which make it another run."""

from typing import get_args

import pytest

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.fields import known_fields
from trl_ablate.run.identity import changed_settings, check_same_run, portable
from trl_ablate.settings import Role
from trl_ablate.switches import OF_TRL, Switches, named
from trl_ablate.task import TaskArguments


def test_every_difference_is_found_and_none_is_made_up():
    before = {"beta": 0.0, "seed": 1, "stop": "a", "levels": [1, 2]}
    now = {"beta": 0.04, "seed": 1, "levels": (1, 2), "top_k": None}
    assert changed_settings(before, now) == {"beta": [0.0, 0.04], "stop": ["a", None]}


def test_a_run_from_before_evaluation_was_written_is_one_with_one_shot():
    assert portable({"evaluation": "one_shot", "beta": 0.1}, {}) == {"beta": 0.1}
    assert portable({"evaluation": "trl"}, {}) == {"evaluation": "trl"}


def test_the_table_of_roles_names_settings_of_trl_alone():
    listed = [name for names in OF_TRL.values() for name in names]
    assert set(listed) <= known_fields().keys() - {*vars(Switches()), *vars(TaskArguments())}
    assert [name for name in set(listed) if listed.count(name) > 1] == ["model_name_or_path"]


def test_every_role_has_settings_and_every_setting_of_the_task_a_role():
    """What is left has an effect on results: on grading, or on which prompts are left."""
    assert all(named(role) for role in get_args(Role))
    without = vars(TaskArguments()).keys() - {*named(*get_args(Role))}
    assert without == {
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
