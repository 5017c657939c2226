"""Runs that others trained, from whatever they logged: whose arm, seed and group is each? No torch.

What the user states comes first, then the columns of the file, then the run's name: `NAME-seed3` is
arm NAME with seed 3, and any other name is an arm of its own.
"""

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trl_ablate.errors import ConfigurationError
from trl_ablate.guard.logs import INNER, RUN_FILES, Log, read_logs
from trl_ablate.guard.tables import Columns, Owner, arm_and_seed
from trl_ablate.run.logged import Series
from trl_ablate.study.report.curves import Run

PREFERRED = ("eval_reward", "eval_answer_reward", "answer_accuracy", "accuracy", "score", "reward")
"""Metrics that decide, if the user names none."""


@dataclass(frozen=True)
class Naming:
    """What the user states of the runs' names: columns, and a regular expression with the groups
    `arm` and, if wanted, `seed` and `group`."""

    columns: Columns = field(default_factory=dict)
    pattern: str | None = None


def read_runs(paths: Iterable[str | Path], naming: Naming | None = None) -> list[Run]:
    """The runs by group, then by arm, in the order of their first appearance, then by seed."""
    naming = naming or Naming()
    logs = [(log, Path(path)) for path in paths for log in read_logs(path, naming.columns)]
    runs, names = [_run(log, naming, path) for log, path in logs], {}
    for run, (log, _) in zip(runs, logs, strict=True):
        place = (run.group, run.arm, run.seed)
        if run.seed is not None and place in names:
            raise ConfigurationError(
                f"the runs '{names[place]}' and '{log.name}' have the same arm '{run.arm}' and the "
                f"same seed ({run.seed}); give each run its own seed"
            )
        names[place] = log.name
    places = {run.group: position for position, run in reversed([*enumerate(runs)])}
    arms = list(dict.fromkeys(run.arm for run in runs))
    return sorted(runs, key=lambda run: (places[run.group], arms.index(run.arm), run.seed or 0))


def read_curves(path: Path) -> list[Run]:
    """The runs of a file, with an empty one where an arm lacks a seed that others have, as arms are
    compared by position. Arms that have no seed in common are compared in the order of seeds."""
    if not path.is_file():
        raise ConfigurationError(f"curves {path} do not exist; name a CSV file")
    runs = read_runs([path])
    arms: dict[str, dict[int | None, Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, {})[run.seed] = run
    common = set.intersection(*({*found} for found in arms.values()))
    if None in common or not common:
        return runs
    for run in runs:
        if run.seed is None:
            raise ConfigurationError(
                f"curves {path}: a run of arm '{run.arm}' has no seed and other runs have; give "
                "each run its seed"
            )
        if run is not (other := arms[run.arm][run.seed]):
            raise ConfigurationError(
                f"curves {path}: arm '{run.arm}' has seed {run.seed} in the groups '{run.group}' "
                f"and '{other.group}'; keep one group, or compare them with `trl-ablate judge`"
            )
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    return [
        found.get(seed) or Run(arm=arm, seed=seed, status="missing")
        for arm, found in arms.items()
        for seed in seeds
    ]


def metric_of(runs: Sequence[Run], wanted: str | None, what: str) -> str:
    """The metric that decides: the one that is asked for, or the first known one."""
    known = sorted({name for run in runs for name in run.series})
    usable = [wanted] if wanted else [*PREFERRED, *(known if len(known) == 1 else ())]
    found = next((name for name in usable if name in known), None)
    if found is None:
        asked = f"no metric '{wanted}'" if wanted else "several metrics (choose with --metric)"
        raise ConfigurationError(f"{what} have {asked}; they have {', '.join(known)[:300]}")
    return found


def _run(log: Log, naming: Naming, path: Path) -> Run:
    stated, owner, (arm, seed) = _stated(log.owner, naming), log.owner, arm_and_seed(log.name)
    named = stated.get("seed", owner.seed)
    points, lost = _points(log)
    for metric, at in lost.items():  # as of a run of our own with NaN weights
        points[metric].steps.append(at)
        points[metric].values.append(min(0.0, *points[metric].values))
    return Run(
        arm=stated.get("arm") or owner.arm or arm or _above(log.name, path),
        seed=seed if named is None else _whole(named, log.name),
        status="finished",
        series=points,
        group=stated.get("group", owner.group),
        lost=frozenset(lost),
    )


def _points(log: Log) -> tuple[dict[str, Series], dict[str, float]]:
    """The curves without what is not finite, and the step from which a curve is NaN to its end. In
    a table that has NaN between values, it stands for what was not logged."""
    points: dict[str, Series] = {}
    nan_from: dict[str, float] = {}
    with_gaps: set[str] = set()
    for row in log.rows:
        at = row["step"] if row.get("grpo_step") is None else row["grpo_step"]
        for metric, value in row.items():
            if metric == "step" or value is None:
                continue
            if math.isfinite(value):
                series = points.setdefault(metric, Series())
                series.steps.append(at)
                series.values.append(value)
                with_gaps |= {metric} & nan_from.keys()
            elif math.isnan(value):
                nan_from.setdefault(metric, at)
    ended = nan_from.keys() & points.keys() - with_gaps
    return points, {metric: nan_from[metric] for metric in ended}


def _above(name: str, path: Path) -> str:
    """The arm of runs that are named by their seeds alone, as in `grpo/seed_0`: what holds them."""
    *above, last = [part for part in path.absolute().parts if not INNER.fullmatch(part)]
    if path.name in RUN_FILES:
        *above, last = above
    if above and last == name:
        return above[-1]
    return Path(last).stem if path.is_file() else last


def _whole(seed: str, name: str) -> int:
    with suppress(ValueError):
        if float(seed).is_integer():
            return int(float(seed))
    raise ConfigurationError(f"run '{name}': seed is '{seed}'; it takes a whole number")


def _stated(owner: Owner, naming: Naming) -> dict[str, str]:
    if naming.pattern is None:
        return {}
    what, such_as = f"--names '{naming.pattern}'", "such as '(?P<arm>.+)_(?P<seed>[0-9]+)'"
    try:
        found = re.fullmatch(naming.pattern, owner.name)
    except re.error as error:
        wrong = f"{what} is not a regular expression ({error}); {such_as}"
        raise ConfigurationError(wrong) from error
    if found is None or "arm" not in found.groupdict():
        raise ConfigurationError(
            f"{what} finds no arm in the name '{owner.name}'; it has to match every name, {such_as}"
        )
    return {role: text for role, text in found.groupdict().items() if text}
