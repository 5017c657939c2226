"""Run ids of shipped studies: a finished run stays finished when code is moved."""

import json

import pytest

from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.identity import portable
from trl_ablate.study.definition import load_study
from trl_ablate.study.kept_runs import kept
from trl_ablate.study.planned import identity
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


KEPT = sorted(SHIPPED.glob("studies/*/runs.parquet"))


@pytest.mark.sample(3)
@pytest.mark.parametrize("file", KEPT, ids=lambda file: file.parent.name)
def test_the_kept_runs_of_a_study_are_those_of_its_plan(file):
    planned = resolve_plan(load_study(file.with_name("study.yaml"))).runs()
    for run_id, run in kept(file).items():
        written = json.loads(run.settings)
        assert run_id in planned
        settings = portable(written["settings"], written.get("files", {}))
        assert run_id.startswith(identity(settings))
