"""Plans and run directories made up for tests: the files of a study, without any training."""

import json
import math
import random
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import write_json, write_jsonl
from trl_ablate.study.planned import Plan, PlannedArm, PlannedRun, identity, run_id
from trl_ablate.study.report.curves import Run, Series
from trl_ablate.study.store import RunStore

METRIC = "eval_reward"


def make_plan(
    arms: Mapping[str, Mapping[str, Any]], seeds: Sequence[int] = (0, 1, 2), **entries: Any
) -> Plan:
    """A plan whose arms have these settings; a run's words carry what a fake training needs."""
    keys = sorted({key for settings in arms.values() for key in settings})
    planned = tuple(
        PlannedArm(
            name=name,
            recipe=f"{name}.yaml",
            declared=settings,
            values={key: settings.get(key) for key in keys},
            inert={},
            warnings=(),
            grpo_steps=20,
            optimizer_steps=20,
            evaluations=6,
            runs=tuple(
                PlannedRun(
                    run_id(identity(settings), seed),
                    seed,
                    (f"{name}.yaml", "--arm", name, "--seed", str(seed),
                     f"--settings={json.dumps(settings)}"),
                )
                for seed in seeds
            ),
        )
        for name, settings in arms.items()
    )  # fmt: skip
    return Plan(
        study="made_up",
        question="Does it work?",
        seeds_answer="Yes. One seed each.",
        profile="miniature",
        profile_reason="as asked",
        primary_metric=METRIC,
        decide_on="final",
        base="grpo.yaml",
        compared=250,
        for_gpu=False,
        arms=planned,
        looks=tuple(entries.get("looks", ())),
        equivalence_margin=entries.get("equivalence_margin"),
        miniatures=((0.126, "miniature/chains"),),
    )


def learning_rows(
    seed: int, top: float, *, steps: int = 20, collapse: int | None = None, questions: int = 512
) -> Iterator[dict[str, Any]]:
    """The rows of a run whose reward rises to `top`, and collapses from step `collapse` on."""
    rng = random.Random(seed)
    top, seconds = top + rng.gauss(0, 0.02), 30.0
    for step in range(steps + 1):
        level = 0.05 + (top - 0.05) * (1 - math.exp(-5 * step / steps))
        if collapse is not None and step > collapse:
            level *= math.exp(collapse - step)
        place = {"step": step, "grpo_step": float(step)}
        if step:
            seconds += rng.uniform(1.2, 1.6)
            yield {
                **place,
                "seconds": seconds,
                "grad_norm": 0.2 * rng.lognormvariate(0, 0.3),
                "completions/mean_length": 21 + 4 * level + rng.gauss(0, 0.3),
                "entropy": max(0.001, 0.18 - 0.15 * level + rng.gauss(0, 0.004)),
                "step_time": 1.4,
            }
        if step % 4 == 0 or step == steps:
            share = min(1.0, max(0.0, level))
            value = sum(rng.random() < share for _ in range(questions)) / questions
            seconds += 0.4
            yield {
                **place,
                "seconds": seconds,
                METRIC: value,
                f"{METRIC}_stderr": math.sqrt(value * (1 - value) / questions),
                "time/eval": 0.4,
            }


def write_run(
    store: RunStore,
    run: PlannedRun,
    settings: Mapping[str, Any],
    rows: Iterator[dict[str, Any]],
    *,
    status: str = "finished",
    reason: str | None = None,
    rollouts: Sequence[Mapping[str, Any]] = (),
) -> RunDirectory:
    """A run directory as training leaves it."""
    directory = store.directory(run.id)
    directory.path.mkdir(parents=True)
    directory.write_config({"settings": dict(settings)})
    write_jsonl(directory.metrics_file, rows)
    record = {
        "status": status,
        "reason": reason,
        "seed": run.seed,
        "seconds": 60.0,
        "versions": {"trl": "1.16.0"},
        "git": {"commit": "0123456789abcdef", "diff": ""},
        "python": "3.11.7",
    }
    write_json(directory.run_file, record)
    if rollouts:
        directory.write_rollouts(20, [*map(dict, rollouts)])
    return directory


def do(plan: Plan, store: RunStore, ids: Container[str], *, status: str = "finished") -> None:
    """Do the runs with these ids, each by its arm's settings: top, and collapse if it has it."""
    for number, arm in enumerate(plan.arms):
        shape = {key: arm.declared[key] for key in ("top", "collapse") if key in arm.declared}
        for run in arm.runs:
            if run.id in ids and not store.state(run.id).done:
                rows = learning_rows(1000 * number + run.seed, **shape)
                write_run(store, run, arm.declared, rows, status=status)


def write_study(
    folder: Path, arms: Mapping[str, Mapping[str, Any]], seeds: Sequence[int] = (0, 1, 2)
) -> tuple[Plan, RunStore]:
    """A finished study."""
    plan, store = make_plan(arms, seeds), RunStore(folder)
    do(plan, store, plan.runs())
    return plan, store


def flat_run(arm: str, seed: int, values: Sequence[float], status: str = "finished") -> Run:
    """A run in memory whose metric has these values at steps 0, 1, 2, ..."""
    series = Series([float(step) for step in range(len(values))], list(values))
    return Run(arm=arm, seed=seed, status=status, series={METRIC: series})
