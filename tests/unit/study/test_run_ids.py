"""Run ids of shipped studies: a finished run stays finished when code is moved."""

import pytest

from trl_ablate.recipe.places import SHIPPED
from trl_ablate.study.definition import load_study
from trl_ablate.study.resolution import resolve_plan

FIRST_SEEDS = {
    "std_dev": ["152919170b-seed0", "7a6c0e206f-seed0"],
    "clip_off_policy": ["7fa50ebccf-seed0", "534a10c6ef-seed0"],
    "length_norm": ["152919170b-seed0", "9c9e9fe82a-seed0", "ce4e0c72da-seed0"],
    "prompt": ["152919170b-seed0", "c6222def09-seed0"],
}
"""The id of every arm under its first seed."""


@pytest.mark.parametrize("study", FIRST_SEEDS)
def test_run_ids_do_not_change(study):
    plan = resolve_plan(load_study(SHIPPED / "studies" / study / "study.yaml"))
    assert [run for run in plan.runs() if run.endswith("-seed0")] == FIRST_SEEDS[study]
