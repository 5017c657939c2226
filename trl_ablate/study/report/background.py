"""The background of a report's numbers: sample responses, machines and commands."""

import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trl_ablate.errors import ConfigurationError
from trl_ablate.recipe.places import SHIPPED
from trl_ablate.roles import named
from trl_ablate.run.json_files import read_jsonl
from trl_ablate.study.planned import Plan
from trl_ablate.study.report.analysis import Analysis
from trl_ablate.study.report.curves import Run
from trl_ablate.study.report.document import Block, Code, Grid, Items, Section, Text

SAMPLE_CHARACTERS = 700
_OF_A_STEP = re.compile(r"step_[0-9]+\.jsonl")
"""What a run writes; a person's own file beside it is left alone."""
IN_A_CHECKOUT = Path("recipes")
"""Where a checkout has the shipped recipes and studies."""


def samples(analysis: Analysis) -> Section | None:
    """For each arm, one rewarded and one unrewarded response from the last rollouts of a run."""
    blocks: list[Block] = []
    for arm in analysis.arms:
        found = next((rows for run in arm.runs if (rows := _last_rollouts(run))), None)
        if not found:
            continue
        step, rows = found
        ordered = sorted(rows, key=_reward)
        for kind, row in (("highest", ordered[-1]), ("lowest", ordered[0])):
            title = f"{arm.name}, {step}, {kind} reward: {row.get('reward')}"
            blocks.append(Code(_sample(row), title))
    return Section("Samples", blocks) if blocks else None


def _last_rollouts(run: Run) -> tuple[str, list[dict[str, Any]]] | None:
    if run.directory is None:
        return None
    files = [
        file
        for file in sorted((run.directory / "rollouts").glob("step_*.jsonl"))
        if _OF_A_STEP.fullmatch(file.name) and file.is_file()
    ]
    try:
        rows = list(read_jsonl(files[-1])) if files else []
    except ConfigurationError:  # samples are an illustration; another run of the arm may have some
        return None
    return (files[-1].stem.replace("_", " "), rows) if rows else None


def _reward(row: dict[str, Any]) -> float:
    reward = row.get("reward")
    return reward if isinstance(reward, (int, float)) and math.isfinite(reward) else 0.0


def _sample(row: dict[str, Any]) -> str:
    parts = [("prompt", row.get("prompt")), ("response", row.get("response"))]
    parts.append(("ground truth", row.get("ground_truth")))
    return "\n\n".join(
        f"[{name}]\n{_shortened(value)}" for name, value in parts if value is not None
    )


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
    rows = [
        ["commit", _counted(_commit(record) for record in records)],
        ["python", _counted(record.get("python") for record in records)],
        ["CPUs", _counted(record.get("cpus") for record in records)],
        ["GPU", _counted(record.get("gpu") for record in records)],
    ]
    versions = [found for r in records if isinstance(found := r.get("versions"), dict)]
    packages = sorted({name for found in versions for name in found})
    rows += [[name, _counted(found.get(name) for found in versions)] for name in packages]
    known = [row for row in rows if row[1]]
    return Section("Environment", [Grid(["", ""], known, numbers_from=2)] if known else [])


def commands(plan: Plan, study: Path) -> Section:
    """The commands that repeat the study, and each arm alone."""
    shown = shortest(study)
    lines = [f"trl-ablate study {word} {shown}" for word in ("plan", "run", "report")]
    singles = [_single(arm.runs[0].words) for arm in plan.arms]
    return Section(
        "Commands",
        [Code("\n".join(lines)), Text("One run of each arm by itself:"), Code("\n".join(singles))],
    )


def _single(words: Sequence[str]) -> str:
    recipe, *rest = words
    return shlex.join(["trl-ablate", "train", shortest(Path(recipe)), *rest])


def shortest(path: Path) -> str:
    """A file's path for a command that runs in a checkout. It shows nothing of the machine.

    A shipped file has its path in the checkout. Any other file is relative to the current folder;
    outside of it, only the name is given.
    """
    path = path.resolve()
    if path.is_relative_to(SHIPPED):
        return str(IN_A_CHECKOUT / path.relative_to(SHIPPED))
    relative = os.path.relpath(path)
    if not relative.startswith(".."):
        return relative
    return _in_another_checkout(path) or path.name


def _in_another_checkout(path: Path) -> str | None:
    """The path of a shipped file that lies in another checkout or installed package: a plan keeps
    the paths of the checkout that made it."""
    roots = [folder for folder in path.parents if folder.name in (IN_A_CHECKOUT.name, SHIPPED.name)]
    tails = [path.relative_to(root) for root in roots]
    return next((str(IN_A_CHECKOUT / tail) for tail in tails if (SHIPPED / tail).is_file()), None)


def seeds_answer(plan: Plan) -> Section | None:
    if not plan.seeds_answer.strip():
        return None
    paragraphs = plan.seeds_answer.strip().split("\n\n")
    return Section("What was found before", [Text(" ".join(part.split())) for part in paragraphs])


def warnings(plan: Plan, runs: Sequence[Run]) -> Section | None:
    said = [f"{arm.name}: {warning}" for arm in plan.arms for warning in arm.warnings]
    said += different_starts(plan, runs)
    return Section("Warnings", [Items(said)]) if said else None


def different_starts(plan: Plan, runs: Sequence[Run]) -> list[str]:
    """A sentence for each model of which runs began with different weights: a revision that moved,
    or a world's base that each machine has taught itself."""
    choosing = (*named("weights"), "dtype")
    of_arm = {arm.name: tuple(arm.values.get(key) for key in choosing) for arm in plan.arms}
    weights: dict[tuple[Any, ...], list[Any]] = {}
    for run in runs:
        if run.arm in of_arm and run.record.get("start_weights"):
            weights.setdefault(of_arm[run.arm], []).append(run.record["start_weights"])
    return [
        f"runs that start from {name} (start {start}) began with different weights: "
        f"{_counted(found)}; a difference between their arms may be one between the weights"
        for (name, start, *_), found in weights.items()
        if len(set(found)) > 1
    ]


def _commit(record: Any) -> str | None:
    git = record.get("git")
    if not isinstance(git, dict) or not git.get("commit"):
        return None
    return str(git["commit"])[:10] + (" with uncommitted changes" if git.get("diff") else "")


def _counted(values: Iterable[Any]) -> str:
    counted = Counter(str(value) for value in values if value is not None)
    if len(counted) <= 1:
        return next(iter(counted), "")
    return ", ".join(f"{value} ({count} runs)" for value, count in counted.most_common())
