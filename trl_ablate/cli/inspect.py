"""Run the guard's rules over the log of any GRPO run, trained with this package or not.

Print what the rules find in it, at which step and why, with what to try and the curves. Where
completions were saved (rollouts/ here, or completions/ with TRL's log_completions), it shows those
that a rule is about.

PATH is transformers' trainer_state.json, a metrics.jsonl, a trackio project (its .db file or its
name), a CSV export of W&B or TensorBoard, or a folder with one of these. Actions and thresholds of
rules are given as --guard_SETTING value; trl_ablate/guard/README.md lists them.

examples:
  trl-ablate inspect runs/grpo-seed0
  trl-ablate inspect output/checkpoint-200/trainer_state.json --picture curves.png
  trl-ablate inspect my_project --run grpo-1 --guard_reward_factor 3
"""

import math
import typing
from argparse import SUPPRESS, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from trl_ablate.cli.ending import DONE, FAILED
from trl_ablate.cli.parsing import check_picture, command, flag, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError, nearest
from trl_ablate.guard.arguments import GuardArguments
from trl_ablate.guard.logs import Log, read_logs
from trl_ablate.guard.remedies import evidence, verdict
from trl_ablate.guard.replaying import Replay, replay
from trl_ablate.metrics import ENTROPY, EVAL_REWARD, GRAD_NORM, LENGTH, REWARD
from trl_ablate.recipe.strict import check_value, parse_yaml

CURVES = (REWARD, EVAL_REWARD, GRAD_NORM, LENGTH, ENTROPY)
HINTS = typing.get_type_hints(GuardArguments)
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60


def thresholds(options: Namespace) -> GuardArguments:
    given = {name: text for name, text in vars(options).items() if name in HINTS}
    read = {}
    for name, text in given.items():
        try:
            value = parse_yaml(text)
        except ValueError:
            value = text  # which is none of the values that it takes
        read[name] = check_value(f"--{name}", value, HINTS[name])
    return GuardArguments(**read)


@command(
    option("path", metavar="PATH", help="log of a run"),
    option("--run", help="name of one run, if the log has several; default: all"),
    option("--picture", type=Path, help="PNG file to draw the curves of one run into"),
    flag("--overwrite", "replace the PNG file"),
    *[option(f"--{name}", default=SUPPRESS, help=SUPPRESS) for name in HINTS],
    codes={0: "no rule fired", 1: "a rule fired"},
)
def main(options: Namespace) -> int:
    arguments = thresholds(options)
    logs = read_logs(options.path)
    names = [log.name for log in logs]
    logs = [log for log in logs if not options.run or log.name == options.run]
    if not logs:
        raise ConfigurationError(
            f"--run is '{options.run}', but the log has the runs {', '.join(names)[:300]}"
            f"{nearest(options.run, names)}"
        )
    check_drawn(options, logs)
    places = [Path(options.path, logs[0].name), Path(options.path)] if len(logs) == 1 else []
    beside = next(filter(Path.exists, places), None)
    fired = [show(log, replay(log.rows, arguments), beside) for log in logs]
    if options.picture is not None:
        draw(logs[0], fired[0], options.picture)
    return FAILED if any(one.alerts for one in fired) else DONE


def check_drawn(options: Namespace, logs: list[Log]) -> None:
    file: Path | None = options.picture
    if file is None:
        return
    check_picture("--picture", file)
    if len(logs) > 1:
        raise ConfigurationError(
            f"--picture draws one run, but the log has {len(logs)}; choose one with --run"
        )
    if file.exists() and not options.overwrite:
        raise ConfigurationError(
            f"--picture {file} exists already; give another name, or --overwrite"
        )


def show(log: Log, found: Replay, beside: Path | None = None) -> Replay:
    """Print a log, and what was found in it; completions are looked for beside a file."""
    steps = [row["step"] for row in log.rows]
    console.print(
        f"{log.name}: {len(steps)} logged steps, from {steps[0]} to {steps[-1]}", style="bold"
    )
    for metric in CURVES:
        values = [row[metric] for row in log.rows if row.get(metric) is not None]
        if values:
            known = [value for value in values if not math.isnan(value)] or values
            console.print(
                f"  {metric}: first {values[0]:.3g}, last {values[-1]:.3g}, lowest "
                f"{min(known):.3g}, highest {max(known):.3g}\n  {bars(values)}"
            )
    shown = partial(evidence, path=beside) if beside else lambda alert: ()
    for sentence in verdict(log.rows, found, shown):
        console.print(f"  {sentence}")
    return found


def bars(values: Sequence[float]) -> str:
    """The curve as a line of blocks: each is the mean of its part of the values."""
    parts = min(WIDTH, len(values))
    bounds = [len(values) * part // parts for part in range(parts + 1)]
    spans = zip(bounds, bounds[1:], strict=False)
    means = [sum(values[start:end]) / (end - start) for start, end in spans]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(
        BARS[round((mean - low) * scale)] if math.isfinite(mean) else "!" for mean in means
    )


def draw(log: Log, found: Replay, file: Path) -> None:
    from trl_ablate.run.picture import draw_curves

    counts = all(row.get("grpo_step") is not None for row in log.rows)
    rows = log.rows if counts else [{**row, "grpo_step": row["step"]} for row in log.rows]
    at = {row["step"]: row["grpo_step"] for row in rows}
    unit = "GRPO steps" if counts else "optimizer steps"
    fired = {at[alert.step]: alert.rule for alert in reversed(found.alerts)}
    picture = draw_curves(rows, unit=unit, marks=fired)
    if picture is None:
        raise ConfigurationError("--picture: the log has no reward to draw; leave the option out")
    file.write_bytes(picture)
    console.print(f"  curves: {file}")
