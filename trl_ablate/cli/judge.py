"""Judge runs that anybody trained, from whatever they logged.

Per arm: how many runs succeed, how well those end, whether that differs from a reference, and about
how many runs would decide the rest. A higher outcome is better. Runs of several groups are judged
apart, then pooled.

FILE is a table (CSV, TSV, JSONL) of curves or of final values, in long or wide form, an export of
W&B or TensorBoard, a trackio project, a trainer_state.json, a metrics.jsonl, a folder of runs.

examples:
  trl-ablate judge results.csv --reference standard
  trl-ablate judge wandb_export.csv --names '(?P<arm>.+)_(?P<seed>[0-9]+)' --out verdicts
  trl-ablate judge mine.csv theirs.csv --group file --metric accuracy --questions 1024 --json
"""

import argparse
import json
from pathlib import Path

from trl_ablate.cli.parsing import a_number, at_least, command, flag, option
from trl_ablate.cli.terminal import console, show_document


@command(
    option("files", metavar="FILE", nargs="+", help="logs or tables of runs"),
    option("--metric", help="metric that decides; default: the usual one that is there"),
    option("--reference", metavar="ARM", help="default: the first arm"),
    option("--arm", metavar="COLUMN", help="column of tables that has the arm"),
    option("--seed", metavar="COLUMN", help="column of tables that has the seed"),
    option("--group", metavar="COLUMN", help="column that has the group; 'file': a file each"),
    option("--names", metavar="REGEX", help="arm, seed and group in the runs' names"),
    option(
        "--base", type=a_number,
        help="outcome before training; default: that at step 0, or else 0",
    ),
    option(
        "--threshold", type=a_number,
        help="outcome from which on a run succeeds; default: the base and half of what the median "
        "run of the reference gains",
    ),
    option("--margin", type=float, help="difference within which arms are equivalent"),
    option(
        "--questions", type=at_least(1),
        help="questions of an evaluation, if the metric is a share",
    ),
    option("--out", metavar="FOLDER", type=Path, help="write the page and pictures here"),
    flag("--json", "print the numbers as JSON instead"),
)  # fmt: skip
def main(options: argparse.Namespace) -> None:
    from trl_ablate.errors import ConfigurationError, shortened
    from trl_ablate.study.report.foreign_runs import metric_of, read_runs
    from trl_ablate.study.report.judged_arms import Rules, judge_runs
    from trl_ablate.study.report.judged_page import judged_document, judged_numbers
    from trl_ablate.study.verdict import check_margin

    if options.out and options.out.exists() and not options.out.is_dir():
        raise ConfigurationError(f"--out {options.out} is a file; name a folder")
    if options.margin is not None:
        check_margin(options.margin, "--margin")
    columns = {role: name for role in ("arm", "seed", "group") if (name := getattr(options, role))}
    runs = read_runs(options.files, columns, options.names)
    metric = metric_of(
        runs, options.metric, f"the runs of {shortened(', '.join(options.files), 300)}"
    )
    rules = Rules(options.base, options.threshold, options.margin, options.questions)
    found = judge_runs(runs, metric, options.reference, rules)
    numbers = judged_numbers(found)
    if options.json:
        console.print(json.dumps(numbers, indent=2))
    document = judged_document(found, runs, options.files, pictures=options.out is not None)
    if not options.json:
        show_document(document)
    if options.out:
        from trl_ablate.study.report.making import write_files

        for path in write_files(document, numbers, options.out):
            console.print(str(path))
