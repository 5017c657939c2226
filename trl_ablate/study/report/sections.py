"""The tables of a report (arms, comparisons, settings), and the background of its numbers:
warnings, sample responses, machines and commands.
"""

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median, stdev
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.run.directory import RunDirectory
from trl_ablate.run.json_files import read_jsonl
from trl_ablate.study.planned import Plan, setting
from trl_ablate.study.report.analysis import STATISTICS, Analysis, ArmResult
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Block, Code, Columns, Items, Section, Text, table
from trl_ablate.study.report.numbers import (
    MIXED,
    NOTHING,
    difference,
    interval,
    number,
    p_value,
    within,
)
from trl_ablate.study.report.stats import ALPHA, t_interval
from trl_ablate.study.report.verdicts import difference_of
from trl_ablate.study.two_part import TwoPart, clopper_pearson
from trl_ablate.switches import named

LOOKS_NOTE = (
    "Differences are paired by seed, over the seeds of the look that decides; the intervals cover "
    "with 95 % over all looks and comparisons together, whenever a study ends; that of an "
    "equivalent arm is of the two one-sided tests, and covers with less. Each look is a "
    "paired t test at a lower level (nominal), computed for these looks; 'leans on' names what the "
    "verdict assumes."
)
COMPARISON_NOTE = (
    "Differences are paired by seed, with 95 % t intervals of their own; verdicts rest on the "
    "p-values of the paired t test with Holm's correction over all comparisons of the study, so "
    "an interval may miss 0 where the verdict is still 'not distinguishable'."
)
TWO_PART_NOTE = (
    "Runs are not paired. A run succeeds if it reaches the threshold: half of what the median run "
    "of the reference gains over the base, or the one that the study states. 'Succeed' has exact "
    "95 % intervals, 'p of the shares' is Fisher's. The difference is that of the mean over the "
    "runs that succeed (Welch), with no variance below that of one run's evaluation, where it "
    "logs its error (`reward`; not pass@k); its interval covers with 95 % over all comparisons and "
    "looks together (of an equivalent arm: that of the two one-sided tests). 'p' is corrected for "
    "the parts and the looks, not for the comparisons; verdicts are corrected for them, too "
    "(Bonferroni). The difference over all runs, those that fail too, has its own 95 % interval; "
    "no verdict rests on it."
)
MIXED_NOTE = (
    " † Some seeds of an arm collapsed or never learned and others did not (named in the answer): "
    "the interval assumes one bell-shaped population and is misleading there."
)
ARMS_NOTE = (
    "Mean ± half the 95 % t interval over seeds. The mean over training is the area under the "
    "curve divided by its length; a run that was stopped keeps its last value to the planned end."
)

SAMPLE_CHARACTERS = 700
IN_A_CHECKOUT = Path("recipes")
"""Where a checkout has the shipped recipes and studies."""


def arms_table(analysis: Analysis) -> Section:
    columns: Columns = [
        ("arm", lambda arm: arm.name),
        ("runs", lambda arm: arm.outcome()),
        *(
            (f"{STATISTICS[s]} {analysis.metric}",
             lambda arm, s=s: interval(arm.intervals[s]) + MIXED * arm.is_mixed)
            for s in analysis.comparisons
        ),
    ]  # fmt: skip
    note = ARMS_NOTE + MIXED_NOTE * any(arm.is_mixed for arm in analysis.arms)
    return table("Arms, best first", analysis.ranked(), columns, note, 2)


def comparisons_table(analysis: Analysis) -> Section:
    looks, decides = analysis.looks, analysis.decide_on
    columns: Columns = [
        ("arm", lambda c: c.arm),
        ("against", lambda c: analysis.reference_of(c.arm).name),
        ("verdict", lambda c: c.verdict),
        (f"{STATISTICS[decides]}: difference", lambda c: difference_of(c, analysis)),
        ("pairs", lambda c: str(c.difference.n)) if looks
        else ("p", lambda c: p_value(c.p_corrected)),
        *(
            (f"{STATISTICS[s]}: difference", lambda c, of=of: difference_of(of[c.arm], analysis))
            for s, of in analysis.comparisons.items() if s != decides
        ),
        ("leans on", lambda c: c.leans_on),
    ]  # fmt: skip
    title = "Comparisons" if analysis.against else f"Against {analysis.reference.name}"
    note = LOOKS_NOTE if looks else COMPARISON_NOTE
    note += MIXED_NOTE * any(arm.is_mixed for arm in analysis.arms)
    return table(title, analysis.decisive.values(), columns, note, 3)


