"""Draw why a setting acts, from the styles of answers over a training.

The picture has the share of each style of answers, its mean reward against its length, and the
weight of short and long answers in the loss, run beside run. Worlds of the miniature log styles;
elsewhere all answers are one.

examples:
  trl-ablate mechanism runs/grpo-seed0 runs/no_baseline-seed0 --out mechanism.png
  trl-ablate mechanism 'no baseline=runs/no_baseline-seed0'
"""

import argparse
from pathlib import Path

from trl_ablate.cli.ending import DONE
from trl_ablate.cli.parsing import command, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError


@command(
    option("runs", metavar="RUN", nargs="+", help="a run's folder, or TITLE=FOLDER"),
    option(
        "--out", metavar="FILE", type=Path, default=Path("mechanism.png"), help="picture to write"
    ),
    stopped="the picture was not written",
)
def main(options: argparse.Namespace) -> int:
    from trl_ablate.run.directory import RunDirectory
    from trl_ablate.study.report.answer_styles import draw_mechanism

    rows = {}
    for given in options.runs:
        title, equals, folder = given.rpartition("=")
        directory = RunDirectory(Path(folder))
        if not directory.metrics_file.is_file():
            raise ConfigurationError(f"{folder} holds no metrics.jsonl; give a run's folder")
        rows[title if equals else directory.path.name] = list(directory.metrics())
    options.out.write_bytes(draw_mechanism(rows))
    console.print(str(options.out))
    return DONE
