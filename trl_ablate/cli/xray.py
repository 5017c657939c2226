"""Compare the gradients that arms take on the same rollouts, before any of them is run.

The rollouts are drawn by the reference; no weight is changed. It tells the same, a different
and an opposite update apart, not which is better.

ARMS are recipes, recipes with overrides (no_baseline+length_norm=constant), or one study. Settings
for all arms are given as --key value, as for `train`.

examples:
  trl-ablate xray chains
  trl-ablate xray grpo std_dev_off no_baseline --checkpoint runs/grpo-seed0/checkpoint-20
  trl-ablate xray grpo no_baseline+length_norm=constant --profile miniature --drift 8
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trl_ablate.cli.parsing import at_least, command, leading, option
from trl_ablate.cli.terminal import console

if TYPE_CHECKING:
    from trl_ablate.study.planned import Plan
    from trl_ablate.study.store import RunStore
    from trl_ablate.xray import Xray


OF_A_STEP = ("learning_rate", "lr_", "warmup_", "optim", "adam_", "weight_decay", "max_grad_norm")
"""How the settings begin that decide what step is taken with a gradient."""


def show_for_plan(study: Path, profile: str | None, planned: "Plan", store: "RunStore") -> None:
    """The X-ray of a study at its start, and the runs that it makes needless."""
    from trl_ablate.study.xray_file import xray_folder
    from trl_ablate.xray import xray

    output = xray_folder(store, planned.study)
    result = xray(study, profile=profile, output=output, say=console.print)
    for text in (result.summary(), *saved_runs(result, planned, store), f"written to {output}"):
        console.print(text)


def saved_runs(result: "Xray", plan: "Plan", store: "RunStore") -> Iterator[str]:
    """A line for each arm whose runs can be saved, and the total.

    The runs of an inert arm repeat those of the arm that it is compared with, if they have its
    seeds and all that differs is known to have no effect: the same gradient at one point, as of a
    KL penalty at its start, proves nothing about later ones. An arm that only rescales is named,
    too, if it takes the same steps, but its runs are kept in the count: what it does without Adam,
    or to clipping by norm, is not seen here.
    """
    from trl_ablate.switches import named

    saved, arms = 0, {arm.name: arm for arm in plan.arms}
    for arm in plan.arms:
        against = result.against.get(arm.name)
        if against not in arms or against == arm.name:
            continue
        words = {point.arms[arm.name].verdict.words for point in result.points}
        if not words <= {"inert", "only rescales"}:
            continue
        other, inert = arms[against], words == {"inert"}
        runs = sum(not store.state(run.id).done for run in arm.runs)
        differ = {key for key, value in arm.values.items() if value != other.values.get(key)}
        if inert:
            seeds, others = ([run.seed for run in each.runs] for each in (arm, other))
            same = seeds == others and differ <= arm.inert.keys()
        else:
            same = not any(key.startswith(OF_A_STEP) or key in named("length") for key in differ)
        points = [point.arms[name] for point in result.points for name in (arm.name, against)]
        if not same or any(each.steps != 1 for each in points):
            found = f"the same gradient as {against}{'' if inert else ' but for a factor'} here"
            yield f"{arm.name}: {found}; its {runs} runs may differ"
        elif inert:
            saved += runs
            yield f"{arm.name}: its {runs} runs repeat those of {against}; leave it out"
        else:
            yield (
                f"{arm.name}: its {runs} runs differ from {against} by a factor of the gradient "
                "alone, which Adam undoes; expect no difference"
            )
    total = sum(not store.state(run).done for run in plan.runs())
    yield f"{saved} of {total} runs to do can be saved"


def show_outcomes(options: argparse.Namespace) -> None:
    from trl_ablate.study.report.xray_outcomes import markdown, read_pairs, scatter

    output, pairs = options.output or Path("xray-outcomes"), read_pairs(options.outcomes)
    text = markdown(pairs)
    output.mkdir(parents=True, exist_ok=True)
    (output / "OUTCOMES.md").write_text(text, encoding="utf-8")
    (output / "outcomes.png").write_bytes(scatter(pairs))
    console.print(text)
    console.print(f"written to {output}: OUTCOMES.md, outcomes.png")


def folder_for(arm: str) -> Path:
    """Where the X-ray is written by default: `.` has the name of the current folder."""
    return Path(f"xray-{Path(arm.partition('+')[0]).resolve().name.removesuffix('.yaml')}")


@command(
    option("--profile", help="default: that of the study or the recipe, or `auto`"),
    option(
        "--checkpoint", metavar="FOLDER", type=Path, action="append", default=[],
        help="checkpoint-N of a run, several times for several; default: the reference's start",
    ),
    option("--reference", metavar="ARM", help="default: the first arm, or the study's own"),
    option(
        "--batches", type=at_least(1), default=8, help="rollout batches; default: 8"
    ),
    option(
        "--drift", type=int, default=0, metavar="K",
        help="also K optimizer steps of the reference away, where clipping shows",
    ),
    option(
        "--outcomes", metavar="XRAY.JSON=RUNS.CSV", nargs="+",
        help="instead: compare distances in X-rays with those in the outcomes of studies",
    ),
    option(
        "--rollouts", metavar="PATH", type=Path,
        help="rollouts to use: a folder of an earlier X-ray, or a run's rollouts/STEP.jsonl",
    ),
    option("--xray_seed", type=int, default=0, help="of questions and rollouts"),
    option(
        "--output", metavar="FOLDER", type=Path, help="default: xray-FIRST_ARM; continued from"
    ),
    stopped="the same command continues from what is stored",
    settings="ARMS [options] [--key value ...]",
)  # fmt: skip
def main(options: argparse.Namespace, words: list[str]) -> None:
    arms = leading(words)
    if options.outcomes:
        if arms or words:
            options.parser.error("--outcomes takes no arms and no settings")
        return show_outcomes(options)
    if not arms:
        options.parser.error("missing ARMS, which come first, such as grpo std_dev_off")
    from accelerate import PartialState

    from trl_ablate.xray import xray

    output = options.output or folder_for(arms[0])
    result = xray(
        arms,
        options.checkpoint,
        options.batches,
        drift=options.drift,
        reference=options.reference,
        profile=options.profile,
        overrides=words,
        seed=options.xray_seed,
        output=output,
        rollouts=options.rollouts,
        say=console.print,
    )
    if PartialState().is_main_process:
        console.print(result.summary())
        console.print(f"written to {output}: xray.json, XRAY.md, xray.png")