def two_part_arms_table(analysis: Analysis) -> Section:
    """Every arm over all its runs, by the threshold of the largest look with its reference."""
    looks = [c for c in analysis.decisive.values() if c.two_part and c.two_part.shares]
    if not looks:
        return Section("Arms")
    limits: dict[str, float] = {}
    for c in sorted(looks, key=lambda c: -c.n):
        limits.setdefault(analysis.reference_of(c.arm).name, c.two_part.threshold or 0.0)
    first = limits.get(analysis.reference.name, [*limits.values()][0])

    def limit(arm: ArmResult) -> float:
        return limits.get(analysis.reference_of(arm.name).name, first)

    def values(arm: ArmResult, least: float = -math.inf) -> list[float]:
        return [x for x in arm.values(analysis.decide_on) if x is not None and x >= least]

    def spread(arm: ArmResult) -> str:
        good = values(arm, limit(arm))
        return number(stdev(good) if len(good) > 1 else None)

    columns: Columns = [
        ("arm", lambda arm: arm.name),
        ("runs", lambda arm: arm.outcome()),
        ("succeed", lambda arm: _share(len(values(arm, limit(arm))), len(values(arm)))),
        ("mean where runs succeed", lambda arm: interval(t_interval(values(arm, limit(arm))))),
        ("sd of these", spread),
        ("median of all runs", lambda arm: number(median(values(arm)) if values(arm) else None)),
    ]
    others = "".join(f", and against {name} from {number(of)} on" for name, of in limits.items()
                     if number(of) != number(first))  # fmt: skip
    note = f"A run succeeds from {number(first)} on{others}. Mean ± half its own 95 % t interval."
    return table("Arms, best first", analysis.ranked(), columns, note, 2)


def _share(k: int, n: int) -> str:
    low, high = clopper_pearson(k, n) if n else (0.0, 1.0)
    return f"{k} of {n} [{low:.2f}, {high:.2f}]"


def successes_table(analysis: Analysis) -> Section:
    found = analysis.decisive.values()
    looks = {c.arm: c.two_part for c in found if c.two_part and c.two_part.shares}

    def all_runs(look: TwoPart | None) -> str:
        means = look and look.everyone
        return within(means.difference, *means.interval(ALPHA)) if means else NOTHING

    columns: Columns = [
        ("arm", lambda c: c.arm),
        ("against", lambda c: analysis.reference_of(c.arm).name),
        ("verdict", lambda c: c.verdict),
        ("threshold", lambda c: number(c.two_part and c.two_part.threshold)),
        ("succeed", lambda c: _share(*looks[c.arm].shares.arm) if c.arm in looks else NOTHING),
        ("of the reference",
         lambda c: _share(*looks[c.arm].shares.reference) if c.arm in looks else NOTHING),
        ("p of the shares", lambda c: p_value(looks[c.arm].shares.p if c.arm in looks else None)),
        ("difference where runs succeed", lambda c: difference(c.difference)),
        ("p", lambda c: p_value(c.p)),
        ("difference over all runs", lambda c: all_runs(looks.get(c.arm))),
    ]  # fmt: skip
    return table("Comparisons", found, columns, TWO_PART_NOTE, 3)


def differences_table(plan: Plan) -> Section:
    """The keys that any arm declares, and each arm's values; a star marks a declared value."""
    columns: Columns = [
        ("arm", lambda arm: arm.name),
        ("recipe", lambda arm: arm.recipe),
        *(
            (key, lambda arm, key=key: setting(arm.values.get(key), key in arm.declared))
            for key in sorted({key for arm in plan.arms for key in arm.declared})
        ),
    ]
    proof = (
        f"Starred values are declared by the arm. {plan.base} with an arm's declared keys resolves "
        f"to that arm exactly, in all {plan.compared} settings: nothing else differs. Values are "
        "final, after the profile's scaling."
    )
    return table("What differs", plan.arms, columns, proof, 2)


def samples(analysis: Analysis) -> Section:
    """For each arm, one rewarded and one unrewarded response from the last rollouts of a run."""
    blocks: list[Block] = []
    for arm in analysis.arms:
        for file, rows in filter(None, map(_last_rollouts, arm.runs)):
            ordered = sorted(rows, key=_reward)
            for kind, row in (("highest", ordered[-1]), ("lowest", ordered[0])):
                at = file.stem.replace("_", " ")
                title = f"{arm.name}, {at}, {kind} reward: {row.get('reward')}"
                blocks.append(Code(_sample(row), title))
            break
    return Section("Samples", blocks)


def _last_rollouts(run: Run) -> tuple[Path, list[dict[str, Any]]] | None:
    written = RunDirectory(run.directory).rollout_files() if run.directory else []
    files = sorted(filter(Path.is_file, written))
    try:
        rows = list(read_jsonl(files[-1])) if files else []
    except ConfigurationError:  # samples are an illustration; another run of the arm may have some
        return None
    return (files[-1], rows) if rows else None


