"""A made-up factorial study: cells whose runs reach a given reward, without any training."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.synthetic_study import learning_rows, make_plan, write_run
from trl_ablate.study.factors import read_design, without
from trl_ablate.study.planned import Plan
from trl_ablate.study.store import RunStore

DRAW = 100_000
"""Where the noise of the runs begins; one draw in twenty has a false alarm."""


def factorial_plan(
    factors: Mapping[str, list[Any]],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    fraction: str = "1",
    excluded: Mapping[str, str] | None = None,
) -> Plan:
    design = without(read_design(factors, fraction, "study"), excluded or {}, "study")
    return replace(make_plan(design.cells, seeds), design=design)


def write_factorial(
    folder: Path, plan: Plan, top: Callable[[Mapping[str, Any]], float],
    *, collapsed: Collection[str] = (), missing: Collection[str] = (), seeds_differ: float = 0.0,
) -> RunStore:  # fmt: skip
    """Runs that reach `top` of their cell's levels.

    Args:
        collapsed: names of runs (`CELL-seed0`) that fall to nothing after step 8.
        missing: names of runs that have failed.
        seeds_differ: what each seed adds to all its runs, times the seed.
    """
    store = RunStore(folder)
    assert plan.design is not None
    for number, arm in enumerate(plan.arms):
        cell = plan.design.cells[arm.name]
        for run in arm.runs:
            name = f"{arm.name}-seed{run.seed}"
            rows = learning_rows(
                DRAW + 1000 * number + run.seed, top(cell) + seeds_differ * run.seed,
                collapse=8 if name in collapsed else None,
            )  # fmt: skip
            status = "failed" if name in missing else "finished"
            write_run(store, run, arm.declared, rows, status=status)
    return store
