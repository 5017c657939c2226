"""Runs that others trained, from whatever they logged: whose arm, seed and group is each? No torch.

What the user states comes first, then the columns of the file, then the run's name: `NAME-seed3` is
arm NAME with seed 3, and any other name is an arm of its own.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trl_ablate.errors import ConfigurationError, shortened
from trl_ablate.guard.logs import INNER, Log, home_of, read_logs
from trl_ablate.guard.tables import RUN_FILES, Columns, arm_and_seed
from trl_ablate.metrics import is_better_lower, translated
from trl_ablate.run.logged import Series
from trl_ablate.study.report.curves import Run

PREFERRED = ("eval_reward", "eval_answer_reward", "answer_accuracy", "accuracy", "score", "reward")
"""Metrics that decide, if the user names none."""
BY_FILE = "file"
"""As the column of groups: each file is one."""


def read_runs(
    paths: Iterable[str | Path], columns: Columns | None = None, names: str | None = None
) -> list[Run]:
    """The runs by group, then by arm, in the order of their first appearance, then by seed.

    Args:
        columns: those that the user names; the group may be `BY_FILE`.
        names: what the runs' names are like: a regular expression with the groups `arm` and, if
            wanted, `seed` and `group`.
    """
    stated, by_file = dict(columns or {}), (columns or {}).get("group") == BY_FILE
    if by_file:
        del stated["group"]
    places = _places(paths)
    common = Counter(place.stem for place in places)
    logs = [(log, place) for place in places for log in read_logs(place, stated)]
    runs, taken = [], {}
    for log, path in logs:
        if log.name == path.stem and common[log.name] > 1:  # named after files like progress.csv
            log = replace(log, owner=log.owner._replace(name=path.parent.name))
        run = _run(log, names, path)
        run = replace(run, group=path.stem) if by_file else run
        place = (run.group, run.arm, run.seed)
        if run.seed is not None and place in taken:
            raise ConfigurationError(_twice(run, taken[place], path))
        taken[place] = path
        runs.append(run)
    if not any(run.series for run in runs):
        files = shortened(", ".join(map(str, places)), 300)
        raise ConfigurationError(f"no run in {files} has a finite number; give logs of training")
    groups = list(dict.fromkeys(run.group for run in runs))
    arms = list(dict.fromkeys(run.arm for run in runs))
    return sorted(
        runs, key=lambda run: (groups.index(run.group), arms.index(run.arm), run.seed or 0)
    )


def _places(paths: Iterable[str | Path]) -> list[Path]:
    """Each file or folder once; the run's folder in place of several logs of it."""
    homes: dict[Path, list[Path]] = {}
    for path in map(Path, paths):
        there = path.resolve()
        of_a_run = there.is_dir() or there.name in RUN_FILES
        homes.setdefault(home_of(there) if of_a_run else there, []).append(path)
    several = {home for home, given in homes.items() if len({one.resolve() for one in given}) > 1}
    return [home if home in several else given[0] for home, given in homes.items()]


def _twice(run: Run, first: Path, second: Path) -> str:
    what = f"two runs have the same arm '{run.arm}' and the same seed ({run.seed})"
    if first == second:
        return (
            f"{what} in {first}; give each its own seed, or say with --arm, --seed or --group "
            "which column tells them apart"
        )
    return (
        f"{what}, in {first} and {second}; if each file is of one group, give --group {BY_FILE}, "
        "and if they have different metrics of the same runs, give the folder that holds both"
    )


def how_they_ended(runs: Sequence[Run], metric: str) -> list[str]:
    """What a reader has to know of runs that end before the others, or in NaN."""
    found, ends = [], [run.series[metric].steps[-1] for run in runs]
    if early := [run.name for run, end in zip(runs, ends, strict=True) if end < max(ends)]:
        some = shortened(", ".join(early), 200)
        found.append(
            f"runs end at steps {min(ends):g} to {max(ends):g}, and count with what they had then "
            f"(before the last step: {some})"
        )
    if lost := [run.name for run in runs if metric in run.lost]:
        found.append(f"these end in NaN, and count as 0 or their lowest value: {', '.join(lost)}")
    return found