def _reward(row: dict[str, Any]) -> float:
    reward = row.get("reward")
    return reward if isinstance(reward, (int, float)) and math.isfinite(reward) else 0.0


def _sample(row: dict[str, Any]) -> str:
    names = [key for key in ("prompt", "response", "ground_truth") if row.get(key) is not None]
    return "\n\n".join(f"[{name.replace('_', ' ')}]\n{_shortened(row[name])}" for name in names)


def _shortened(value: Any) -> str:
    """Both ends of a long text: a prompt ends with the question, a response with the answer."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) <= SAMPLE_CHARACTERS:
        return text
    half = SAMPLE_CHARACTERS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"


def environment(runs: Sequence[Run]) -> Section:
    """Versions, machines and commits of the runs; if they differ, how many runs have each."""
    records = [run.record for run in runs if run.record]
    found = {"commit": _counted(map(_commit, records))}
    for name, key in (("python", "python"), ("CPUs", "cpus"), ("GPU", "gpu")):
        found[name] = _counted(record.get(key) for record in records)
    versions = [of for record in records if isinstance(of := record.get("versions"), dict)]
    for name in sorted({name for of in versions for name in of}):
        found[name] = _counted(of.get(name) for of in versions)
    known = [each for each in found.items() if each[1]]
    return table("Environment", known, [("", itemgetter(0)), ("", itemgetter(1))], numbers_from=2)


def commands(plan: Plan, study: Path) -> Section:
    """The commands that repeat the study, and each arm alone."""
    shown = shortest(study)
    lines = [f"trl-ablate study {word} {shown}" for word in ("plan", "run", "report")]
    singles = []
    for arm in plan.arms:
        recipe, *rest = arm.runs[0].words
        singles.append(shlex.join(["trl-ablate", "train", shortest(Path(recipe)), *rest]))
    alone = Text("One run of each arm by itself:")
    return Section("Commands", [Code("\n".join(lines)), alone, Code("\n".join(singles))])


def shortest(path: Path) -> str:
    """A file's path for a command that runs in a checkout. It shows nothing of the machine.

    A shipped file has its path in the checkout, also that of another checkout: a plan keeps the
    paths of the one that made it. Any other file is relative to the current folder; outside of it,
    only the name is given.
    """
    path = path.resolve()
    relative = os.path.relpath(path)
    if not path.is_relative_to(SHIPPED) and not relative.startswith(".."):
        return relative
    roots = [folder for folder in path.parents if folder.name in (IN_A_CHECKOUT.name, SHIPPED.name)]
    tails = [path.relative_to(root) for root in roots]
    return next(
        (str(IN_A_CHECKOUT / tail) for tail in tails if (SHIPPED / tail).is_file()), path.name
    )


def seeds_answer(plan: Plan) -> Section:
    paragraphs = (" ".join(part.split()) for part in plan.seeds_answer.split("\n\n"))
    return Section("What was found before", [Text(words) for words in paragraphs if words])


def warnings(plan: Plan, runs: Sequence[Run]) -> Section:
    found = [f"{arm.name}: {warning}" for arm in plan.arms for warning in arm.warnings]
    found += different_starts(plan, runs)
    return Section("Warnings", [Items(found)] if found else [])


def different_starts(plan: Plan, runs: Sequence[Run]) -> list[str]:
    """A sentence for each model of which runs began with different weights: a revision that moved,
    or a world's base that each machine has taught itself."""
    choosing = ("model_name_or_path", "start", *named("weights"), "dtype")
    of_arm = {arm.name: tuple(arm.values.get(key) for key in choosing) for arm in plan.arms}
    weights: dict[tuple[Any, ...], list[Any]] = {}
    for run in runs:
        if run.arm in of_arm and run.record.get("start_weights"):
            weights.setdefault(of_arm[run.arm], []).append(str(run.record["start_weights"]))
    return [
        f"runs that start from {name} (start {start}) began with different weights: "
        f"{_counted(found)}; a difference between their arms may be one between the weights"
        for (name, start, *_), found in weights.items()
        if len(set(found)) > 1
    ]


def _commit(record: Mapping[str, Any]) -> str | None:
    git = record.get("git")
    if not isinstance(git, dict) or not git.get("commit"):
        return None
    return str(git["commit"])[:10] + (" with uncommitted changes" if git.get("diff") else "")


def _counted(values: Iterable[Any]) -> str:
    counted = Counter(str(value) for value in values if value is not None)
    if len(counted) <= 1:
        return next(iter(counted), "")
    return ", ".join(f"{value} ({count} runs)" for value, count in counted.most_common())
