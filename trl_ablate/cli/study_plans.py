"""The plan of a study that a command names, and the store of its runs."""

import argparse
from dataclasses import replace

from trl_ablate.cli.imports import to_keep
from trl_ablate.recipe.places import study_path


def resolve(options: argparse.Namespace, *, to_run: bool = True):
    """Make the plan of a study from its recipes, and save it for the commands that only read."""
    study, store = opened(options)  # a wrong name is refused before torch is imported
    with to_keep():
        from trl_ablate.study.planned import save_plan
        from trl_ablate.study.resolution import resolve_plan

    planned = resolve_plan(study, to_run=to_run)
    save_plan(planned, study, store.plans)
    return planned, store


def known(options: argparse.Namespace):
    """The saved plan if it is up to date, which needs no torch; otherwise a new one."""
    from trl_ablate.study.planned import saved_plan

    study, store = opened(options)
    planned = saved_plan(study, store.plans)
    if planned and options.profile in (None, planned.profile):
        return planned, store
    return resolve(options, to_run=False)


def opened(options: argparse.Namespace):
    from trl_ablate.study.definition import load_study
    from trl_ablate.study.store import RunStore

    study = load_study(study_path(options.study))
    return replace(study, profile=options.profile or study.profile), RunStore(options.runs)