def read_curves(path: Path) -> list[Run]:
    """The runs of a file, with an empty one where an arm lacks a seed that others have, as arms are
    compared by position. Arms that have no seed in common are compared in the order of seeds."""
    if not path.is_file():
        raise ConfigurationError(f"curves {path} do not exist; name a CSV file")
    runs = [run for run in read_runs([path]) if run.series]
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
    usable = [*PREFERRED, *(known if len(known) == 1 else ())]
    if wanted:
        usable = [wanted, translated(wanted)]
    found = next((name for name in usable if name in known), None)
    if found is None:
        asked = f"no metric '{wanted}'" if wanted else "several metrics (choose with --metric)"
        raise ConfigurationError(f"{what} have {asked}; they have {', '.join(known)[:300]}")
    if is_better_lower(found):
        raise ConfigurationError(
            f"the metric '{found}' is better where it is lower; give one that is better where it "
            "is higher, or change its sign and name"
        )
    return found


def _run(log: Log, names: str | None, path: Path) -> Run:
    stated, owner, (arm, seed) = _stated(log.name, names), log.owner, arm_and_seed(log.name)
    named = stated.get("seed", owner.seed)
    curves, lost = _curves(log)
    return Run(
        arm=stated.get("arm") or owner.arm or arm or _above(log.name, path),
        seed=seed if named is None else _whole(named, log.name),
        status="finished",
        series=curves,
        group=stated.get("group", owner.group),
        lost=lost,
    )


def _curves(log: Log) -> tuple[dict[str, Series], frozenset[str]]:
    """The curves without what is not finite; and those that are NaN or -inf to their end, which end
    lowest there. NaN between values stands for what was not logged, so that an end counts only if
    it is longer than all other such stretches."""
    curves: dict[str, Series] = {}
    missing: dict[str, list[float]] = {}
    longest: Counter[str] = Counter()
    for row in log.rows:
        at = row["step"] if row.get("grpo_step") is None else row["grpo_step"]
        for metric, value in row.items():
            if metric == "step" or value is None:
                continue
            if math.isfinite(value):
                series = curves.setdefault(metric, Series())
                series.steps.append(at)
                series.values.append(value)
                longest[metric] = max(longest[metric], len(missing.pop(metric, ())))
            elif value != math.inf:
                missing.setdefault(metric, []).append(at)
    lost = [name for name in curves if len(missing.get(name, ())) > longest[name]]
    for name in lost:  # as of a run of our own with NaN weights
        curves[name].steps.append(missing[name][0])
        curves[name].values.append(min(0.0, *curves[name].values))
    return curves, frozenset(lost)


def _above(name: str, path: Path) -> str:
    """The arm of runs that are named by their seeds alone, as in `grpo/seed_0`: what holds them."""
    *above, last = [part for part in path.absolute().parts if not INNER.fullmatch(part)]
    if path.name in RUN_FILES or (above and path.is_file() and above[-1] == name):
        *above, last = above
    if above and last == name:
        return above[-1]
    return Path(last).stem if path.is_file() else last


def _whole(seed: str, name: str) -> int:
    with suppress(ValueError):
        if float(seed).is_integer():
            return int(float(seed))
    raise ConfigurationError(f"run '{name}': seed is '{seed}'; it takes a whole number")


def _stated(name: str, names: str | None) -> dict[str, str]:
    if names is None:
        return {}
    what, such_as = f"--names '{names}'", "such as '(?P<arm>.+)_(?P<seed>[0-9]+)'"
    try:
        found = re.fullmatch(names, name)
    except re.error as error:
        wrong = f"{what} is not a regular expression ({error}); {such_as}"
        raise ConfigurationError(wrong) from error
    if found is None or "arm" not in found.groupdict():
        raise ConfigurationError(
            f"{what} finds no arm in the name '{name}'; it has to match every name, {such_as}"
        )
    return {role: text for role, text in found.groupdict().items() if text}
