"""Draw why a setting acts, from the styles of answers over a training.

The picture has the share of each style of answers, its mean reward against its length, and the
weight of short and long answers in the loss, run beside run. Worlds of the miniature log styles;
elsewhere all answers are one.

examples:
  trl-ablate mechanism runs/grpo-seed0 runs/no_baseline-seed0 --out mechanism.png
  trl-ablate mechanism 'no baseline=runs/no_baseline-seed0'
"""

import argparse
import os
from collections import Counter
from pathlib import Path

from trl_ablate.cli.parsing import check_picture, command, option
from trl_ablate.cli.terminal import console
from trl_ablate.errors import ConfigurationError


@command(
    option("runs", metavar="RUN", nargs="+", help="a run's folder, or TITLE=FOLDER"),
    option(
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("mechanism.png"),
        help="picture to write; default: mechanism.png",
    ),
)
def main(options: argparse.Namespace) -> None:
    from trl_ablate.run.directory import RunDirectory
    from trl_ablate.study.report.answer_styles import draw_mechanism

    check_picture("--out", options.out)
    rows, titled = {}, [title_and_folder(given) for given in options.runs]
    titles = Counter(title for title, _ in titled)
    for title, folder in titled:
        directory = RunDirectory(folder)
        if not directory.metrics_file.is_file():
            raise ConfigurationError(f"{folder} holds no metrics.jsonl; give a run's folder")
        rows[title if titles[title] == 1 else str(folder)] = list(directory.metrics())
    options.out.write_bytes(draw_mechanism(rows))
    console.print(str(options.out))


def title_and_folder(given: str) -> tuple[str, Path]:
    """Those of a RUN. Both may contain `=`: the folder is the longest end that is one."""
    words = given.split("=")
    ends = ["=".join(words[start:]) for start in range(len(words))]
    end = next(filter(os.path.isdir, ends), ends[-1])
    return given[: -len(end)].removesuffix("=") or Path(os.path.abspath(end)).name, Path(end)
